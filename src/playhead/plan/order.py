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
from playhead.plan.block import Block, Nest
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import INFINITE, UNKNOWN, Node, ordinal
from playhead.plan.places import Cursor, Index, Located, Places

ENDLESS_STRIDE = 1 << 32
MAX_PASS = 1 << 62


class Order(Node):
    """An operation that only says which of its parent's elements come when."""

    def spec(self) -> Nest:
        return self.parent.spec()

    @cached_property
    def unlocked(self) -> bool:
        return self.parent.unlocked

    def read_apart(self, located: Located, ends: list[int]) -> list[Block] | None:
        return self.parent.read_apart(located, ends)


@dataclass(frozen=True, eq=False)
class Shuffle(Order):
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
                help="put shuffle before what made it one (filter, ignore_errors, on_error= ...), on the "
                "source's records; where the source is a stream itself (compressed files, generators), "
                "shuffle(buffer_size=...) permutes windows of that many elements",
            )
        if self.buffer_size is None and not self.parent.finite and self.parent.length is None:
            raise PipelineError(
                "shuffle over an endless dataset has no last element to wait for",
                help="put shuffle before repeat, or give shuffle(buffer_size=...)",
            )

    @cached_property
    def windowed(self) -> bool:
        length = self.parent.length
        return self.buffer_size is not None and (length is None or self.buffer_size < length)

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
class Repeat(Order):
    """The parent's passes one after the other; `count` None is endless.

    `origin` = (epoch, index, parent's epoch, parent's index) where one pass was cut anew (by record).
    """

    op: ClassVar[str] = "repeat"
    counters: ClassVar[tuple[str, ...]] = ("pass", "epoch")
    keeps_keys: ClassVar[bool] = True

    count: int | None
    origin: tuple[int, int, int, int] | None = None

    @cached_property
    def finite(self) -> bool:
        return self.count is not None and self.parent.finite

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
        passes, inside = divmod(index, length)
        return passes * self._records_of_a_pass + self.parent.count_records(inside)

    @cached_property
    def _records_of_a_pass(self) -> int:
        """Of a finite parent. Asked at each count, it would double what that costs at each of many repeats."""
        return self.parent.count_records(self.parent.length or 0)

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
class Slice(Order):
    """Every `step`-th element from `start` on, at most `count` of them: take, skip and shard."""

    op: ClassVar[str] = "slice"
    counters: ClassVar[tuple[str, ...]] = ("seen",)
    keeps_keys: ClassVar[bool] = True

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

    def locate(self, places: Places) -> Located:
        return self.parent.locate(Places(places.epoch, self.start_at + places.index * self.step))

    @property
    def countable(self) -> bool:
        return self.parent.countable and (self.step == 1 or self.parent.weight == 1)

    def count_records(self, index: int) -> int:
        if self.step != 1:
            return index
        return self.parent.count_records(self.start_at + index) - self._records_before

    @cached_property
    def _records_before(self) -> int:
        """Asked at each count, it would double what that costs at each of many slices."""
        return self.parent.count_records(self.start_at)

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
