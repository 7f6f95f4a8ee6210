"""From the last batch of an epoch to the first of the next, in two processes: what a loop over epochs waits.

The function costs next to nothing: what the clock holds is the end of a pass and the start of another, with
workers that are started again or with those that wait.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases._slow import Numbers
from benchmarks.frame import Measure

TITLE = "first batch of the next epoch, two processes (64 batches of 32)"
UNIT = "ms"
BATCH, BATCHES, WORKERS = 32, 64, 2
COUNT = BATCH * BATCHES
MOST, LIMIT = 9, 2.0  # epochs in a turn, and seconds after which no other is begun


def prepare(data: Path, quick: bool) -> None:
    """Nothing: the data are numbers."""


def double(number: Any) -> Any:
    return number * 2


def between(epochs: Callable[[], Iterator[Any]], quick: bool) -> Measure:
    """The median of the milliseconds between two passes, each of which `epochs` gives anew.

    Raises `RuntimeError` where a pass is not the whole of the numbers.
    """

    def walk(epoch: Iterator[Any], left: int, taken: list[Any]) -> None:
        taken += [next(epoch) for _ in range(left)]
        if len(np.unique(np.concatenate(taken))) != COUNT:
            raise RuntimeError(f"a pass without the {COUNT} numbers")

    def measure() -> float:
        times: list[float] = []
        begun = time.perf_counter()
        epoch = epochs()
        walk(epoch, BATCHES, [])
        while not times or (
            len(times) < (2 if quick else MOST) and time.perf_counter() - begun < LIMIT
        ):
            began = time.perf_counter()
            if next(epoch, None) is not None:
                raise RuntimeError("a pass does not end")
            epoch = epochs()
            first = next(epoch)
            times.append(1000 * (time.perf_counter() - began))
            walk(epoch, BATCHES - 1, [first])
        for _ in epoch:
            raise RuntimeError("a pass does not end")
        return statistics.median(times)

    return measure


def dataset() -> Any:
    import playhead as ph

    numbers = ph.Dataset.range(COUNT).shuffle(seed=1).map(double).batch(BATCH)
    return numbers.prefetch(on="processes", workers=WORKERS)


def playhead(data: Path, quick: bool) -> Measure:
    """`for batch in dataset`, again and again."""
    made = dataset()
    return between(lambda: iter(made), quick)


def playhead_epochs(data: Path, quick: bool) -> Measure:
    """`for epoch in iterator.epochs()`: what is read ahead goes beyond the end of the epoch."""
    epochs = dataset().iterator(epochs=None).epochs()
    return between(lambda: iter(next(epochs)), quick)


def torch_loader(data: Path, quick: bool, persistent: bool = True) -> Measure:
    """As "torch.utils.data" says of `persistent_workers`: they outlive the pass."""
    from torch.utils.data import DataLoader

    class Epoch(Numbers):
        def __len__(self) -> int:
            return COUNT

    loader = DataLoader(
        Epoch(double),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=persistent,
    )
    return between(lambda: iter(loader), quick)


def grain(data: Path, quick: bool, endless: bool = False) -> Measure:
    """A worker a core, as "Dataset advanced usage" has it, and an iterator over the dataset for each epoch.

    Or `endless`: one over `repeat`, as "Dataset basics" has it, whose loop counts the batches of an epoch.
    """
    import grain

    options = grain.MultiprocessingOptions(num_workers=WORKERS)
    numbers = grain.MapDataset.range(COUNT).shuffle(seed=1).map(double)
    numbers = (numbers.repeat() if endless else numbers).batch(BATCH)
    made = numbers.to_iter_dataset(grain.ReadOptions(num_threads=1)).mp_prefetch(options)
    if not endless:
        return between(lambda: iter(made), quick)
    batches = iter(made)
    return between(lambda: islice(batches, BATCHES), quick)


PEERS = {
    "playhead": playhead,
    "playhead, epochs of one iterator": playhead_epochs,
    "torch DataLoader, persistent_workers": torch_loader,
    "torch DataLoader": partial(torch_loader, persistent=False),
    "grain": grain,
    "grain, repeat": partial(grain, endless=True),
}
