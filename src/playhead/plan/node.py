"""The protocols of the plan: what can jump, and what must walk.

A pipeline is a tree of nodes. Where every parent can jump, a node is *seekable*: `locate` turns places into
the sources' records without reading anything, `read` reads them. Elsewhere it is a *stream*: it starts from
a cursor. Every seekable node serves as a stream too, with a place as its cursor.
"""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import Block, Nest, spec_of

INFINITE = -1
UNKNOWN = -2
WINDOW = 1 << 16

Cursor: TypeAlias = Any
Index: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Sized = TypeVar("Sized", bound="Sliceable")
Result = TypeVar("Result")


class Sliceable(Protocol):
    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> Self: ...


@dataclass(frozen=True, slots=True)
class Places:
    """n places: `epoch` (one int for all, or int64[n]) and `index` (int64[n])."""

    epoch: int | Index
    index: Index

    def __len__(self) -> int:
        return len(self.index)

    def slice(self, start: int, stop: int) -> Places:
        epoch = self.epoch if isinstance(self.epoch, int) else self.epoch[start:stop]
        return Places(epoch, self.index[start:stop])

    def select(self, chosen: Index) -> Places:
        epoch = self.epoch if isinstance(self.epoch, int) else self.epoch[chosen]
        return Places(epoch, self.index[chosen])

    def epochs(self) -> Index:
        """The epoch of each place, int64[n]."""
        if isinstance(self.epoch, int):
            return np.full(len(self.index), self.epoch, np.int64)
        return self.epoch

    def at(self, k: int) -> tuple[int, int]:
        epoch = self.epoch if isinstance(self.epoch, int) else int(self.epoch[k])
        return epoch, int(self.index[k])


@dataclass(frozen=True, slots=True)
class Record:
    """Where an element came from: the source, the pass over it, and the record's index there.

    `file` and `record` (its number in the file) are given by sources that read files.
    """

    source: str
    epoch: int
    index: int
    file: str | None = None
    record: int | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.file}, record {self.record}"
        return f"{self.source}[{self.index}]"


class Located(Protocol):
    """n elements of a node, found but not read."""

    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> Located: ...
    def records(self) -> Iterator[Record]: ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """Records of a source."""

    source: Source
    places: Places

    def __len__(self) -> int:
        return len(self.places)

    def slice(self, start: int, stop: int) -> Leaf:
        return Leaf(self.source, self.places.slice(start, stop))

    def records(self) -> Iterator[Record]:
        for k in range(len(self.places)):
            epoch, index = self.places.at(k)
            yield self.source.record(epoch, index)


@dataclass(frozen=True, slots=True)
class Keyed:
    """Elements whose own places matter to the function that reads them."""

    places: Places
    inner: Located

    def __len__(self) -> int:
        return len(self.places)

    def slice(self, start: int, stop: int) -> Keyed:
        return Keyed(self.places.slice(start, stop), self.inner.slice(start, stop))

    def records(self) -> Iterator[Record]:
        return self.inner.records()


class Pace:
    """How many elements to compute in one call: enough to fill some ten milliseconds."""

    TARGET_SECONDS = 0.01

    def __init__(self, most: int) -> None:
        self.size = 1
        self.most = max(1, most)

    def report(self, count: int, seconds: float) -> None:
        if count < self.size:
            return
        ideal = count * self.TARGET_SECONDS / max(seconds, 1e-9)
        self.size = int(max(1, min(ideal, 2 * count, self.most)))


class Compute(Protocol):
    """What a stream is given to compute with: a pool, or the caller's own thread."""

    def ordered(
        self, fn: Callable[[Sized], Result], items: Iterable[Sized], weight: int = 1
    ) -> Iterator[Result]: ...

    def pace(self, node: Node) -> Pace: ...


