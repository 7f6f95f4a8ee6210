"""A walk that goes on in a thread of its own, a bounded way ahead of its consumer."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Queue(Generic[Item]):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: deque[tuple[Item, int]] = deque()
        self.held = 0
        self.changed = threading.Condition()
        self.stopped = False
        self.finished = False
        self.error: BaseException | None = None


class Ahead(Generic[Item]):
    """Iterates `walk` in a thread, while fewer than `limit` units wait; `size` counts an item's units."""

    def __init__(
        self, walk: Generator[Item, None, None], size: Callable[[Item], int], limit: int
    ) -> None:
        self._queue: _Queue[Item] = _Queue(limit)
        self._thread = threading.Thread(
            target=_fill, args=(walk, size, self._queue), name="playhead-walk", daemon=True
        )
        self._finalizer = weakref.finalize(self, _stop, self._queue)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        queue = self._queue
        with queue.changed:
            while not queue.items and not queue.finished:
                queue.changed.wait()
            if not queue.items:
                if queue.error is not None:
                    raise queue.error
                raise StopIteration
            item, size = queue.items.popleft()
            queue.held -= size
            queue.changed.notify_all()
            return item

    def close(self, wait: bool = True) -> None:
        """End the walk; `wait` for its thread."""
        self._finalizer()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have; its lock may never be free again."""
        self._finalizer.detach()


def _stop(queue: _Queue[Item]) -> None:
    with queue.changed:
        queue.stopped = True
        queue.items.clear()
        queue.changed.notify_all()


def _fill(
    walk: Generator[Item, None, None], size: Callable[[Item], int], queue: _Queue[Item]
) -> None:
    error: BaseException | None = None
    with contextlib.closing(walk):
        try:
            for item in walk:
                units = size(item)
                with queue.changed:
                    while queue.held and queue.held + units > queue.limit and not queue.stopped:
                        queue.changed.wait()
                    if queue.stopped:
                        return
                    queue.items.append((item, units))
                    queue.held += units
                    queue.changed.notify_all()
                del item
        except BaseException as raised:
            error = raised
        finally:
            with queue.changed:
                queue.error = error
                queue.finished = True
                queue.changed.notify_all()
