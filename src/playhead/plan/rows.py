"""Batches -> elements: unbatch, and the rows that map_batches made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import ElementError
from playhead.plan.aligned import aligned_copy
from playhead.plan.batches import Batch
from playhead.plan.block import (
    ArraySpec,
    Block,
    Columns,
    Element,
    Nest,
    Rows,
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
from playhead.plan.walking import Item, walked


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
