"""Rows of packed documents, found but not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from playhead.plan.places import Index, Keyed, Record


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows of one lane of an epoch: row k is made of parts offsets[k] to offsets[k + 1].

    Part p is tokens low[p] to high[p] of document which[p] of `inner`, which should have size[p].
    """

    offsets: Index
    which: Index
    low: Index
    high: Index
    size: Index
    inner: Keyed

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Strip:
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        which = self.which[low:high]
        first, last = (int(which[0]), int(which[-1]) + 1) if len(which) else (0, 0)
        return Strip(
            self.offsets[start : stop + 1] - low,
            which - first,
            self.low[low:high],
            self.high[low:high],
            self.size[low:high],
            self.inner.slice(first, last),
        )

    def records(self) -> Iterator[Record]:
        for part in np.flatnonzero(self.high > self.low).tolist():
            which = int(self.which[part])
            yield from self.inner.slice(which, which + 1).records()


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows: the kth is row rank[k] of strip number strip[k]."""

    strip: Index
    rank: Index
    strips: tuple[Strip, ...]

    def __len__(self) -> int:
        return len(self.rank)

    def slice(self, start: int, stop: int) -> Packed:
        strip, rank = self.strip[start:stop], self.rank[start:stop].copy()
        strips = []
        for number, whole in enumerate(self.strips):
            here = np.flatnonzero(strip == number)
            first, last = (int(rank[here[0]]), int(rank[here[-1]]) + 1) if len(here) else (0, 0)
            strips.append(whole.slice(first, last))
            rank[here] -= first
        return Packed(strip, rank, tuple(strips))

    def records(self) -> Iterator[Record]:
        for strip, rank in zip(self.strip.tolist(), self.rank.tolist(), strict=True):
            yield from self.strips[strip].slice(rank, rank + 1).records()
