"""A function in plain Python that computes for 1 ms, holding Python's lock, in batches of 32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.cases import _slow
from benchmarks.frame import Measure

TITLE = "a function that computes 1 ms in Python, batch 32"
UNIT = "elements/s"


def prepare(data: Path, quick: bool) -> None:
    """Nothing to make."""


def compute(x: Any) -> Any:
    """`x`, after a millisecond of this thread's processor time: on any machine, and beside any others."""
    total, end = 0, time.thread_time() + 0.001
    while time.thread_time() < end:
        for k in range(200):
            total += k & 3
    return x + (total & 0)


def on(peer: Any, **options: Any) -> Any:
    def made(data: Path, quick: bool) -> Measure:
        measure: Measure = peer(compute, quick, **options)
        return measure

    return made


PEERS = {
    "playhead": on(_slow.playhead, on="processes", workers=2),
    "playhead, threads": on(_slow.playhead),
    "ideal of 2 workers": lambda data, quick: _slow.ideal(compute, 2),
    "tf.data, numpy_function": on(_slow.tf_data),
    "grain, 2 processes": on(_slow.grain),
    "torch StatefulDataLoader, 2 processes": on(_slow.torch_dataloader),
}
