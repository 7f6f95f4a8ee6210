import itertools
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from playhead.execution.arena import LARGE, PAGE, WORTH_RETURNING, Arena, FreeList, affordable
from playhead.execution.memory import Memory, Shelf

SIZE = 1 << 20


def pages_used(arena):
    """Bytes of the arena that lie in memory."""
    return os.fstat(arena.memory._handle).st_blocks * 512


class ArenaMachine(RuleBasedStateMachine):
    """Arrays are filled with a value of their own; nothing may ever change it."""

    def __init__(self):
        super().__init__()
        self.arena = Arena(SIZE)
        self.arrays = {}
        self.reserved = []
        self.next = 1

    def teardown(self):
        self.arrays.clear()
        self.arena.close()

    @rule(nbytes=st.one_of(st.integers(0, 300), st.integers(300, SIZE // 4), st.just(LARGE)))
    def take(self, nbytes):
        array = self.arena.empty((nbytes,), np.dtype(np.uint8))
        if array is None:
            return
        array[:] = self.next % 251
        self.arrays[self.next] = array
        self.next += 1

    @precondition(lambda self: self.arrays)
    @rule(data=st.data(), start=st.floats(0, 1), step=st.sampled_from([1, 2, -1]))
    def keep_only_a_view(self, data, start, step):
        number = data.draw(st.sampled_from(sorted(self.arrays)))
        array = self.arrays[number]
        self.arrays[number] = array[int(start * len(array)) :: step]

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def drop(self, data):
        del self.arrays[data.draw(st.sampled_from(sorted(self.arrays)))]

    @rule(nbytes=st.integers(1, SIZE // 8), kept=st.floats(0, 1))
    def reserve_and_keep_a_part(self, nbytes, kept):
        at = self.arena.reserve(nbytes)
        if at is None:
            return
        used = int(nbytes * kept) // 64 * 64
        if used:
            array = self.arena.array(at, used)
            array[:] = self.next % 251
            self.arrays[self.next] = array
            self.next += 1
        self.arena.release(at + used, nbytes - used)

    @invariant()
    def nothing_was_written_over(self):
        for number, array in self.arrays.items():
            assert (array == number % 251).all()

    @invariant()
    def gaps_are_apart_and_count_up(self):
        given = self.arena.given
        gaps = self.arena._free.gaps()
        for (at, nbytes), (following, _) in itertools.pairwise(gaps):
            assert at + nbytes < following
        assert (
            sum(nbytes for _, nbytes in gaps)
            == self.arena.size - given
            == self.arena.size - (self.arena.taken)
        )
        assert all(at % 64 == 0 and nbytes % 64 == 0 and nbytes > 0 for at, nbytes in gaps)


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_all_that_was_taken_and_put_back_is_one_gap_again(sizes, random):
    free = FreeList(1 << 14)
    taken = [(free.take(size * 64, 1), size * 64) for size in sizes]
    taken = [(at, nbytes) for at, nbytes in taken if at is not None]
    assert free.total == (1 << 14) - sum(nbytes for _, nbytes in taken)
    assert len({at for at, _ in taken}) == len(taken)
    random.shuffle(taken)
    for at, nbytes in taken:
        free.put(at, nbytes)
    assert free.gaps() == [(0, 1 << 14)]


def test_arrays_begin_at_multiples_of_64_and_large_ones_at_a_page():
    arena = Arena(SIZE)
    kept = [arena.empty(shape, np.dtype(np.int16)) for shape in [(3,), (1,), (5, 7), (LARGE,)]]
    assert [array.ctypes.data % 64 for array in kept] == [0, 0, 0, 0]
    assert kept[-1].ctypes.data % PAGE == 0
    assert all(array.flags.writeable and array.flags.c_contiguous for array in kept)


def test_a_region_is_free_when_the_last_view_is_gone():
    arena = Arena(SIZE)
    array = arena.empty((1000,), np.dtype(np.float32))
    views = [array[100:200].reshape(10, 10).T, memoryview(array)[3:]]
    del array
    assert arena.given > 0
    views.pop(0)
    assert arena.given > 0
    views.clear()
    assert arena.given == arena.taken == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning", "ignore:os.fork:RuntimeWarning"
)
def test_what_a_forked_child_inherits_never_changes():
    arena = Arena(SIZE)
    kept = arena.empty((1000,), np.dtype(np.int64))
    kept[...] = 7
    reading, writing = os.pipe()
    others = []
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.read(reading, 1)
            code = 0 if (kept == 7).all() else 2
        finally:
            os._exit(code)
    del kept
    while (other := arena.empty((1000,), np.dtype(np.int64))) is not None:
        other[...] = 8
        others.append(other)
    os.write(writing, b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_a_full_arena_says_so_and_has_room_again_later():
    arena = Arena(SIZE)
    kept = [arena.empty((SIZE // 4,), np.dtype(np.uint8)) for _ in range(4)]
    assert arena.reserve(1) is None
    assert arena.empty((1,), np.dtype(np.uint8)) is None
    kept.pop(1)
    assert arena.empty((SIZE // 4,), np.dtype(np.uint8)) is not None


def test_the_place_of_an_array_is_told_only_inside():
    arena = Arena(SIZE)
    first = arena.empty((10,), np.dtype(np.int64))
    second = arena.empty((10,), np.dtype(np.int64))
    assert arena.place(second) - arena.place(first) == 128
    assert arena.place(second[::-1]) == arena.place(second) + 72
    assert arena.place(np.zeros(3)) is None
    assert arena.place(first[:0]) is None


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="pages are given back on Linux")
def test_memory_that_nobody_keeps_goes_back_to_the_system(monkeypatch):
    monkeypatch.setattr("playhead.execution.arena.IDLE", 0)
    arena = Arena(8 * WORTH_RETURNING)
    arena.empty((4 * WORTH_RETURNING,), np.dtype(np.uint8))[:] = 1
    kept = arena.empty((WORTH_RETURNING // 2,), np.dtype(np.uint8))
    kept[:] = 7
    assert arena.taken < WORTH_RETURNING
    assert pages_used(arena) <= WORTH_RETURNING
    assert (kept == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_arrays_outlive_the_arena_and_then_its_mapping_goes():
    arena = Arena(SIZE)
    array = arena.empty((500,), np.dtype(np.int32))
    array[:] = np.arange(500)
    handle = arena.memory._handle
    arena.close()
    assert arena.reserve(1) is None
    assert arena.empty((1,), np.dtype(np.int8)) is None
    assert array.sum() == 124750
    with pytest.raises(OSError):
        os.fstat(handle)
    begins = f"{arena._address:x}-"
    assert begins in Path("/proc/self/maps").read_text()
    del array
    assert begins not in Path("/proc/self/maps").read_text()
    assert arena.taken == 0


def test_what_lies_on_a_shelf_can_be_changed_without_anybody_else_seeing_it():
    numbers = np.arange(3000)
    fixed = np.arange(5)
    fixed.flags.writeable = False
    shelf = Shelf(b"head", [memoryview(numbers).cast("B"), memoryview(fixed).cast("B")])
    handle = os.dup(shelf.memory._handle)
    head, (first, second) = shelf.read()
    assert bytes(head) == b"head" and second.readonly and not first.readonly
    np.frombuffer(first, np.int64)[:] = -1
    again = Shelf.__new__(Shelf)
    again.head, again.parts = shelf.head, shelf.parts
    again.memory = Memory(shelf.memory.size, _handle=handle)
    _, (first_again, _) = again.read()
    assert (np.frombuffer(first_again, np.int64) == numbers).all()


def test_the_memory_asked_for_is_bounded_by_what_is_free():
    assert affordable(1 << 20) == 1 << 20
    assert affordable(1 << 60) < 1 << 50
