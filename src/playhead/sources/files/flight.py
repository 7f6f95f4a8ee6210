"""Several requests under way at once, but never too many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from playhead.plan.lock import Lock

T = TypeVar("T")
S = TypeVar("S")


class Room:
    """Room for so many at once; a child made by fork finds all of it free."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self._owner = -1
        self._seats = threading.BoundedSemaphore(size)

    def __enter__(self) -> None:
        with self._lock:
            if self._owner != os.getpid():
                self._owner, self._seats = os.getpid(), threading.BoundedSemaphore(self.size)
            seats = self._seats
        seats.acquire()

    def __exit__(self, *error: object) -> None:
        self._seats.release()


def in_order(function: Callable[[S], T], items: Sequence[S], ahead: int) -> Iterator[T]:
    """`function` of each item, in order, by threads that are gone at the end."""
    if len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(min(ahead, len(items)), "playhead-remote") as pool:
        waiting: list[Future[T]] = []
        try:
            for item in items:
                if len(waiting) == ahead:
                    yield waiting.pop(0).result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
