"""Places of a shuffled order, 256 at a time: making the order counts, spread over its first 1,000 batches.

numpy and torch draw a whole permutation, 8 bytes a record, and are asked for 10^6 only: 10^12 would take 8 TB.
Grain computes places as playhead does. Places are seen to be distinct and in range, not how random they are.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Absent, Measure

TITLE = "256 places of the shuffled order (10^12 records unless said; over the first 1,000 batches)"
UNIT = "us"
BATCH = 256
BATCHES = 1_000


def prepare(data: Path, quick: bool) -> None:
    """Nothing: the data are numbers."""


def a_batch(
    order: Callable[[], Iterable[Any]], records: int, quick: bool, batches: int = BATCHES
) -> Measure:
    """Microseconds a batch, the order made anew each time. A first pass sees that places differ."""
    wanted = batches // 10 if quick else batches

    def measure() -> float:
        began = time.perf_counter()
        found = sum(len(batch) for batch in islice(order(), wanted))
        seconds = time.perf_counter() - began
        if found != wanted * BATCH:
            raise RuntimeError(f"{found} places came where {wanted * BATCH} were expected")
        return 1e6 * seconds / wanted

    places = np.concatenate([np.asarray(batch) for batch in islice(order(), 20)])
    distinct = len(set(places.tolist())) == len(places) == 20 * BATCH
    if not distinct or places.min() < 0 or places.max() >= records:
        raise RuntimeError("these are not places of a permutation")
    return measure


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def playhead(data: Path, quick: bool, records: int = 10**12) -> Measure:
    """Stays within 100 MB above the import, or raises."""
    import playhead as ph

    before = peak()
    dataset = ph.Dataset.range(records).shuffle(seed=1).batch(BATCH)
    measure = a_batch(lambda: dataset.iterator(), records, quick)

    def within() -> float:
        value = measure()
        if peak() - before >= 100e6:
            raise RuntimeError("the order took 100 MB of memory or more")
        return value

    return within


def grain(data: Path, quick: bool, records: int = 10**9) -> Measure:
    """`MapDataset.shuffle`, as "Dataset basics" in Grain's documentation has it, through its index shuffle.

    Making the order is free, so that 200 batches stand for 1,000. Versions whose shuffle
    takes numbers of 32 bits only are absent above 2^32.
    """
    import grain

    order = grain.MapDataset.range(records).shuffle(seed=1).batch(BATCH)
    try:
        order[0]
    except (TypeError, ValueError, OverflowError) as error:
        raise Absent(f"its shuffle does not order as many: {error}") from error
    return a_batch(lambda: (order[i] for i in range(BATCHES)), records, quick, 200)


def numpy(data: Path, quick: bool, records: int = 10**6) -> Measure:
    def order() -> Any:
        places = np.random.default_rng(1).permutation(records)
        return (places[i : i + BATCH].copy() for i in range(0, records, BATCH))

    return a_batch(order, records, quick)


def torch(data: Path, quick: bool, records: int = 10**6) -> Measure:
    """What `RandomSampler` does for an epoch, its places kept in the tensor, which is faster than its list."""
    import torch

    def order() -> Any:
        places = torch.randperm(records)
        return (places[i : i + BATCH].clone() for i in range(0, records, BATCH))

    return a_batch(order, records, quick)


PEERS = {
    "playhead": playhead,
    "playhead, 10^9": partial(playhead, records=10**9),
    "playhead, 10^6": partial(playhead, records=10**6),
    "numpy permutation, 10^6": numpy,
    "torch.randperm, 10^6": torch,
    "grain, 10^9": grain,
    "grain, 10^12": partial(grain, records=10**12),
}
