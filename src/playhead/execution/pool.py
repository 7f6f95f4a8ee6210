"""Where work is done: what the ordered read-ahead asks of threads, processes and clusters alike."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from playhead.plan.compute import Job, Outcome, Result
from playhead.plan.places import Record


class Pool(Protocol):
    """Does jobs, any number at once, in any order.

    A job that fails gives an outcome with an error; the future itself fails only where the pool cannot go on.
    """

    workers: int
    """How many jobs run at once; `resize` changes it."""

    most: int
    """How many that may become."""

    knows_every_node: bool
    """Whether jobs may be about nodes that were made after the pool was."""

    pace_seconds: float
    """How long a task should take: long against what handing it out costs."""

    def submit(self, job: Job[Any, Result], sent: Any) -> Future[Outcome[Result]]:
        """Do it, soon. The future may be cancelled while it has not begun; it is, where the pool is closed."""
        ...

    def in_doubt(self, job: Job[Any, Any]) -> bool:
        """Whether nobody knows yet in which form the job's functions run: one element has to show it."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """An uninitialised array, 64-byte aligned, that workers write into; None: they send results back."""
        ...

    def resize(self, workers: int) -> None: ...

    def close(self, wait: bool = True) -> None:
        """No new work; what has begun ends, and `wait` waits for it. What nobody began is cancelled."""
        ...

    def abandon(self) -> None:
        """Forget what a forked child does not have: threads, processes, connections."""
        ...


@runtime_checkable
class Lasting(Pool, Protocol):
    """A pool whose workers may serve the next iterator, too."""

    def hand_on(self) -> None:
        """No new work; what nobody began is cancelled, and nobody waits for what runs. Closed, it stays so.

        Its workers wait for the next pool of the same pipeline; until there is one, `close` ends them.
        """
        ...


def made_from(sent: Any) -> tuple[list[str], str]:
    """The first records that a task works on, where it carries them, and how to say so."""
    first = sent[0] if isinstance(sent, tuple) and sent else getattr(sent, "located", sent)
    return first_of(first.records() if hasattr(first, "records") else ())


def first_of(records: Iterable[Record]) -> tuple[list[str], str]:
    """The first few of them, and how to say so."""
    first = [str(record) for record in islice(records, 4)]
    return first, "; ".join(first[:3]) + (" ..." if len(first) > 3 else "")


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
