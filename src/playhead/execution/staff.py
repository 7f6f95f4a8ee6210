"""Worker processes as their supervisor sees them: how one is started, spoken to and buried."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe, process, resource_tracker
from typing import Any

from loky.backend import get_context
from loky.backend import resource_tracker as loky_tracker

from playhead.execution import worker as there
from playhead.execution.memory import Memory, Shelf
from playhead.execution.pool import cores
from playhead.execution.remote import Plan
from playhead.plan.compute import Job, Outcome

# Libraries that keep a pool of threads for each process; together the workers' fill the cores once.
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
# A worker that touches a GPU is not to take all of its memory, which the training process needs.
MODEST = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

Room = tuple[int, int]
NO_ROOM: Room = (there.NOWHERE, 0)


@dataclass(eq=False, slots=True)
class Client:
    """Who gives tasks: the plan that they are about, and since when (`time.monotonic`) nobody wants any."""

    plan: Plan
    left: float | None = None


@dataclass(eq=False, slots=True)
class Task:
    """A job that was submitted. `job` and `sent` are kept: arrays in them are written to until it is done.

    `data` is what is sent of it, `inputs` the part of the arena that it lies in; `deaths` counts the workers
    that died over it.
    """

    client: Client
    future: Future[Outcome[Any]]
    job: Job[Any, Any]
    sent: Any
    data: bytes
    inputs: Room = NO_ROOM
    deaths: int = 0
    begun: bool = False


class Worker:
    """A process, and the tasks it was sent, of which it does the first."""

    def __init__(self, name: str, shared: Memory, shelf: Shelf, workers: int) -> None:
        self.connection, theirs = Pipe()
        self.tasks: deque[Task] = deque()
        self.rooms: deque[Room] = deque()
        self.ready = False
        self.leaving = False
        try:
            self.process = get_context("loky").Process(
                target=there.main,
                args=(theirs, shared, shelf, os.getpid()),
                name=name,
                env=_environment(workers),
            )
            with _without_interrupts():
                self.process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()
        # The interpreter's end would wait for it, and for what it still does
        getattr(process, "_children", set()).discard(self.process)

    def give(self, task: Task, room: Room) -> None:
        self.tasks.append(task)
        self.rooms.append(room)
        self._tell(there.TASK + there.PLACE.pack(*room) + task.data)

    def answer(self, room: Room) -> None:
        """The place for the results of the first task, instead of the one it was given."""
        self.rooms[0] = room
        self._tell(there.ROOM + there.PLACE.pack(*room))

    def dismiss(self) -> None:
        """Let it leave when it has done its tasks."""
        self.leaving = True
        self._tell(there.LEAVE)

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it is dead, as reading from it will show
            self.connection.send_bytes(message)

    def has_died(self) -> bool:
        return self.process.exitcode is not None

    def kill(self) -> None:
        """End it here and now."""
        if self.process.exitcode is None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    def bury(self, patience: float) -> int | None:
        """Kill it, if it does not end by itself within `patience` seconds. Returns its exit code."""
        self.connection.close()
        self.process.join(patience)
        if self.process.exitcode is None:
            self.kill()
            self.process.join(5.0)
        code: int | None = self.process.exitcode
        return code


def _environment(workers: int) -> dict[str, str]:
    limit = str(max(1, cores() // workers))
    wanted = dict.fromkeys(THREADS, limit) | MODEST
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started meanwhile does not hear Ctrl-C before it can say how it takes it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # which lets interrupts through when it has to start one
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def said(code: int | None) -> str:
    """How a process ended, for messages."""
    if code is None:
        return "did not end"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
