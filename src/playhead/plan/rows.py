"""Batches -> elements, and parts of batches: unbatch, rebatch, split."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

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
    named_leaves,
)
from playhead.plan.compute import Chunk, Compute
from playhead.plan.elements import Map, note
from playhead.plan.nested import inner_keys
from playhead.plan.node import INFINITE, UNKNOWN, Node
from playhead.plan.order import Repeat, Shuffle, Slice
from playhead.plan.places import Cursor, Index, Keyed, Located, Places, Record
from playhead.plan.prefetch import Prefetch
from playhead.plan.walking import Item, Walked, fixed, one, walked


def rows_in(element: Element, op: str) -> int:
    """How many rows a batch has: the length of each leaf's first axis. Raises `ElementError`."""
    sizes = {}
    for path, leaf in named_leaves(element):
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise ElementError(f"{op} needs arrays with a first axis; element{path} has none")
        sizes[path] = len(leaf)
    if not sizes or len(set(sizes.values())) > 1:
        said = ", ".join(f"element{path}: {size}" for path, size in sizes.items())
        raise ElementError(f"{op} needs equally many rows everywhere, not {said or 'none'}")
    return next(iter(sizes.values()))


@dataclass(frozen=True, slots=True)
class Rowed:
    """Rows of located batches: element k is row `row[k]` of batch number `which[k]` of `inner`."""

    which: Index
    row: Index
    inner: Located

    def __len__(self) -> int:
        return len(self.row)

    def slice(self, start: int, stop: int) -> Rowed:
        which, row = self.which[start:stop], self.row[start:stop]
        if not len(which):
            return Rowed(which, row, self.inner.slice(0, 0))
        low, high = int(which.min()), int(which.max()) + 1
        return Rowed(which - low, row, self.inner.slice(low, high))

    def records(self) -> Iterator[Record]:
        for batch in self.which.tolist():
            yield from self.inner.slice(batch, batch + 1).records()


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Each row of a batch as an element. Seekable where all batches are known to be of one size."""

    op: ClassVar[str] = "unbatch"
    uneven = False
    counters: ClassVar[tuple[str, ...]] = ("given",)

    @cached_property
    def size(self) -> int | None:
        """Rows in each batch, where that is known to be the same for all, but for an epoch's last."""
        node = self.parent
        while isinstance(node, Prefetch | Repeat | Shuffle | Slice):
            node = node.parent
        if isinstance(node, Batch) and node.drop_remainder:
            return node.size
        spec = self.parent.static_spec()
        if spec is None:
            return None
        lengths = {leaf.shape[0] if leaf.shape else None for leaf in leaves(spec)}
        return lengths.pop() if len(lengths) == 1 else None

    @cached_property
    def seekable(self) -> bool:
        return self.parent.seekable and bool(self.size)

    @cached_property
    def batches(self) -> Node | None:
        return None

    @property
    def cardinality(self) -> int:
        count = self.parent.cardinality
        if count in (0, INFINITE):
            return count
        return UNKNOWN if count == UNKNOWN or self.size is None else count * self.size

    @cached_property
    def weight(self) -> int:
        return max(1, self.parent.weight // (self.size or 1))

    def static_spec(self) -> Nest | None:
        spec = self.parent.static_spec()
        return None if spec is None else map_nest(lambda s: ArraySpec(s.shape[1:], s.dtype), spec)

    def describe(self) -> dict[str, Any]:
        return {"op": self.op}

    @property
    def countable(self) -> bool:
        return False

    @cached_property
    def _elements(self) -> Node | None:
        """What the batches are made of, where a row of them is just an element of that."""
        batch = self.parent
        plain = isinstance(batch, Batch) and batch.padding is None and batch.origin is None
        return batch.parent if plain and type(self) is Unbatch else None

    def locate(self, places: Places) -> Located:
        assert self.size is not None
        if self._elements is not None:
            return self._elements.locate(places)
        batch, row = np.divmod(places.index, self.size)
        keys = np.stack([places.epochs(), batch], 1)
        if not len(keys):
            return Rowed(batch, row, self.parent.locate(places))
        apart = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(1)])
        which = np.cumsum(np.r_[False, (keys[1:] != keys[:-1]).any(1)])
        epoch = places.epoch if isinstance(places.epoch, int) else places.epoch[apart]
        return Rowed(which.astype(np.int64), row, self.parent.locate(Places(epoch, batch[apart])))

    def read(self, located: Located) -> Block:
        if self._elements is not None:
            return self._elements.read(located)
        assert isinstance(located, Rowed)
        block = self.parent.read(located.inner)
        if isinstance(block, Columns):
            return Columns(
                map_nest(lambda c: c[located.which, located.row], block.nest), len(located)
            )
        found = []
        batches = block.rows()
        for which, row in zip(located.which.tolist(), located.row.tolist(), strict=True):
            found.append(row_of(batches[which], row))
        return Rows(found)

    # --- over a stream, or over batches of any size -----------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return {"given": 0, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        given = cursor["given"]
        for item in walked(self.parent, cursor["at"], compute):
            size = self.rows(item)
            if given < size:
                yield _rows(item, given, size)
            given = 0

    def rows(self, item: Item) -> int:
        try:
            return rows_in(item.row, self.op)
        except ElementError as error:
            note(error, self, item.key, item.trace())
            raise


