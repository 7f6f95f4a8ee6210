"""Rows that lie in memory: 60,000 of 784 float32 and a label, all shuffled, in batches of 256."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Measure, rate

TITLE = "shuffled rows in memory (784 float32 and a label, batch 256)"
UNIT = "examples/s"
BATCH = 256


def prepare(data: Path, quick: bool) -> None:
    rows = np.random.default_rng(0).random((6_000 if quick else 60_000, 784), np.float32)
    np.save(data / "rows.npy", rows)


def arrays(data: Path) -> tuple[Any, Any]:
    rows = np.load(data / "rows.npy")
    return rows, np.arange(len(rows))


def second(batch: Any) -> int:
    return len(batch[1])


def measured(batches: Any, count: int) -> Measure:
    """A measurement of whole passes, after a look at its first batch."""
    rows, labels = next(iter(batches))
    assert rows.shape == (BATCH, 784) and str(rows.dtype).endswith("float32"), rows
    assert labels.shape == (BATCH,) and str(labels.dtype).endswith("int64"), labels
    return lambda: rate(lambda: batches, second, count)


def playhead(data: Path, quick: bool) -> Measure:
    import playhead as ph

    rows, labels = arrays(data)
    dataset = ph.Dataset.from_tensor_slices((rows, labels)).shuffle(seed=1).batch(BATCH).prefetch()
    return measured(dataset, len(rows))


def tf_data(data: Path, quick: bool) -> Measure:
    """As "Better performance with the tf.data API" says: shuffle over the whole set, batch, prefetch."""
    import tensorflow as tf

    rows, labels = arrays(data)
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).shuffle(len(rows))
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return lambda: rate(dataset.as_numpy_iterator, second, len(rows))


def grain(data: Path, quick: bool, **reading: int) -> Measure:
    """As grain's "Dataset basics" says: a random-access source, shuffle, batch, its own 16 threads."""
    import grain

    rows, labels = arrays(data)

    class Rows:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index], labels[index]

    batches = grain.MapDataset.source(Rows()).shuffle(seed=1).batch(BATCH)
    return measured(batches.to_iter_dataset(grain.ReadOptions(**reading)), len(rows))


def grain_without_threads(data: Path, quick: bool) -> Measure:
    """As the reference of grain.ReadOptions says of data that lie in memory: num_threads=0."""
    return grain(data, quick, num_threads=0)


def torch_dataloader(data: Path, quick: bool) -> Measure:
    """As "torch.utils.data" says: a dataset that fetches a whole batch in __getitems__, shuffle=True."""
    import torch
    from torch.utils.data import Dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows, labels = (torch.from_numpy(array) for array in arrays(data))

    class Rows(Dataset):  # type: ignore[misc, type-arg]
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index], labels[index]

        def __getitems__(self, indices: list[int]) -> Any:
            return rows[indices], labels[indices]

    loader = StatefulDataLoader(Rows(), BATCH, shuffle=True, collate_fn=lambda batch: batch)
    return measured(loader, len(rows))


def numpy(data: Path, quick: bool) -> Measure:
    """A loop by hand, which keeps no place: what there is to reach."""
    rows, labels = arrays(data)
    random = np.random.default_rng(1)

    def batches() -> Any:
        order = random.permutation(len(rows))
        for start in range(0, len(rows), BATCH):
            chosen = order[start : start + BATCH]
            yield rows[chosen], labels[chosen]

    return lambda: rate(batches, second, len(rows))


PEERS = {
    "playhead": playhead,
    "tf.data": tf_data,
    "grain": grain,
    "grain, num_threads=0": grain_without_threads,
    "torch StatefulDataLoader": torch_dataloader,
    "numpy by hand": numpy,
}
