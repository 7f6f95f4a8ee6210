"""Whether anybody still waits for what a thread does.

Whoever starts a thread says with `until` when it is no longer needed. What may take long there (a store that
is silent, say) asks `left` now and then, and ends early: so nobody who closes an iterator waits for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

BEAT = 0.1  # seconds between two looks

_left: ContextVar[Callable[[], bool]] = ContextVar("playhead_left", default=lambda: False)


@contextlib.contextmanager
def until(gone: Callable[[], bool]) -> Iterator[None]:
    """While it lasts, what this thread does is needed until `gone()`, or until those outside say so."""
    outer = _left.get()
    token = _left.set(lambda: gone() or outer())
    try:
        yield
    finally:
        _left.reset(token)


def left() -> bool:
    """Whether nobody waits any more."""
    return _left.get()()


def pause(seconds: float) -> None:
    """Sleep, but not longer than somebody waits."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0 and not left():
        time.sleep(min(BEAT, rest))
