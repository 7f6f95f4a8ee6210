"""The soak finds what a kill changes, and nothing where it changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.soak.loops import LOOPS

PROGRAM = Path(__file__).with_name("toy_run.py")


def soaked(kind: str, directory: Path, kills: int) -> Any:
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "soak", kind, str(directory), str(kills)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_loop_that_goes_on_exactly_has_no_faults(tmp_path: Path) -> None:
    assert soaked("right", tmp_path / "soak", 5) == {"faults": [], "kills": 5}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("a batch twice", "records of every batch: step"),
        ("another weight", "loss of every batch: step"),
        ("damaged", "after a kill: "),
    ],
)
def test_a_loop_that_does_not_is_found_out(tmp_path: Path, kind: str, said: str) -> None:
    found = soaked(kind, tmp_path / "soak", 30)
    assert any(said in fault for fault in found["faults"]), found


@pytest.mark.parametrize("name", ["tensorflow", "mirrored"])
def test_what_a_loop_has_to_read_is_each_pass_in_another_order(tmp_path: Path, name: str) -> None:
    records = LOOPS[name].expected(tmp_path, 3, 2)
    steps = len(records) // 2
    assert list(records) == list(range(1, len(records) + 1))
    first = [x for step in range(1, steps + 1) for x in records[step]]
    assert len(first) == len(set(first)) > 150
    assert len({*records.values()}) == len(records)
