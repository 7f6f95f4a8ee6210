"""SIGKILL at random moments, hundreds of times: every run must end as one that was never killed.

    python benchmarks/soak.py --kills 200

Trains the demo's model on the demo's TFRecords, with a checkpoint every few steps so that many
kills fall into saving. The moment of each kill is uniform over the whole life of a process:
starting, restoring, tracing, training, saving, after the last step. A killed run is started again
until it finishes, and what its processes wrote down is compared with an unkilled run: records and
loss of every batch (also of those done again), and the final weights. After each kill the newest
checkpoint must be whole and no older than before, and the next process must go on after it.

Importing TensorFlow is most of a short process's life. So one process in five (--plain) is started
afresh, and the others are forked from this one, which has imported TensorFlow and never used it.
The first run that is compared is a forked one without kills.

Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import playhead.keras
from playhead.cli.children import Training
from playhead.cli.digits import CHECKPOINTS, command, import_frameworks, pipeline, quiet_environment
from playhead.cli.logbook import Process, Reader, compare, next_file

PATIENCE = 180.0  # seconds after which a process that is not killed counts as hanging


class Child:
    """A training process, started afresh or forked from this one."""

    def __init__(self, training: Training, *, plain: bool) -> None:
        training.run.mkdir(parents=True, exist_ok=True)
        path = next_file(training.run)
        self._reader = Reader(path)
        self.errors = training.run / f"{time.monotonic_ns()}.stderr"
        self._popen: subprocess.Popen[bytes] | None = None
        self.began = time.monotonic()
        if plain:
            with open(self.errors, "wb") as errors:
                self._popen = subprocess.Popen(
                    training.command, env=quiet_environment(), stdout=errors, stderr=errors
                )
            self.pid = self._popen.pid
        else:
            self.pid = self._fork(training)

    def _fork(self, training: Training) -> int:
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: see above
            pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            errors = os.open(self.errors, os.O_WRONLY | os.O_CREAT)
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            options = {name: getattr(training, name) for name in ("run", "data", "seed", "epochs")}
            assert command.callback is not None
            command.callback(**options, save_every=training.save_every)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float) -> int | None:
        """The exit status; None if it still runs after `seconds`."""
        until = self.began + seconds
        while True:
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


class Soak:
    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self._directory = directory
        self._reference = Training(
            directory / "reference", directory / "data", options.seed, options.epochs, options.every
        )
        self._lives: dict[
            bool, float
        ] = {}  # seconds of an unkilled process, by whether it is plain
        self._moments: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._kills = self._runs = self._again = 0
        self.faults: list[str] = []

    def run(self) -> None:
        began = time.monotonic()
        until = began + 60 * self._options.minutes
        self._finish_unkilled(self._reference, plain=True)
        forked = replace(self._reference, run=self._directory / "forked")
        self._finish_unkilled(forked, plain=False)
        steps = self._options.epochs * len(pipeline(self._reference.data, self._options.seed))
        self._steps = steps
        self._compare(forked)
        if self.faults:
            say("a forked process without kills does not do what one started afresh does")
        say(
            f"{steps} steps, a checkpoint every {self._options.every}; an unkilled process lives "
            f"{self._lives[True]:.1f} s, a forked one {self._lives[False]:.1f} s"
        )
        while self._kills < self._options.kills and time.monotonic() < until and not self.faults:
            self._runs += 1
            training = replace(self._reference, run=self._directory / f"run-{self._runs:03d}")
            before = self._kills
            processes = self._run_with_kills(training, until)
            self._compare(training)
            say(
                f"run {self._runs}: {self._kills - before} kills, {processes} processes, "
                f"{self._kills} kills in all, {time.monotonic() - began:.0f} s"
                + ("" if not self.faults else "  DIFFERS")
            )
        self._report(time.monotonic() - began)

    def _finish_unkilled(self, training: Training, *, plain: bool) -> None:
        child = Child(training, plain=plain)
        self._expect_success(child, child.wait(PATIENCE))
        self._lives[plain] = time.monotonic() - child.began

    def _run_with_kills(self, training: Training, until: float) -> int:
        newest = 0
        for number in range(1, 10_000):
            plain = self._chance.random() < self._options.plain
            moment = self._chance.uniform(0.0, self._lives[plain])
            going = self._kills < self._options.kills and time.monotonic() < until
            child = Child(training, plain=plain)
            status = child.wait(moment if going else PATIENCE)
            if status is None and going:
                child.kill()
                self._kills += 1
                self._kinds["afresh" if plain else "forked"] += 1
                self._moments[_moment(child.log, training.run / CHECKPOINTS, self._steps)] += 1
            else:
                self._expect_success(child, status)
            first = child.log.batches[:1]
            if first and first[0][0] != newest + 1:
                self._fault(training, f"checkpoint {newest}, but went on at step {first[0][0]}")
            now = self._newest(training)
            if now < newest:
                self._fault(training, f"the newest checkpoint went back from {newest} to {now}")
            self._again += max(0, child.log.last_step - now)
            newest = now
            if (
                status == 0 and number == 1
            ):  # how long a whole life is now, as busy as the machine is
                self._lives[plain] = time.monotonic() - child.began
            if status == 0 or self.faults:
                return number
        raise AssertionError("a run never ended")

    def _newest(self, training: Training) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                newest = training.newest_checkpoint()
            except Exception as error:
                self._fault(training, f"after a kill: {error}")
                return 0
        for warning in caught:
            self._fault(training, f"after a kill: {warning.message}")
        return newest

    def _compare(self, training: Training) -> None:
        for comparison in compare(self._reference.run, training.run, steps=self._steps):
            if not comparison.identical:
                for difference in comparison.differences[:5]:
                    self._fault(training, f"{comparison.what}: {difference}")

    def _expect_success(self, child: Child, status: int | None) -> None:
        if status == 0:
            return
        if status is None:
            child.kill()
        how = "hangs" if status is None else f"ended with {status}"
        text = child.errors.read_text(errors="replace")[-2000:]
        self.faults.append(f"a process that was not killed {how}:\n{text}")

    def _fault(self, training: Training, what: str) -> None:
        self.faults.append(f"{training.run}: {what}")

    def _report(self, took: float) -> None:
        say("")
        say(f"{self._kills} kills in {self._runs} runs, {took / 60:.1f} min")
        say("processes killed: " + ", ".join(f"{n} {kind}" for kind, n in self._kinds.items()))
        for moment, n in self._moments.most_common():
            say(f"  {n:4d}  {moment}")
        say(f"steps done again: {self._again}, each compared as well")
        if self.faults:
            say(f"{len(self.faults)} DIFFERENCES")
            for fault in self.faults:
                say(f"  {fault}")
        else:
            say("every run ended with the same records, losses and weights as the unkilled one")


def _moment(log: Process, checkpoints: Path, steps: int) -> str:
    """What a process was doing when it was killed."""
    hidden = [] if not checkpoints.is_dir() else [p.name for p in checkpoints.iterdir()]
    if "imported" not in log.events:
        return "starting and importing"
    if not log.batches:
        return "restoring and tracing"
    if any(name.startswith(".writing-") for name in hidden):
        return "writing a checkpoint"
    if any(name.startswith(".removing-") for name in hidden):
        return "removing an old checkpoint"
    return "after the last step" if log.last_step == steps else "between and in steps"


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    description, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=120.0, help="no kill is begun after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--every", type=int, default=2, help="steps between checkpoints")
    parser.add_argument("--plain", type=float, default=0.2, help="share of processes not forked")
    parser.add_argument("--directory", type=Path, help="an empty one to keep everything in")
    options = parser.parse_args()
    os.environ.update(quiet_environment())
    import_frameworks()
    importlib.import_module("playhead.cli.witness")
    assert callable(playhead.keras.fit)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="playhead-soak-"))
    soak = Soak(options, directory)
    soak.run()
    if soak.faults:
        say(f"everything is left in {directory}")
    elif options.directory is None:
        shutil.rmtree(directory)
    return 1 if soak.faults else 0


if __name__ == "__main__":
    # A child that is forked leaves through os._exit, so nothing below runs twice.
    sys.exit(main())
