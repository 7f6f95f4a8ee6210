"""Batches read in parts: a batch that takes long is cut among the workers and put together in order.

Cheap batches go several to a task, expensive ones are cut, by what an element takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from playhead.execution.sheets import Empty, Sheet, Written
from playhead.plan.batches import Batch, Grouped, grouped, read_elements, with_elements
from playhead.plan.block import Block, Columns, Nest, Rows
from playhead.plan.compute import Compute, Job, Pace, attempt
from playhead.plan.node import Node, Piece, Span, pieces
from playhead.plan.places import Located, Record


@dataclass(frozen=True, slots=True)
class Whole:
    """Elements of the root made of whole batches, `count` of the batches' elements in all."""

    piece: Piece
    count: int

    def __len__(self) -> int:
        return self.count

    def singles(self) -> list[Whole]:
        return [whole(single) for single in self.piece.singles()]


@dataclass(frozen=True, slots=True)
class Part:
    """Some elements of a batch, from number `low` on."""

    piece: Piece
    inner: Located
    low: int
    sheet: Sheet
    is_last: bool

    def __len__(self) -> int:
        return len(self.inner)

    def singles(self) -> list[Part]:
        return []


def whole(piece: Piece) -> Whole:
    return Whole(piece, len(grouped(piece.located).inner))


class ReadingParts(Job["Whole | Part", "Block | Written"]):
    """Reads whole batches, or a part of one into its sheet."""

    def sent(self, item: Whole | Part) -> Any:
        if isinstance(item, Whole):
            return item.piece.located
        return item.inner, item.low, item.sheet

    def __call__(self, sent: Any) -> Block | Written:
        if not isinstance(sent, tuple):
            return self.node.read(sent)
        inner, low, sheet = sent
        assert self.node.batches is not None
        written: Written = sheet.write(low, read_elements(self.node.batches.parent, inner))
        return written

    def records(self, item: Whole | Part) -> Iterator[Record]:
        located = item.piece.located if isinstance(item, Whole) else item.inner
        return located.records()


@dataclass(frozen=True, slots=True)
class Read:
    """A piece of the root: its `block`, or only its batch's `elements` so far."""

    piece: Piece
    block: Block | None
    elements: Block | None = None

    def __len__(self) -> int:
        return len(self.piece)

    def singles(self) -> list[Read]:
        return []


class Finishing(Job[Read, Block]):
    """What lies between the elements of a batch and the root: stacking them, and functions of batches."""

    def sent(self, item: Read) -> Any:
        if item.block is not None:
            return item.block
        assert item.elements is not None
        return with_elements(item.piece.located, item.elements)

    def __call__(self, sent: Any) -> Block:
        return sent if isinstance(sent, Columns | Rows) else self.node.read(sent)

    def at_once(self, item: Read) -> bool:
        if item.block is not None:
            return True
        batches = self.node.batches
        assert isinstance(batches, Batch)
        return (
            isinstance(item.elements, Columns)
            and isinstance(item.piece.located, Grouped)
            and batches.stacks_columns_as_they_are
        )

    def records(self, item: Read) -> Iterator[Record]:
        return item.piece.located.records()


def read_in_parts(
    node: Node,
    batches: Batch,
    spans: Iterable[Span],
    compute: Compute,
    pace: Pace,
    empty: Empty,
    *,
    large: bool,
) -> Iterator[tuple[Piece, Block]]:
    """The elements of `spans` in order. `pace` counts elements of the batches.

    Parts are not above the pace; where they may be `large`, not below it, up to twice as much: a call costs
    something, and what is read in one piece need not be copied. That is for workers who have batches enough
    to do one each.
    """
    cutter = _Cutter(node, batches, pace, empty, large)
    weight = batches.parent.weight
    done = attempt(compute, ReadingParts(node), cutter.items(spans), pace, weight=weight)
    read = cutter.put_together(done)
    for item, block in attempt(compute, Finishing(node), read, weight=node.weight, after=True):
        yield item.piece, block


class _Cutter:
    """Cuts pieces of the root as the pace asks, and puts them together again."""

    def __init__(self, node: Node, batches: Batch, pace: Pace, empty: Empty, large: bool) -> None:
        self._node, self._size = node, batches.size
        self._pace, self._empty, self._large = pace, empty, large
        self._spec: Nest | None = None
        self._uneven = False

    def items(self, spans: Iterable[Span]) -> Iterator[Whole | Part]:
        for piece in pieces(self._node, spans, lambda: self._pace.size // self._size):
            inner = grouped(piece.located).inner
            count = len(inner)
            size = self._pace.size
            parts = 1 if len(piece) > 1 else count // size if self._large else -(-count // size)
            if parts <= 1:
                yield Whole(piece, count)
                continue
            sheet = Sheet(count, None if self._uneven else self._spec, self._empty)
            for k in range(parts):
                low, high = k * count // parts, (k + 1) * count // parts
                yield Part(piece, inner.slice(low, high), low, sheet, k + 1 == parts)

    def put_together(self, done: Iterable[tuple[Whole | Part, Block | Written]]) -> Iterator[Read]:
        for item, result in done:
            if isinstance(item, Whole):
                assert not isinstance(result, Written)
                yield Read(item.piece, result)
                continue
            assert isinstance(result, Written)
            item.sheet.keep(item.low, len(item), result)
            if item.is_last:
                self._spec = item.sheet.spec
                self._uneven = self._spec is None
                yield Read(item.piece, None, item.sheet.elements())
