"""The thread between a pool and a Ray cluster: it sends tasks, fetches results and does lost ones again."""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from playhead import errors
from playhead.execution.errand import as_bytes, packed, run, unpacked, version
from playhead.execution.pool import made_from
from playhead.execution.remote import Plan
from playhead.plan.compute import Job, Outcome

DEATHS = 8
FIRST_REST, LONGEST_REST = (
    0.1,
    5.0,
)  # seconds before a task that was lost more than once is sent again
LOOK = 5.0  # seconds between looks at the cluster
GRACE = 2.0  # seconds that closing waits for tasks that were told to stop, before their workers are killed


@dataclass(eq=False, slots=True)
class Task:
    future: Future[Outcome[Any]]
    job: Job[Any, Any]
    sent: Any
    ref: Any = None
    deaths: int = 0


class Letter:
    """The plan in the object store, put there once; and again only where the store has lost it."""

    def __init__(self, ray: Any, plan: Plan, head: bytes, beside: list[Any]) -> None:
        self._ray = ray
        self.plan = plan
        self.ref = ray.put([as_bytes(head), *(as_bytes(buffer.raw()) for buffer in beside)])

    def put_again(self) -> None:
        head, beside = self.plan.dumps()
        self.ref = Letter(self._ray, self.plan, head, beside).ref


