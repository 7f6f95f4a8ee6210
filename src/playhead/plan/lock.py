"""A lock that a forked child finds open, and that an interrupt leaves as it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from playhead.plan.living import Living


class Lock:
    """A re-entrant lock for `with`. It can be pickled, and is open again in a child made by fork.

    Without that, a child would wait for ever where one of its parent's threads, which it does not have,
    held the lock at the fork.
    """

    def __init__(self) -> None:
        self.reopen()
        _locks.add(self)

    def reopen(self) -> None:
        self._lock = threading.RLock()

    # What is called is written in C: an interrupt inside a method in Python, or between `acquire` and `try`,
    # would leave the lock taken.

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


_locks: Living[Lock] = Living()


def _reopen_all() -> None:
    for lock in _locks:
        lock.reopen()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen_all)
