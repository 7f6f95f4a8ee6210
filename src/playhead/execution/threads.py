"""An ordered read-ahead over a pool of threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from playhead.plan.block import Columns, Rows, leaves
from playhead.plan.compute import Pace, Serial
from playhead.plan.node import Node
from playhead.plan.prefetch import AUTOTUNE

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Done:
    """No item is left."""


_DONE = _Done()

BUDGET = 1 << 30  # bytes computed and not yet delivered


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Alone(Serial):
    """Computes where it is walked, one call after the other, but in chunks: for a walk that runs ahead."""

    def __init__(self, records: int | None) -> None:
        self._records = records

    def pace(self, node: Node) -> Pace:
        return _pace(node, self._records, 1)


def _pace(node: Node, records: int | None, workers: int) -> Pace:
    most = max(1, 1024 // node.weight)
    if records is not None:
        most = max(1, min(most, records // (workers * node.weight)))
    return Pace(most)


class Threads:
    """Computes in `workers` threads and yields in order, at most `records` records ahead.

    `records` None: two chunks ahead for each worker. Whatever was asked for, what is held ahead stays
    within about `budget` bytes, counted by the results seen so far.
    """

    def __init__(
        self, workers: int = AUTOTUNE, records: int | None = None, budget: int = BUDGET
    ) -> None:
        self.workers = cores() if workers == AUTOTUNE else workers
        self.records = records
        self.budget = budget
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="playhead")

    def pace(self, node: Node) -> Pace:
        return _pace(node, self.records, self.workers)

    def ordered(
        self, fn: Callable[[Item], Result], items: Iterable[Item], weight: int = 1
    ) -> Iterator[Result]:
        return self._run(fn, iter(items), 2 * self.workers + 1, weight)

    def _run(
        self, fn: Callable[[Item], Result], items: Iterator[Item], depth: int, weight: int
    ) -> Iterator[Result]:
        waiting: deque[tuple[Future[Result], int]] = deque()
        ahead = 0
        typical = 0.0  # bytes of a result
        more = True
        try:
            while True:
                while more and self._room(len(waiting), ahead, depth, typical):
                    item = next(items, _DONE)
                    if isinstance(item, _Done):
                        more = False
                        break
                    size = weight * len(item) if hasattr(item, "__len__") else weight
                    waiting.append((self._pool.submit(fn, item), size))
                    ahead += size
                if not waiting:
                    return
                future, size = waiting.popleft()
                ahead -= size
                result = future.result()
                held = nbytes(result)
                typical = held if not typical else 0.9 * typical + 0.1 * held
                yield result
        finally:
            for future, _ in waiting:
                future.cancel()

    def _room(self, tasks: int, ahead: int, depth: int, typical: float) -> bool:
        if not tasks:
            return True
        if self.records is not None and ahead >= self.records:
            return False
        if not typical:
            return tasks < self.workers  # nobody knows yet how large a result is
        return tasks < depth and (tasks + 1) * typical <= self.budget

    def close(self, wait: bool = True) -> None:
        """No new work; running chunks end, `wait` for them."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


def nbytes(result: Any) -> int:
    """About how many bytes a result holds."""
    if isinstance(result, Columns):
        return sum(_leaf_bytes(leaf) for leaf in leaves(result.nest))
    if isinstance(result, Rows):
        if not result.elements:
            return 0
        return len(result) * sum(_leaf_bytes(leaf) for leaf in leaves(result.elements[0]))
    if isinstance(result, tuple):
        return sum(nbytes(part) for part in result)
    return 0


def _leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray):
        if leaf.dtype == object and leaf.size:
            return leaf.size * (_leaf_bytes(leaf.flat[0]) + 50)
        return leaf.nbytes
    return len(leaf) if isinstance(leaf, bytes | str) else 8
