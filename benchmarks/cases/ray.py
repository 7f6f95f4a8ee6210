"""A function in plain Python that computes for 1 ms, over a Ray cluster of two nodes with one CPU each.

The cluster is on this machine, in processes of its own. Ray's, between the nodes and the program, share
the cores with those that compute: beside it stands what two processes do without Ray.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import _cluster, _slow
from benchmarks.cases.busy import compute
from benchmarks.frame import Absent, Measure

TITLE = "a function that computes 1 ms in Python, on a Ray cluster of two nodes, batch 32"
UNIT = "elements/s"
BATCH, WORKERS = _slow.BATCH, _slow.WORKERS
BLOCK = 10 * BATCH


def prepare(data: Path, quick: bool) -> Callable[[], None] | None:
    """Starts a cluster. Gives what ends it; None where there is no Ray, or none can start here."""
    if find_spec("ray") is None:
        return None
    try:
        address, shut_down = _cluster.start()
    except RuntimeError:
        return None
    (data / "cluster.json").write_text(json.dumps(address))
    return shut_down


def connect(data: Path) -> None:
    """Raises `Absent` where there is no cluster."""
    import ray

    if not (data / "cluster.json").exists():
        raise Absent("the Ray cluster did not start")
    address = json.loads((data / "cluster.json").read_text())
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def playhead(data: Path, quick: bool) -> Measure:
    connect(data)
    return _slow.playhead(compute, quick, on="ray", workers=WORKERS)


def row(element: dict[str, Any]) -> dict[str, Any]:
    return {"id": compute(element["id"])}


def ray_data(data: Path, quick: bool) -> Measure:
    """As Ray's "Transforming Data" and "Iterating over Data" say: `map`, as the function is not vectorized, and
    `iter_batches`, with a shuffle buffer as large as in the example of "Shuffling Data".

    Its own choice for so little data is two blocks a CPU, and the first batch comes when a whole one is done;
    "Performance Tips and Tuning" names `override_num_blocks` for more of them. A block is what one task
    makes: with 320 elements the costs of a task hardly count.

    A pass goes on while its consumer pauses. So each measurement is a pass of its own, of which the clock
    sees the middle: neither its start nor its end.
    """
    connect(data)
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    blocks = 10 if quick else 40
    count = blocks * BLOCK // BATCH
    dataset = ray.data.range(blocks * BLOCK, override_num_blocks=blocks).map(row)

    def measure() -> float:
        batches = iter(dataset.iter_batches(batch_size=BATCH, local_shuffle_buffer_size=250))
        first = next(batches)["id"]
        assert first.shape == (BATCH,) and first.dtype == np.int64, first
        taken = 1 + sum(1 for _ in islice(batches, count // 5))
        began = time.perf_counter()
        counted = sum(len(batch["id"]) for batch in islice(batches, count * 3 // 5))
        seconds = time.perf_counter() - began
        taken += counted // BATCH + sum(1 for _ in batches)
        if taken != count:
            raise RuntimeError(f"{taken} batches came where {count} were expected")
        return counted / seconds

    return measure


PEERS = {
    "playhead": playhead,
    "playhead, processes": lambda data, quick: _slow.playhead(
        compute, quick, on="processes", workers=WORKERS
    ),
    "ideal of 2 workers": lambda data, quick: _slow.ideal(compute, WORKERS),
    "ray.data": ray_data,
}
