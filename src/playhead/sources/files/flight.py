"""Several requests under way at once, but never too many."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import TypeVar

from playhead.plan.leaving import until
from playhead.plan.lock import Lock

_BEAT = 0.5  # seconds

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


def in_order(
    function: Callable[[S], T], items: Sequence[S], ahead: int, workers: int | None = None
) -> Iterator[T]:
    """`function` of each item, in order, by `workers` threads (`ahead` unless told) that are gone at the end.

    Where the caller is interrupted, or leaves before the end, nobody waits for the calls under way: else a
    silent store would keep Ctrl-C waiting. Calls that ask `leaving.left` are told; each thread ends behind
    its call, or with the process.
    """
    if len(items) < 2:
        yield from map(function, items)
        return
    tasks: SimpleQueue[tuple[Future[T], S] | None] = SimpleQueue()

    over = threading.Event()

    def work() -> None:
        with until(over.is_set):
            work_off()

    def work_off() -> None:
        while (task := tasks.get()) is not None:
            future, item = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(item))
            except BaseException as error:
                future.set_exception(error)

    workers = ahead if workers is None else max(1, workers)
    crew: list[threading.Thread] = []
    waiting: list[Future[T]] = []
    patient = True
    try:
        for item in items:
            if len(waiting) == ahead:
                yield _result(waiting.pop(0))
            waiting.append(Future())
            tasks.put((waiting[-1], item))
            if len(crew) < workers and sum(not one.done() for one in waiting) > len(crew):
                context = contextvars.copy_context()  # whoever waits for the caller waits for them
                crew.append(
                    threading.Thread(
                        target=context.run, args=(work,), name="playhead-remote", daemon=True
                    )
                )
                crew[-1].start()  # an interrupt in here leaves one that is told to end, too
        while waiting:
            yield _result(waiting.pop(0))
    except BaseException as error:
        patient = isinstance(error, Exception)
        raise
    finally:
        over.set()
        for future in waiting:
            future.cancel()
        for _ in crew:
            tasks.put(None)
        for thread in crew if patient else ():
            thread.join()


def _result(future: Future[T]) -> T:
    """What a future holds, once it does. Python may overlook a signal that comes as a wait begins."""
    while not future.done():
        wait([future], timeout=_BEAT)
    return future.result()
