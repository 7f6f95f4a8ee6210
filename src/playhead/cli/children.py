"""Training processes of the demo: started, watched by what they write down, killed."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from playhead.cli.digits import CHECKPOINTS, quiet_environment
from playhead.cli.logbook import Reader, next_file
from playhead.keras import checkpoint

# A tenth of what a training step of the demo takes.
_GLANCE = 0.001


class ChildFailedError(Exception):
    """A training process ended by itself, and not well."""


@dataclass(frozen=True)
class Training:
    """One run: the command line that starts it is the one that goes on with it."""

    run: Path
    data: Path
    seed: int
    epochs: int
    save_every: int

    @property
    def command(self) -> list[str]:
        options = {
            "--run": self.run,
            "--data": self.data,
            "--seed": self.seed,
            "--epochs": self.epochs,
            "--save-every": self.save_every,
        }
        said = [str(word) for pair in options.items() for word in pair]
        return [sys.executable, "-m", "playhead.cli", "demo-train", *said]

    def newest_checkpoint(self) -> int:
        """The step of the newest whole checkpoint; 0 if there is none yet."""
        root = self.run / CHECKPOINTS
        return int(checkpoint.latest(root)[1]["step"]) if checkpoint.saves(root) else 0


class Child:
    """One process of a training. Leaving the `with` block ends it, whatever happens."""

    def __init__(self, training: Training) -> None:
        training.run.mkdir(parents=True, exist_ok=True)
        path = next_file(training.run)
        self._reader = Reader(path)
        self._errors = path.with_suffix(".stderr")
        self.process = self._reader.process
        with open(self._errors, "wb") as errors:
            self.started_at = time.time()
            # A session of its own: an interrupt at the terminal reaches the parent only.
            self._popen = subprocess.Popen(
                training.command,
                env=quiet_environment(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def reaches(self, step: int) -> bool:
        """Waits until the process has written down `step`. False if it finishes before.

        Raises `ChildFailedError` where the process fails.
        """
        while True:
            over = self._popen.poll() is not None
            if self._reader.read().last_step >= step:
                return True
            if over:
                if self._popen.returncode != 0:
                    raise ChildFailedError(self._what_it_said())
                return False
            time.sleep(_GLANCE)

    def finish(self) -> None:
        """Waits for the end. Raises `ChildFailedError` where the process fails."""
        self._popen.wait()
        self._reader.read()
        if self._popen.returncode != 0:
            raise ChildFailedError(self._what_it_said())

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._reader.read()

    @property
    def seconds_importing(self) -> float:
        """What it spent on importing TensorFlow and Keras."""
        return float(self.process.events["imported"]["seconds"])

    @property
    def seconds_to_first_batch(self) -> float:
        """From the start of the process to the end of its first training step.

        Those imports are not counted, nor is writing the records, which the first of all does.
        """
        events = self.process.events
        apart = self.seconds_importing + float(events.get("wrote", {}).get("seconds", 0.0))
        return float(events["batch"]["at"]) - self.started_at - apart

    def _what_it_said(self) -> str:
        text = self._errors.read_text(errors="replace").strip()
        code = self._popen.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit status {code}"
        return f"the training process ended {how}; the end of {self._errors}:\n{text[-3000:]}"
