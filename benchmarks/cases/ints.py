"""Small elements: 200,000 numbers, shuffled, one added to each by a Python lambda, in batches of 128."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Measure, rate

TITLE = "small elements: ints through shuffle, map(lambda x: x + 1), batch 128"
UNIT = "elements/s"
BATCH = 128


def prepare(data: Path, quick: bool) -> None:
    """Nothing to make."""


def size(quick: bool) -> int:
    return 10_000 if quick else 200_000


def measured(batches: Any, count: int) -> Measure:
    """A measurement of whole passes, after a look at its first batch."""
    first = next(iter(batches))
    assert first.shape == (BATCH,) and str(first.dtype).endswith("int64"), first
    return lambda: rate(lambda: batches, len, count)


def playhead(data: Path, quick: bool) -> Measure:
    import playhead as ph

    count = size(quick)
    dataset = ph.Dataset.range(count).shuffle(seed=1).map(lambda x: x + 1).batch(BATCH).prefetch()
    return measured(dataset, count)


def tf_data(data: Path, quick: bool) -> Measure:
    """As "Better performance with the tf.data API" says: a parallel map, and prefetch at the end."""
    import tensorflow as tf

    count = size(quick)
    dataset = tf.data.Dataset.range(count).shuffle(count)
    dataset = dataset.map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return lambda: rate(dataset.as_numpy_iterator, len, count)


def tf_data_vectorised(data: Path, quick: bool) -> Measure:
    """The same guide's vectorised mapping: batch first, then map whole batches."""
    import tensorflow as tf

    count = size(quick)
    dataset = tf.data.Dataset.range(count).shuffle(count).batch(BATCH)
    dataset = dataset.map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    return lambda: rate(dataset.as_numpy_iterator, len, count)


def playhead_vectorised(data: Path, quick: bool) -> Measure:
    """Batch first here too."""
    import playhead as ph

    count = size(quick)
    dataset = ph.Dataset.range(count).shuffle(seed=1).batch(BATCH).map(lambda x: x + 1).prefetch()
    return measured(dataset, count)


def grain(data: Path, quick: bool, **reading: int) -> Measure:
    """As grain's "Dataset basics" says: range, shuffle, map, batch, its 16 threads. A quarter of the data."""
    import grain

    count = size(quick) // 4
    dataset = grain.MapDataset.range(count).shuffle(seed=1).map(lambda x: x + 1)
    batches = dataset.batch(BATCH).to_iter_dataset(grain.ReadOptions(**reading))
    return measured(batches, count)


def grain_without_threads(data: Path, quick: bool) -> Measure:
    """As the reference of grain.ReadOptions says of data that lie in memory: num_threads=0."""
    return grain(data, quick, num_threads=0)


def torch_dataloader(data: Path, quick: bool) -> Measure:
    """As "torch.utils.data" says: a map-style dataset and shuffle=True. Processes would cost more here."""
    from torch.utils.data import Dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    count = size(quick)

    class Numbers(Dataset):  # type: ignore[misc, type-arg]
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return np.int64(index) + 1

    loader = StatefulDataLoader(Numbers(), batch_size=BATCH, shuffle=True)
    return measured(loader, count)


PEERS = {
    "playhead": playhead,
    "playhead, batch before map": playhead_vectorised,
    "tf.data": tf_data,
    "tf.data, batch before map": tf_data_vectorised,
    "grain": grain,
    "grain, num_threads=0": grain_without_threads,
    "torch StatefulDataLoader": torch_dataloader,
}
