"""A pool of threads: numpy, TensorFlow and decoders leave Python's lock while they work."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from playhead.errors import Line, begun_at, users_line
from playhead.execution.pool import cores
from playhead.plan.aligned import aligned_empty
from playhead.plan.compute import Job, Outcome, Pace, Result, perform
from playhead.plan.leaving import until
from playhead.plan.living import Living
from playhead.plan.prefetch import AUTOTUNE

MOST_FOR_EACH_CORE = 16  # threads may wait for disks and networks instead of computing
LEAVING = 2.0  # seconds that the interpreter's end waits for functions that still run


@dataclass(eq=False)
class _Desk:
    """What the threads share. They never hold the pool itself, so that it can be garbage."""

    limit: int
    tasks: deque[tuple[Future[Any], Job[Any, Any], Any]] = field(default_factory=deque)
    lock: Any = field(default_factory=threading.RLock)  # not the condition's own methods, in Python
    changed: threading.Condition = field(init=False)  # which an interrupt may leave half-way
    threads: list[threading.Thread] = field(default_factory=list)
    waiting: int = 0
    working: int = 0
    closed: bool = False
    process: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)


class ThreadPool:
    """`workers` threads, made as they are needed; `most` is how many AUTOTUNE may make of them."""

    knows_every_node = True
    pace_seconds = Pace.SECONDS

    def __init__(self, workers: int = AUTOTUNE) -> None:
        tuned = workers == AUTOTUNE
        self.workers = cores() if tuned else workers
        self.most = max(self.workers, MOST_FOR_EACH_CORE * cores()) if tuned else workers
        self._desk = _Desk(self.workers)
        self._finalizer = weakref.finalize(self, _stop, self._desk)
        self._finalizer.atexit = False
        _open.add(self._desk)

    def submit(self, job: Job[Any, Result], sent: Any) -> Future[Outcome[Result]]:
        future: Future[Outcome[Result]] = Future()
        desk = self._desk
        with desk.lock:
            if desk.closed:
                future.cancel()
                return future
            desk.tasks.append((future, job, sent))
            if desk.waiting:
                desk.changed.notify()  # also for a task that an interrupt left unsaid
            if desk.waiting < len(desk.tasks) and len(desk.threads) < desk.limit:
                name = f"playhead_{len(desk.threads)}"
                given = (desk, users_line())
                thread = threading.Thread(target=_work, args=given, name=name, daemon=True)
                thread.start()  # which fails at the interpreter's end
                desk.threads.append(thread)
        return future

    def help(self) -> bool:
        """Do the oldest task that no thread has begun, in the caller's; False where there is none."""
        desk = self._desk
        with desk.lock:
            if not desk.tasks:
                return False
            future, job, sent = desk.tasks.popleft()
        _do(future, job, sent)
        return True

    def in_doubt(self, job: Job[Any, Any]) -> bool:
        return False  # a form is decided under a lock, and all threads see it

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return aligned_empty(shape, dtype)

    def resize(self, workers: int) -> None:
        """Let `workers` jobs run at once from now on; running ones are not interrupted."""
        self.workers = max(1, min(workers, self.most))
        with self._desk.lock:
            self._desk.limit = self.workers
            self._desk.changed.notify_all()

    def close(self, wait: bool = True) -> None:
        self._finalizer()
        if wait:
            for thread in self._desk.threads:
                if thread is not threading.current_thread():
                    thread.join()

    def abandon(self) -> None:
        """Forget the threads, which a forked child does not have; their lock may never be free again."""
        self._finalizer.detach()
        _open.discard(self._desk)


def _work(desk: _Desk, line: Line | None) -> None:
    begun_at(line)
    with until(lambda: desk.closed):
        _work_off(desk)


def _work_off(desk: _Desk) -> None:
    while True:
        with desk.lock:
            while not desk.closed and (not desk.tasks or desk.working >= desk.limit):
                desk.waiting += 1
                desk.changed.wait()
                desk.waiting -= 1
            if desk.closed:
                return
            future, job, sent = desk.tasks.popleft()
            desk.working += 1
        with contextlib.suppress(BaseException):  # who waits for it is told
            _do(future, job, sent)
        del future, job, sent
        with desk.lock:
            desk.working -= 1
            if desk.tasks and desk.waiting and desk.working < desk.limit:
                desk.changed.notify()


def _do(future: Future[Outcome[Any]], job: Job[Any, Any], sent: Any) -> None:
    """What is not an `Exception`, as an interrupt, is raised here as well as where the outcome is taken."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        outcome = perform(job, sent)
    except BaseException as error:
        future.set_result(Outcome(error=error))
        raise
    future.set_result(outcome)


def _stop(desk: _Desk, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    # At the interpreter's end `_end` has done it, and this module's names are gone; that function is not.
    if finalizing() or desk.process != os.getpid():
        return  # a forked child has none of the threads, and one of them may have held the lock
    with desk.lock:
        desk.closed = True
        left = list(desk.tasks)
        desk.tasks.clear()
        desk.changed.notify_all()
    for future, _, _ in left:
        future.cancel()


_open: Living[_Desk] = Living()


def _end() -> None:
    """A daemon thread that outlives the interpreter may crash in a library: give it a moment to end."""
    deadline = time.monotonic() + LEAVING
    desks = list(_open)
    for desk in desks:
        _stop(desk)
    for desk in desks:
        for thread in desk.threads if desk.process == os.getpid() else ():
            thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end)
