"""Runs of one loop, killed at random moments until they finish, each compared with an unkilled one."""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmarks.soak.child import Child
from benchmarks.soak.loops import Run
from playhead.cli.logbook import Process, compare

PATIENCE = 300.0  # seconds after which a process that is not killed counts as hanging


class Soak:
    """`faults` is empty where every run ended as the unkilled one."""

    def __init__(self, name: str, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self._directory = directory
        self._reference = Run(
            name,
            directory / "reference",
            directory / "data",
            options.seed,
            options.epochs,
            options.every,
        )
        # seconds of an unkilled process, by whether it is started afresh
        self._lives: dict[bool, float] = {}
        self._stepping = 0.0  # seconds of it between the first step and the end
        self._moments: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._kills = self._runs = self._again = 0
        self.faults: list[str] = []

    def run(self) -> None:
        began = time.monotonic()
        until = began + 60 * self._options.minutes
        self._finish_unkilled(self._reference, afresh=True)
        if self.faults:
            self._report(time.monotonic() - began)
            return
        self._expected = self._reference.expected()
        self._steps = len(self._expected)
        forked = replace(self._reference, run=self._directory / "forked")
        self._finish_unkilled(forked, afresh=False)
        self._compare(forked)
        if self.faults:
            say("a forked process without kills does not do what one started afresh does")
        else:
            say(
                f"{self._reference.name}: {self._steps} steps, a checkpoint every "
                f"{self._options.every}; an unkilled process lives {self._lives[True]:.1f} s, a forked "
                f"one {self._lives[False]:.1f} s, of which {self._stepping:.1f} s from its first step on"
            )
        while self._kills < self._options.kills and time.monotonic() < until and not self.faults:
            self._runs += 1
            run = replace(self._reference, run=self._directory / f"run-{self._runs:03d}")
            before = self._kills
            processes = self._run_with_kills(run, until)
            self._compare(run)
            say(
                f"run {self._runs}: {self._kills - before} kills, {processes} processes, "
                f"{self._kills} kills in all, {time.monotonic() - began:.0f} s"
                + ("" if not self.faults else "  DIFFERS")
            )
        self._report(time.monotonic() - began)

    def _finish_unkilled(self, run: Run, *, afresh: bool) -> None:
        child = Child(run, afresh=afresh)
        status = child.wait(PATIENCE)
        self._expect_success(child, status)
        if status == 0:
            self._note_life(child, afresh)

    def _note_life(self, child: Child, afresh: bool) -> None:
        """How long a whole life is now, as busy as the machine is."""
        events = child.log.events
        self._lives[afresh] = time.monotonic() - child.began
        self._stepping = events["finished"]["at"] - events["batch"]["at"]

    def _run_with_kills(self, run: Run, until: float) -> int:
        newest = 0
        for number in range(1, 10_000):
            afresh = self._chance.random() < self._options.afresh
            stepping = self._chance.random() < self._options.stepping
            whole = self._stepping if stepping else self._lives[afresh]
            moment = self._chance.uniform(0.0, whole)
            going = self._kills < self._options.kills and time.monotonic() < until
            child = Child(run, afresh=afresh)
            status = child.wait(moment, stepping=stepping) if going else child.wait(PATIENCE)
            if status is None and going:
                child.kill()
                self._kills += 1
                self._kinds["started afresh" if afresh else "forked"] += 1
                self._moments[self._moment(child.log, run)] += 1
            else:
                self._expect_success(child, status)
            first = child.log.batches[:1]
            if first and first[0][0] != newest + 1:
                self._fault(run, f"checkpoint {newest}, but went on at step {first[0][0]}")
            now = self._newest(run)
            if now < newest:
                self._fault(run, f"the newest checkpoint went back from {newest} to {now}")
            self._again += max(0, child.log.last_step - now)
            newest = now
            if status == 0 and number == 1:
                self._note_life(child, afresh)
            if status == 0 or self.faults:
                return number
        raise AssertionError("a run never ended")

    def _newest(self, run: Run) -> int:
        """That must be whole: what is damaged is a fault, also where an older one is still there."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                newest = run.loop.newest(run.run)
            except Exception as error:
                self._fault(run, f"after a kill: {error}")
                return 0
        for warning in caught:
            self._fault(run, f"after a kill: {warning.message}")
        return newest

    def _compare(self, run: Run) -> None:
        compared = compare(self._reference.run, run.run, steps=self._steps, traced=self._expected)
        for comparison in compared:
            if not comparison.identical:
                for difference in comparison.differences[:5]:
                    self._fault(run, f"{comparison.what}: {difference}")

    def _expect_success(self, child: Child, status: int | None) -> None:
        if status == 0:
            return
        if status is None:
            child.kill()
        how = "hangs" if status is None else f"ended with {status}"
        text = child.errors.read_text(errors="replace")[-2000:]
        self.faults.append(f"a process that was not killed {how}:\n{text}")

    def _fault(self, run: Run, what: str) -> None:
        self.faults.append(f"{run.run}: {what}")

    def _moment(self, log: Process, run: Run) -> str:
        """What a process was doing when it was killed."""
        if "imported" not in log.events:
            return "starting and importing"
        if not log.batches:
            return "restoring and tracing"
        training = "after the last step" if log.last_step == self._steps else "between and in steps"
        return run.loop.doing(run.run) or training

    def _report(self, took: float) -> None:
        name = self._reference.name
        say(f"{name}: {self._kills} kills in {self._runs} runs, {took / 60:.1f} min")
        say("processes killed: " + ", ".join(f"{n} {kind}" for kind, n in self._kinds.items()))
        for moment, n in self._moments.most_common():
            say(f"  {n:4d}  {moment}")
        say(f"steps done again: {self._again}, each compared as well")
        if self.faults:
            say(f"{name}: {len(self.faults)} DIFFERENCES")
            for fault in self.faults:
                say(f"  {fault}")
        else:
            say(f"{name}: every run ended with the records, losses and weights of the unkilled one")


def say(text: str) -> None:
    print(text, flush=True)
