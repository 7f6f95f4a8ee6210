"""Walking a stream element by element, and giving out one made of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from playhead.plan.block import Block, Columns, Element, Nest, Rows, join
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import Node
from playhead.plan.places import Cursor, Index, Places, Record


class Walked(Node):
    """A stream over any parent."""

    @cached_property
    def seekable(self) -> bool:
        return False

    @cached_property
    def batches(self) -> Node | None:
        return None

    def static_spec(self) -> Nest | None:
        return None


@dataclass(frozen=True, slots=True)
class Item:
    """One element of a chunk: the `j`th.

    `before` tells where the stream stands before it: from there on, it is the first. That is where it stood
    after the element before, however the stream was cut into chunks.
    """

    row: Element
    chunk: Chunk
    j: int
    before: Callable[[], Cursor]

    @property
    def key(self) -> tuple[int, int]:
        return self.chunk.keys.at(self.j)

    @property
    def keys(self) -> Places:
        return self.chunk.keys.slice(self.j, self.j + 1)

    @property
    def records(self) -> int:
        """How many source records it is made of."""
        counts = self.chunk.records
        return 1 if counts is None else int(counts[self.j])

    @property
    def after(self) -> Callable[[], Cursor]:
        """Tells where the stream stands behind it; does not hold the element."""
        return partial(self.chunk.cursor, self.j + 1)

    @property
    def trace(self) -> Callable[[], list[Record]]:
        """Tells its records; does not hold the element."""
        return partial(self.chunk.trace, self.j)


def items(chunks: Iterable[Chunk], start: Cursor) -> Iterator[Item]:
    """The elements of a walk from the cursor `start`, one by one."""
    before: Callable[[], Cursor] = partial(fixed, start)
    for chunk in chunks:
        for j, row in enumerate(chunk.block.own_rows()):
            yield Item(row, chunk, j, before)
            before = partial(chunk.cursor, j + 1)


def walked(node: Node, cursor: Cursor, compute: Compute) -> Iterator[Item]:
    """The elements of a stream from a cursor on, one by one."""
    return items(node.open(cursor, compute), cursor)


def fixed(cursor: Cursor) -> Cursor:
    return cursor


def first_item(node: Node, cursor: Cursor, compute: Compute) -> Item | None:
    """The element of a stream at `cursor`; None at its end."""
    return next(walked(node, cursor, compute), None)


def one(
    element: Element,
    key: tuple[int, int],
    before: Callable[[], Cursor],
    after: Callable[[], Cursor],
    trace: Callable[[], list[Record]],
    records: int = 1,
) -> Chunk:
    """A chunk of one element."""
    return Chunk(
        Rows([element]),
        Places(key[0], np.array([key[1]], np.int64)),
        lambda j: after() if j else before(),
        lambda _: trace(),
        None if records == 1 else np.array([records], np.int64),
    )


def as_rows(block: Block) -> Rows:
    """A block of a node whose elements need not all be alike."""
    return block if isinstance(block, Rows) else Rows(block.own_rows())


def joined(chunks: list[Chunk]) -> Chunk:
    """Consecutive chunks of a stream as one, in columns where all of them are."""
    if len(chunks) == 1:
        return chunks[0]
    blocks = [chunk.block for chunk in chunks]
    if not all(isinstance(block, Columns) for block in blocks):
        blocks = [as_rows(block) for block in blocks]
    sources = [chunk.without_block() for chunk in chunks]
    begins = np.cumsum([0, *map(len, blocks)])

    def found(j: int) -> tuple[Chunk, int]:
        k = int(np.searchsorted(begins, j, "right")) - 1
        return sources[k], j - int(begins[k])

    def cursor(j: int) -> Cursor:
        source, behind = found(j - 1) if j else (sources[0], -1)
        return source.cursor(behind + 1)

    def trace(j: int) -> list[Record]:
        source, at = found(j)
        return source.trace(at)

    keys = [chunk.keys for chunk in chunks]
    return Chunk(
        join(blocks),
        Places(np.concatenate([k.epochs() for k in keys]), np.concatenate([k.index for k in keys])),
        cursor,
        trace,
        _counts(chunks),
    )


def _counts(chunks: list[Chunk]) -> Index | None:
    """How many records each of their elements is made of; None: one each."""
    if all(chunk.records is None for chunk in chunks):
        return None
    return np.concatenate(
        [np.ones(len(c), np.int64) if c.records is None else c.records for c in chunks]
    )
