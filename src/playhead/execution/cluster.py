"""A pool over a Ray cluster: for functions that need more than one machine."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.compute import Job, Outcome, Result
from playhead.plan.living import Living
from playhead.plan.node import Node
from playhead.plan.prefetch import AUTOTUNE

if TYPE_CHECKING:
    from playhead.execution.courier import Courier

AHEAD = 2  # tasks at Ray beyond those that run, so that a worker need not wait for the next


class RayPool:
    """`workers` tasks at once on a Ray cluster, one CPU each; AUTOTUNE (-1) takes as many as it has.

    The cluster is the one this process is connected to, else the one that `ray.init()` finds: that of
    RAY_ADDRESS, one that runs on this machine, or a new one. Nothing here shuts Ray down.

    The plan is sent once, and a node holds its arrays once. A task whose worker or node dies is done again;
    an outcome with `WorkerLost` is what becomes of one that eight workers in a row died over. With AUTOTUNE,
    nodes that join the cluster are used within some seconds.

    Raises `PipelineError` where Ray is not installed, or the pipeline cannot be sent.
    """

    knows_every_node = False
    pace_seconds = 0.025
    """How long a task should take: Ray needs some 1.5 ms for each."""

    def __init__(self, root: Node, workers: int = AUTOTUNE) -> None:
        ray = connected()
        from playhead.execution.courier import Courier, Letter
        from playhead.execution.remote import Plan, refuse

        self._plan = plan = Plan(root)
        try:
            head, beside = plan.dumps()
        except Exception as error:
            refuse(error, plan)
        self._tuned = workers == AUTOTUNE
        self.workers = self.most = cpus(ray) if self._tuned else workers
        self._process = os.getpid()
        this = weakref.ref(self)
        self._courier = Courier(
            ray, Letter(ray, plan, head, beside), self.workers + AHEAD, lambda: _look(this())
        )
        self._finalizer = weakref.finalize(self, self._courier.stop)
        self._finalizer.atexit = False
        self._courier.thread.start()
        _open.add(self._courier)

    def submit(self, job: Job[Any, Result], sent: Any) -> Future[Outcome[Result]]:
        future: Future[Outcome[Result]] = Future()
        self._courier.add(future, job, sent)
        return future

    def in_doubt(self, job: Job[Any, Any]) -> bool:
        return self._plan.in_doubt(job)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Machines share no memory."""
        return None

    def resize(self, workers: int) -> None:
        """Let `workers` tasks run at once from now on; running ones are not interrupted."""
        self.workers = max(1, min(workers, self.most))
        self._courier.allow(self.workers + AHEAD)

    def close(self, wait: bool = True) -> None:
        """What runs is told to stop, and its worker killed two seconds later; `wait` until it is done."""
        self._finalizer()
        if wait and os.getpid() == self._process:
            self._courier.thread.join()

    def abandon(self) -> None:
        self._finalizer.detach()
        _open.discard(self._courier)
        _abandoned.append(self._courier)


def _look(pool: RayPool | None) -> None:
    """Whether the cluster has grown or shrunk."""
    if pool is None or not pool._tuned:
        return
    all_of_it = pool.workers == pool.most
    pool.most = cpus(pool._courier.ray)
    if all_of_it or pool.workers > pool.most:
        pool.resize(pool.most)


def connected() -> Any:
    """The module `ray`, connected to a cluster. Raises `PipelineError` where it is not installed."""
    try:
        import cloudpickle  # noqa: F401
        import ray
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "cloudpickle"):
            raise
        raise PipelineError(
            f'prefetch(on="ray") needs {error.name}, which is not installed',
            help='pip install "playhead[ray]"',
        ) from error
    if not ray.is_initialized():
        ray.init()
    _end_with_the_interpreter()
    return ray


def cpus(ray: Any) -> int:
    """The CPUs of the whole cluster; at least 1, since a cluster may start with none and grow on demand."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)))


_open: Living[Courier] = Living()
_abandoned: list[
    Courier
] = []  # a forked child must not even release their references: it has no connection


@functools.cache
def _end_with_the_interpreter() -> None:
    """Registered once Ray was imported, so that it comes before Ray's own end."""
    atexit.register(_end_all)


def _end_all() -> None:
    for courier in _open:
        courier.stop()
        courier.thread.join(1.0)