class Serial:
    """Everything in the caller's thread, nothing ahead of what is asked for."""

    def ordered(
        self, fn: Callable[[Sized], Result], items: Iterable[Sized], weight: int = 1
    ) -> Iterator[Result]:
        return map(fn, items)

    def pace(self, node: Node) -> Pace:
        return Pace(1 if node.user_code else 64 // node.weight)


def attempt(
    compute: Compute,
    fn: Callable[[Sized], Result],
    items: Iterable[Sized],
    pace: Pace | None = None,
    weight: int = 1,
) -> Iterator[tuple[Sized, Result]]:
    """(item, fn(item)) in order. Where fn fails, the item's elements come one by one up to the failing one."""

    def guarded(item: Sized) -> tuple[Sized, Result | None, Exception | None]:
        began = time.perf_counter()
        try:
            result = fn(item)
        except Exception as error:
            return item, None, error
        if pace is not None:
            pace.report(len(item), time.perf_counter() - began)
        return item, result, None

    for item, result, error in compute.ordered(guarded, items, weight):
        if error is None:
            yield item, result  # type: ignore[misc]
        elif len(item) == 1:
            raise error
        else:
            for k in range(len(item)):
                single = item.slice(k, k + 1)
                yield single, fn(single)
            raise error


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive elements of a stream: the block, their keys, and what each leaves behind.

    `cursor(j)` is where the stream goes on after the first j elements; `trace(j)` are the records of element
    j; `records` counts each element's records (None: one each).
    """

    block: Block
    keys: Places
    cursor: Callable[[int], Cursor]
    trace: Callable[[int], list[Record]]
    records: Index | None = None

    def __len__(self) -> int:
        return len(self.block)

    def slice(self, start: int, stop: int) -> Chunk:
        cursor, trace = self.cursor, self.trace
        return Chunk(
            self.block.slice(start, stop),
            self.keys.slice(start, stop),
            lambda j: cursor(start + j),
            lambda j: trace(start + j),
            None if self.records is None else self.records[start:stop],
        )

    def with_block(self, block: Block) -> Chunk:
        return replace(self, block=block)


@dataclass(frozen=True, kw_only=True)
class Info:
    """What the user called an operation and where they wrote it; never part of what it means."""

    name: str | None = None
    where: str | None = None


@dataclass(frozen=True, eq=False)
class Node(ABC):
    """One operation over its parents."""

    op: ClassVar[str]
    random: ClassVar[str | None] = None  # the kind of random operation, where it is one
    runs_user_code: ClassVar[bool] = False
    counters: ClassVar[
        tuple[str, ...]
    ] = ()  # the numbers in its own cursor, beside its parent's "at"

    parents: tuple[Node, ...]
    info: Info = field(default_factory=Info, kw_only=True)

    @property
    def parent(self) -> Node:
        return self.parents[0]

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def cardinality(self) -> int:
        """Elements in one epoch; INFINITE (-1) or UNKNOWN (-2) as in tf.data."""
        return self.parent.cardinality

    @cached_property
    def seekable(self) -> bool:
        return all(parent.seekable for parent in self.parents)

    @cached_property
    def user_code(self) -> bool:
        """Whether reading an element calls a function of the user's."""
        return self.runs_user_code or any(parent.user_code for parent in self.parents)

    @cached_property
    def weight(self) -> int:
        """About how many source records make one element."""
        return max((parent.weight for parent in self.parents), default=1)

    @property
    def length(self) -> int | None:
        """Elements in one epoch of a seekable node; None where endless."""
        count = self.cardinality
        return None if count == INFINITE else count

    def length_at(self, epoch: int) -> int | None:
        """Elements in this very epoch: `length`, but for an epoch that was cut anew (by record)."""
        return self.length

    def describe(self) -> dict[str, Any] | None:
        """What decides order and values: JSON. None: nothing to say."""
        raise NotImplementedError(type(self).__name__)

    def static_spec(self) -> Nest | None:
        """The elements' `ArraySpec`s where they are known without reading."""
        return self.parent.static_spec() if len(self.parents) == 1 else None

    def spec(self) -> Nest:
        """The elements' `ArraySpec`s, from the first element where they are not known."""
        known = self.static_spec()
        return known if known is not None else spec_of(self.first())

    def first(self) -> Any:
        """The first element of epoch 0."""
        for chunk in self.open(self.start(0), Serial()):
            for element in chunk.block.rows():
                return element
        raise PipelineError(
            f"{self.op} has no element to look at",
            help="an empty dataset has an element_spec only where its source knows it",
        )

    # --- jumping ----------------------------------------------------------------------------------------

    def locate(self, places: Places) -> Located:
        """Find the elements at `places` (each inside its epoch). Pure, no I/O."""
        raise NotImplementedError(type(self).__name__)

    def read(self, located: Located) -> Block:
        """Read what `locate` found. Pure and thread-safe."""
        return self.parent.read(located)

    @property
    def countable(self) -> bool:
        """Whether `count_records` can tell."""
        return all(parent.countable for parent in self.parents)

    def count_records(self, index: int) -> int:
        """How many records the first `index` elements of an epoch are made of, where `countable`."""
        return self.parent.count_records(index)

    # --- walking ----------------------------------------------------------------------------------------

    def start(self, epoch: int) -> Cursor:
        """Where `epoch` begins."""
        return [epoch, 0] if self.seekable else self.start_stream(epoch)

    def open(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        """Walk from `cursor` to the end of its epoch."""
        if not self.seekable:
            return self.walk(cursor, compute)
        epoch, index = cursor
        return (
            as_chunk(self, piece, block)
            for piece, block in walk_places(
                self, [(epoch, index, self.length_at(epoch))], compute, compute.pace(self)
            )
        )

    def start_stream(self, epoch: int) -> Cursor:
        return self.parent.start(epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        raise NotImplementedError(type(self).__name__)

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        """Whether `cursor` is a place in `epoch` of this very node: a position may come from anywhere."""
        if self.seekable:
            length = self.length_at(epoch)
            inside = is_place(cursor) and cursor[0] == epoch
            return inside and (length is None or cursor[1] <= length)
        if not self.counters:
            return self.parent.fits(cursor, epoch)
        return has_counts(cursor, self.counters) and self.fits_parent(cursor, epoch)

    def fits_parent(self, cursor: Cursor, epoch: int) -> bool:
        """Whether the parent's cursor inside this node's own fits, and the numbers beside it."""
        return cursor.get("epoch", epoch) == epoch and self.parent.fits(cursor.get("at"), epoch)


def is_count(value: Any) -> bool:
    """Whether a JSON value is a whole number that places can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def is_place(cursor: Cursor) -> bool:
    """Whether a cursor is [epoch, index]."""
    return isinstance(cursor, list) and len(cursor) == 2 and all(is_count(n) for n in cursor)


def has_counts(cursor: Cursor, names: tuple[str, ...]) -> bool:
    """Whether a cursor is an object in which each of `names` is a whole number."""
    return isinstance(cursor, dict) and all(is_count(cursor.get(name)) for name in names)


class Source(Node):
    """A leaf: records that can be read by number, equal in every epoch."""

    def gather(self, index: Index) -> Block:
        """The records at `index` (int64[n], in any order) as n elements. Pure and thread-safe."""
        raise NotImplementedError(type(self).__name__)

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or self.op, epoch, index)

    def locate(self, places: Places) -> Leaf:
        return Leaf(self, places)

    def read(self, located: Located) -> Block:
        assert isinstance(located, Leaf)
        return self.gather(located.places.index)

    def count_records(self, index: int) -> int:
        return index

    def static_spec(self) -> Nest | None:
        return None


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive elements of one epoch of a seekable node, from `start`, located."""

    epoch: int
    start: int
    located: Located

    def __len__(self) -> int:
        return len(self.located)

    def slice(self, start: int, stop: int) -> Piece:
        return Piece(self.epoch, self.start + start, self.located.slice(start, stop))

    @property
    def places(self) -> Places:
        return Places(self.epoch, np.arange(self.start, self.start + len(self), dtype=np.int64))


def as_chunk(node: Node, piece: Piece, block: Block) -> Chunk:
    """A piece that was read, as a chunk of a stream whose cursor is a place."""
    epoch, start, located = piece.epoch, piece.start, piece.located

    def records() -> Index | None:
        if node.weight == 1 or not node.countable:
            return None
        counts = [node.count_records(start + j) for j in range(len(piece) + 1)]
        return np.asarray(counts[1:], np.int64) - np.asarray(counts[:-1], np.int64)

    return Chunk(
        block,
        piece.places,
        lambda j: [epoch, start + j],
        lambda j: list(located.slice(j, j + 1).records()),
        records(),
    )


def pieces(
    node: Node, spans: Iterable[tuple[int, int, int | None]], size: Callable[[], int]
) -> Iterator[Piece]:
    """The elements of `spans` (epoch, from, to) in pieces of `size()` elements.

    Places are located in windows that grow to 64k records, so that the first is quick and the rest cost a
    slice.
    """
    most = max(1, WINDOW // node.weight)
    width = max(1, min(most, 256 // node.weight))
    for epoch, index, stop in spans:
        while stop is None or index < stop:
            end = index + width if stop is None else min(index + width, stop)
            located = node.locate(Places(epoch, np.arange(index, end, dtype=np.int64)))
            at = 0
            while at < end - index:
                to = min(at + max(1, size()), end - index)
                yield Piece(epoch, index + at, located.slice(at, to))
                at = to
            index = end
            width = min(width * 4, most)


def walk_places(
    node: Node, spans: Iterable[tuple[int, int, int | None]], compute: Compute, pace: Pace
) -> Iterator[tuple[Piece, Block]]:
    """The elements of `spans` (epoch, from, to) of a seekable node, read in order."""

    def read(piece: Piece) -> Block:
        return node.read(piece.located)

    return attempt(compute, read, pieces(node, spans, lambda: pace.size), pace, node.weight)


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """The tree with `change` applied to every node, parents first."""
    parents = tuple(rebuild(parent, change) for parent in node.parents)
    same = all(a is b for a, b in zip(parents, node.parents, strict=True))
    return change(node if same else replace(node, parents=parents))


def ordinal(node: Node) -> int:
    """How many random operations of its kind are among a node's ancestors."""
    return sum(
        (parent.random == node.random) + _ordinal_below(parent, node.random)
        for parent in node.parents
    )


def _ordinal_below(node: Node, kind: str | None) -> int:
    return sum((p.random == kind) + _ordinal_below(p, kind) for p in node.parents)
