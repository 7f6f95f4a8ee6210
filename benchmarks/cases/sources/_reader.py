"""A peer's way through a source, and what is measured of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.cases._positions import milliseconds
from benchmarks.frame import Measure

LONGEST = 1.5  # seconds of reading in a turn


@dataclass(frozen=True)
class Reader:
    """How a peer reads a source in batches, keeps its place and comes back to it.

    batches: a pass from its beginning.
    saved: walks so many batches of a pass; gives what is saved there and the batch that follows.
    first: the batch at a saved place, of a pipeline built anew, and what ends that pipeline.
    exact: whether the batch at a saved place is the one that followed.
    """

    batches: Callable[[], Iterable[Any]]
    saved: Callable[[int], tuple[Any, Any]]
    first: Callable[[Any], tuple[Any, Callable[[], object]]]
    exact: bool = True


def figures(name: str, title: str, records: str = "records") -> dict[str, tuple[str, str]]:
    """The two figures of a source: how they are called, what they are and their units."""
    return {
        name: (f"{title}: reading", f"{records}/s"),
        f"{name}_resume": (f"{title}: first batch after coming back to 90 % of a pass", "ms"),
    }


def replayed(batches: Callable[[], Iterator[Any]], exact: bool = True) -> Reader:
    """A peer that keeps no place: its run goes through everything again, as far as it had come."""

    def after(count: int) -> tuple[Any, Iterator[Any]]:
        iterator = iter(batches())
        for _ in range(count):
            next(iterator)
        return next(iterator), iterator

    def first(count: int) -> tuple[Any, Callable[[], object]]:
        found, iterator = after(count)
        return found, getattr(iterator, "close", lambda: None)

    return Reader(batches, lambda count: (count, after(count)[0]), first, exact)


def measured(
    name: str, reader: Reader, records: int, batch: int, check: Callable[[Any], int]
) -> Measure:
    """A measurement of both figures of `name`.

    check: raises for what is not a batch of this case, and says how many records it holds.
    """
    first = next(iter(reader.batches()))
    if check(first) != batch:
        raise RuntimeError(f"a batch of {check(first)}")
    saved, following = reader.saved((records // batch - 1) * 9 // 10)
    came, close = reader.first(saved)
    if check(came) != batch or (reader.exact and not same(came, following)):
        raise RuntimeError("the restored iterator goes on with another batch")
    close()

    def measure() -> dict[str, float]:
        return {
            name: pace(reader.batches(), records),
            f"{name}_resume": milliseconds(
                lambda: reader.first(saved), lambda made: made[1](), limit=0.3
            ),
        }

    return measure


def pace(batches: Iterable[Any], records: int) -> float:
    """Records per second over a pass, which must hold `records` of them, or its first `LONGEST` seconds."""
    began = time.perf_counter()
    found, iterator = 0, iter(batches)
    for batch in iterator:
        found += count(batch)
        if time.perf_counter() - began > LONGEST:
            break
    else:
        if found != records:
            raise RuntimeError(f"{found} records came where {records} were expected")
    seconds = time.perf_counter() - began
    getattr(iterator, "close", lambda: None)()
    return found / seconds


def count(batch: Any) -> int:
    """How many records a batch of columns or of rows holds."""
    return len(leaves(batch)[0])


def leaves(batch: Any) -> list[Any]:
    """The columns of a batch."""
    if isinstance(batch, dict):
        return list(batch.values())
    return list(batch) if isinstance(batch, tuple) else [batch]


def same(one: Any, other: Any) -> bool:
    """Whether two batches hold equal columns."""
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
