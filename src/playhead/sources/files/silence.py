"""How long a store may go without an answer: it is asked again meanwhile, and the user is told."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from playhead.errors import SourceError
from playhead.plan.leaving import left, pause
from playhead.plan.lock import Lock
from playhead.sources.files.troubles import failed, passing, plain

PATIENCE = 120.0
"""Seconds that a store may go without an answer before `SourceError` is raised.

Whoever wants more or less sets it before the datasets are made; worker processes are told.
"""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# So many seconds a user who watches a program waits without a word.
_SAID_AFTER = 10.0

T = TypeVar("T")


class Silence:
    """The requests to one store, which all wait for one another's answers. Thread-safe.

    What fails for a moment is asked for again, with growing pauses, until the request, or the store as a
    whole, went `patience` seconds without an answer. One line on stderr says that the store is waited for, and
    another that it is there again.
    """

    def __init__(self, store: str, patience: float) -> None:
        self.store, self.patience = store, patience
        self._lock = Lock()
        self._answered = 0.0  # when it last did
        self._since: float | None = None  # since when it does not
        self._failed = 0.0  # when a request last did
        self._said = False

    def insisted(self, ask: Callable[[], T], url: str) -> T:
        """What `ask` returns, in the end. Raises what `troubles.failed` makes of its last error.

        A `SourceError` of `ask` comes through at once.
        """
        began = time.monotonic()
        longest = _FIRST_PAUSE
        while True:
            try:
                answer = ask()
            except SourceError:
                raise
            except Exception as error:
                if left():
                    raise
                if not passing(error):
                    self._heard()  # that is an answer, too
                    raise failed(error, url) from error
                rest = self._rest(began, error)
                if rest <= 0.0:
                    raise failed(error, url) from error
                pause(min(longest * random.uniform(0.5, 1.0), rest))
                longest = min(2 * longest, _LONGEST_PAUSE)
            else:
                self._heard()
                return answer

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Say that an answer is waited for, too, where the very first request takes long."""
        began = time.monotonic()

        def still_waiting() -> None:
            if self._since is None:  # else what fails tells more
                self._tell(began, "; waiting")

        timer = threading.Timer(_SAID_AFTER, still_waiting)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _heard(self) -> None:
        with self._lock:
            now, since, said = time.monotonic(), self._since, self._said
            self._answered, self._since, self._said = now, None, False
        if said:
            after = f" after {now - since:.0f} s" if since is not None else ""
            _say(f"{self.store} answers again{after}")

    def _rest(self, began: float, error: Exception) -> float:
        """How long to go on asking for what was first asked for at `began`, and has failed again."""
        now = time.monotonic()
        with self._lock:
            if self._since is None:
                self._since = max(began, self._answered)
            elif began - self._failed > self.patience:
                # Of a time when nobody asked, nobody knows that the store was silent.
                self._since, self._said = began, False
            since, self._failed = self._since, now
        rest = min(began, since) + self.patience - now
        if now - since >= _SAID_AFTER and rest > 0.0:
            self._tell(since, f" ({plain(error)}); asking it for {rest:.0f} s more")
        return rest

    def _tell(self, since: float, more: str) -> None:
        with self._lock:
            said, self._said = self._said, True
        if not said:
            seconds = time.monotonic() - since
            _say(f"{self.store} has not answered for {seconds:.0f} s{more} (Ctrl-C ends it)")


def _say(what: str) -> None:
    if sys.stderr is not None:
        print(f"playhead: {what}", file=sys.stderr, flush=True)
