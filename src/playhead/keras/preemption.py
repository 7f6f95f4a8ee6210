"""Being told to stop: signals become a flag that the training loop looks at between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

POLICIES = ("exit", "raise", "ignore")


class Preempted(SystemExit):
    """The run was told to stop and has saved; uncaught, the process ends with 128 + the signal (SIGTERM: 143).

    Kubernetes and Slurm take exit code 0 for a finished job, so a preempted one must not end with it.
    """

    def __init__(self, signum: int, checkpoint: str) -> None:
        super().__init__(128 + signum)
        self.signum = signum
        self.checkpoint = checkpoint


class Watch:
    """Notes the first of `signals` that arrives between entering and leaving.

    Handlers can only be set in the main thread; elsewhere, and with no signals, nothing is ever noted.
    The handlers that were there before come back on leaving.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self.noted: int | None = None
        self._signals = tuple(signals)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            for signum in self._signals:
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            # None stands for a handler that was not set from Python; it cannot be set from here either.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.noted is None:
            self.noted = signum
