"""Order: place -> place. None of these reads a record or touches a value.

Over a seekable parent each is a formula on whole arrays of places; over a stream each wraps the parent's
cursor in one number of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan import permutation, randomness
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, gather, map_nest
from playhead.plan.node import (
    INFINITE,
    UNKNOWN,
    Chunk,
    Compute,
    Cursor,
    Index,
    Located,
    Node,
    Places,
    Record,
    ordinal,
)

ENDLESS_STRIDE = 1 << 32
MAX_PASS = 1 << 62


@dataclass(frozen=True, eq=False)
class Shuffle(Node):
    """A bijection of the epoch's places: over all of it, or in windows of `buffer_size`."""

    op: ClassVar[str] = "shuffle"
    random: ClassVar[str | None] = "shuffle"

    buffer_size: int | None
    seed: int
    drawn: bool
    reshuffle: bool

    def __post_init__(self) -> None:
        if not self.parent.seekable:
            raise PipelineError(
                "shuffle needs a seekable dataset, and this one is a stream (it must be walked)",
                help="put shuffle before filter and before the batch that follows it, "
                "on the source's records",
            )
        if self.buffer_size is None and self.parent.length is None:
            raise PipelineError(
                "shuffle over an endless dataset has no last element to wait for",
                help="put shuffle before repeat, or give shuffle(buffer_size=...)",
            )

    @cached_property
    def windowed(self) -> bool:
        length = self.parent.length
        return self.buffer_size is not None and (length is None or self.buffer_size < length)

    def spec(self) -> Nest:
        return self.parent.spec()

    def key(self, epoch: int) -> int:
        return randomness.key(self.seed, "shuffle", ordinal(self), epoch if self.reshuffle else 0)

    def locate(self, places: Places) -> Located:
        if isinstance(places.epoch, int):
            index = self._permuted(places.index, self.key(places.epoch))
        else:
            index = self._permuted_by_epoch(places.epoch, places.index)
        return self.parent.locate(Places(places.epoch, index))

    def _permuted_by_epoch(self, epochs: Index, index: Index) -> Index:
        length = self.parent.length
        different, which = np.unique(epochs, return_inverse=True)
        keys = [self.key(epoch) for epoch in different.tolist()]
        if not self.windowed and length is not None:
            return permutation.permute(index, length, np.array(keys, np.uint64)[which])
        out = np.empty_like(index)
        for number, key in enumerate(keys):
            here = which == number
            out[here] = self._permuted(index[here], key)
        return out

    def _permuted(self, index: Index, key: int) -> Index:
        if self.windowed:
            assert self.buffer_size is not None
            return permutation.windowed(index, self.parent.length, self.buffer_size, key)
        assert self.parent.length is not None
        return permutation.permute(index, self.parent.length, key)

    @property
    def countable(self) -> bool:
        return self.parent.weight == 1  # among shuffled batches a short one may stand anywhere

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "seed": self.seed}
        if self.drawn:
            said["drawn"] = True
        if not self.reshuffle:
            said["reshuffle_each_iteration"] = False
        if self.windowed:
            assert self.buffer_size is not None
            said["buffer_size"] = self.buffer_size
            said["block"] = permutation.block_size(self.buffer_size)
            said["algorithm"] = "window-1"
        else:
            assert self.parent.length is not None
            said["algorithm"] = permutation.algorithm(self.parent.length)
        return said


