"""The protocols of the plan: what can jump, and what must walk.

A pipeline is a tree of nodes. Where every parent can jump, a node is *seekable*: `locate` turns places into
the sources' records without reading anything, `read` reads them. Elsewhere it is a *stream*: it starts from
a cursor. Every seekable node serves as a stream too, with a place as its cursor.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import Block, Nest, spec_of, widened
from playhead.plan.compute import (
    Chunk,
    Compute,
    Job,
    Needed,
    Outcome,
    Pace,
    Result,
    attempt,
    timed,
)
from playhead.plan.compute import Item as Item
from playhead.plan.places import (
    Cursor,
    Index,
    Leaf,
    Located,
    Places,
    Record,
    has_counts,
    is_place,
)

INFINITE = -1
UNKNOWN = -2
WINDOW = 1 << 16
SOME = 4  # elements by which the shapes of uneven ones are told


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
    counters: ClassVar[tuple[str, ...]] = ()  # numbers in its own cursor, beside its parent's "at"
    keeps_keys: ClassVar[bool] = (
        False  # over a stream, each element is the parent's of the same key
    )

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
    def repeatable(self) -> bool:
        """Whether every walk gives the same elements in the same order."""
        return all(parent.repeatable for parent in self.parents)

    @cached_property
    def parted(self) -> bool:
        """Whether its elements are parts of batches, one for each of several processes."""
        return any(parent.parted for parent in self.parents)

    @cached_property
    def user_code(self) -> bool:
        """Whether reading an element calls a function of the user's."""
        return self.runs_user_code or any(parent.user_code for parent in self.parents)

    @cached_property
    def batches(self) -> Node | None:
        """The batches that this node's elements are, or are made of one by one: they can be read in parts."""
        return self.parent.batches if len(self.parents) == 1 and self.seekable else None

    @cached_property
    def light(self) -> bool:
        """Whether reading is little work beside the Python around it, for which threads take turns."""
        quick = not self.runs_user_code and all(parent.light for parent in self.parents)
        return bool(self.parents) and quick

    @cached_property
    def unlocked(self) -> bool:
        """Whether reading is mostly work for which Python's lock is left, and asks no remote store."""
        return False

    @cached_property
    def weight(self) -> int:
        """About how many source records make one element."""
        return max((parent.weight for parent in self.parents), default=1)

    @property
    def length(self) -> int | None:
        """Elements in one epoch of a seekable node; None where endless."""
        count = self.cardinality
        return None if count == INFINITE else count

    @cached_property
    def finite(self) -> bool:
        """Whether it surely has a last element, told without asking how many there are.

        A source of files may have to read all of them for that.
        """
        return bool(self.parents) and all(parent.finite for parent in self.parents)

    def length_at(self, epoch: int) -> int | None:
        """Elements in this very epoch: `length`, but for an epoch that was cut anew (by record)."""
        return self.length

    def describe(self) -> dict[str, Any] | None:
        """What decides order and values: JSON. None: nothing to say."""
        raise NotImplementedError(type(self).__name__)

    def said(self) -> dict[str, Any]:
        """What it is, for people: `describe`, and what changes no element."""
        return self.describe() or {"op": self.op}

    def static_spec(self) -> Nest | None:
        """The elements' `ArraySpec`s where they are known without reading."""
        return self.parent.static_spec() if len(self.parents) == 1 else None

    def spec(self) -> Nest:
        """The elements' `ArraySpec`s, from the first element where they are not known."""
        known = self.static_spec()
        if known is not None:
            return known
        found = self.firsts(SOME if self.uneven else 1)
        known = self.static_spec()  # a function of tensors has been traced by now
        if known is not None:
            return known
        specs = [spec_of(element) for element in found]
        return widened(specs) if self.uneven else specs[0]

    @cached_property
    def uneven(self) -> bool:
        """Whether elements are batches, or the like, that may be unequally long."""
        return any(parent.uneven for parent in self.parents)

    def firsts(self, count: int) -> list[Any]:
        """The first elements of epoch 0, `count` at most. Raises `PipelineError` where there is none."""
        found: list[Any] = []
        for chunk in self.open(self.start(0), Serial()):
            found += chunk.block.rows()
            if len(found) >= count:
                break
        if found:
            return found[:count]
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

    def read_apart(self, located: Located, ends: list[int]) -> list[Block] | None:
        """`read` of each part of `located`, part k ending before `ends[k]`, each in memory of its own.

        None where one call for all is no better than one for each.
        """
        return None

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
        span = (epoch, index, self.length_at(epoch))
        return (as_chunk(self, piece, block) for piece, block in compute.read(self, [span]))

    @property
    def narrows(self) -> bool:
        """Whether it is a stream that looks at something seekable, and gives one element for each at most."""
        return False

    @cached_property
    def fetchable(self) -> bool:
        """Whether `fetch` can read single elements again."""
        return self.seekable or (self.keeps_keys and self.parent.fetchable)

    def fetch(self, keys: Places) -> Block:
        """The elements that had these keys when they were walked. Pure and thread-safe."""
        if self.seekable:
            return self.read(self.locate(keys))
        return self.refetched(self.parent.fetch(keys), keys)

    def refetched(self, block: Block, keys: Places) -> Block:
        """What this node makes of its parent's elements."""
        return block

    def fetched_records(self, keys: Places) -> Iterator[Record]:
        """The records that `fetch` reads."""
        return self.locate(keys).records() if self.seekable else self.parent.fetched_records(keys)

    def fetched_counts(self, keys: Places) -> Index | None:
        """How many records each of these elements is made of, as their walk said; None: one each."""
        if not self.seekable:
            return self.parent.fetched_counts(keys)
        if self.weight == 1 or not self.countable:
            return None
        count = self.count_records
        return np.array([count(k + 1) - count(k) for k in keys.index.tolist()], np.int64)

    def fits_key(self, epoch: int, index: int) -> bool:
        """Whether an element of that key may be fetched."""
        if not self.seekable:
            return self.parent.fits_key(epoch, index)
        length = self.length_at(epoch)
        return length is None or index < length

    def behind(self, cursor: Cursor) -> Cursor | None:
        """Where the stream goes on behind its next element, which cannot be computed.

        None where that cannot be told.
        """
        return [cursor[0], cursor[1] + 1] if self.seekable else None

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


