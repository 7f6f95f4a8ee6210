"""What a training process writes down as it goes, and how two runs are compared by it.

A run has a directory. Each of its processes writes a file of its own there, `process-001.jsonl`,
one JSON object a line, handed to the operating system line by line: a kill loses at most one line.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_FILE = re.compile(r"process-(\d{3,})\.jsonl")
WEIGHTS = "weights.npz"


class Writer:
    """The log of this process, the next in `run`."""

    def __init__(self, run: Path) -> None:
        run.mkdir(parents=True, exist_ok=True)
        number = len(files(run)) + 1
        # No buffer in between, which could hand over half a line.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(run / f"process-{number:03d}.jsonl", flags, 0o644)

    def __call__(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "at": time.time(), **facts}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


@dataclass(frozen=True)
class Batch:
    """What one training step consumed: its records, and its loss as the bits of the float."""

    records: tuple[int, ...]
    loss: str


@dataclass
class Process:
    """What one process wrote. `batches` in the order of writing."""

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    batches: list[tuple[int, Batch]] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """The last step written down; 0 if there is none."""
        return self.batches[-1][0] if self.batches else 0


class Reader:
    """Follows one process's file as it grows."""

    def __init__(self, path: Path) -> None:
        self.process = Process()
        self._path = path
        self._offset = 0

    def read(self) -> Process:
        """Takes in the lines that are complete by now."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return self.process
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        for line in content[:whole].splitlines():
            said = json.loads(line)
            self.process.events.setdefault(said["event"], said)
            if said["event"] == "batch":
                batch = Batch(tuple(said["records"]), said["loss"])
                self.process.batches.append((said["step"], batch))
        return self.process


def files(run: Path) -> list[Path]:
    """The logs of the processes of `run`, in the order in which they were started."""
    if not run.is_dir():
        return []
    return sorted(p for p in run.iterdir() if _FILE.fullmatch(p.name))


def next_file(run: Path) -> Path:
    """The file that the next process of `run` will write."""
    return run / f"process-{len(files(run)) + 1:03d}.jsonl"


def processes(run: Path) -> list[Process]:
    """What the processes of `run` wrote."""
    return [Reader(path).read() for path in files(run)]


@dataclass(frozen=True)
class Comparison:
    """One thing compared: how many were equal, of how many, and in words what was not."""

    what: str
    equal: int
    total: int
    differences: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        return self.equal == self.total and self.total > 0 and not self.differences


def compare(
    straight: Path,
    killed: Path,
    *,
    steps: int,
    traced: Mapping[int, Sequence[int]] | None = None,
) -> list[Comparison]:
    """What two runs logged, against each other: records and losses of steps 1 to `steps`, weights.

    Every line counts: a step that the killed run did again is compared as often as it was done.
    `traced`, the records of each step as the pipeline names them without reading, is compared
    with what the first run trained on.
    """
    once, again = processes(straight), processes(killed)
    first = _one_each(once)
    lines = [line for process in again for line in process.batches]
    wanted = range(1, steps + 1)
    compared = [
        _batches("records of every batch", "records", first, lines, wanted),
        _batches("loss of every batch", "loss", first, lines, wanted),
    ]
    if traced is not None:
        wrong = [s for s in wanted if s not in first or first[s].records != tuple(traced[s])]
        said = tuple(f"step {s}: the trace names other records than were trained on" for s in wrong)
        compared.append(Comparison("records named by trace", steps - len(wrong), steps, said))
    compared.append(_weights(straight, killed))
    compared[0] = _with(compared[0], _gaps(again))
    return compared


def _one_each(processes: Iterable[Process]) -> dict[int, Batch]:
    found: dict[int, Batch] = {}
    for process in processes:
        for step, batch in process.batches:
            found.setdefault(step, batch)
    return found


def _batches(
    what: str,
    part: str,
    first: Mapping[int, Batch],
    lines: Sequence[tuple[int, Batch]],
    wanted: range,
) -> Comparison:
    by_step: dict[int, list[Batch]] = {}
    for step, batch in lines:
        by_step.setdefault(step, []).append(batch)
    differences = []
    equal = 0
    for step in wanted:
        expected, done = first.get(step), by_step.get(step, [])
        if expected is None or not done:
            where = "straight through" if expected is None else "killed"
            differences.append(f"step {step}: missing in the run {where}")
            continue
        others = [batch for batch in done if getattr(batch, part) != getattr(expected, part)]
        equal += not others
        differences += [
            f"step {step}: {getattr(expected, part)} -> {getattr(other, part)}" for other in others
        ]
    beyond = sorted({*first, *by_step} - set(wanted))
    differences += [f"step {step}: one too many" for step in beyond]
    return Comparison(what, equal, len(wanted), tuple(differences))


def _gaps(processes: Iterable[Process]) -> list[str]:
    """Where a process did not go on with the step after the one before."""
    found = []
    for number, process in enumerate(processes, 1):
        steps = [step for step, _ in process.batches]
        for before, after in itertools.pairwise(steps):
            if after != before + 1:
                found.append(f"process {number}: step {after} followed step {before}")
    return found


def _with(comparison: Comparison, more: Sequence[str]) -> Comparison:
    differences = (*comparison.differences, *more)
    return Comparison(comparison.what, comparison.equal, comparison.total, differences)


def _weights(straight: Path, killed: Path) -> Comparison:
    what = "final weights"
    try:
        with np.load(straight / WEIGHTS) as a, np.load(killed / WEIGHTS) as b:
            names = sorted({*a.files, *b.files})
            unequal = [
                name
                for name in names
                if name not in a.files
                or name not in b.files
                or (a[name].dtype, a[name].shape) != (b[name].dtype, b[name].shape)
                or a[name].tobytes() != b[name].tobytes()
            ]
    except (OSError, ValueError) as error:
        return Comparison(what, 0, 0, (f"the saved weights cannot be read: {error}",))
    said = tuple(f"{name} differs" for name in unequal)
    return Comparison(what, len(names) - len(unequal), len(names), said)
