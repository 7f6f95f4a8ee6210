"""Shuffled rows in memory, playhead against tf.data in one run.

    python benchmarks/rows.py

60,000 rows of 784 float32 and a label, a full shuffle, batches of 256. tf.data is written as its guide
advises: from_tensor_slices, shuffle over the whole set, batch, prefetch(AUTOTUNE). The two take turns; the
table shows medians and the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import playhead as ph

ROWS, BATCH, REPEATS = 60_000, 256, 9


def rate(epoch: Iterable[object]) -> float:
    """Examples per second over one epoch."""
    began = time.perf_counter()
    count = sum(len(batch[1]) for batch in epoch)  # type: ignore[index]
    return count / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    images = np.random.default_rng(0).random((ROWS, 784), np.float32)
    labels = np.arange(ROWS)
    ours = ph.Dataset.from_tensor_slices((images, labels)).shuffle(seed=1).batch(BATCH)
    ahead = ours.prefetch()
    theirs = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(ROWS)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )
    feeds: dict[str, Callable[[], Iterable[object]]] = {
        "playhead": lambda: ours,
        "playhead, prefetch": lambda: ahead,
        "tf.data": lambda: theirs.as_numpy_iterator(),
    }
    rates: dict[str, list[float]] = {name: [] for name in feeds}
    for repeat in range(REPEATS + 1):
        for name, feed in feeds.items():
            found = rate(feed())
            if repeat:
                rates[name].append(found)
    table = Table(title=f"{ROWS:,} x 784 float32, full shuffle, batch {BATCH}")
    for column in ("", "examples/s", "x tf.data"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in rates.items():
        ratios = [a / b for a, b in zip(found, rates["tf.data"], strict=True)]
        table.add_row(name, f"{statistics.median(found):,.0f}", f"{statistics.median(ratios):.2f}")
    Console(width=112).print(table)


if __name__ == "__main__":
    main()
