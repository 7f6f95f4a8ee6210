"""A pool of processes: for Python functions that hold Python's lock while they work."""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import os
import pickle
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np

from playhead import errors
from playhead.execution.arena import Arena, affordable, free_memory
from playhead.execution.memory import Shelf
from playhead.execution.parcels import Packing
from playhead.execution.pool import cores
from playhead.plan.aligned import aligned_empty
from playhead.plan.compute import Job, Outcome, Pace, Result
from playhead.plan.living import Living
from playhead.plan.node import Node
from playhead.plan.prefetch import AUTOTUNE

try:
    from playhead.execution import kept
    from playhead.execution.remote import Plan, refuse
    from playhead.execution.staff import NO_ROOM, Client, Task
    from playhead.execution.supervisor import Supervisor
except ImportError as error:
    if error.name not in ("loky", "cloudpickle"):
        raise
    raise errors.PipelineError(
        f'prefetch(on="processes") needs {error.name}, which is not installed',
        help='pip install "playhead[processes]"',
    ) from error

MEMORY = 1 << 30  # bytes for results, at most, that the consumer has not let go of


class Crew:
    """`most` processes that know a pipeline, and the memory they share; they leave when this is garbage."""

    def __init__(self, plan: Plan, most: int, memory: int) -> None:
        self.most = most
        try:
            self.knows = kept.users_own(plan)
            head, buffers = plan.dumps()
            parts = [buffer.raw() for buffer in buffers]
        except Exception as error:
            refuse(error, plan)
        _check_room(len(head) + sum(part.nbytes for part in parts))
        shelf = Shelf(head, parts)
        try:
            self.arena = Arena(affordable(memory))
        except BaseException:
            shelf.close()
            raise
        self.supervisor = Supervisor(shelf, self.arena, most)
        self.end = weakref.finalize(self, self.supervisor.stop)
        self.end.atexit = False
        self.supervisor.thread.start()
        _open.add(self.supervisor)

    @classmethod
    def waiting(cls, plan: Plan, most: int) -> Crew | None:
        """Those of the last iterator, if they wait and nothing they were told has changed since."""
        crew = kept.take(plan.root)
        if crew is None:
            return None
        if crew.supervisor.process != os.getpid():
            crew.abandon()
            return None
        with contextlib.suppress(Exception):  # what cannot be sent any more is refused elsewhere
            fits = crew.most == most and crew.knows == kept.users_own(plan)
            if fits and crew.supervisor.wake():
                return crew
        crew.end()
        return None

    def abandon(self) -> None:
        self.end.detach()
        _open.discard(self.supervisor)
        self.supervisor.abandon()


