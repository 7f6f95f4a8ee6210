"""A training process, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

from benchmarks.soak.loops import Run
from playhead.cli.logbook import Process, Reader, next_file

ROOT = Path(__file__).parents[2]


class Child:
    """A training process, started afresh or forked from this one."""

    def __init__(self, run: Run, *, afresh: bool) -> None:
        run.run.mkdir(parents=True, exist_ok=True)
        path = next_file(run.run)
        self._reader = Reader(path)
        self.errors = run.run / f"{time.monotonic_ns()}.stderr"
        self._popen: subprocess.Popen[bytes] | None = None
        self.began = time.monotonic()
        if afresh:
            environment = run.loop.environment()
            environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
            with open(self.errors, "wb") as errors:
                self._popen = subprocess.Popen(
                    run.command, env=environment, cwd=ROOT, stdout=errors, stderr=errors
                )
            self.pid = self._popen.pid
        else:
            self.pid = self._fork(run)

    def _fork(self, run: Run) -> int:
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking beside threads, of which none is ours
            pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            errors = os.open(self.errors, os.O_WRONLY | os.O_CREAT)
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            run.train()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float, *, stepping: bool = False) -> int | None:
        """The exit status; None if it still runs after `seconds`, counted from its start or first step."""
        until = self.began + seconds
        while True:
            if stepping and not self.log.batches:
                until = time.monotonic() + seconds
            status = self._poll()
            if status is not None or time.monotonic() >= until:
                return status
            time.sleep(min(0.002, max(0.0, until - time.monotonic())))

    def _poll(self) -> int | None:
        if self._popen is not None:
            return self._popen.poll()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        """SIGKILL, and the wait for its death. Only while `wait` says that it runs."""
        os.kill(self.pid, signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()
        else:
            os.waitpid(self.pid, 0)

    @property
    def log(self) -> Process:
        return self._reader.read()