@dataclass(frozen=True, slots=True)
class Grid:
    """Cuts a running index into (pass, index in the pass), passes being `length` long.

    From the place `origin` = (running index, pass, index in the pass) on, where one is given: that pass ends
    at `end`, and what was before it is not on the grid.
    """

    length: int | None
    origin: tuple[int, int, int] = (0, 0, 0)
    end: int | None = None

    def split(self, running: Index) -> tuple[Index, Index]:
        start, first, inner = self.origin
        ahead = running - start
        if self.length is None:
            return np.full_like(running, first), inner + ahead
        end = self.length if self.end is None else self.end
        rest = end - inner
        later = ahead - rest
        length = max(self.length, 1)
        here = later < 0
        return (
            np.where(here, first, first + 1 + later // length),
            np.where(here, inner + ahead, later % length),
        )

    def split_one(self, running: int) -> tuple[int, int]:
        passes, inner = self.split(np.array([running], np.int64))
        return int(passes[0]), int(inner[0])

    def joined(self, number: int, inner: int) -> int:
        """The running index of a place: the inverse of `split`."""
        start, first, origin_inner = self.origin
        if self.length is None or number == first:
            return start + inner - origin_inner
        end = self.length if self.end is None else self.end
        return start + (end - origin_inner) + (number - first - 1) * self.length + inner


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    """The parent's passes one after the other; `count` None is endless.

    `origin` = (epoch, index, parent's epoch, parent's index) where one pass was cut anew (by record).
    """

    op: ClassVar[str] = "repeat"
    counters: ClassVar[tuple[str, ...]] = ("pass", "epoch")

    count: int | None
    origin: tuple[int, int, int, int] | None = None

    @property
    def cardinality(self) -> int:
        length = self.parent.cardinality
        if self.count == 0 or length == 0:
            return 0
        if length == UNKNOWN:
            return INFINITE if self.count is None else UNKNOWN
        if self.count is None or length == INFINITE:
            return INFINITE
        return length * self.count

    def spec(self) -> Nest:
        return self.parent.spec()

    @property
    def stride(self) -> int:
        """How many of the parent's epochs lie in one of this node's."""
        return ENDLESS_STRIDE if self.count is None else self.count

    def first_pass(self, epoch: int) -> int:
        """The parent's epoch at the beginning of one of this node's."""
        first = epoch * self.stride
        if first + self.stride <= MAX_PASS:
            return first
        # Only endless repeats inside each other come here: far apart, but not in order any more.
        return permutation.mix_int(epoch) >> 34 << 32

    def length_at(self, epoch: int) -> int | None:
        if self.origin is None or self.length is None or epoch != self.origin[0]:
            return self.length
        assert self.count is not None
        _, index, child_epoch, child_index = self.origin
        end, regular = self.parent.length_at(child_epoch), self.parent.length
        assert end is not None and regular is not None
        left = self.first_pass(epoch) + self.count - child_epoch - 1
        return index + end - child_index + left * regular

    def _grid(self, epoch: int) -> Grid:
        if self.origin is None or epoch != self.origin[0]:
            return Grid(self.parent.length, (0, self.first_pass(epoch), 0))
        _, index, child_epoch, child_index = self.origin
        return Grid(
            self.parent.length,
            (index, child_epoch, child_index),
            self.parent.length_at(child_epoch),
        )

    def place_below(self, epoch: int, index: int) -> tuple[int, int]:
        """The parent's place at which a place of this node begins, where nothing is left there too."""
        if self.origin is not None and (epoch, index) == self.origin[:2]:
            return self.origin[2:]
        if not self.parent.length and index == 0:
            return self.first_pass(epoch), 0
        return self._grid(epoch).split_one(index)

    def locate(self, places: Places) -> Located:
        if isinstance(places.epoch, int):
            passes, inner = self._grid(places.epoch).split(places.index)
        else:
            passes, inner = np.empty_like(places.index), np.empty_like(places.index)
            different, which = np.unique(places.epoch, return_inverse=True)
            firsts = np.array([self.first_pass(epoch) for epoch in different.tolist()], np.int64)
            length = self.parent.length
            if length is None:
                passes, inner = firsts[which], places.index
            else:
                passes, inner = np.divmod(places.index, max(length, 1))
                passes += firsts[which]
            if self.origin is not None:
                here = places.epoch == self.origin[0]
                grid = self._grid(self.origin[0])
                passes[here], inner[here] = grid.split(places.index[here])
        return self.parent.locate(Places(passes, inner))

    def count_records(self, index: int) -> int:
        length = self.parent.length
        if length is None:
            return self.parent.count_records(index)
        if length == 0:
            return 0
        whole = self.parent.count_records(length)
        return index // length * whole + self.parent.count_records(index % length)

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "count": self.count}

    def start_stream(self, epoch: int) -> Cursor:
        return {"pass": 0, "epoch": epoch, "at": self.parent.start(self.first_pass(epoch))}

    def fits_parent(self, cursor: Cursor, epoch: int) -> bool:
        number = cursor["pass"]
        if cursor["epoch"] != epoch or number >= max(self.stride, 1):
            return False
        return self.parent.fits(cursor.get("at"), self.first_pass(epoch) + number)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        number, epoch, at = cursor["pass"], cursor["epoch"], cursor["at"]
        first = self.first_pass(epoch)
        while self.count is None or number < self.count:
            given, whole = 0, at == self.parent.start(first + number)
            for chunk in self.parent.open(at, compute):
                wrap = partial(_in_pass, number, epoch)
                yield _wrapped(chunk, chunk.keys, wrap)
                given += len(chunk)
            if self.count is None and whole and not given:
                return
            number += 1
            at = self.parent.start(first + number)