class ProcessPool:
    """`workers` processes that know the pipeline `root`; AUTOTUNE (-1) makes one for each core.

    Workers start at the first task, from nothing: they share no state with this process. Those that another
    pool of the same pipeline handed on are there already. Results lie in memory that all share, `memory`
    bytes at most; what has no room there is sent and copied. A worker that dies is replaced and what it did
    is done again; an outcome with `WorkerLost` is what becomes of a task that eight of them died over.

    The pipeline's arrays are copied into shared memory once, however many workers there are; those mapped
    from files are mapped again. Libraries that keep threads of their own (OpenMP, BLAS, TensorFlow) get as
    many in each worker as there are cores for it, unless the environment says how many.

    Raises `PipelineError` where the pipeline cannot be sent to another process.
    """

    knows_every_node = False
    pace_seconds = Pace.SECONDS

    def __init__(self, root: Node, workers: int = AUTOTUNE, *, memory: int = MEMORY) -> None:
        self.workers = self.most = cores() if workers == AUTOTUNE else workers
        if multiprocessing.current_process().daemon:
            raise errors.PipelineError(
                "this is itself a worker process, of a DataLoader say, which may have no processes of its own",
                help='prefetch(on="threads") here, or read in the main process',
            )
        self._plan = Plan(root)
        self._crew = Crew.waiting(self._plan, self.most) or Crew(self._plan, self.most, memory)
        self._arena, self._supervisor = self._crew.arena, self._crew.supervisor
        self._supervisor.resize(self.workers)
        self._client = Client(self._plan)
        self._ours = threading.Lock()  # who gets it hands the workers on, or ends them: once
        self._closed = self._ended = False

    def submit(self, job: Job[Any, Result], sent: Any) -> Future[Outcome[Result]]:
        future: Future[Outcome[Result]] = Future()
        if os.getpid() != self._supervisor.process:
            parents = errors.WorkerLost(
                "the workers are those of the process that this one was forked from"
            )
            future.set_exception(parents)
            return future
        try:
            task = self._task(future, job, sent)
        except Exception as error:
            future.set_running_or_notify_cancel()
            future.set_result(Outcome(error=_unsendable(error)))
        else:
            self._supervisor.add(task)
        return future

    def _task(self, future: Future[Outcome[Any]], job: Job[Any, Any], sent: Any) -> Task:
        plan, arena = self._plan, self._arena
        value = (job, sent, plan.forms())
        packing = Packing(lambda beside: plan.task(value, beside, arena.place))
        at = arena.reserve(packing.size) if packing.size else None
        parcel = packing.packed(at, lambda to, data: _copy(data, arena.view(to, data.nbytes)))
        inputs = NO_ROOM if at is None else (at, packing.size)
        return Task(self._client, future, job, sent, pickle.dumps(parcel), inputs)

    def in_doubt(self, job: Job[Any, Any]) -> bool:
        return self._plan.in_doubt(job)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """None for objects, and where consumers keep half of the memory."""
        arena = self._arena
        if dtype.hasobject or os.getpid() != self._supervisor.process:
            return None
        if not math.prod(shape) * dtype.itemsize:
            return aligned_empty(shape, dtype)
        return None if arena.given > arena.size // 2 else arena.empty(shape, dtype)

    def resize(self, workers: int) -> None:
        """Let `workers` processes work from now on; those too many leave when they have done their tasks."""
        self.workers = max(1, min(workers, self.most))
        self._supervisor.resize(self.workers)

    def hand_on(self) -> None:
        if self._ours.acquire(blocking=False):
            self._supervisor.rest(self._client)
            kept.keep(self._plan.root, self._crew)
            if self._closed:  # meanwhile
                self.close(wait=False)

    def close(self, wait: bool = True) -> None:
        """What runs may end within a second, then its process is ended; `wait` until all are gone.

        Workers that were handed on and still wait are ended, too; another pool's are not.
        """
        self._closed = True
        root, crew, thread = self._plan.root, self._crew, self._supervisor.thread
        if self._ours.acquire(blocking=False) or kept.withdraw(root, crew):
            self._ended = True
            crew.end()
        ours = os.getpid() == self._supervisor.process
        if wait and self._ended and ours and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        self._crew.abandon()


def _check_room(nbytes: int) -> None:
    free = free_memory()
    if free is not None and nbytes > free:
        raise errors.PipelineError(
            f"this pipeline holds {nbytes >> 20} MiB of arrays, of which the workers need a copy, and "
            f"{free >> 20} MiB of memory are free",
            help="arrays mapped from files (np.load(..., mmap_mode='r')) are not copied, and "
            'prefetch(on="threads") copies nothing',
        )


def _copy(data: memoryview, to: memoryview) -> None:
    to[:] = data


def _unsendable(error: Exception) -> errors.PipelineError:
    return errors.PipelineError(
        f"an element cannot be sent to other processes: {type(error).__name__}: {error}",
        help='prefetch(on="threads") sends nothing',
    )


_open: Living[Supervisor] = Living()


def _end_all() -> None:
    """The interpreter ends: nobody will take what is still computed."""
    for supervisor in _open:
        if supervisor.process == os.getpid():
            supervisor.stop(grace=0.0)
            supervisor.thread.join(10.0)


atexit.register(_end_all)