def row_of(batch: Element, row: int) -> Element:
    """A copy of one row of a batch."""

    def of(leaf: Any) -> Any:
        value = leaf[row]
        return aligned_copy(value) if isinstance(value, np.ndarray) else value

    return map_nest(of, batch)


def _rows(item: Item, given: int, size: int) -> Chunk:
    before, after, trace = item.before, item.after, item.trace

    def cursor(j: int) -> Cursor:
        if given + j == size:
            return {"given": 0, "at": after()}
        return {"given": given + j, "at": before()}

    return Chunk(
        Rows([row_of(item.row, row) for row in range(given, size)]),
        inner_keys(item.key, given, size - given),
        cursor,
        lambda j: trace(),
        _shares(item, given, size),
    )


def _shares(item: Item, start: int, size: int) -> Index | None:
    """How many of a batch's records its rows from `start` on are made of: each its share."""
    if item.records == size:
        return None
    bounds = np.arange(start, size + 1) * item.records // size
    return np.diff(bounds).astype(np.int64)


class _Last(threading.local):
    """A thread's last batch, and its place. Empty again in another process."""

    place: tuple[int, int] | None = None
    batch: Element = None

    def __reduce__(self) -> tuple[type[_Last], tuple[()]]:
        return _Last, ()


@dataclass(frozen=True, eq=False)
class MapBatches(Unbatch):
    """Rows of what a map made of batches; it makes as many rows as it is given.

    Each thread keeps its last batch: neighbouring rows are often asked for one after the other.
    """

    op: ClassVar[str] = "map_batches"

    last: _Last = field(default_factory=_Last, kw_only=True)

    @cached_property
    def _batch(self) -> Batch:
        node = self.parent
        while not isinstance(node, Batch):
            node = node.parent
        return node

    @cached_property
    def size(self) -> int | None:
        return self._batch.size

    @property
    def cardinality(self) -> int:
        return self._batch.parent.cardinality

    def static_spec(self) -> Nest | None:
        return None

    def read(self, located: Located) -> Block:
        assert isinstance(located, Rowed)
        batches = [self._batch_at(located.inner.slice(k, k + 1)) for k in range(len(located.inner))]
        pairs = zip(located.which.tolist(), located.row.tolist(), strict=True)
        return Rows([row_of(batches[which], row) for which, row in pairs])

    def _batch_at(self, part: Located) -> Element:
        assert isinstance(part, Keyed)
        place = part.places.at(0)
        if self.last.place != place:
            self.last.place = None
            batch = self.parent.read(part).rows()[0]
            self._require(batch, len(_elements(part)))
            self.last.batch, self.last.place = batch, place
        return self.last.batch

    def _require(self, batch: Element, size: int) -> None:
        made = rows_in(batch, self.op)
        if made != size:
            node = self.parent
            name = node.function.name if isinstance(node, Map) else ""
            raise ElementError(
                f"map_batches({name}) was given {size} elements and returned {made}",
                help="filter leaves elements out; flat_map makes more of them",
            )

    def describe(self) -> dict[str, Any]:
        return {"op": self.op}


def _elements(located: Any) -> Located:
    """The elements among what was located of batches."""
    while not hasattr(located, "offsets"):
        located = located.inner
    found: Located = located.inner
    return found


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
