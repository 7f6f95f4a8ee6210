"""What a pass over shuffled rows adds to memory, the rows themselves counted out.

The framework is imported and the rows are loaded before the count begins; the pipeline and one whole pass
are in it. The figure is the most that was resident at a batch, of the process and of what its workers hold for
themselves. A process can show that once: later turns give the first one's figure again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import rows as data_of
from benchmarks.cases.rows import BATCH
from benchmarks.frame import Measure

TITLE = "memory that a pass over 188 MB of rows adds (784 float32 and a label, shuffled, batch 256)"
UNIT = "MB"
FLOOR = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE")

prepare = data_of.prepare


def resident() -> float:
    """MB resident in this process, and private in the processes it started."""
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[1]) * PAGE
    return (held + sum(private(child) for child in children(os.getpid()))) / 1e6


def children(process: int) -> list[int]:
    """The processes that `process` started, and those that they started."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children") as file:
                found += [int(number) for number in file.read().split()]
    except OSError:
        return []
    return found + [below for child in found for below in children(child)]


def private(process: int) -> int:
    """Bytes that no other process has in memory too; 0 where it has ended."""
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            return sum(1024 * int(x.split()[1]) for x in file if x.startswith("Private_"))
    except OSError:
        return 0


def once(
    count: Callable[[Any], int], expected: int, batches: Callable[[], Iterable[Any]]
) -> Measure:
    """The most that was added at any batch of the first pass; at least 0.1 MB, so that ratios exist."""
    known: list[float] = []

    def measure() -> float:
        if not known:
            before, peak, found = resident(), 0.0, 0
            for batch in batches():
                found += count(batch)
                peak = max(peak, resident())
            if found != expected:
                raise RuntimeError(f"{found} elements came where {expected} were expected")
            known.append(max(peak - before, FLOOR))
        return known[0]

    return measure


def playhead(data: Path, quick: bool) -> Measure:
    import playhead as ph

    rows, labels = data_of.arrays(data)

    def batches() -> Any:
        slices = ph.Dataset.from_tensor_slices((rows, labels))
        return slices.shuffle(seed=1).batch(BATCH).prefetch()

    return once(data_of.second, len(rows), batches)


def tf_data(data: Path, quick: bool) -> Measure:
    """As "Better performance with the tf.data API" says; a shuffle over the whole set holds all of it."""
    import tensorflow as tf

    rows, labels = data_of.arrays(data)

    def batches() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).shuffle(len(rows))
        return dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    return once(data_of.second, len(rows), batches)


def grain(data: Path, quick: bool) -> Measure:
    """A `MapDataset`, then `to_iter_dataset` with a thread a core and as many batches ahead.

    "Dataset basics" in its documentation leads from one to the other. Its default of 500 batches ahead would be
    the whole pass here: less is fair to it.
    """
    import grain

    rows, labels = data_of.arrays(data)

    class Rows:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: Any) -> tuple[Any, Any]:
            return rows[index], labels[index]

    def batches() -> Any:
        source = grain.MapDataset.source(Rows()).shuffle(seed=1).batch(BATCH)
        return source.to_iter_dataset(grain.ReadOptions(2, 4))

    return once(data_of.second, len(rows), batches)


def torch_loader(data: Path, quick: bool) -> Measure:
    """`DataLoader` with a worker a core, as "torch.utils.data" describes it."""
    import torch

    rows, labels = data_of.arrays(data)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels))

    def batches() -> Any:
        return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=2)

    return once(data_of.second, len(rows), batches)


def numpy(data: Path, quick: bool) -> Measure:
    """A loop by hand, which keeps no place: what there is to reach."""
    rows, labels = data_of.arrays(data)

    def batches() -> Any:
        order = np.random.default_rng(1).permutation(len(rows))
        for start in range(0, len(rows), BATCH):
            chosen = order[start : start + BATCH]
            yield rows[chosen], labels[chosen]

    return once(data_of.second, len(rows), batches)


PEERS = {
    "playhead": playhead,
    "tf.data": tf_data,
    "grain": grain,
    "torch DataLoader": torch_loader,
    "numpy by hand": numpy,
}
