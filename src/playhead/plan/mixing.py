"""Several datasets mixed by weights: sample_from_datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan import randomness
from playhead.plan.block import Block
from playhead.plan.branches import Alike, Merged, merge
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import INFINITE, UNKNOWN, ordinal
from playhead.plan.permutation import permute
from playhead.plan.places import Cursor, Index, Located, Places, has_counts
from playhead.plan.streams import Streams, are_numbers, fits_each

SHARES = 4096  # draws in which each dataset comes as often as its weight says


def quantised(weights: list[float]) -> list[int]:
    """Whole numbers, at least 1 where the weight is not 0, that sum to SHARES: by largest remainders."""
    total = sum(weights)
    exact = [w / total * SHARES for w in weights]
    shares = [max(1, int(x)) if x else 0 for x in exact]
    while sum(shares) > SHARES:
        shares[max(range(len(shares)), key=lambda d: (shares[d], -d))] -= 1
    by_rest = sorted(range(len(shares)), key=lambda d: (int(exact[d]) - exact[d], d))
    for d in by_rest[: SHARES - sum(shares)]:
        shares[d] += 1
    short = SHARES - sum(shares)
    if short:
        shares[max(range(len(shares)), key=lambda d: (weights[d], -d))] += short
    return shares


@dataclass(frozen=True, slots=True)
class Segment:
    """Draws from `first` on in which no dataset runs out: before them `drawn` elements of each were taken.

    `shares` are what each gets of a block of draws; `last` is the block in which the segment ends.
    """

    first: int
    drawn: tuple[int, ...]
    shares: tuple[int, ...]
    number: int
    last: int | None
    stop: int | None


@dataclass(frozen=True, eq=False)
class SampleFromDatasets(Alike):
    """Elements of several datasets, each as often as its weight says.

    Every block of 4096 draws has the exact share of each dataset, in an order drawn for that block. At the
    first draw that cannot be met the epoch ends (`stop_on_empty`), or that dataset leaves, and a new row of
    blocks begins with the weights of the rest. With `rerandomize` the blocks' orders differ between epochs,
    but for the blocks in which a dataset runs out, so that all epochs are equally long.
    """

    op: ClassVar[str] = "sample_from_datasets"
    random: ClassVar[str | None] = "sample"
    counters: ClassVar[tuple[str, ...]] = ("epoch", "given")

    weights: tuple[float, ...]
    seed: int
    drawn: bool
    stop_on_empty: bool
    rerandomize: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.parents) > SHARES:
            raise PipelineError(
                f"{self.op} of {len(self.parents)} datasets: {SHARES} at most",
                help="mix some of them first, and the mixtures then",
            )

    @cached_property
    def cardinality(self) -> int:
        lengths = [parent.cardinality for parent in self.parents]
        if UNKNOWN in lengths:
            return UNKNOWN
        stop = self._segments[-1].stop
        return INFINITE if stop is None else stop

    @cached_property
    def _segments(self) -> list[Segment]:
        """Of datasets whose lengths are known."""
        lengths = [None if p.cardinality == INFINITE else p.cardinality for p in self.parents]
        found: list[Segment] = []
        first, drawn = 0, [0] * len(lengths)
        alive = [bool(w) for w in self.weights]
        while any(alive):
            weights = [w if a else 0.0 for w, a in zip(self.weights, alive, strict=True)]
            shares = quantised(weights)
            number = len(found)
            orders: dict[int, Index] = {}
            ends = [
                (self._draw(orders, number, shares, d, n - drawn[d]), d)
                for d, n in enumerate(lengths)
                if alive[d] and n is not None
            ]
            if not ends:
                found.append(Segment(first, tuple(drawn), tuple(shares), number, None, None))
                return found
            length, gone = min(ends)
            last = length // SHARES
            found.append(Segment(first, tuple(drawn), tuple(shares), number, last, first + length))
            if self.stop_on_empty:
                return found
            order = self._order(number, shares, last, None)[: length % SHARES]
            for d, share in enumerate(shares):
                drawn[d] += last * share + int(np.count_nonzero(order == d))
            first += length
            alive[gone] = False
        if not found:
            raise PipelineError(f"{self.op}: all weights are 0")
        return found

    def _draw(
        self, orders: dict[int, Index], segment: int, shares: list[int], d: int, count: int
    ) -> int:
        """The draw of a segment at which dataset `d` comes for the time number `count`, from 0 on."""
        block, within = divmod(count, shares[d])
        if block not in orders:
            orders[block] = self._order(segment, shares, block, None)
        return block * SHARES + int(np.flatnonzero(orders[block] == d)[within])

    def _order(
        self, segment: int, shares: list[int] | tuple[int, ...], block: int, epoch: int | None
    ) -> Index:
        """Which datasets a block of draws is of. `epoch` None: the same in all."""
        which = np.repeat(np.arange(len(shares), dtype=np.int64), shares)
        parts = (segment, block) if epoch is None else (segment, block, epoch)
        key = randomness.key(self.seed, self.op, ordinal(self), *parts)
        return which[permute(np.arange(SHARES, dtype=np.int64), SHARES, key)]

    def _which(self, epoch: int, index: Index) -> tuple[Index, Index]:
        """Of each draw: the dataset, and which of its elements."""
        which, inner = np.empty_like(index), np.empty_like(index)
        segments = self._segments
        starts = np.array([segment.first for segment in segments], np.int64)
        place = np.searchsorted(starts, index, side="right") - 1
        for number in np.unique(place).tolist():
            segment = segments[number]
            here = np.flatnonzero(place == number)
            blocks, within = np.divmod(index[here] - segment.first, SHARES)
            for block in np.unique(blocks).tolist():
                order, counts = self._block(segment, block, epoch)
                chosen = blocks == block
                draws = within[chosen]
                d = order[draws]
                which[here[chosen]] = d
                base = np.array(segment.drawn, np.int64) + block * np.array(segment.shares)
                inner[here[chosen]] = base[d] + counts[draws]
        return which, inner

    def _block(self, segment: Segment, block: int, epoch: int) -> tuple[Index, Index]:
        """Which dataset each draw of a block is of, and how many of that dataset's come before it there."""
        fixed = not self.rerandomize or block == segment.last
        order = self._order(segment.number, segment.shares, block, None if fixed else epoch)
        counts = np.empty_like(order)
        for d in range(len(self.parents)):
            mine = order == d
            counts[mine] = np.arange(np.count_nonzero(mine))
        return order, counts

    def locate(self, places: Places) -> Located:
        if isinstance(places.epoch, int):
            which, inner = self._which(places.epoch, places.index)
        else:
            which, inner = np.empty_like(places.index), np.empty_like(places.index)
            for epoch in np.unique(places.epoch).tolist():
                here = places.epoch == epoch
                which[here], inner[here] = self._which(epoch, places.index[here])
        at = Places(places.epoch, inner)
        located = {
            d: self.parents[d].locate(at.select(np.flatnonzero(which == d)))
            for d in np.unique(which).tolist()
        }
        return Merged.of(which, located)

    def read(self, located: Located) -> Block:
        assert isinstance(located, Merged)
        used = sorted(located.inner)
        blocks = [self.parents[k].read(located.inner[k]) for k in used]
        return merge(blocks, used, located.which, self.static_spec() is not None)

    @property
    def countable(self) -> bool:
        return all(parent.weight == 1 for parent in self.parents)

    def count_records(self, index: int) -> int:
        return index

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "weights": list(self.weights), "seed": self.seed}
        if self.drawn:
            said["drawn"] = True
        if self.stop_on_empty:
            said["stop_on_empty_dataset"] = True
        if self.rerandomize:
            said["rerandomize_each_iteration"] = True
        return said

    # --- over streams -----------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return {
            "epoch": epoch,
            "given": 0,
            "segment": 0,
            "draw": 0,
            "gone": [d for d, w in enumerate(self.weights) if not w],
            "at": [parent.start(epoch) for parent in self.parents],
        }

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if self.seekable:
            return super().fits(cursor, epoch)
        if not has_counts(cursor, ("epoch", "given", "segment", "draw")):
            return False
        gone = cursor.get("gone")
        inside = are_numbers(gone, len(self.parents)) and cursor["epoch"] == epoch
        if not inside or not fits_each(self, cursor.get("at"), epoch):
            return False
        here = [w for d, w in enumerate(self.weights) if d not in gone]
        return not here or any(here)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, given = cursor["epoch"], cursor["given"]
        segment, draw, gone = cursor["segment"], cursor["draw"], list(cursor["gone"])
        streams = Streams(self, cursor["at"], compute)
        while len(gone) < len(self.parents):
            alive = [0.0 if d in gone else w for d, w in enumerate(self.weights)]
            shares = quantised(alive)
            block, order = -1, np.empty(0, np.int64)
            while True:
                if draw // SHARES != block:
                    block = draw // SHARES
                    order = self._order(segment, shares, block, epoch if self.rerandomize else None)
                d = int(order[draw % SHARES])
                item = streams.next(d)
                if item is None:
                    break
                said = {"epoch": epoch, "segment": segment, "gone": list(gone)}
                yield streams.chunk(
                    item,
                    d,
                    (epoch, given),
                    said | {"given": given, "draw": draw},
                    said | {"given": given + 1, "draw": draw + 1},
                )
                given, draw = given + 1, draw + 1
            if self.stop_on_empty:
                return
            gone.append(d)
            segment, draw = segment + 1, 0
