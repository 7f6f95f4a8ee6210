"""Random pipelines of up to six operations: each resumes exactly, and is the same for any number of workers."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.plan.node import INFINITE
from playhead.testing import assert_resumes_exactly

# Some of these pipelines have no element left.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*left out every element:playhead.errors.IgnoredError"
)


def count(n, start=0):
    yield from range(start, n)


def some(x):
    return Dataset.range(int(x) % 4)


def walkable(x):
    return Dataset.range(int(x) % 5).shuffle(seed=int(x)).filter(lambda y: y != 2)


def fail_at_five(x):
    if x % 7 == 5:
        raise ValueError("five")
    return x


def total(state, x):
    return state + x, state * 2 + x


def numbers(pairs):
    return pairs.map(lambda k, x: k + x)


SOURCES = {
    "range": lambda n: Dataset.range(n),
    "slices": lambda n: Dataset.from_tensor_slices(np.arange(n) * 3),
    "sequence": lambda n: Dataset.from_sequence([np.int64(k) for k in range(n)]),
    "generator": lambda n: Dataset.from_generator(count, args=(n,)).map(np.int64),
}

# Over a dataset of numbers, giving numbers
NUMBERS = {
    "map": lambda ds, k: ds.map(lambda x: x + k),
    "random map": lambda ds, k: ds.map(lambda x, r: x + r.integers(9), rng=True, seed=k),
    "filter": lambda ds, k: ds.filter(lambda x: x % (k + 1) != k),
    "shuffle": lambda ds, k: ds.shuffle(seed=k),
    "shuffle in windows": lambda ds, k: ds.shuffle(k, seed=k),
    "repeat": lambda ds, k: ds.repeat(2),
    "take": lambda ds, k: ds.take(3 * k),
    "skip": lambda ds, k: ds.skip(k),
    "shard": lambda ds, k: ds.shard(k, k - 1),
    "enumerate": lambda ds, k: numbers(ds.enumerate(k)),
    "concatenate": lambda ds, k: ds.concatenate(Dataset.range(k)),
    "zip": lambda ds, k: numbers(Dataset.zip(ds, Dataset.range(9).shuffle(seed=k))),
    "flat_map": lambda ds, k: ds.flat_map(some),
    "flat_map to streams": lambda ds, k: ds.flat_map(walkable),
    "interleave": lambda ds, k: ds.interleave(walkable, cycle_length=k, block_length=2),
    "take_while": lambda ds, k: ds.take_while(lambda x: x % 11 != 7),
    "scan": lambda ds, k: ds.scan(np.int64(k), total),
    "unique": lambda ds, k: ds.unique(),
    "ignore_errors": lambda ds, k: ds.map(fail_at_five).ignore_errors(),
    "cache": lambda ds, k: ds.cache(),
    "sample": lambda ds, k: Dataset.sample_from_datasets([ds, Dataset.range(k)], [3, 1], seed=k),
    "choose": lambda ds, k: Dataset.choose_from_datasets(
        [ds, Dataset.range(9)], Dataset.random(seed=k).map(lambda x: x % 2)
    ),
    "select": lambda ds, k: ds.select([0, len(ds) - 1, 0]) if len(ds) else ds,
    "resample": lambda ds, k: ds.resample(np.ones(len(ds)), seed=k, num=4) if len(ds) else ds,
    "rejection": lambda ds, k: ds.rejection_resample(lambda x: x % 2, [0.3, 0.7], seed=k).map(
        lambda c, x: x
    ),
    "map_batches": lambda ds, k: ds.map_batches(lambda b: b + len(b), k),
    "prefetch": lambda ds, k: ds.prefetch(k),
    "batch": lambda ds, k: ds.batch(k),
    "batch without remainder": lambda ds, k: ds.batch(k, True),
    "window": lambda ds, k: ds.window(k, 2).flat_map(lambda w: w.batch(k)),
    "group_by_window": lambda ds, k: ds.group_by_window(
        lambda x: x % 3, lambda key, w: w.batch(2), window_size=k
    ),
    "bucket": lambda ds, k: ds.map(lambda x: np.full(x % 5, x)).bucket_by_sequence_length(
        len, [2, 4], [k, 2, 3]
    ),
}
MAKES_BATCHES = ("batch", "batch without remainder", "window", "group_by_window")
BATCHES = {
    "map": lambda ds, k: ds.map(lambda b: b * k),
    "shuffle in windows": lambda ds, k: ds.shuffle(k, seed=k),
    "repeat": lambda ds, k: ds.repeat(2),
    "skip": lambda ds, k: ds.skip(1),
    "filter": lambda ds, k: ds.filter(lambda b: b.sum() % 4 != 1),
    "cache": lambda ds, k: ds.cache(),
    "unbatch": lambda ds, k: ds.unbatch(),
    "rebatch": lambda ds, k: ds.rebatch(k),
}


@st.composite
def pipelines(draw):
    """The names of the operations, and a function that builds them anew."""
    source, size = draw(st.sampled_from(sorted(SOURCES))), draw(st.integers(0, 9))
    steps, batched = [], False
    for _ in range(draw(st.integers(1, 6))):
        table = BATCHES if batched else NUMBERS
        name = draw(st.sampled_from(sorted(table)))
        steps.append((name, table[name], draw(st.integers(1, 4))))
        batched = (batched and name != "unbatch") or name in MAKES_BATCHES
        if name == "bucket":
            break

    def make():
        dataset = SOURCES[source](size)
        for name, add, k in steps:
            stream = not dataset.seekable
            if stream and name in ("shuffle", "select", "resample"):
                dataset = dataset.shuffle(k + 1, seed=k)
            elif dataset.cardinality() == INFINITE and name in ("select", "resample"):
                dataset = dataset.take(5)
            else:
                dataset = add(dataset, k)
        return dataset

    return f"{source}({size})", [(name, k) for name, _, k in steps], make


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(pipelines(), st.integers(1, 9))
def test_random_pipelines_resume_exactly(pipeline, every):
    source, steps, make = pipeline
    note(f"{source}: {steps}")
    assert_resumes_exactly(make, epochs=2, steps=40, every=every, workers=(0, 3))


@pytest.mark.parametrize("name", sorted({*NUMBERS}))
def test_every_operation_of_the_table_stands_over_a_shuffle_and_under_a_batch(name):
    def make():
        dataset = NUMBERS[name](Dataset.range(8).shuffle(seed=1), 3)
        return dataset if name == "bucket" else dataset.map(lambda x: x * 2)

    assert_resumes_exactly(make, epochs=3, steps=30, every=4, workers=(0, 2))