def _in_pass(number: int, epoch: int, at: Cursor) -> Cursor:
    return {"pass": number, "epoch": epoch, "at": at}


def _wrapped(chunk: Chunk, keys: Places, wrap: Callable[[Cursor], Cursor]) -> Chunk:
    """The chunk with its cursors wrapped by the operation it passes through."""
    inner = chunk.cursor
    return Chunk(chunk.block, keys, lambda j: wrap(inner(j)), chunk.trace, chunk.records)


@dataclass(frozen=True, eq=False)
class Slice(Node):
    """Every `step`-th element from `start` on, at most `count` of them: take, skip and shard."""

    op: ClassVar[str] = "slice"
    counters: ClassVar[tuple[str, ...]] = ("seen",)

    start_at: int
    count: int | None
    step: int = 1

    @property
    def cardinality(self) -> int:
        length = self.parent.cardinality
        if length == UNKNOWN:
            return 0 if self.count == 0 else UNKNOWN
        if length == INFINITE:
            return INFINITE if self.count is None else self.count
        left = max(0, -(-(length - self.start_at) // self.step))
        return left if self.count is None else min(left, self.count)

    def spec(self) -> Nest:
        return self.parent.spec()

    def locate(self, places: Places) -> Located:
        return self.parent.locate(Places(places.epoch, self.start_at + places.index * self.step))

    @property
    def countable(self) -> bool:
        return self.parent.countable and (self.step == 1 or self.parent.weight == 1)

    def count_records(self, index: int) -> int:
        if self.step != 1:
            return index
        before = self.parent.count_records(self.start_at)
        return self.parent.count_records(self.start_at + index) - before

    def start_stream(self, epoch: int) -> Cursor:
        return {"seen": 0, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        seen = cursor["seen"]
        stop = None if self.count is None else self.start_at + self.count * self.step
        if stop is not None and seen >= stop:
            return
        for chunk in self.parent.open(cursor["at"], compute):
            places = np.arange(seen, seen + len(chunk))
            kept = (places >= self.start_at) & ((places - self.start_at) % self.step == 0)
            if stop is not None:
                kept &= places < stop
            chosen = np.flatnonzero(kept)
            yield _selected(chunk, chosen, seen)
            seen += len(chunk)
            if stop is not None and seen > stop - self.step:
                return


def _selected(chunk: Chunk, chosen: Index, seen: int) -> Chunk:
    """The chosen elements of a chunk; the cursor counts what the parent gave."""
    inner, trace, size = chunk.cursor, chunk.trace, len(chunk)

    def cursor(j: int) -> Cursor:
        taken = int(chosen[j - 1]) + 1 if j else 0
        return {"seen": seen + taken, "at": inner(taken)}

    whole = len(chosen) == size
    return Chunk(
        chunk.block if whole else chunk.block.select(chosen),
        chunk.keys if whole else chunk.keys.select(chosen),
        cursor,
        lambda j: trace(int(chosen[j])),
        None if chunk.records is None else chunk.records[chosen],
    )


@dataclass(frozen=True, eq=False)
class Take(Slice):
    op: ClassVar[str] = "take"

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "count": self.count}


@dataclass(frozen=True, eq=False)
class Skip(Slice):
    op: ClassVar[str] = "skip"

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "count": self.start_at}


@dataclass(frozen=True, eq=False)
class Shard(Slice):
    op: ClassVar[str] = "shard"

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "num_shards": self.step, "index": self.start_at}


@dataclass(frozen=True, slots=True)
class Merged:
    """Elements that come from several parents: element k is the next one of parent `which[k]`."""

    which: Index
    inner: tuple[Located, ...]

    def __len__(self) -> int:
        return len(self.which)

    def slice(self, start: int, stop: int) -> Merged:
        parts = []
        for number, located in enumerate(self.inner):
            before = int(np.count_nonzero(self.which[:start] == number))
            within = int(np.count_nonzero(self.which[start:stop] == number))
            parts.append(located.slice(before, before + within))
        return Merged(self.which[start:stop], tuple(parts))

    def records(self) -> Iterator[Record]:
        taken = [0] * len(self.inner)
        for number in self.which.tolist():
            at = taken[number]
            taken[number] = at + 1
            yield from self.inner[number].slice(at, at + 1).records()


@dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """The parents' epochs one after the other."""

    op: ClassVar[str] = "concatenate"
    counters: ClassVar[tuple[str, ...]] = ("dataset", "epoch", "given")

    def __post_init__(self) -> None:
        specs = [parent.static_spec() for parent in self.parents]
        _require_alike([spec for spec in specs if spec is not None])

    @property
    def cardinality(self) -> int:
        lengths = [parent.cardinality for parent in self.parents]
        if INFINITE in lengths:
            return INFINITE
        return UNKNOWN if UNKNOWN in lengths else sum(lengths)

    def static_spec(self) -> Nest | None:
        specs = [parent.static_spec() for parent in self.parents]
        return specs[0] if specs[0] is not None and all(s == specs[0] for s in specs) else None

    def spec(self) -> Nest:
        known = self.static_spec()
        if known is not None:
            return known
        specs = [parent.spec() for parent in self.parents]
        _require_alike(specs)
        return map_nest(_common, *specs)

    @cached_property
    def _columnar(self) -> bool:
        """Whether the parents' columns go together; else their elements are rows."""
        return self.static_spec() is not None

    @cached_property
    def _starts(self) -> Index:
        lengths = []
        for parent in self.parents:
            if parent.length is None:
                break
            lengths.append(parent.length)
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)

    def locate(self, places: Places) -> Located:
        which = np.searchsorted(self._starts, places.index, side="right") - 1
        which = np.minimum(which, len(self.parents) - 1)
        parts = []
        for number, parent in enumerate(self.parents):
            here = np.flatnonzero(which == number)
            chosen = places.select(here)
            start = self._starts[number] if number < len(self._starts) else 0
            parts.append(parent.locate(Places(chosen.epoch, chosen.index - start)))
        return Merged(which, tuple(parts))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Merged)
        used = [k for k in range(len(self.parents)) if len(located.inner[k])]
        blocks = [self.parents[k].read(located.inner[k]) for k in used]
        return merge(blocks, used, located.which, self._columnar)

    def count_records(self, index: int) -> int:
        total = 0
        for parent in self.parents:
            here = index if parent.length is None else min(index, parent.length)
            total += parent.count_records(here)
            index -= here
        return total

    def describe(self) -> dict[str, Any]:
        return {"op": self.op}

    def start_stream(self, epoch: int) -> Cursor:
        return {"dataset": 0, "epoch": epoch, "given": 0, "at": self.parents[0].start(epoch)}

    def fits_parent(self, cursor: Cursor, epoch: int) -> bool:
        number = cursor["dataset"]
        if cursor["epoch"] != epoch or number >= len(self.parents):
            return False
        parent: Node = self.parents[number]
        return parent.fits(cursor.get("at"), epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, given, at = cursor["epoch"], cursor["given"], cursor["at"]
        for number in range(cursor["dataset"], len(self.parents)):
            for chunk in self.parents[number].open(at, compute):
                keys = Places(epoch, np.arange(given, given + len(chunk), dtype=np.int64))
                yield _in_dataset(number, epoch, given, keys, chunk)
                given += len(chunk)
            if number + 1 < len(self.parents):
                at = self.parents[number + 1].start(epoch)


def _in_dataset(number: int, epoch: int, given: int, keys: Places, chunk: Chunk) -> Chunk:
    inner = chunk.cursor
    return Chunk(
        Rows(chunk.block.rows()),
        keys,
        lambda j: {"dataset": number, "epoch": epoch, "given": given + j, "at": inner(j)},
        chunk.trace,
        chunk.records,
    )


def _require_alike(specs: list[Nest]) -> None:
    for spec in specs[1:]:
        if _outline(spec) != _outline(specs[0]):
            raise PipelineError(
                f"concatenate of datasets with different elements: {specs[0]} and {spec}",
                help="map one of them to the other's structure and dtypes",
            )


def _common(first: ArraySpec, *others: ArraySpec) -> ArraySpec:
    """What fits all of several specs of one rank and dtype."""
    axes = zip(first.shape, *(other.shape for other in others), strict=True)
    return ArraySpec(tuple(a[0] if len(set(a)) == 1 else None for a in axes), first.dtype)


def _outline(spec: Nest) -> Any:
    """Structure, ranks and dtypes of a spec: what concatenated datasets must share."""
    return map_nest(lambda leaf: (len(leaf.shape), leaf.dtype), spec)


def merge(blocks: list[Block], used: list[int], which: Index, columns: bool) -> Block:
    """Blocks of several parents in the order `which` names them."""
    if len(blocks) == 1:
        return blocks[0] if columns else Rows(blocks[0].rows())
    order = np.empty(len(which), np.int64)
    at = 0
    for number, block in zip(used, blocks, strict=True):
        order[which == number] = np.arange(at, at + len(block))
        at += len(block)
    if columns and all(isinstance(block, Columns) for block in blocks):
        joined = map_nest(
            lambda *parts: gather(np.concatenate(parts), order), *(b.stack() for b in blocks)
        )
        return Columns(joined, len(which))
    rows = [element for block in blocks for element in block.rows()]
    return Rows([rows[k] for k in order])


@dataclass(frozen=True, slots=True)
class Zipped:
    """Elements made of one element of each parent."""

    inner: tuple[Located, ...]

    def __len__(self) -> int:
        return len(self.inner[0])

    def slice(self, start: int, stop: int) -> Zipped:
        return Zipped(tuple(located.slice(start, stop) for located in self.inner))

    def records(self) -> Iterator[Record]:
        for k in range(len(self)):
            for located in self.inner:
                yield from located.slice(k, k + 1).records()


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Elements side by side, until the shortest parent ends. `shape` is the nest, holding parents' numbers."""

    op: ClassVar[str] = "zip"

    shape: Nest

    @property
    def cardinality(self) -> int:
        lengths = [parent.cardinality for parent in self.parents]
        finite = [n for n in lengths if n >= 0]
        if UNKNOWN in lengths:
            return 0 if 0 in finite else UNKNOWN
        return min(finite) if finite else INFINITE

    def static_spec(self) -> Nest | None:
        specs = [parent.static_spec() for parent in self.parents]
        if any(spec is None for spec in specs):
            return None
        return map_nest(lambda number: specs[number], self.shape)

    def spec(self) -> Nest:
        specs = [parent.spec() for parent in self.parents]
        return map_nest(lambda number: specs[number], self.shape)

    def locate(self, places: Places) -> Located:
        return Zipped(tuple(parent.locate(places) for parent in self.parents))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Zipped)
        blocks = [p.read(part) for p, part in zip(self.parents, located.inner, strict=True)]
        return side_by_side(self.shape, blocks)

    def count_records(self, index: int) -> int:
        return self.parents[0].count_records(index)

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op}
        if self.shape != tuple(range(len(self.parents))):
            said["structure"] = repr(self.shape)
        return said

    def start_stream(self, epoch: int) -> Cursor:
        return [parent.start(epoch) for parent in self.parents]

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if self.seekable:
            return super().fits(cursor, epoch)
        alike = isinstance(cursor, list) and len(cursor) == len(self.parents)
        return alike and all(
            parent.fits(at, epoch) for parent, at in zip(self.parents, cursor, strict=True)
        )

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        streams = [p.open(at, compute) for p, at in zip(self.parents, cursor, strict=True)]
        waiting: list[Chunk | None] = [None] * len(streams)
        try:
            while True:
                for number, stream in enumerate(streams):
                    while not (chunk := waiting[number]):
                        chunk = next(stream, None)
                        if chunk is None:
                            return
                        waiting[number] = chunk
                ready = [chunk for chunk in waiting if chunk is not None]
                size = min(len(chunk) for chunk in ready)
                yield _zipped(self.shape, [chunk.slice(0, size) for chunk in ready])
                waiting = [chunk.slice(size, len(chunk)) for chunk in ready]
        finally:
            for stream in streams:
                close = getattr(stream, "close", None)
                if close is not None:
                    close()


def _zipped(shape: Nest, chunks: list[Chunk]) -> Chunk:
    cursors, traces = [chunk.cursor for chunk in chunks], [chunk.trace for chunk in chunks]

    return Chunk(
        side_by_side(shape, [chunk.block for chunk in chunks]),
        chunks[0].keys,
        lambda j: [cursor(j) for cursor in cursors],
        lambda j: [record for trace in traces for record in trace(j)],
        chunks[0].records,
    )


def side_by_side(shape: Nest, blocks: list[Block]) -> Block:
    """Blocks of equal length as one block of nests, as `shape` arranges them."""
    if all(isinstance(block, Columns) for block in blocks):
        return Columns(map_nest(lambda number: blocks[number].stack(), shape), len(blocks[0]))
    rows = [block.rows() for block in blocks]
    return Rows(
        [map_nest(lambda number, k=k: rows[number][k], shape) for k in range(len(blocks[0]))]
    )
