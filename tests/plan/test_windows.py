"""A shuffle over a stream: windows of consecutive elements, each permuted, in columns where it can be."""

from __future__ import annotations

import numpy as np
import pytest

from playhead import Dataset
from playhead.plan.block import Columns, Rows
from playhead.plan.compute import Chunk
from playhead.plan.node import Serial
from playhead.plan.places import Places
from playhead.plan.walking import joined
from playhead.plan.windows import AT_ONCE
from playhead.testing import assert_resumes_exactly


def stream(count=1000):
    """Elements in columns, walked: those whose number is no multiple of 3."""
    numbers = np.arange(count)
    table = Dataset.from_tensor_slices({"k": numbers, "x": np.stack([numbers, -numbers], 1) / 2})
    return table.filter(lambda row: row["k"] % 3 != 0)


KEPT = [k for k in range(1000) if k % 3]


@pytest.mark.parametrize("size", [1, 64, 300, 1000])
def test_each_window_has_its_own_elements_in_the_order_that_rows_have(size):
    found = [int(row["k"]) for row in stream().shuffle(size, seed=1)]
    assert found == [int(k) for k in stream().map(lambda row: row["k"]).shuffle(size, seed=1)]
    for low in range(0, len(KEPT), size):
        assert sorted(found[low : low + size]) == KEPT[low : low + size]
    assert size == 1 or found != KEPT


def test_the_order_is_the_same_with_any_read_ahead_and_batch():
    shuffled = stream().shuffle(300, seed=1)
    expected = [int(row["k"]) for row in shuffled]
    for ahead in (shuffled.prefetch(), shuffled.prefetch(3, workers=1)):
        with ahead.iterator() as it:
            assert [int(row["k"]) for row in it] == expected
    batches = list(shuffled.batch(70))
    assert [k for batch in batches for k in batch["k"].tolist()] == expected
    assert all(np.array_equal(b["x"][:, 1] * -2, b["k"]) for b in batches)


def test_windows_of_columns_resume_exactly_and_count_their_records():
    assert_resumes_exactly(lambda: stream(15).shuffle(4, seed=1).batch(2).prefetch(4))
    assert_resumes_exactly(
        lambda: stream(15).batch(2).unbatch().shuffle(4, seed=1).shuffle(3, seed=2)
    )
    with stream(60).batch(4).shuffle(3, seed=1).iterator() as it:
        records = []
        for _ in it:
            records.append(it.position.records)
            assert len(it.trace()) == 4
        assert records == list(range(4, 41, 4))


def test_what_follows_a_window_is_given_some_of_it_at_a_time():
    seen = []
    dataset = stream().shuffle(600, seed=1).map(lambda row: seen.append(int(row["k"])) or row)
    with dataset.iterator() as it:
        first = next(it)
        assert seen[0] == first["k"] and len(seen) <= AT_ONCE
        chunks = dataset.node.parent.open(dataset.node.start(0), Serial())
        sizes = [len(chunk) for chunk in chunks]
        assert sizes == [AT_ONCE, AT_ONCE, 600 - 2 * AT_ONCE, 666 - 600]


def test_elements_of_a_window_have_memory_of_their_own():
    rows = [row["x"] for row in stream(200).shuffle(50, seed=1)]
    assert all(
        row.ctypes.data % 64 == 0 and memoryview(row.base).nbytes <= row.nbytes + 64 for row in rows
    )
    rows[0][:] = 7
    assert rows[1][0] != 7


def chunk(name, block, first, records=None):
    keys = Places(first, np.arange(first, first + len(block)))
    return Chunk(block, keys, lambda j: (name, j), lambda j: [(name, j)], records)


@pytest.mark.parametrize("in_columns", [True, False])
def test_joined_chunks_know_where_each_element_came_from(in_columns):
    table = np.arange(10)
    blocks = [Columns(table[:2], 2), Columns(table[2:3], 1), Columns(table[3:6], 3)]
    if not in_columns:
        blocks[1] = Rows([np.int64(2)])
    parts = [
        chunk("a", blocks[0], 0),
        chunk("b", blocks[1], 10, np.array([5])),
        chunk("c", blocks[2], 20),
    ]
    whole = joined(parts)
    assert isinstance(whole.block, Columns) == in_columns
    assert [int(k) for k in whole.block.rows()] == [0, 1, 2, 3, 4, 5]
    assert [whole.keys.at(j) for j in (1, 2, 5)] == [(0, 1), (10, 10), (20, 22)]
    assert [whole.cursor(j) for j in range(7)] == [
        ("a", 0), ("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2), ("c", 3),
    ]  # fmt: skip
    assert [whole.trace(j) for j in range(6)] == [
        [("a", 0)], [("a", 1)], [("b", 0)], [("c", 0)], [("c", 1)], [("c", 2)],
    ]  # fmt: skip
    assert whole.records.tolist() == [1, 1, 5, 1, 1, 1]
    assert joined(parts[2:]).records is None
