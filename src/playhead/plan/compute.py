"""Computing in order, for streams: what a walk is handed to compute with, and what it yields."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from playhead.plan.block import Block
from playhead.plan.places import Cursor, Index, Places, Record

if TYPE_CHECKING:
    from playhead.plan.node import Node

Sized = TypeVar("Sized", bound="Sliceable")
Result = TypeVar("Result")


class Sliceable(Protocol):
    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> Self: ...


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