@dataclass(eq=False)
class Courier:
    """What the thread works on. It never holds the pool itself, so that the pool can be garbage.

    `limit` tasks are at Ray at once, and the rest wait here, where cancelling one costs nothing. `look` is
    called now and then.
    """

    ray: Any
    letter: Letter | None
    limit: int
    look: Callable[[], None]
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    waiting: deque[Task] = field(default_factory=deque)
    resting: list[tuple[float, int, Task]] = field(default_factory=list)
    flying: set[Task] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def __post_init__(self) -> None:
        send = self.ray.remote(run)
        # Ray would do a lost task again by itself, for ever; a result that was lost it would not
        # recognise as the same trouble. SPREAD: its default fills one node before it asks the next.
        self._send = send.options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        self.thread = threading.Thread(target=self._work, name="playhead_ray", daemon=True)

    def add(self, future: Future[Outcome[Any]], job: Job[Any, Any], sent: Any) -> None:
        with self.lock:
            if not self.closed:
                self.waiting.append(Task(future, job, sent))
                self.events.put(None)
                return
        future.cancel()

    def allow(self, limit: int) -> None:
        self.limit = limit
        self.events.put(None)

    def stop(self) -> None:
        """No new task is sent; the thread ends soon."""
        with self.lock:
            self.closed = True
        self.events.put(None)

    # --- the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        failure: BaseException | None = None
        try:
            looked = time.monotonic()
            while not self.closed:
                self._send_all()
                done = self._next(LOOK)
                if done is not None:
                    self._send_all()
                    self._finish(*done)
                del done
                if time.monotonic() - looked > LOOK:
                    looked = time.monotonic()
                    if not self.ray.is_initialized():
                        raise errors.WorkerLost("Ray was shut down while its results were awaited")
                    self.look()
        except BaseException as error:
            failure = error
        self._clean_up(failure)

    def _next(self, patience: float) -> tuple[Task, Any] | None:
        if self.resting:
            patience = min(patience, max(0.0, self.resting[0][0] - time.monotonic()))
        with contextlib.suppress(Empty):
            event: tuple[Task, Any] | None = self.events.get(timeout=patience)
            return event
        return None

    def _send_all(self) -> None:
        while self.resting and self.resting[0][0] <= time.monotonic():
            self._first(heapq.heappop(self.resting)[2])
        while len(self.flying) < self.limit:
            with self.lock:
                if not self.waiting or self.closed:
                    return
                task = self.waiting.popleft()
            if task.deaths or task.future.set_running_or_notify_cancel():
                self._fly(task)

    def _fly(self, task: Task) -> None:
        letter = self.letter
        assert letter is not None
        try:
            parts = packed(letter.plan, (task.job, task.sent, letter.plan.forms()))
        except Exception as error:
            failed = errors.PipelineError(
                f"an element cannot be sent to other machines: {type(error).__name__}: {error}",
                help='prefetch(on="threads") sends nothing',
            )
            task.future.set_result(Outcome(error=failed))
            return
        task.ref = self._send.remote(version(), [letter.ref], parts)
        self.flying.add(task)
        events = self.events
        task.ref.future().add_done_callback(lambda done: events.put((task, done)))

    def _first(self, task: Task) -> None:
        with self.lock:
            self.waiting.appendleft(task)

    def _finish(self, task: Task, done: Future[Any]) -> None:
        self.flying.discard(task)
        task.ref = None
        error = done.exception()
        if error is None:
            task.future.set_result(self._outcome(done.result()))
            return
        lost = self.ray.exceptions
        inside = error.cause if isinstance(error, lost.RayTaskError) else None
        if isinstance(inside, lost.ObjectLostError):
            assert self.letter is not None
            self.letter.put_again()
        if isinstance(inside or error, _losses(lost)):
            self._lost(task, inside or error)
        elif inside is not None:
            task.future.set_result(Outcome(error=_unable(inside)))
        else:
            task.future.set_result(Outcome(error=error))

    def _outcome(self, parts: Any) -> Outcome[Any]:
        assert self.letter is not None
        plan = self.letter.plan
        try:
            host, outcome = unpacked(plan, parts)
            plan.receive(outcome)
        except Exception as error:
            return Outcome(error=error)
        if outcome.error is not None:
            outcome.error.add_note(f"raised on {host}, a node of the Ray cluster")
        received: Outcome[Any] = outcome
        return received

    def _lost(self, task: Task, error: BaseException) -> None:
        """The worker or the node has died, or the result with it."""
        task.deaths += 1
        if task.deaths >= DEATHS:
            task.future.set_result(Outcome(error=_given_up(task, error)))
        elif task.deaths == 1:
            self._first(task)
        else:
            rest = min(LONGEST_REST, FIRST_REST * 2 ** (task.deaths - 2))
            heapq.heappush(self.resting, (time.monotonic() + rest, id(task), task))

    # --- the end ----------------------------------------------------------------------------------------

    def _clean_up(self, failure: BaseException | None) -> None:
        with self.lock:
            self.closed = True
        begun = [task for _, _, task in self.resting]
        if failure is None:
            self._call_back(force=False)
            self._call_back(force=True)
        begun += self.flying
        for task in [*begun, *self.waiting]:
            task.ref = task.sent = None
            if failure is not None:
                with contextlib.suppress(Exception):
                    task.future.set_exception(failure)
            else:
                self._closed(task)
        self.flying.clear()
        self.waiting.clear()
        self.resting.clear()
        self.events = SimpleQueue()
        self.letter = None

    def _call_back(self, *, force: bool) -> None:
        """Stop what runs, and wait a moment until it has. Force ends the worker: a call of C hears no less."""
        with contextlib.suppress(Exception):
            for task in self.flying:
                self.ray.cancel(task.ref, force=force, recursive=False)
        until = time.monotonic() + GRACE
        while self.flying and time.monotonic() < until and self.ray.is_initialized():
            with contextlib.suppress(Empty):
                done = self.events.get(timeout=max(0.0, until - time.monotonic()))
                if done is not None:
                    self.flying.discard(done[0])
                    self._closed(done[0])

    def _closed(self, task: Task) -> None:
        if not task.future.cancel():
            task.future.set_result(Outcome(error=errors.WorkerLost("the pool was closed")))


def _losses(exceptions: Any) -> tuple[type[BaseException], ...]:
    return (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
        exceptions.TaskCancelledError,
    )


def _unable(error: BaseException) -> errors.PipelineError:
    """An error before or behind the work itself: the worker lacks something."""
    failed = errors.PipelineError(
        f"a worker of the Ray cluster could not begin: {type(error).__name__}: {error}",
        help="the same playhead, and what the pipeline's functions import, must be installed on every node",
    )
    failed.__cause__ = error
    return failed


def _given_up(task: Task, error: BaseException) -> errors.WorkerLost:
    records, made = made_from(task.sent)
    reason = next(iter(str(error).splitlines()), "")
    return errors.WorkerLost(
        f"{DEATHS} workers of the Ray cluster in a row died over {made or 'the same elements'}; "
        f"the last: {type(error).__name__}: {reason}",
        help="a library that crashes on this record, or memory that runs out on its node",
        records=records,
    )
