"""How many workers to let work: found by trying, while the consumer waits.

Hill climbing on the rate of delivery. A look is taken every third of a second; only looks during which the
consumer mostly waited say anything about the workers. A trial doubles or halves their number, lets the
tasks that were under way go by, and compares; without a clear gain in two looks it is undone at once, and
the next one comes after twice as long a rest. What tasks did with their time says where to try first, and
whether at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playhead.execution.pool import Pool
from playhead.plan.compute import Outcome
from playhead.plan.prefetch import Found

LOOK = 0.3  # seconds between looks, at least
RESULTS = 8  # in a look, at least
ROUNDS = 2  # results of each worker in a look, at least: those that begin together end together
STARVED = 0.5  # the share of a look that the consumer waits, where the workers are too slow
GAIN = 1.15  # by which a trial must be faster
COMPUTES = 0.8  # processor time of a task by its time, where more workers than cores gain nothing
WAITS = 0.3  # the same, where tasks wait for disks, networks or clocks
REST = 2.0  # seconds after a trial in vain; twice as long after the next
LONGEST = 60.0


@dataclass(slots=True)
class _Look:
    began: float
    results: int = 0
    records: int = 0
    waited: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0


class Tuner:
    """Resizes a pool, between 1 worker and its `most`, by what the consumer sees."""

    def __init__(
        self,
        pool: Pool,
        found: Found | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pool = pool
        self._found = found or Found()
        self._clock = clock
        self._look = _Look(clock())
        self._before: float | None = None  # the rate at the last look with this number of workers
        self._trial: tuple[int, float] | None = None  # what it came from: workers, rate
        self._gained: float | None = None  # the rate at the trial's first look, where it was a gain
        self._settling = 0  # results to come, at least, that may have begun before a change
        self._cores = pool.workers
        if self._found.workers is not None:
            pool.resize(self._found.workers)
        self._fewer: bool | None = None  # which way to try next; None: as the tasks suggest
        self._rest = REST
        self._next = clock()

    @property
    def is_trying(self) -> bool:
        """Whether the present number of workers is a trial."""
        return self._trial is not None

    def begin_with(self, workers: int) -> None:
        """Let `workers` work at first, where nothing was found out yet."""
        if self._found.workers is None:
            self._pool.resize(workers)

    def delivered(self, records: int, waited: float, outcome: Outcome[Any]) -> None:
        """Take note of a result: so many records came after the consumer had waited for `waited` seconds."""
        look, now = self._look, self._clock()
        look.results += 1
        look.records += records
        look.waited += waited
        look.seconds += outcome.seconds
        look.cpu += outcome.cpu
        enough = self._settling or max(RESULTS, ROUNDS * self._pool.workers)
        if now - look.began >= LOOK and look.results >= enough:
            self._look = _Look(now)
            self._consider(look, now)

    def _consider(self, look: _Look, now: float) -> None:
        if self._settling:
            self._settling = 0
            return
        elapsed = now - look.began
        rate = look.records / elapsed
        if look.waited < STARVED * elapsed:
            self._before = None  # the consumer sets the pace: nothing is known, and nothing needed
            if self._trial is not None:
                self._undo(now)
            return
        if self._trial is not None:
            self._judge(rate, look.cpu / max(look.seconds, 1e-9), now)
        elif self._before is None:
            self._before = rate
        else:
            base, self._before = max(rate, self._before), rate
            if now >= self._next:
                self._try(base, look.cpu / max(look.seconds, 1e-9), now)

    def _judge(self, rate: float, busy: float, now: float) -> None:
        assert self._trial is not None
        workers, base = self._trial
        if rate < GAIN * base:
            self._undo(now)
        elif self._gained is None:
            self._gained = rate  # one look may be luck
        else:
            base = max(rate, self._gained)
            self._trial, self._before = None, rate
            self._found.workers = self._pool.workers
            self._fewer = self._pool.workers < workers
            self._rest, self._next = REST, now
            self._try(base, busy, now)

    def _undo(self, now: float) -> None:
        assert self._trial is not None
        workers = self._trial[0]
        self._fewer = self._pool.workers > workers  # the other way
        self._resize(workers)
        self._trial = self._before = None
        self._next = now + self._rest
        self._rest = min(2 * self._rest, LONGEST)

    def _try(self, base: float, busy: float, now: float) -> None:
        workers = self._pool.workers
        fewer = self._fewer
        if fewer is None:
            fewer = busy > WAITS and workers >= self._cores
        wanted = max(1, workers // 2) if fewer else min(2 * workers, self._pool.most)
        computes = busy > COMPUTES and workers >= self._cores
        if computes or wanted == workers:
            self._fewer = None if computes else not fewer
            self._next = now + self._rest
            return
        self._trial, self._gained = (workers, base), None
        self._resize(wanted)

    def _resize(self, workers: int) -> None:
        self._settling = max(RESULTS, self._pool.workers)
        self._pool.resize(workers)
