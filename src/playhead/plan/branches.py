"""Several datasets as one: concatenate, zip. Places go down to every parent; none of these touches a value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, gather, map_nest
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import INFINITE, UNKNOWN, Node
from playhead.plan.places import Cursor, Index, Located, Places, Record
from playhead.plan.shared import told_once


@dataclass(frozen=True, slots=True)
class Merged:
    """Elements that come from several parents: element k is the next one of parent `which[k]`."""

    which: Index
    rank: Index  # how many of the same parent's come before each
    inner: dict[int, Located]

    @classmethod
    def of(cls, which: Index, inner: dict[int, Located]) -> Merged:
        """`inner` holds, for each parent that is named, its elements in order."""
        rank = np.empty_like(which)
        for number in inner:
            here = np.flatnonzero(which == number)
            rank[here] = np.arange(len(here))
        return cls(which, rank, inner)

    def __len__(self) -> int:
        return len(self.which)

    def slice(self, start: int, stop: int) -> Merged:
        which, rank = self.which[start:stop], self.rank[start:stop].copy()
        inner = {}
        for number in np.unique(which).tolist():
            here = which == number
            low, high = int(rank[here][0]), int(rank[here][-1]) + 1
            inner[number] = self.inner[number].slice(low, high)
            rank[here] -= low
        return Merged(which, rank, inner)

    def records(self) -> Iterator[Record]:
        for number, rank in zip(self.which.tolist(), self.rank.tolist(), strict=True):
            yield from self.inner[number].slice(rank, rank + 1).records()


class Alike(Node):
    """Elements that come from several datasets, the same in structure and dtypes."""

    @property
    def sides(self) -> tuple[Node, ...]:
        """The datasets that the elements come from."""
        return self.parents

    def __post_init__(self) -> None:
        specs = [parent.static_spec() for parent in self.sides]
        require_alike(self.op, [spec for spec in specs if spec is not None])

    @told_once
    def static_spec(self) -> Nest | None:
        first, *others = self.sides
        known = first.static_spec()
        if known is None:
            return None
        return known if all(other.static_spec() == known for other in others) else None

    def spec(self) -> Nest:
        known = self.static_spec()
        return known if known is not None else self._common_spec

    @cached_property
    def _common_spec(self) -> Nest:
        return common_spec(self.op, list(dict.fromkeys(self.sides)))


@dataclass(frozen=True, eq=False)
class Concatenate(Alike):
    """The parents' epochs one after the other."""

    op: ClassVar[str] = "concatenate"
    counters: ClassVar[tuple[str, ...]] = ("dataset", "epoch", "given")

    @cached_property
    def cardinality(self) -> int:
        lengths = [parent.cardinality for parent in self.parents]
        if INFINITE in lengths:
            return INFINITE
        return UNKNOWN if UNKNOWN in lengths else sum(lengths)

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
        parts = {}
        for number in np.unique(which).tolist():
            chosen = places.select(np.flatnonzero(which == number))
            start = self._starts[number] if number < len(self._starts) else 0
            inside = Places(chosen.epoch, chosen.index - start)
            parts[number] = self.parents[number].locate(inside)
        return Merged.of(which, parts)

    def read(self, located: Located) -> Block:
        assert isinstance(located, Merged)
        used = sorted(located.inner)
        blocks = [self.parents[k].read(located.inner[k]) for k in used]
        return merge(blocks, used, located.which, self._columnar)

    @cached_property
    def countable(self) -> bool:
        return all(parent.countable for parent in self.parents)

    @cached_property
    def _counts(self) -> list[int]:
        """How many records lie before each parent that can be reached, and before the end."""
        counts = [0]
        for parent, length in zip(self.parents, np.diff(self._starts).tolist(), strict=False):
            counts.append(counts[-1] + parent.count_records(length))
        return counts

    def count_records(self, index: int) -> int:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        if number == len(self.parents):
            return self._counts[-1]
        inside = index - int(self._starts[number])
        return self._counts[number] + self.parents[number].count_records(inside)

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


def common_spec(op: str, parents: Sequence[Node]) -> Nest:
    """What fits the elements of all, from the first of each where they are not known."""
    specs = [parent.spec() for parent in parents]
    require_alike(op, specs)
    return map_nest(_common, *specs)


def require_alike(op: str, specs: list[Nest]) -> None:
    """Raises `PipelineError` where structures or dtypes differ."""
    for spec in specs[1:]:
        if _outline(spec) != _outline(specs[0]):
            raise PipelineError(
                f"{op} of datasets with different elements: {specs[0]} and {spec}",
                help="map one of them to the other's structure and dtypes",
            )


def _common(first: ArraySpec, *others: ArraySpec) -> ArraySpec:
    """What fits all of several specs of one dtype. Raises `PipelineError` where their ranks differ."""
    if any(len(other.shape) != len(first.shape) for other in others):
        raise PipelineError(
            f"arrays of different ranks have no spec in common: {[first, *others]}",
            help="reshape them to one rank in a map before",
        )
    axes = zip(first.shape, *(other.shape for other in others), strict=True)
    return ArraySpec(tuple(a[0] if len(set(a)) == 1 else None for a in axes), first.dtype)


def _outline(spec: Nest) -> Any:
    """Structure and dtypes of a spec: what concatenated datasets must share."""
    return map_nest(lambda leaf: ("leaf", leaf.dtype), spec)


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

    @cached_property
    def cardinality(self) -> int:
        lengths = [parent.cardinality for parent in self.parents]
        finite = [n for n in lengths if n >= 0]
        if UNKNOWN in lengths:
            return 0 if 0 in finite else UNKNOWN
        return min(finite) if finite else INFINITE

    @told_once
    def static_spec(self) -> Nest | None:
        specs: list[Nest] = []
        for parent in self.parents:
            known = parent.static_spec()
            if known is None:
                return None
            specs.append(known)
        return map_nest(lambda number: specs[number], self.shape)

    def spec(self) -> Nest:
        specs = [parent.spec() for parent in self.parents]
        return map_nest(lambda number: specs[number], self.shape)

    @cached_property
    def unlocked(self) -> bool:
        return all(parent.unlocked for parent in self.parents)

    def locate(self, places: Places) -> Located:
        return Zipped(tuple(parent.locate(places) for parent in self.parents))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Zipped)
        blocks = [p.read(part) for p, part in zip(self.parents, located.inner, strict=True)]
        return side_by_side(self.shape, blocks)

    def read_apart(self, located: Located, ends: list[int]) -> list[Block] | None:
        assert isinstance(located, Zipped)
        sides = list(zip(self.parents, located.inner, strict=True))
        apart = [parent.read_apart(part, ends) for parent, part in sides]
        if all(blocks is None for blocks in apart):
            return None
        for number, (parent, part) in enumerate(sides):
            if apart[number] is None:
                bounds = itertools.pairwise([0, *ends])
                apart[number] = [parent.read(part.slice(low, high)) for low, high in bounds]
        return [side_by_side(self.shape, list(blocks)) for blocks in zip(*apart, strict=True)]

    @cached_property
    def countable(self) -> bool:
        return all(parent.countable for parent in self.parents)

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
