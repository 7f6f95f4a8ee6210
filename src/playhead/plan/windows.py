"""Runs of consecutive elements: window, and shuffle over a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from playhead.plan import randomness
from playhead.plan.batches import Grouped
from playhead.plan.block import Block, Element, Nest, Rows
from playhead.plan.chains import open_needed
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import INFINITE, UNKNOWN, Node, ordinal
from playhead.plan.permutation import permute
from playhead.plan.places import Cursor, Index, Located, Places, Record, has_counts
from playhead.plan.walking import Item, Walked, fixed, joined, one, walked

AT_ONCE = 256  # elements of a permuted window in a chunk


@dataclass(frozen=True, eq=False)
class Window(Node):
    """Datasets of `size` elements, `stride` apart, each beginning `shift` elements after the one before.

    `wrap` makes the nest of datasets of a window's elements.
    """

    op: ClassVar[str] = "window"
    counters: ClassVar[tuple[str, ...]] = ("given", "epoch")

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    wrap: Callable[[list[Element]], Any]

    @property
    def span(self) -> int:
        """From a window's first element to the one after its last."""
        return (self.size - 1) * self.stride + 1

    @property
    def cardinality(self) -> int:
        length = self.parent.cardinality
        if length in (INFINITE, UNKNOWN):
            return length
        if self.drop_remainder:
            return max(0, (length - self.span) // self.shift + 1)
        return -(-length // self.shift)

    @cached_property
    def batches(self) -> Node | None:
        return None

    @cached_property
    def weight(self) -> int:
        return self.size * self.parent.weight

    def static_spec(self) -> Nest | None:
        return None

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "size": self.size}
        if self.shift != self.size:
            said["shift"] = self.shift
        if self.stride != 1:
            said["stride"] = self.stride
        if self.drop_remainder:
            said["drop_remainder"] = True
        return said

    @property
    def countable(self) -> bool:
        return False

    def locate(self, places: Places) -> Located:
        starts = places.index * self.shift
        within = np.arange(self.size, dtype=np.int64) * self.stride
        index = starts[:, None] + within
        length = self.parent.length
        inside = np.ones_like(index, bool) if length is None else index < length
        counts = inside.sum(1)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        epochs = places.epoch
        if not isinstance(epochs, int):
            epochs = np.repeat(epochs, counts)
        return Grouped(offsets, self.parent.locate(Places(epochs, index[inside])))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Grouped)
        rows = self.parent.read(located.inner).own_rows()
        bounds = zip(located.offsets[:-1].tolist(), located.offsets[1:].tolist(), strict=True)
        return Rows([self.wrap(rows[low:high]) for low, high in bounds])

    # --- over a stream ----------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return {"given": 0, "epoch": epoch, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        given, epoch = cursor["given"], cursor["epoch"]
        stream = walked(self.parent, cursor["at"], compute)
        waiting: deque[Item] = deque()
        while True:
            waiting.extend(islice(stream, max(0, self.span - len(waiting))))
            if not waiting or (self.drop_remainder and len(waiting) < self.span):
                return
            inside = list(islice(waiting, 0, self.span, self.stride))
            before, last = waiting[0].before, waiting[0]
            for _ in range(self.shift):
                passed = waiting.popleft() if waiting else next(stream, None)
                if passed is None:
                    break
                last = passed
            at = waiting[0].before if waiting else last.after
            yield self._made(
                inside,
                (epoch, given),
                partial(_place, given, epoch, before),
                partial(_place, given + 1, epoch, at),
            )
            given += 1

    def _made(
        self,
        inside: list[Item],
        key: tuple[int, int],
        before: Callable[[], Cursor],
        after: Callable[[], Cursor],
    ) -> Chunk:
        traces = [item.trace for item in inside]
        return one(
            self.wrap([item.row for item in inside]),
            key,
            before,
            after,
            lambda: [record for trace in traces for record in trace()],
            sum(item.records for item in inside),
        )


def _place(given: int, epoch: int, at: Callable[[], Cursor]) -> Cursor:
    return {"given": given, "epoch": epoch, "at": at()}


@dataclass(frozen=True, eq=False)
class ShuffleStream(Walked):
    """Windows of `buffer_size` consecutive elements of a stream, each permuted.

    The cursor is where the window begins, and how many of its elements were given: restoring reads it again.
    """

    op: ClassVar[str] = "shuffle"
    random: ClassVar[str | None] = "shuffle"

    buffer_size: int
    seed: int
    drawn: bool
    reshuffle: bool

    def spec(self) -> Nest:
        return self.parent.spec()

    def static_spec(self) -> Nest | None:
        return self.parent.static_spec()

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "seed": self.seed}
        if self.drawn:
            said["drawn"] = True
        if not self.reshuffle:
            said["reshuffle_each_iteration"] = False
        return said | {"buffer_size": self.buffer_size, "algorithm": "window-of-stream-1"}

    def start_stream(self, epoch: int) -> Cursor:
        return {"epoch": epoch, "window": 0, "given": 0, "at": self.parent.start(epoch)}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counted = has_counts(cursor, ("epoch", "window", "given"))
        return counted and cursor["given"] <= self.buffer_size and self.fits_parent(cursor, epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, window, given = cursor["epoch"], cursor["window"], cursor["given"]
        at: Callable[[], Cursor] = partial(fixed, cursor["at"])
        waiting: list[Chunk] = []
        have = 0
        chunks = open_needed(self.parent, cursor["at"], compute, lambda: self.buffer_size - have)
        for chunk in chunks:
            while len(chunk):
                more = min(self.buffer_size - have, len(chunk))
                waiting.append(chunk.slice(0, more))
                chunk = chunk.slice(more, len(chunk))
                have += more
                if have == self.buffer_size:
                    behind = partial(waiting[-1].cursor, more)
                    yield from self._permuted(waiting, epoch, window, given, at)
                    at, given, window, have = behind, 0, window + 1, 0
        if waiting:
            yield from self._permuted(waiting, epoch, window, given, at)

    def _permuted(
        self,
        parts: list[Chunk],
        epoch: int,
        window: int,
        given: int,
        at: Callable[[], Cursor],
    ) -> Iterator[Chunk]:
        """What is left to give of a window. Its parts are taken out of the list: their memory is free then."""
        whole = joined(parts)
        parts.clear()
        size = len(whole)
        place = (epoch if self.reshuffle else 0, window)
        key = randomness.key(self.seed, "shuffle", ordinal(self), *place)
        order = permute(np.arange(size, dtype=np.int64), size, key)
        end = partial(whole.cursor, size)

        def cursor(before: int, j: int) -> Cursor:
            if before + j == self.buffer_size:
                return {"epoch": epoch, "window": window + 1, "given": 0, "at": end()}
            return {"epoch": epoch, "window": window, "given": before + j, "at": at()}

        for low in range(given, size, AT_ONCE):
            chosen = order[low : low + AT_ONCE]
            yield Chunk(
                whole.block.select(chosen),
                whole.keys.select(chosen),
                partial(cursor, low),
                partial(_traced, whole.trace, chosen),
                None if whole.records is None else whole.records[chosen],
            )


def _traced(trace: Callable[[int], list[Record]], chosen: Index, j: int) -> list[Record]:
    return trace(int(chosen[j]))
