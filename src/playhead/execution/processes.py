"""A pool of processes: for Python functions that hold Python's lock while they work."""

from __future__ import annotations

import atexit
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
from playhead.plan.node import Node
from playhead.plan.prefetch import AUTOTUNE

try:
    from playhead.execution.remote import Plan, refuse
    from playhead.execution.staff import NO_ROOM, Task
    from playhead.execution.supervisor import Supervisor
except ImportError as error:
    if error.name not in ("loky", "cloudpickle"):
        raise
    raise errors.PipelineError(
        f'prefetch(on="processes") needs {error.name}, which is not installed',
        help='pip install "playhead[processes]"',
    ) from error

MEMORY = 1 << 30  # bytes for results, at most, that the consumer has not let go of


class ProcessPool:
    """`workers` processes that know the pipeline `root`; AUTOTUNE (-1) makes one for each core.

    Workers start at the first task, from nothing: they share no state with this process. Results lie in
    memory that all share, `memory` bytes at most; what has no room there is sent and copied. A worker that
    dies is replaced and what it did is done again; an outcome with `WorkerLost` is what becomes of a task
    that eight of them died over.

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
        try:
            head, buffers = self._plan.dumps()
            parts = [buffer.raw() for buffer in buffers]
        except Exception as error:
            refuse(error, self._plan)
        _check_room(len(head) + sum(part.nbytes for part in parts))
        shelf = Shelf(head, parts)
        try:
            self._arena = Arena(affordable(memory))
        except BaseException:
            shelf.close()
            raise
        self._supervisor = Supervisor(self._plan, shelf, self._arena, self.workers)
        self._finalizer = weakref.finalize(self, self._supervisor.stop)
        self._finalizer.atexit = False
        self._supervisor.thread.start()
        _open.add(self._supervisor)

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
        return Task(future, job, sent, pickle.dumps(parcel), inputs)

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

    def close(self, wait: bool = True) -> None:
        """What runs may end within a second, then its process is ended; `wait` until all are gone."""
        self._finalizer()
        thread = self._supervisor.thread
        ours = os.getpid() == self._supervisor.process
        if wait and ours and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        self._finalizer.detach()
        _open.discard(self._supervisor)
        self._supervisor.abandon()


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


_open: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _end_all() -> None:
    """The interpreter ends: nobody will take what is still computed."""
    for supervisor in list(_open):
        if supervisor.process == os.getpid():
            supervisor.stop(grace=0.0)
            supervisor.thread.join(10.0)


atexit.register(_end_all)
