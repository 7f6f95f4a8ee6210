"""Maps and filters over something seekable, done in one task: reading, testing, computing.

What lies between two of them is never a chunk of its own. A task works on a piece of the seekable dataset
below, and gives the elements that are left with their numbers in the piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from playhead.plan.block import Block, Rows
from playhead.plan.compute import Chunk, Compute, Job, attempt, nbytes
from playhead.plan.node import Node, Piece, as_chunk, pieces
from playhead.plan.places import Cursor, Index, Places, Record

Trace = Callable[[int], list[Record]]


@dataclass(frozen=True, slots=True)
class Left:
    """Elements of a piece: `block`, their numbers in it, and whether the stream ends behind them."""

    block: Block
    index: Index
    ended: bool = False

    @property
    def nbytes(self) -> int:
        return nbytes(self.block)


class Link(Node):
    """An operation on single elements, over a seekable dataset or over another link."""

    stops: ClassVar[bool] = False  # at the first element that it does not keep

    @cached_property
    def base(self) -> Node | None:
        """The seekable dataset below, where there are only links in between."""
        parent = self.parent
        if parent.seekable:
            return parent
        return parent.base if isinstance(parent, Link) and not parent.stops else None

    @property
    def narrows(self) -> bool:
        return not self.seekable and self.base is not None

    def do(self, block: Block, keys: Places, trace: Trace) -> tuple[Block, Index | None, bool]:
        """The results for elements, which of them are left (None: all), and whether the stream ends there."""
        raise NotImplementedError

    def through(self, piece: Piece) -> Left:
        """A piece of `base`, through all links up to this one."""
        parent = self.parent
        if parent.seekable:
            block = parent.read(piece.located)
            before = Left(block, np.arange(len(block), dtype=np.int64))
        else:
            assert isinstance(parent, Link)
            before = parent.through(piece)
        index = before.index
        if not len(index):
            return before

        def trace(k: int) -> list[Record]:
            at = int(index[k])
            return list(piece.located.slice(at, at + 1).records())

        block, left, ended = self.do(before.block, piece.places.select(index), trace)
        return Left(block, index if left is None else index[left], ended)

    def walk_links(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        """The stream, where there is a `base`: its cursor is a place of that."""
        base, pace = self.base, compute.pace(self)
        assert base is not None
        epoch, index = cursor
        found = pieces(base, [(epoch, index, base.length_at(epoch))], lambda: pace.size)
        for piece, left in attempt(compute, GoingThrough(self), found, pace, weight=self.weight):
            yield kept(as_chunk(base, piece, Rows([])), left.index, left.block)
            if left.ended:
                return


def open_needed(
    node: Node, cursor: Cursor, compute: Compute, need: Callable[[], int]
) -> Iterator[Chunk]:
    """The stream from a cursor on, where `need()` more of its elements are wanted for sure.

    Where a node never gives more elements than it looks at, these may be computed at once.
    """
    return node.open(cursor, compute.needing(need) if node.narrows else compute)


class GoingThrough(Job[Piece, Left]):
    """What links leave of a piece."""

    node: Link

    def __call__(self, sent: Piece) -> Left:
        return self.node.through(sent)

    def records(self, item: Piece) -> Iterator[Record]:
        return item.located.records()


def kept(chunk: Chunk, chosen: Index, block: Block) -> Chunk:
    """`block`, made of the chosen elements; after the jth, the parent goes on behind the jth chosen place."""
    cursor, trace, whole = chunk.cursor, chunk.trace, len(chosen) == len(chunk.keys)
    return Chunk(
        block,
        chunk.keys if whole else chunk.keys.select(chosen),
        lambda j: cursor(int(chosen[j - 1]) + 1 if j else 0),
        lambda j: trace(int(chosen[j])),
        None if chunk.records is None else chunk.records[chosen],
    )
