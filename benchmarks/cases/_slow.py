"""Peers around one slow Python function: what `sleep` and `busy` share.

Peers with processes of their own keep them open between turns and measure batches of an endless pass, after
those that waited have been taken: starting processes is measured in `first_batch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.frame import Measure

BATCH, WORKERS = 32, 2
WAITING = 24  # more batches than any of them holds ahead
Function = Callable[[Any], Any]


def steady(batches: Iterator[Any], quick: bool, *, tunes: bool = False) -> Measure:
    """Elements per second of an endless iterator, once what was computed between the turns is taken.

    One that `tunes` its own number of threads gets some seconds for it first.
    """
    span = 0.3 if quick else 1.5
    first = np.asarray(next(batches))
    assert first.shape == (BATCH,) and first.dtype == np.int64, first
    began = time.perf_counter()
    while tunes and not quick and time.perf_counter() - began < 8:
        next(batches)

    def measure() -> float:
        for _ in islice(batches, WAITING):
            pass
        taken, began = 0, time.perf_counter()
        while (seconds := time.perf_counter() - began) < span:
            if len(next(batches)) != BATCH:
                raise RuntimeError(f"a batch without {BATCH} elements")
            taken += BATCH
        return taken / seconds

    return measure


def playhead(function: Function, quick: bool, **options: Any) -> Measure:
    import playhead as ph

    dataset = ph.Dataset.range(1_000_000).shuffle(seed=1).map(function).batch(BATCH)
    batches = dataset.prefetch(**options).iterator(epochs=None)
    return steady(batches, quick, tunes=not options)


def tf_data(function: Function, quick: bool) -> Measure:
    """As tf.data's guide says of Python functions: tf.numpy_function inside a parallel map."""
    import tensorflow as tf

    def mapped(x: Any) -> Any:
        return tf.numpy_function(function, [x], tf.int64)

    dataset = tf.data.Dataset.range(1_000_000).shuffle(10_000)
    dataset = dataset.map(mapped, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(4)
    return steady(dataset.repeat().as_numpy_iterator(), quick, tunes=True)


def grain(function: Function, quick: bool) -> Measure:
    """As grain's "Dataset advanced usage" says of functions in Python: mp_prefetch with a worker a core.

    One thread in each, so that two processes are two workers.
    """
    import grain

    dataset = grain.MapDataset.range(1_000_000).shuffle(seed=1).repeat().map(function)
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    batches = dataset.batch(BATCH).to_iter_dataset(reading).mp_prefetch(options)
    return steady(iter(batches), quick)


def grain_threads(function: Function, quick: bool) -> Measure:
    """Its default of 16 threads and no processes, but 16 batches ahead instead of 500, to see a steady rate."""
    import grain

    dataset = grain.MapDataset.range(1_000_000).shuffle(seed=1).repeat().map(function)
    reading = grain.ReadOptions(num_threads=16, prefetch_buffer_size=16)
    return steady(iter(dataset.batch(BATCH).to_iter_dataset(reading)), quick)


class Numbers:
    """A map-style dataset for torch."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        return self.function(np.int64(index))


def torch_dataloader(function: Function, quick: bool) -> Measure:
    """As "torch.utils.data" says: num_workers, a worker a core."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        Numbers(function), batch_size=BATCH, shuffle=True, num_workers=WORKERS
    )
    return steady(iter(loader), quick)


def ideal(function: Function, workers: int) -> Measure:
    """What so many workers would do if nothing but the function cost anything."""

    def measure() -> float:
        began = time.perf_counter()
        for k in range(300):
            function(np.int64(k))
        return workers * 300 / (time.perf_counter() - began)

    return measure
