"""A function that waits for 1 ms, as for a disk or a network, in batches of 32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.cases import _slow
from benchmarks.frame import Measure

TITLE = "a function that waits 1 ms (time.sleep), batch 32"
UNIT = "elements/s"


def prepare(data: Path, quick: bool) -> None:
    """Nothing to make."""


def wait(x: Any) -> Any:
    time.sleep(0.001)
    return x


def on(peer: Any, **options: Any) -> Any:
    def made(data: Path, quick: bool) -> Measure:
        measure: Measure = peer(wait, quick, **options)
        return measure

    return made


PEERS = {
    "playhead": on(_slow.playhead),
    "playhead, 2 workers": on(_slow.playhead, workers=2),
    "ideal of 2 workers": lambda data, quick: _slow.ideal(wait, 2),
    "tf.data, numpy_function": on(_slow.tf_data),
    "grain, 2 processes": on(_slow.grain),
    "grain, 16 threads": on(_slow.grain_threads),
    "torch StatefulDataLoader, 2 processes": on(_slow.torch_dataloader),
}
