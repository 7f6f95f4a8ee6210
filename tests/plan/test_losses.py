"""Going on behind elements of a stream that cannot be computed, without walking it again."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import IgnoredError, PipelineError, SourceChanged
from playhead.plan.block import Rows
from playhead.plan.compute import Chunk
from playhead.plan.losses import Enduring, Lost
from playhead.plan.node import UNKNOWN, Node
from playhead.plan.places import Places, Record
from playhead.testing import assert_resumes_exactly


@dataclass(frozen=True, eq=False)
class Numbers(Enduring):
    """0 to `count` - 1 without the `bad`, in chunks of `width`; it writes down from where it was walked."""

    op = "numbers"
    counters = ("at",)

    count: int
    bad: frozenset[int]
    width: int
    walks: list[int] = field(default_factory=list)
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    seekable = False

    @property
    def cardinality(self):
        return UNKNOWN

    def describe(self):
        return {"op": self.op, "count": self.count}

    def start_stream(self, epoch):
        return {"epoch": epoch, "at": 0}

    def fits(self, cursor, epoch):
        return cursor["epoch"] == epoch and 0 <= cursor["at"] <= self.count

    def gather(self, index):
        raise AssertionError

    def endure(self, cursor, compute):
        epoch, at = cursor["epoch"], cursor["at"]
        self.walks.append(at)
        while at < self.count:
            if at in self.bad:
                at += 1
                yield Lost(ValueError(f"bad {at - 1}"), {"epoch": epoch, "at": at}, [])
                continue
            stop = at
            while stop < min(self.count, at + self.width) and stop not in self.bad:
                stop += 1
            yield self.chunk(epoch, at, stop)
            at = stop

    def chunk(self, epoch, start, stop):
        return Chunk(
            Rows([np.int64(k) for k in range(start, stop)]),
            Places(epoch, np.arange(start, stop)),
            lambda j: {"epoch": epoch, "at": start + j},
            lambda j: [Record(self.op, epoch, start + j)],
        )


def failing(at):
    def function(x):
        if int(x) in at:
            raise ValueError(f"no {int(x)}")
        return x

    return function


def sorting(at, kept):
    def function(x):
        if int(x) in at:
            raise ValueError(f"no {int(x)}")
        return int(x) in kept

    return function


subsets = st.frozensets(st.integers(0, 29), max_size=12)


@settings(max_examples=60, deadline=None)
@given(bad=subsets, mapped=subsets, filtered=subsets, left=subsets, width=st.integers(1, 9))
def test_every_element_that_can_be_had_comes_and_the_source_is_walked_once(
    bad, mapped, filtered, left, width
):
    kept = frozenset(range(30)) - left
    source = Numbers(30, bad, width)
    chain = Dataset(source).map(failing(mapped)).filter(sorting(filtered, kept))
    iterator = chain.ignore_errors().iterator()
    found, counts = [], []
    for x in iterator:
        found.append(int(x))
        counts.append(iterator.position.cursor["ignored"])
    lost = bad | mapped | filtered
    assert found == [k for k in range(30) if k in kept and k not in lost]
    assert counts == [sum(k in lost for k in range(x)) for x in found]
    assert source.walks == [0]


@pytest.mark.parametrize("width", [1, 4, 30])
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_and_chunks_change_nothing(width, workers):
    bad, mapped, filtered = frozenset({0, 9, 10}), {3, 4, 29}, {5, 20}

    def make():
        ds = Dataset(Numbers(30, bad, width)).map(failing(mapped))
        return ds.filter(sorting(filtered, set(range(0, 30)))).ignore_errors()

    with make().prefetch(4, workers=workers).iterator() as iterator:
        found = [int(x) for x in iterator]
        assert iterator.position.cursor["ignored"] == 7
    assert found == [k for k in range(30) if k not in {*bad, *mapped, *filtered}]
    assert_resumes_exactly(lambda: make().batch(4), workers=(0, workers), every=2)


def test_a_block_that_fails_as_a_whole_loses_only_what_fails_alone():
    """A function of a whole block says nothing of the elements before the one it failed on."""
    tf = pytest.importorskip("tensorflow")

    def checked(x):
        with tf.control_dependencies([tf.debugging.assert_none_equal(x, tf.cast(7, x.dtype))]):
            return x * 2

    source = Numbers(12, frozenset({2}), 12)
    ds = Dataset(source).map(checked, form="tf").ignore_errors()
    assert [int(x) for x in ds] == [2 * k for k in range(12) if k not in (2, 7)]
    assert len(source.walks) <= 2  # once more where the function is traced


def test_what_is_not_about_one_element_ends_the_walk():
    def replaced(x):
        if int(x) == 5:
            raise SourceChanged("a file was replaced")
        return x

    for serious in (replaced, lambda x: Dataset.range(3).batch(0)):
        found = []
        with pytest.raises((SourceChanged, PipelineError)):
            found.extend(Dataset(Numbers(9, frozenset({1}), 4)).map(serious).ignore_errors())


def test_without_ignore_errors_the_first_bad_element_is_an_error():
    iterator = Dataset(Numbers(9, frozenset({3}), 4)).iterator()
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="bad 3"):
        next(iterator)


def test_what_each_ignore_errors_leaves_out_is_listed_without_moving_anything():
    first = Dataset.range(6).map(failing({2, 4})).ignore_errors(name="first")
    second = Dataset(Numbers(6, frozenset({1}), 3)).map(failing({3})).ignore_errors(name="second")
    both = first.concatenate(second).map(failing({5})).ignore_errors(name="third")
    iterator = both.iterator()
    next(iterator)
    listed = [str(said) for said in both.ignored()]
    assert [text.split("]")[0].split("[")[1] for text in listed] == [
        "first",
        "first",
        "second",
        "second",
        "third",
        "third",
    ]
    assert "range[2]" in listed[0] and "ValueError: no 2" in listed[0]
    assert "bad 1" in listed[2]
    assert iterator.position.step == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(Dataset.range(6).map(failing({2, 4})).ignore_errors(log_warning=True, name="first"))
    assert [str(w.message) for w in caught] == listed[:2]
    assert all(isinstance(w.message, IgnoredError) for w in caught)
    assert next(Dataset.range(3).ignored(), None) is None
