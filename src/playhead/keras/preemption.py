"""Being told to stop: signals become a flag that the training loop looks at between two steps."""

from __future__ import annotations

import os
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


_WAIT = b"\nplayhead: saving after this step, then stopping; Ctrl-C once more stops at once\n"


class Watch:
    """Notes the first of `signals` that arrives between entering and leaving.

    With `interrupt`, Ctrl-C is noted as well where it would be a KeyboardInterrupt: `interrupted` says that
    it is to be raised when the run has saved. A second one raises it at once (`hurried`). `quiet` says nothing
    of that.

    Handlers can only be set in the main thread; elsewhere, and with no signals, nothing is ever noted.
    The handlers that were there before come back on leaving.
    """

    def __init__(
        self, signals: Iterable[int], *, interrupt: bool = False, quiet: bool = True
    ) -> None:
        self.noted: int | None = None
        self.interrupted = self.hurried = False
        self._interrupt, self._quiet = interrupt, quiet
        self._signals = tuple(signals)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            for signum in self._signals:
                self._before[signum] = signal.signal(signum, self._note)
            default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if self._interrupt and default:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note_interrupt)
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
        if self.interrupted and kind is None:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.noted is None:
            self.noted = signum

    def _note_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.noted is not None:
            self.hurried = True
            raise KeyboardInterrupt
        self.noted, self.interrupted = signum, True
        if not self._quiet:
            os.write(2, _WAIT)  # print() may be what was interrupted
