"""The ordered read-ahead: items go to a pool as they come, and their outcomes come back in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from playhead.errors import ReadAheadTimeout
from playhead.execution.ahead import BEAT
from playhead.execution.autotune import Tuner
from playhead.execution.parts import read_in_parts
from playhead.execution.pool import Pool, first_of
from playhead.plan.batches import Batch
from playhead.plan.block import Block
from playhead.plan.compute import (
    Compute,
    Item,
    Job,
    Outcome,
    Pace,
    Result,
    perform,
    timed,
)
from playhead.plan.node import Node, Piece, Serial, Span, walk_places
from playhead.plan.prefetch import Found

BUDGET = 1 << 30  # bytes computed and not yet delivered
CHUNK = 4096  # source records in a task, at most, unless one batch has more
WORTH_WAITING = 0.001  # seconds of a task: of shorter ones few are ahead, though more are asked for
BATCHES_AHEAD = 2  # however many parts they are cut into


class _Done:
    """No item is left."""


_DONE = _Done()


class Alone(Serial):
    """Computes where it is walked, one call after the other, but in chunks: for a walk that runs ahead."""

    def __init__(self, records: int | None) -> None:
        self._records = records
        self.alive = 0.0

    def ordered(
        self, job: Job[Item, Result], items: Iterable[Item], *, weight: int = 1, after: bool = False
    ) -> Iterator[tuple[Item, Outcome[Result]]]:
        for done in super().ordered(job, items, weight=weight, after=after):
            self.alive = time.monotonic()
            yield done

    def pace(self, node: Node) -> Pace:
        return _pace(node, self._records, 1)

    def needing(self, need: Callable[[], int]) -> Compute:
        return self  # it runs ahead in chunks anyway


def _pace(node: Node, records: int | None, workers: int) -> Pace:
    most = max(1, CHUNK // node.weight)
    if records is not None:
        most = max(1, min(most, records // (workers * node.weight)))
    return Pace(most)


class Ordered:
    """Computes in a pool and yields in order, at most `records` records ahead.

    `records` None: two tasks ahead for each worker, and two batches. Whatever was asked for, what is held
    ahead stays within about `budget` bytes, counted by the results seen so far. `timeout`: seconds that the
    elements of one task may take. `tuner`: changes the pool's workers while it runs. `found`: what an earlier
    iterator found out, and this one for the next. `help`: does a task that waits for a worker, if there is one;
    who waits for an outcome calls it meanwhile, while tasks take about as long as their pace says.
    """

    def __init__(
        self,
        pool: Pool,
        records: int | None = None,
        *,
        budget: int = BUDGET,
        timeout: float | None = None,
        tuner: Tuner | None = None,
        found: Found | None = None,
        help: Callable[[], bool] | None = None,
    ) -> None:
        self.pool = pool
        self.help = help
        self.found = found
        self.records = records
        self.budget = budget
        self.timeout = timeout
        self.tuner = tuner
        self.hangs = False
        self.closed = False
        self.alive = 0.0  # when the last outcome came, by time.monotonic
        self.ahead = 0
        self.took = 0.0  # seconds of the last task

    @property
    def hands(self) -> int:
        """How many may work at once: the workers, and the consumer where it helps."""
        return self.pool.workers + (self.help is not None)

    def pace(self, node: Node) -> Pace:
        pace = _pace(node, self.records, self.hands)
        pace.seconds = self.pool.pace_seconds
        return pace

    def needing(self, need: Callable[[], int]) -> Compute:
        return self

    def inside(self) -> Compute:
        return self if self.pool.knows_every_node else Serial()

    def read(self, node: Node, spans: Iterable[Span]) -> Iterator[tuple[Piece, Block]]:
        batches = node.batches
        if not isinstance(batches, Batch) or self.pool.most == 1:
            return walk_places(node, spans, self)
        pace = self.pace(batches.parent)
        pace.most = max(pace.most, batches.size)
        if not batches.parent.user_code:
            pace.size = batches.size
        if self.found is not None:
            if self.found.pace is not None:
                pace.begin_like(self.found.pace)
            self.found.pace = pace
        enough = self.records is None or self.records > self.hands * batches.weight
        return read_in_parts(node, batches, spans, self, pace, self.pool.empty, large=enough)

    def ordered(
        self, job: Job[Item, Result], items: Iterable[Item], *, weight: int = 1, after: bool = False
    ) -> Iterator[tuple[Item, Outcome[Result]]]:
        waiting: deque[tuple[Item, Future[Outcome[Result]], int]] = deque()
        source = iter(items)
        held = _Held(self, job, after)
        more, failure = True, None
        done: tuple[Item, Outcome[Result]] | None = None
        try:
            while True:
                while more and held.room(beside=done is not None):
                    try:
                        item = next(source, _DONE)
                    except Exception as error:
                        failure, item = error, _DONE  # what was begun before it comes first
                    if isinstance(item, _Done):
                        more = False
                        break
                    if job.at_once(item):
                        if not waiting and done is None:
                            held.delivered += 1
                            yield item, timed(job, job.sent(item))
                            continue
                        future: Future[Outcome[Result]] = Future()
                        future.set_result(perform(job, job.sent(item)))
                    else:
                        future = self.pool.submit(job, job.sent(item))
                    size = weight * len(item)
                    waiting.append((item, future, size))
                    held.add(size)
                if done is not None:
                    yield done  # while it is used, the next ones are computed
                    done = None
                    continue
                if not waiting:
                    if failure is not None:
                        raise failure
                    return
                item, future, size = waiting[0]
                done = item, self._outcome(future, job, item, size)
                waiting.popleft()
                held.remove(size, done[1].nbytes)
                del item, future
        finally:
            for _, future, size in waiting:
                future.cancel()
                self.ahead -= size
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _outcome(
        self, future: Future[Outcome[Result]], job: Job[Item, Result], item: Item, size: int
    ) -> Outcome[Result]:
        began = time.perf_counter()
        outcome = self._awaited(future, job, item)
        self.took = outcome.seconds
        self.alive = time.monotonic()
        if self.tuner is not None:
            self.tuner.delivered(size, time.perf_counter() - began, outcome)
        return outcome

    def _awaited(
        self, future: Future[Outcome[Result]], job: Job[Item, Result], item: Item
    ) -> Outcome[Result]:
        self._help_before(future)
        until = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            left = BEAT if until is None else min(BEAT, until - time.monotonic())
            try:
                return future.result(max(0.0, left))
            except TimeoutError:
                if future.done():
                    return future.result()
                if until is not None and time.monotonic() >= until:
                    self.hangs = True
                    raise self._late(job, item) from None

    def _help_before(self, future: Future[Any]) -> None:
        """Not with long tasks, nor for long: what is ready meanwhile would wait."""
        help, began, most = self.help, time.perf_counter(), 2 * self.pool.pace_seconds
        if help is None or self.took > most:
            return
        while not future.done() and time.perf_counter() - began < most and help():
            pass

    def _late(self, job: Job[Item, Any], item: Item) -> ReadAheadTimeout:
        records, said = first_of(job.records(item))
        return ReadAheadTimeout(
            f"{len(item)} element(s) made from {said or 'this stream'} were not ready after "
            f"{self.timeout:g} seconds",
            help="a function or a disk hangs, or prefetch(timeout=...) is too short",
            seconds=self.timeout,
            records=records,
        )


class _Held:
    """What one walk has handed out and not delivered yet, and whether there is room for more."""

    def __init__(self, compute: Ordered, job: Job[Any, Any], after: bool) -> None:
        self._compute, self._job, self._after = compute, job, after
        self._in_doubt = True
        self._tasks = self._records = self.delivered = 0
        self._typical = 0.0  # bytes of a result
        self._reach = BATCHES_AHEAD * job.node.weight

    def add(self, records: int) -> None:
        self._tasks += 1
        self._records += records
        self._compute.ahead += records

    def remove(self, records: int, nbytes: int) -> None:
        self._tasks -= 1
        self._records -= records
        self._compute.ahead -= records
        self.delivered += 1
        self._typical = nbytes if not self._typical else 0.9 * self._typical + 0.1 * nbytes

    def room(self, beside: bool) -> bool:
        """For one more; `beside` an outcome that is at hand and waits until there is another item."""
        if beside and (self._after or self.delivered == 1):
            return False  # items that take time, or the first outcome, for which somebody waits
        if not self._tasks and not beside:
            return True
        compute, workers = self._compute, self._compute.hands
        if compute.records is not None and self._records >= compute.records:
            return False
        if self._after and self._tasks > min(self.delivered, workers):
            return False  # getting another item takes time that the first ones need not wait
        self._in_doubt = self._in_doubt and compute.pool.in_doubt(self._job)
        if self._in_doubt:
            return False
        if not self._typical:
            return self._tasks < max(2, workers)  # nobody knows yet how large a result is
        enough = 2 * workers + 1
        if compute.records is not None and compute.took > WORTH_WAITING:
            enough += self.delivered  # at first it is not known how large they should be
        if self._tasks >= enough and self._records >= self._reach:
            return False
        return (self._tasks + 1) * self._typical <= compute.budget
