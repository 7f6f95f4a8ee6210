"""Batches of a chunk: which calls read them, and that nobody can tell afterwards."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.plan.aligned import aligned_empty
from playhead.plan.batches import CHEAP_TO_COPY, Batch, Padding
from playhead.plan.block import Columns
from playhead.plan.node import Source
from playhead.plan.places import Places


@dataclass(frozen=True, eq=False)
class Rows(Source):
    """Rows of float32 that hold their own number; how many each call read; the numbers that fail."""

    op = "rows"
    width: int = 2
    bad: tuple[int, ...] = ()
    calls: list[int] = field(default_factory=list)
    parents: tuple = field(default=(), kw_only=True)

    @property
    def cardinality(self):
        return 1000

    def gather(self, index):
        self.calls.append(len(index))
        for number in reversed(self.bad):
            if number in index:
                raise ValueError(f"row {number}")
        rows = aligned_empty((len(index), self.width), np.dtype(np.float32))
        rows[...] = index[:, None]
        return Columns(rows, len(index))


def read(source, size, count):
    batch = Batch((source,), size, False)
    return batch.read(batch.locate(Places(0, np.arange(count)))).rows()


def test_small_batches_of_a_chunk_take_two_calls_and_have_memory_of_their_own():
    source = Rows()
    batches = read(source, 40, 25)
    assert source.calls == [40, 960]
    assert np.array_equal(np.concatenate(batches)[:, 1], np.arange(1000))
    assert all(batch.ctypes.data % 64 == 0 for batch in batches)
    for k, batch in enumerate(batches):
        assert not any(np.shares_memory(batch, other) for other in batches[:k])
        assert memoryview(batch.base).nbytes <= batch.nbytes + 64


def test_large_batches_are_read_one_by_one_straight_into_what_is_handed_out():
    source = Rows(width=math.ceil(CHEAP_TO_COPY / 4 / 40) + 1)
    batches = read(source, 40, 4)
    assert source.calls == [40] * 4
    assert [batch[0, 0] for batch in batches] == [0, 40, 80, 120]


class Apart(Rows):
    """The same, and all batches of a chunk can be read in one call."""

    def gather_apart(self, index, ends):
        blocks = [self.gather(index[a:b]) for a, b in itertools.pairwise([0, *ends])]
        self.calls[:] = [len(index)]
        return blocks


def test_batches_are_read_in_one_call_where_the_source_can_also_behind_operations_of_order():
    source = Apart(width=math.ceil(CHEAP_TO_COPY / 4 / 40) + 1)
    batches = read(source, 40, 5)
    assert source.calls == [200]
    assert [batch[0, 0] for batch in batches] == [0, 40, 80, 120, 160]
    ordered = Dataset(source).shuffle(seed=3).skip(10).shard(2, 1).repeat(3).take(900)
    numbers = [batch[:, 0] for batch in read(ordered.node, 40, 10)]
    assert source.calls == [400]
    assert np.concatenate(numbers).tolist() == [row[0] for row in ordered.take(400)]


def test_what_lies_side_by_side_is_read_in_one_call_of_each_side_that_can():
    apart, plain = Apart(width=3), Rows(width=2)
    side = Dataset.zip((Dataset(apart), {"plain": Dataset(plain)})).shuffle(seed=2)
    batches = read(side.node, 40, 5)
    assert (apart.calls, plain.calls) == ([200], [40] * 5)
    expected = [row[0] for row, _ in side.take(200)]
    for k, (left, right) in enumerate(batches):
        assert left[:, 2].tolist() == right["plain"][:, 1].tolist() == expected[40 * k :][:40]
    plain.calls.clear()
    read(Dataset.zip((Dataset(plain), Dataset(plain))).node, 40, 2)
    assert plain.calls == [40] * 4


def test_the_error_of_a_chunk_that_is_read_in_one_call_is_that_of_its_first_batch_that_fails():
    for size in (8, 40):
        with pytest.raises(ValueError, match="row 90"):
            read(Apart(bad=(90, 91, 300)), size, 20)


def test_the_error_of_a_chunk_is_that_of_its_first_batch_that_fails():
    for size in (8, 40):
        with pytest.raises(ValueError, match="row 90"):
            read(Rows(bad=(90, 91, 300)), size, 20)


def test_batches_before_one_that_fails_are_delivered_with_any_read_ahead():
    def odd(k):
        if k in (90, 300):
            raise ValueError(f"number {k}")
        return k

    numbers = Dataset.range(1000).map(odd).batch(40)
    for dataset in (numbers, numbers.prefetch(8, workers=1), numbers.prefetch(workers=3)):
        with dataset.iterator() as it:
            assert [next(it)[0], next(it)[0]] == [0, 40]
            with pytest.raises(ValueError, match="number 90"):
                next(it)


def test_an_error_that_does_not_come_again_is_not_forgotten():
    class Once(Rows):
        def gather(self, index):
            if len(self.calls) == 1:
                self.calls.append(0)
                raise ValueError("only once")
            return super().gather(index)

    with pytest.raises(ValueError, match="only once"):
        read(Once(), 40, 5)


@settings(deadline=None)
@given(
    size=st.integers(1, 70),
    first=st.integers(0, 5),
    count=st.integers(1, 12),
    python=st.booleans(),
    padded=st.booleans(),
)
def test_batches_read_together_are_those_read_alone(size, first, count, python, padded):
    numbers = Dataset.from_tensor_slices(
        {"x": np.arange(1800).reshape(900, 2), "w": ["a", "b"] * 450}
    )
    if python and padded:
        numbers = numbers.map(lambda row: row["x"][: 1 + row["x"][0] % 2])
    elif python:
        numbers = numbers.map(lambda row: (row["w"], row["x"]))
    batch = Batch((numbers.node,), size, False, Padding() if padded else None)
    places = np.arange(min(first, batch.length), min(first + count, batch.length))
    together = batch.read(batch.locate(Places(0, places))).rows()
    for k, found in zip(places, together, strict=True):
        [alone] = batch.read(batch.locate(Places(0, np.array([k])))).rows()
        assert repr(found) == repr(alone)
