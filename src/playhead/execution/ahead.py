"""A walk that goes on in a thread of its own, a bounded way ahead of its consumer."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeAlias, TypeVar

from playhead.errors import Line, ReadAheadTimeout, begun_at, users_line
from playhead.plan.leaving import until

Item = TypeVar("Item")
Sizes: TypeAlias = tuple[int, int]

BEAT = 0.5  # seconds that a wait lasts: Python may overlook a signal that comes as one begins


class _Queue(Generic[Item]):
    def __init__(self, limits: Sizes) -> None:
        self.limits = limits
        self.items: deque[tuple[Item, Sizes]] = deque()
        self.held: Sizes = (0, 0)
        self.lock = threading.RLock()  # not the condition's own methods, in Python
        self.changed = threading.Condition(self.lock)  # which an interrupt may leave half-way
        self.stopped = False
        self.finished = False
        self.error: BaseException | None = None
        self.process = os.getpid()

    def is_full(self, more: Sizes) -> bool:
        if not self.held[0]:
            return False
        return any(h + m > most for h, m, most in zip(self.held, more, self.limits, strict=True))


class Ahead(Generic[Item]):
    """Iterates `walk` in a thread, while what waits stays within `limits`; `sizes` measures an item.

    Both are (elements, bytes). An item larger than the limits waits alone. `timeout`: seconds
    without a sign of life after which the walk is taken to hang; `alive` is when (`time.monotonic`) there was
    one within it, though it gave no item.
    """

    def __init__(
        self,
        walk: Generator[Item, None, None],
        sizes: Callable[[Item], Sizes],
        limits: Sizes,
        timeout: float | None = None,
        alive: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._timeout = timeout
        self._alive = alive
        self.hangs = False
        self._queue: _Queue[Item] = _Queue(limits)
        self._thread = threading.Thread(
            target=_fill,
            args=(walk, sizes, self._queue, users_line()),
            name="playhead-walk",
            daemon=True,
        )
        self._finalizer = weakref.finalize(self, _stop, self._queue)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        queue = self._queue
        with queue.lock:
            began = time.monotonic()
            most = self._timeout
            beat = BEAT if most is None else min(BEAT, most)
            while not queue.changed.wait_for(self._has_news, beat):
                if most is not None and time.monotonic() - max(began, self._alive()) > most:
                    self.hangs = True
                    raise self._hanging(most)
            if not queue.items:
                if queue.error is not None:
                    raise queue.error
                raise StopIteration
            item, sizes = queue.items.popleft()
            queue.held = (queue.held[0] - sizes[0], queue.held[1] - sizes[1])
            queue.changed.notify_all()
            return item

    def _has_news(self) -> bool:
        return bool(self._queue.items) or self._queue.finished

    @staticmethod
    def _hanging(timeout: float) -> ReadAheadTimeout:
        return ReadAheadTimeout(
            f"the walk gave no sign of life for {timeout:g} seconds",
            help="its source hangs, or prefetch(timeout=...) is too short",
            seconds=timeout,
        )

    def close(self, wait: bool = True) -> None:
        """End the walk; `wait` for its thread."""
        self._finalizer()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have; its lock may never be free again."""
        self._finalizer.detach()


def _stop(queue: _Queue[Item], finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    # At the interpreter's end this module's names are gone; that function is not.
    if finalizing() or queue.process != os.getpid():
        return  # a forked child has not the thread, which may have held the lock
    with queue.lock:
        queue.stopped = True
        queue.items.clear()
        queue.changed.notify_all()


def _fill(
    walk: Generator[Item, None, None],
    measure: Callable[[Item], Sizes],
    queue: _Queue[Item],
    line: Line | None,
) -> None:
    begun_at(line)
    error: BaseException | None = None
    with until(lambda: queue.stopped), contextlib.closing(walk):
        try:
            for item in walk:
                sizes = measure(item)
                with queue.lock:
                    while queue.is_full(sizes) and not queue.stopped:
                        queue.changed.wait()
                    if queue.stopped:
                        return
                    queue.items.append((item, sizes))
                    queue.held = (queue.held[0] + sizes[0], queue.held[1] + sizes[1])
                    queue.changed.notify_all()
                del item
        except BaseException as raised:
            error = raised
        finally:
            with queue.lock:
                queue.error = error
                queue.finished = True
                queue.changed.notify_all()
