"""What one batch costs, in microseconds, and where: one thread, nothing ahead.

    python benchmarks/cost.py

Four pipelines with batches of 256. `order` is finding out which records a batch is made of (located for a
window of batches at once, a batch's share of it), `read` is gathering or parsing them and calling the
functions, `hand over` is everything else: the iterator, its position, the consumer's `next`.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import playhead as ph
from playhead import kernels
from playhead.plan.places import Places

BATCH, REPEATS = 256, 9


def example(pixels: bytes, label: int, numbers: bytes) -> bytes:
    """A serialized `tf.train.Example` of three features, put together by hand."""

    def field(tag: int, data: bytes) -> bytes:
        size, length = len(data), bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([tag, *length, size]) + data

    def entry(name: str, kind: int, values: bytes) -> bytes:
        return field(0x0A, field(0x0A, name.encode()) + field(0x12, field(kind, values)))

    features = (
        entry("pixels", 0x0A, field(0x0A, pixels)),
        entry("label", 0x1A, field(0x0A, bytes([label & 127]))),
        entry("numbers", 0x12, field(0x0A, numbers)),
    )
    return field(0x0A, b"".join(features))


def records(path: Path, count: int) -> None:
    """A TFRecord file of `count` Examples."""
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        for k in range(count):
            data = example(random.bytes(784), k, random.random(16, np.float32).tobytes())
            masked = struct.pack("<I", kernels.masked_crc32c(data))
            file.write(kernels.header(len(data)) + data + masked)


def pipelines(folder: Path) -> dict[str, ph.Dataset]:
    """Name -> a shuffled pipeline in batches."""
    rows = np.random.default_rng(0).random((60_000, 784), np.float32)
    labels = np.arange(60_000)
    records(folder / "examples.tfrecord", 20_000)
    features = {
        "pixels": ph.FixedLenFeature((), bytes),
        "label": ph.FixedLenFeature((), np.int64),
        "numbers": ph.FixedLenFeature((16,), np.float32),
    }
    parsed = ph.Dataset.from_tfrecords(str(folder / "examples.tfrecord"), features=features)
    numbers = ph.Dataset.range(100_000).shuffle(seed=1)
    return {
        "rows of 784 float32 and a label": ph.Dataset.from_tensor_slices((rows, labels)).shuffle(
            seed=1
        ),
        "TFRecord Examples, parsed, CRCs checked": parsed.shuffle(seed=1),
        "numbers": numbers,
        "numbers, map(lambda x: x + 1)": numbers.map(lambda x: x + 1),
    }


def seconds(work: Callable[[], object]) -> float:
    """The median time of several calls."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(dataset: ph.Dataset) -> tuple[float, float, float]:
    """Seconds for a batch: order, read, hand over."""
    node = dataset.node
    batches = node.length or 0
    places = Places(0, np.arange(batches))

    def read() -> None:
        for k in range(batches):
            node.read(located.slice(k, k + 1))

    def consume() -> None:
        for _ in dataset.epoch(0):
            pass

    consume()
    located = node.locate(places)
    order, reading = seconds(lambda: node.locate(places)), seconds(read)
    rest = max(0.0, seconds(consume) - order - reading)
    return order / batches, reading / batches, rest / batches


def main() -> None:
    """Measure and print."""
    table = Table(title=f"microseconds for a batch of {BATCH}, native kernels: {kernels.NATIVE}")
    for column in ("", "order", "read", "hand over", "all", "elements/s"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        for name, dataset in pipelines(Path(folder)).items():
            parts = measure(dataset.batch(BATCH, drop_remainder=True))
            shown = [f"{part * 1e6:.0f}" for part in (*parts, sum(parts))]
            table.add_row(name, *shown, f"{BATCH / sum(parts):,.0f}")
    Console(width=112).print(table)


if __name__ == "__main__":
    main()
