"""`playhead.tf_keras.fit` under MirroredStrategy: a program of its own, since devices are set only once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("two_replicas.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("two"))],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = {}
    for line in ended.stdout.splitlines():
        found |= json.loads(line)
    return found


def test_a_run_on_two_replicas_broken_off_three_times_is_the_unbroken_one(
    told: dict[str, Any],
) -> None:
    whole = told["whole"]["lines"]
    # Saved at steps 3, 6, 9 and 12; the first epoch has 7, and one more line at its end.
    first, second, third = (broken["lines"] for broken in told["broken"])
    assert first == whole[:5]
    assert second == whole[3:7]
    assert third == whole[6:12]
    assert told["ended"]["lines"] == whole[10:]
    assert told["ended"]["history"] == told["whole"]["history"]
    assert told["ended"]["digest"] == told["whole"]["digest"]


def test_one_replica_goes_on_with_what_two_have_saved_and_says_that_sums_are_rounded_otherwise(
    told: dict[str, Any],
) -> None:
    (warned,) = [text for text in told["warned"] if "playhead" in text or "replicas" in text]
    assert "trained on 2 replicas, and this is 1 replica:" in warned
    moved, weighted = told["moved"]["history"], told["weighted"]["history"]
    for name in weighted:
        np.testing.assert_allclose(moved[name], weighted[name], rtol=1e-5)
    assert len(told["moved"]["lines"]) == 2 * 7 + 2 - 3
