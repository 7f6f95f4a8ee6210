"""The frame of the benchmark: cases, the peers in them, and a process for each that waits for its turn.

A case is a module of `benchmarks.cases` with

    TITLE   what is measured, in a line
    UNIT    of the values; "/s" at its end means that more is better, else less is
    prepare(data, quick)   makes the data, once, in the folder `data`; may give what ends what it began
    PEERS   name -> function(data, quick) that sets a peer up and gives a function which measures once

A case that measures several things at once has, in place of TITLE and UNIT, FIGURES: name -> (title, unit), and
its functions give a dict of values by these names.

A peer's function runs in a process of its own and imports its framework there, so that no framework's
memory, threads or settings disturb another's. Peers take turns within a repeat: a machine that becomes slower
for a while becomes so for all of them, and ratios are taken between neighbours.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = "playhead"
IN_ORDER = f"{OURS}, in order"
LONG_ENOUGH = 0.5  # seconds of whole passes: a short one is over before caches and clocks are warm
ROOT = Path(__file__).resolve().parent.parent
CASES = (
    "rows",
    "examples",
    "jpeg",
    "tokens",
    "sleep",
    "busy",
    "ray",
    "ints",
    "fit",
    "first_batch",
    "next_epoch",
    "saving",
    "saved_size",
    "memory",
    "order",
    "index",
)
SOURCES = (
    "lines",
    "json_lines",
    "separated",
    "parquet",
    "tar",
    "array_records",
    "image_folder",
    "tfrecords",
    "tfrecords_gzip",
    "kafka",
    "generator",
)
NAMES = CASES + SOURCES
GROUPS = {"sources": SOURCES}

Measure = Callable[[], float | dict[str, float]]


class Absent(Exception):
    """A peer that cannot take part, and why: said in the table."""


@dataclass
class Result:
    """What the peers of a case measured: `values[peer][repeat]`, and the peers that could not take part."""

    name: str
    title: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    rss: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def more_is_better(self) -> bool:
        return self.unit.endswith("/s")

    def median(self, peer: str) -> float:
        return statistics.median(self.values[peer])

    def ratio(self, peer: str) -> float | None:
        """How many times better the first of our own peers is, by the median over the repeats.

        Where a peer reads in order, ours that does so too.
        """
        ours = IN_ORDER if peer.endswith(", in order") and IN_ORDER in self.values else OURS
        if ours not in self.values or peer not in self.values:
            return None
        pairs = zip(self.values[ours], self.values[peer], strict=False)
        ratios = [a / b if self.more_is_better else b / a for a, b in pairs if a > 0 and b > 0]
        return statistics.median(ratios) if ratios else None


def load(name: str) -> Any:
    package = "benchmarks.cases.sources" if name in SOURCES else "benchmarks.cases"
    return importlib.import_module(f"{package}.{name}")


def figures(name: str) -> dict[str, tuple[str, str]]:
    """What a case measures: name -> (title, unit)."""
    case = load(name)
    found: dict[str, tuple[str, str]] = getattr(case, "FIGURES", None) or {
        name: (case.TITLE, case.UNIT)
    }
    return found


class Peer:
    """A peer's process."""

    def __init__(self, case: str, peer: str, data: Path, quick: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.frame", case, peer, str(data), str(int(quick))]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, limit: float) -> dict[str, Any]:
        """One measurement: {"values", "rss"}, or {"absent"}: also where it takes more than `limit` seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(limit, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        except BrokenPipeError:
            pass
        finally:
            expired = not timer.is_alive()
            timer.cancel()
        if expired:
            return {"absent": f"not done after {limit:.0f} s"}
        return {"absent": f"its process ended with {self._process.wait()}"}

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def run(
    name: str, data: Path, *, repeats: int, quick: bool, say: Callable[[str], None]
) -> list[Result]:
    """Measure a case: one round to warm up, then `repeats` rounds in which the peers take turns.

    A result for each figure of the case.
    """
    case = load(name)
    data.mkdir(parents=True, exist_ok=True)
    end = case.prepare(data, quick)
    results = {key: Result(key, *said) for key, said in figures(name).items()}
    peers: dict[str, Peer] = {}
    try:
        peers |= {peer: Peer(name, peer, data, quick) for peer in case.PEERS}
        for repeat in range(repeats + 1):
            for peer in list(peers):
                found = peers[peer].turn(600)
                for key, result in results.items():
                    if "absent" in found:
                        result.absent[peer] = found["absent"]
                        result.values.pop(peer, None)
                    elif repeat:
                        result.values.setdefault(peer, []).append(found["values"][key])
                        result.rss[peer] = found["rss"]
                if "absent" in found:
                    peers.pop(peer).close()
            say(f"{name}: round {repeat} of {repeats}")
    finally:
        for peer_process in peers.values():
            peer_process.close()
        if end is not None:
            end()
    return list(results.values())


def _serve(case: str, peer: str, data: Path, quick: bool) -> None:
    """A peer's process: set up, then measure at each line that comes in."""
    measure: Measure | None = None
    for _ in sys.stdin:
        try:
            if measure is None:
                measure = load(case).PEERS[peer](data, quick)
            value = measure()
            values = value if isinstance(value, dict) else {case: value}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            said: dict[str, Any] = {"values": values, "rss": peak}
        except ImportError as error:
            said = {"absent": f"not installed: {error.name}"}
        except Absent as error:
            said = {"absent": str(error)}
        except Exception as error:
            traceback.print_exc()
            said = {"absent": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(said), flush=True)


def rate(passes: Callable[[], Any], count: Callable[[Any], int], expected: int) -> float:
    """Elements per second over whole passes, one after the other, that take LONG_ENOUGH together.

    Each begins anew with the batches that `passes` gives, which must hold `expected` elements.
    """
    began, done = time.perf_counter(), 0
    while True:
        found = sum(count(batch) for batch in passes())
        seconds = time.perf_counter() - began
        if found != expected:
            raise RuntimeError(f"{found} elements came where {expected} were expected")
        done += found
        if seconds >= LONG_ENOUGH:
            return done / seconds


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "1")
