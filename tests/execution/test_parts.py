"""Batches read in parts: whatever the cut, the batches are those that one thread reads whole."""

import pickle
import threading
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import UnequalElements
from playhead.execution.ordered import Ordered
from playhead.execution.sheets import Sheet
from playhead.execution.threads import ThreadPool
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import Columns, Rows
from playhead.plan.compute import Pace
from playhead.testing import assert_resumes_exactly, difference

Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def _parts_of_one_element(monkeypatch):
    """Every function is found to be too slow for more than one element in a task."""
    monkeypatch.setattr(Pace, "SECONDS", 1e-9)
    monkeypatch.setattr(ThreadPool, "pace_seconds", 1e-9)


def numbers(n=23):
    return Dataset.range(n)


def rows(x):
    return np.full((2, 3), x, np.int16)


def nest(x):
    return {"a": x, "b": (float(x), Pair(rows(x), str(int(x))))}


def swapped(x):
    return {"a": x, "b": 1} if x % 2 else {"b": 1, "a": x}


PIPELINES = {
    "scalars": lambda: numbers().map(lambda x: x * 2).batch(5),
    "arrays": lambda: numbers().map(rows).batch(4),
    "nests": lambda: numbers().map(nest).batch(7),
    "python ints": lambda: numbers().map(lambda x: 3).batch(7),
    "objects": lambda: numbers().map(lambda x: None if x % 3 else {1, 2}).batch(6),
    "bytes": lambda: numbers().map(lambda x: bytes(int(x))).batch(6),
    "keys in another order": lambda: numbers().map(swapped).batch(4),
    "a batch that is the whole dataset": lambda: numbers().map(rows).batch(23),
    "a batch larger than the dataset": lambda: numbers().map(rows).batch(100),
    "no remainder": lambda: numbers().map(rows).batch(10, drop_remainder=True),
    "a map over batches": lambda: numbers().map(rows).batch(5).map(lambda b: b.sum(0)),
    "random maps below and above": lambda: (
        numbers()
        .map(lambda x, rng: x + rng.random(), rng=True, seed=1)
        .batch(5)
        .map(lambda b, rng: b * rng.random(), rng=True, seed=2)
    ),
    "numbered batches": lambda: numbers().map(rows).batch(5).enumerate(),
    "order above": lambda: numbers().map(rows).batch(3).shuffle(seed=1).skip(1).take(5).repeat(2),
    "repeat below": lambda: numbers(7).shuffle(seed=3).repeat(3).map(rows).batch(5),
    "batches of batches": lambda: numbers(24).map(rows).batch(3).batch(4),
    "padded": lambda: numbers(9).map(lambda x: np.arange(x)).padded_batch(4),
    "padded words": lambda: numbers(6).map(lambda x: f"s{int(x)}").padded_batch(3),
    "padded to a shape": lambda: numbers(9).map(lambda x: np.arange(x)).padded_batch(4, [12]),
    "padded and alike": lambda: numbers(9).map(rows).padded_batch(4, [None, 5]),
    "prefetch in between": lambda: numbers().map(rows).prefetch(2).batch(5),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_batches_cut_among_workers_are_those_of_one_thread(name):
    make = PIPELINES[name]
    expected = list(make())
    for workers, ahead in ((2, -1), (3, 1), (5, 4)):
        found = list(make().prefetch(ahead, workers=workers))
        assert difference(expected, found) is None


@pytest.mark.parametrize("name", ["nests", "random maps below and above", "padded"])
def test_batches_cut_among_workers_resume_exactly(name):
    assert_resumes_exactly(PIPELINES[name], workers=(0, 3))


def test_parts_of_one_batch_run_at_the_same_time():
    together = threading.Barrier(4, timeout=120)

    def meet(x):
        if x >= 8:  # the first batch shows how long an element takes
            together.wait()
        return x

    dataset = numbers(16).map(meet).batch(8).prefetch(1, workers=4)
    with dataset.iterator() as iterator:
        next(iterator)
        assert next(iterator).tolist() == list(range(8, 16))


@pytest.mark.parametrize(
    ("pace", "ahead", "tasks"), [(5, None, 1), (4, None, 2), (3, None, 2), (5, 8, 2)]
)
def test_a_part_is_below_the_pace_only_where_workers_would_have_nothing_to_do(pace, ahead, tasks):
    dataset = Dataset.range(8).map(lambda x: x).batch(8)
    pool = ThreadPool(2)
    compute, asked = Ordered(pool, ahead), []
    submit = pool.submit
    pool.submit = lambda job, sent: asked.append(sent) or submit(job, sent)
    compute.pace = lambda node: fixed_pace(pace)
    ((_, block),) = compute.read(dataset.node, [(0, 0, 1)])
    pool.close()
    assert len(asked) == tasks
    assert block.rows()[0].tolist() == list(range(8))


def fixed_pace(size):
    """A pace that nothing changes."""
    pace = Pace(size)
    pace.size = size
    pace.report = lambda count, seconds, nbytes=0: None
    return pace


@pytest.mark.parametrize("workers", [1, 3])
def test_elements_that_do_not_stack_are_named_as_without_parts(workers):
    def odd(x):
        return np.zeros(3 if x == 14 else 2)

    dataset = numbers().map(odd).batch(5)
    with dataset.prefetch(4, workers=workers).iterator() as iterator:
        for _ in range(2):
            assert next(iterator).shape == (5, 2)
        with pytest.raises(UnequalElements, match=r"element 0 .* float64\[2\], element 4 .*\[3\]"):
            next(iterator)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_in_a_part_comes_at_its_batch_and_nothing_of_later_ones_is_lost(workers):
    calls = []

    def fails_once(x):
        calls.append(int(x))
        if x == 13 and calls.count(13) == 1:
            raise KeyError("thirteen")
        return x

    dataset = numbers(20).map(fails_once).batch(5)
    with dataset.prefetch(4, workers=workers).iterator() as iterator:
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        with pytest.raises(KeyError, match="thirteen") as caught:
            next(iterator)
        assert any("range[13]" in note for note in caught.value.__notes__)
        assert [b.tolist() for b in iterator] == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


def test_each_batch_has_memory_of_its_own():
    dataset = numbers(40).map(lambda x: np.full(64, x, np.float32)).batch(8).prefetch(4, workers=3)
    kept = list(dataset)
    for number, batch in enumerate(kept, 1):
        assert batch.ctypes.data % 64 == 0 and batch.flags.writeable
        batch[...] = -number
    assert [np.unique(batch).tolist() for batch in kept] == [[-1], [-2], [-3], [-4], [-5]]


def test_cheap_batches_go_several_to_a_task(monkeypatch):
    monkeypatch.setattr(ThreadPool, "pace_seconds", 10.0)
    tasks, submit = [], ThreadPool.submit

    def counted(pool, job, sent):
        tasks.append(job)
        return submit(pool, job, sent)

    monkeypatch.setattr(ThreadPool, "submit", counted)
    dataset = numbers(4096).map(lambda x: x).batch(4).prefetch(1024, workers=2)
    assert sum(len(batch) for batch in dataset) == 4096
    assert len(tasks) < 64


# Sheets


def private(shape, dtype):
    return aligned_empty(shape, dtype)


ELEMENTS = {
    "ints": [np.int32(k) for k in range(12)],
    "floats": [np.float32(k) for k in range(12)],
    "rows": [np.full(3, k, np.int8) for k in range(12)],
    "long rows": [np.full(4, k, np.int8) for k in range(12)],
    "words": [str(k) for k in range(12)],
    "bytes": [str(k).encode() for k in range(12)],
    "objects": [None if k % 2 else [k] for k in range(12)],
    "dicts": [{"x": np.int32(k), "y": "s"} for k in range(12)],
    "other dicts": [{"y": "s", "x": np.int32(k)} for k in range(12)],
    "tuples": [(np.int32(k), np.zeros(2)) for k in range(12)],
    "pairs": [Pair(np.int32(k), np.zeros(2)) for k in range(12)],
}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_sheet_gives_back_what_was_written_whatever_fits(data):
    kinds = [data.draw(st.sampled_from(sorted(ELEMENTS))) for _ in range(4)]
    if data.draw(st.booleans()):
        kinds = kinds[:1] * 4
    elements = [ELEMENTS[kind][3 * part + k] for part, kind in enumerate(kinds) for k in range(3)]
    sheet = Sheet(12, None, private)
    order = data.draw(st.permutations(range(4)))
    written = {
        part: sheet.write(3 * part, Rows(elements[3 * part : 3 * part + 3])) for part in order
    }
    for part in range(4):
        sheet.keep(3 * part, 3, written[part])
    found = sheet.elements()
    assert difference(elements, list(found.rows())) is None
    assert [type(e) for e in found.rows()] == [type(e) for e in elements]
    assert isinstance(found, Columns) == (len(set(kinds)) == 1)


def test_a_sheet_without_memory_for_workers_takes_what_comes_back_from_other_processes():
    sheet = Sheet(6, None, lambda shape, dtype: None)
    for low in (4, 0, 2):
        there = pickle.loads(pickle.dumps(sheet))
        written = there.write(low, Rows([np.int64(low), np.int64(low + 1)]))
        assert written.left is not None
        sheet.keep(low, 2, written)
    found = sheet.elements()
    assert isinstance(found, Columns) and found.nest.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.nest.ctypes.data % 64 == 0


@pytest.mark.parametrize("options", [None, {"workers": 1}, {"workers": 3}, {"workers": 8}])
def test_of_two_maps_that_fail_in_one_batch_the_earlier_element_is_the_one_that_is_told(options):
    def first(x):
        if x == 8:
            raise KeyError("first map, element 8")
        return x

    def second(x):
        if x == 6:
            raise KeyError("second map, element 6")
        return x

    dataset = numbers(10).map(first).map(second).batch(5)
    if options is not None:
        dataset = dataset.prefetch(4, **options)
    with dataset.iterator() as iterator:
        assert next(iterator).tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(KeyError, match="second map, element 6"):
            next(iterator)
