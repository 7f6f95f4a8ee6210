"""What coming back costs: time to the first batch after restoring at several steps, and the position's size.

    python benchmarks/resume.py

Each figure is the median over repeats that take turns in one run. A repeat opens a fresh iterator, loads the
position from its JSON and takes one batch; the pipelines are built once, as in a process that has started.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import playhead as ph
from playhead import kernels

STEPS = (0, 1_000, 1_000_000, 1_000_000_000)
REPEATS = 31


def rows() -> ph.Dataset:
    """60,000 rows of 784 float32 in memory, shuffled anew in every epoch, in batches of 256."""
    images = np.random.default_rng(0).random((60_000, 784), np.float32)
    labels = np.arange(60_000)
    return ph.Dataset.from_tensor_slices((images, labels)).shuffle(seed=1).batch(256)


def augmented() -> ph.Dataset:
    """The same with a random Python augmentation and read-ahead."""
    images = np.random.default_rng(0).random((60_000, 784), np.float32)
    return (
        ph.Dataset.from_tensor_slices(images)
        .shuffle(seed=1)
        .map(lambda x, rng: x + rng.normal(0, 0.1, x.shape).astype(np.float32), rng=True)
        .batch(256)
        .prefetch()
    )


def records(directory: Path) -> ph.Dataset:
    """60,000 TFRecords of 800 bytes in four files."""
    data = np.random.default_rng(0).integers(0, 256, (60_000, 800), np.uint8)
    for shard in range(4):
        with open(directory / f"train-{shard}.tfrecord", "wb") as file:
            for row in data[shard::4]:
                content = row.tobytes()
                length = struct.pack("<Q", len(content))
                file.write(length + struct.pack("<I", kernels.masked_crc32c(length)))
                file.write(content + struct.pack("<I", kernels.masked_crc32c(content)))
    return ph.Dataset.from_tfrecords(f"{directory}/train-*.tfrecord").shuffle(seed=1).batch(256)


def trillion() -> ph.Dataset:
    """The order of 10^12 records."""
    return ph.Dataset.range(10**12).shuffle(seed=1).batch(256)


def first_batch(ds: ph.Dataset, saved: str) -> float:
    """Milliseconds from a position's JSON to the first batch."""
    began = time.perf_counter()
    with ds.iterator(epochs=None) as iterator:
        iterator.load_state_dict(saved)
        next(iterator)
        return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        pipelines = {
            "rows in memory": rows(),
            "rows, random map, prefetch": augmented(),
            "TFRecords": records(Path(directory)),
            "order of 10^12": trillion(),
        }
        saved = {
            name: {step: ds.iterator(epochs=None).position_at(step).to_json() for step in STEPS}
            for name, ds in pipelines.items()
        }
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(REPEATS):
            for name, ds in pipelines.items():
                for step in STEPS:
                    times.setdefault((name, step), []).append(first_batch(ds, saved[name][step]))
    table = Table(title="First batch after restoring: median ms (difference to step 0)")
    table.add_column("pipeline")
    for step in STEPS:
        table.add_column(f"step {step:,}", justify="right")
    table.add_column("position, bytes", justify="right")
    for name in pipelines:
        start = statistics.median(times[name, 0])
        cells = []
        for step in STEPS:
            median = statistics.median(times[name, step])
            cells.append(f"{median:.2f} ({median - start:+.2f})")
        table.add_row(name, *cells, str(max(len(text) for text in saved[name].values())))
    Console(width=112).print(table)


if __name__ == "__main__":
    main()
