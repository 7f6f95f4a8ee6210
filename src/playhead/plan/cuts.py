"""Batches cut anew: rebatch, and the part of each that split reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

from playhead.errors import ElementError, PipelineError
from playhead.plan.aligned import aligned_copy
from playhead.plan.batches import Batch
from playhead.plan.block import (
    ArraySpec,
    Block,
    Columns,
    Element,
    Nest,
    Rows,
    join,
    leaves,
    map_nest,
)
from playhead.plan.compute import Chunk, Compute
from playhead.plan.elements import note
from playhead.plan.node import INFINITE, UNKNOWN, Node
from playhead.plan.places import Cursor, Located, Places
from playhead.plan.rows import rows_in
from playhead.plan.walking import Item, Walked, fixed, one, walked


@dataclass(frozen=True, eq=False)
class Rebatch(Walked):
    """Batches cut anew: of `sizes` rows in turn, from an epoch's first row on."""

    op: ClassVar[str] = "rebatch"
    uneven = True
    counters: ClassVar[tuple[str, ...]] = ("given", "offset", "epoch")

    sizes: tuple[int, ...]
    drop_remainder: bool

    @property
    def cardinality(self) -> int:
        count = self.parent.cardinality
        return count if count in (0, INFINITE) else UNKNOWN

    def static_spec(self) -> Nest | None:
        spec = self.parent.static_spec()
        if spec is None:
            return None
        lead = self.sizes[0] if self.drop_remainder and len(set(self.sizes)) == 1 else None
        return map_nest(lambda s: ArraySpec((lead, *s.shape[1:]), s.dtype), spec)

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "sizes": list(self.sizes)}
        return said | {"drop_remainder": True} if self.drop_remainder else said

    def start_stream(self, epoch: int) -> Cursor:
        return {"given": 0, "offset": 0, "epoch": epoch, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        given, epoch, offset = cursor["given"], cursor["epoch"], cursor["offset"]
        start = partial(_place, given, epoch, offset, partial(fixed, cursor["at"]))
        parts: list[Element] = []
        made_of: list[Item] = []
        have = records = 0
        for item in walked(self.parent, cursor["at"], compute):
            size = self._rows(item)
            while offset < size:
                if not have and not self.sizes[given % len(self.sizes)]:
                    given += 1
                    end = partial(_place, given, epoch, offset, item.before)
                    nothing = [_part(item.row, offset, offset)]
                    yield self._full(nothing, [item], (epoch, given - 1), start, end, 0)
                    start = end
                    continue
                need = self.sizes[given % len(self.sizes)] - have
                stop = min(size, offset + need)
                parts.append(_part(item.row, offset, stop))
                made_of.append(item)
                records += item.records * stop // size - item.records * offset // size
                have, offset = have + stop - offset, stop
                if have < self.sizes[given % len(self.sizes)]:
                    continue
                given += 1
                at = (item.after, 0) if offset == size else (item.before, offset)
                end = partial(_place, given, epoch, at[1], at[0])
                yield self._full(parts, made_of, (epoch, given - 1), start, end, records)
                parts, made_of, have, start, records = [], [], 0, end, 0
            offset = 0
        if have and not self.drop_remainder:
            end = partial(_place, given + 1, epoch, 0, made_of[-1].after)
            yield self._full(parts, made_of, (epoch, given), start, end, records)

    def _rows(self, item: Item) -> int:
        try:
            return rows_in(item.row, self.op)
        except ElementError as error:
            note(error, self, item.key, item.trace())
            raise

    def _full(
        self,
        parts: list[Element],
        made_of: list[Item],
        key: tuple[int, int],
        before: Callable[[], Cursor],
        after: Callable[[], Cursor],
        records: int,
    ) -> Chunk:
        batch = join([Columns(part, rows_in(part, self.op)) for part in parts])
        assert isinstance(batch, Columns)
        whole = map_nest(aligned_copy, batch.nest) if len(parts) == 1 else batch.nest
        traces = list({id(item): item.trace for item in made_of}.values())
        return one(whole, key, before, after, lambda: [r for t in traces for r in t()], records)


def _part(batch: Element, start: int, stop: int) -> Element:
    return map_nest(lambda leaf: leaf[start:stop], batch)


def _place(given: int, epoch: int, offset: int, at: Callable[[], Cursor]) -> Cursor:
    return {"given": given, "offset": offset, "epoch": epoch, "at": at()}


@dataclass(frozen=True, eq=False)
class Split(Node):
    """Part `index` of `count` of each batch: rows index * b // count to (index + 1) * b // count.

    Places, cursors and the description are the whole batches': a position saved by one process is that of all,
    and of any number of them.
    """

    op: ClassVar[str] = "split"
    keeps_keys: ClassVar[bool] = True

    count: int
    index: int

    def __post_init__(self) -> None:
        if not self.parent.repeatable:
            raise PipelineError(
                "split: each process walks the whole stream, and this one gives each another order",
                help='from_kafka(order="round_robin") with until= is the same for all',
            )
        spec = self.parent.static_spec()
        sizes = {leaf.shape[0] if leaf.shape else None for leaf in leaves(spec)} if spec else set()
        if len(sizes) == 1 and (size := sizes.pop()) is not None and size < self.count:
            raise PipelineError(
                f"split: a batch of {size} has no part for each of {self.count} processes",
                help="make batches of at least as many elements as there are processes",
            )

    @cached_property
    def parted(self) -> bool:
        return True

    def said(self) -> dict[str, Any]:
        return {"op": self.op, "count": self.count, "index": self.index}

    def describe(self) -> dict[str, Any] | None:
        return None

    def static_spec(self) -> Nest | None:
        spec = self.parent.static_spec()
        return None if spec is None else map_nest(self._part_spec, spec)

    def spec(self) -> Nest:
        return map_nest(self._part_spec, self.parent.spec())

    def _part_spec(self, leaf: ArraySpec) -> ArraySpec:
        size = leaf.shape[0] if leaf.shape else None
        lead = None if size is None else len(range(*self._bounds(size)))
        return ArraySpec((lead, *leaf.shape[1:]), leaf.dtype)

    def _bounds(self, size: int) -> tuple[int, int]:
        if size < self.count:
            raise self._too_small(size)
        return self.index * size // self.count, (self.index + 1) * size // self.count

    def _too_small(self, size: int) -> ElementError:
        return ElementError(
            f"split: a batch of {size} has no part for each of {self.count} processes",
            help="batch(..., drop_remainder=True), so that no epoch ends with a short batch",
        )

    @cached_property
    def batches(self) -> Node | None:
        return None

    def length_at(self, epoch: int) -> int | None:
        return self.parent.length_at(epoch)

    def locate(self, places: Places) -> Located:
        batch = self.parent
        if not isinstance(batch, Batch):
            return batch.locate(places)
        starts, stops = batch.bounds(places)
        sizes = stops - starts
        if len(sizes) and sizes.min() < self.count:
            raise self._too_small(int(sizes.min()))
        low, high = self.index * sizes // self.count, (self.index + 1) * sizes // self.count
        return batch.located(places, starts + low, starts + high)

    def read(self, located: Located) -> Block:
        block = self.parent.read(located)
        return block if isinstance(self.parent, Batch) else self._cut(block)

    def _cut(self, block: Block) -> Block:
        return Rows([self._cut_one(row) for row in block.rows()])

    def _cut_one(self, batch: Element) -> Element:
        low, high = self._bounds(rows_in(batch, self.op))
        return map_nest(lambda leaf: aligned_copy(leaf[low:high]), batch)

    def refetched(self, block: Block, keys: Places) -> Block:
        return self._cut(block)

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        return self.parent.fits(cursor, epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        for chunk in self.parent.open(cursor, compute):
            yield chunk.with_block(self._cut(chunk.block))