class Source(Node):
    """A leaf: records that can be read by number, equal in every epoch."""

    def gather(self, index: Index) -> Block:
        """The records at `index` (int64[n], in any order) as n elements. Pure and thread-safe."""
        raise NotImplementedError(type(self).__name__)

    def gather_apart(self, index: Index, ends: list[int]) -> list[Block] | None:
        """`gather` of each part of `index`, as `read_apart` reads."""
        return None

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or self.op, epoch, index)

    def locate(self, places: Places) -> Leaf:
        return Leaf(self, places)

    def read(self, located: Located) -> Block:
        assert isinstance(located, Leaf)
        return self.gather(located.places.index)

    def read_apart(self, located: Located, ends: list[int]) -> list[Block] | None:
        assert isinstance(located, Leaf)
        return self.gather_apart(located.places.index, ends)

    def count_records(self, index: int) -> int:
        return index

    def static_spec(self) -> Nest | None:
        return None


# (epoch, from, to); None: endless
Span: TypeAlias = tuple[int, int, int | None]


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

    def singles(self) -> list[Piece]:
        return [self.slice(k, k + 1) for k in range(len(self))] if len(self) > 1 else []

    @property
    def places(self) -> Places:
        return Places(self.epoch, np.arange(self.start, self.start + len(self), dtype=np.int64))


def as_chunk(node: Node, piece: Piece, block: Block, counted: bool = True) -> Chunk:
    """A piece that was read, as a chunk of a stream whose cursor is a place; its records `counted`."""
    epoch, start, located = piece.epoch, piece.start, piece.located

    def records() -> Index | None:
        if not counted or node.weight == 1 or not node.countable:
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


def pieces(node: Node, spans: Iterable[Span], size: Callable[[], int]) -> Iterator[Piece]:
    """The elements of `spans` in pieces of `size()` elements.

    Places are located in windows that grow to 64k records, so that the first is quick and the rest cost a
    slice.
    """
    most = max(1, WINDOW // node.weight)
    width = max(1, min(most, max(size(), 256 // node.weight)))
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


class Reading(Job[Piece, Block]):
    """Reads what was located of a node."""

    def __call__(self, sent: Piece) -> Block:
        return self.node.read(sent.located)

    def records(self, item: Piece) -> Iterator[Record]:
        return item.located.records()


def walk_places(
    node: Node, spans: Iterable[Span], compute: Compute
) -> Iterator[tuple[Piece, Block]]:
    """The elements of `spans` of a seekable node, read in order, whole elements at a time."""
    pace = compute.pace(node)
    found = pieces(node, spans, lambda: pace.size)
    return attempt(compute, Reading(node), found, pace, weight=node.weight)


class Serial:
    """Everything in the caller's thread, nothing ahead of what is asked for."""

    need: Callable[[], int] | None = None
    closed = False

    def ordered(
        self, job: Job[Item, Result], items: Iterable[Item], *, weight: int = 1, after: bool = False
    ) -> Iterator[tuple[Item, Outcome[Result]]]:
        return ((item, timed(job, job.sent(item))) for item in items)

    def read(self, node: Node, spans: Iterable[Span]) -> Iterator[tuple[Piece, Block]]:
        return walk_places(node, spans, self)

    def pace(self, node: Node) -> Pace:
        if self.need is not None:
            return Needed(self.need)
        return Pace(1 if node.user_code else 64 // node.weight)

    def needing(self, need: Callable[[], int]) -> Compute:
        serial = Serial()
        serial.need = need
        return serial

    def inside(self) -> Compute:
        return self


def ordinal(node: Node) -> int:
    """How many random operations of its kind are among a node's ancestors, each once for each way to it."""
    return _below(node, node.random, {})


def _below(at: Node, random: str | None, known: dict[int, int]) -> int:
    if id(at) not in known:  # an ancestor may be reached in 2**n ways
        known[id(at)] = sum((p.random == random) + _below(p, random, known) for p in at.parents)
    return known[id(at)]
