"""The first batch after coming back: 10^7 shuffled numbers, a map, batches of 128, many steps into the run.

Every measurement opens a new iterator, gives it a saved position and takes one batch. The data and the
pipeline stand ready, as in a process that has just started; what the clock holds is what resuming adds.
Beyond a thousand steps only those take part that need not walk there: the others' positions
would first have to be reached step by step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases._positions import milliseconds
from benchmarks.frame import Measure

TITLE = "first batch after restoring (10^7 numbers shuffled, batch 128; step 10^6 unless said)"
UNIT = "ms"
RECORDS = 10**7
BATCH = 128
NEAR = 1_000
WINDOW = 100_000


def prepare(data: Path, quick: bool) -> None:
    """Nothing: the data are numbers."""


def double(number: Any) -> Any:
    return number * 2


def checked(first: Callable[[Any], Any], saved: Any, following: Any) -> None:
    """Raise unless an iterator restored to `saved` goes on with `following`, as the one that walked did."""
    came = first(saved)[0]
    if np.shape(came) != (BATCH,) or not np.array_equal(came, following):
        raise RuntimeError("the restored iterator goes on with another batch")


def playhead(data: Path, quick: bool, step: int = 10**6) -> Measure:
    import playhead as ph

    dataset = ph.Dataset.range(RECORDS).shuffle(seed=1).map(double).batch(BATCH).prefetch()

    def first(saved: str) -> Any:
        iterator = dataset.iterator(epochs=None)
        iterator.load_state_dict(saved)
        return next(iterator), iterator

    def walked(steps: int) -> tuple[str, Any]:
        with dataset.iterator(epochs=None) as iterator:
            for _ in range(steps):
                next(iterator)
            return iterator.position.to_json(), next(iterator)

    checked(first, *walked(20))
    saved = dataset.iterator(epochs=None).position_at(step).to_json()
    return lambda: milliseconds(lambda: first(saved), lambda it: it[1].close())


def grain(data: Path, quick: bool, step: int = 10**6, threads: int | None = None) -> Measure:
    """Its read-ahead as it stands in `ReadOptions` (16 threads, 500 batches), or with a thread a core.

    "Dataset basics" in Grain's documentation: `shuffle`, then `repeat`, then `batch` on a `MapDataset`, then
    `to_iter_dataset`; `get_state` and `set_state` of its iterator. What `get_state` says is the
    number of the next batch, so the position of a far step is written down rather than reached.
    """
    import grain

    options = grain.ReadOptions() if threads is None else grain.ReadOptions(threads, 2 * threads)
    source = grain.MapDataset.range(RECORDS).shuffle(seed=1).repeat().map(double).batch(BATCH)
    dataset = source.to_iter_dataset(options)

    def first(saved: Any) -> Any:
        iterator = iter(dataset)
        iterator.set_state(saved)
        return next(iterator), iterator

    def walked(steps: int) -> tuple[Any, Any]:
        iterator = iter(dataset)
        for _ in range(steps):
            next(iterator)
        saved = iterator.get_state()
        if saved != {"next_index": steps}:
            raise RuntimeError(f"Grain's state has another form: {saved}")
        following = next(iterator)
        iterator.close()
        return saved, following

    checked(first, *walked(20))
    saved = {"next_index": step}
    return lambda: milliseconds(lambda: first(saved), lambda it: it[1].close())


def torch_loader(data: Path, quick: bool, step: int = NEAR, workers: int = 2) -> Measure:
    """As torchdata's "Stateful DataLoader Tutorial" does it, with a worker a core, or with none.

    Its new iterator draws the epoch's permutation and goes through it to the place.
    """
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Numbers(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return RECORDS

        def __getitem__(self, index: int) -> int:
            return double(index)

    def loader() -> Any:
        random = torch.Generator()
        random.manual_seed(1)
        return StatefulDataLoader(
            Numbers(), BATCH, shuffle=True, num_workers=workers, generator=random
        )

    def walked(steps: int) -> tuple[Any, Any]:
        made = loader()
        iterator = iter(made)
        for _ in range(steps):
            next(iterator)
        return made.state_dict() if steps else None, next(iterator).numpy()

    def first(saved: Any) -> Any:
        made = loader()
        if saved is not None:
            made.load_state_dict(saved)
        iterator = iter(made)
        return next(iterator).numpy(), iterator

    saved, following = walked(step)
    checked(first, saved, following)
    return lambda: milliseconds(lambda: first(saved))


def tf_data(data: Path, quick: bool, step: int = NEAR) -> Measure:
    """`tf.train.Checkpoint(iterator)` as "tf.data: Build TensorFlow input pipelines" saves one.

    The shuffle has a buffer of 100,000, not of the whole set: the checkpoint holds the buffer.
    """
    import tensorflow as tf

    folder = tempfile.mkdtemp(dir=data)
    numbers = tf.data.Dataset.range(RECORDS).shuffle(WINDOW, seed=1).repeat()
    mapped = numbers.map(double, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = mapped.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    def walked(steps: int) -> tuple[Any, Any]:
        iterator = iter(dataset)
        for _ in range(steps):
            next(iterator)
        saved = tf.train.Checkpoint(iterator=iterator).write(f"{folder}/{steps}")
        return saved, next(iterator).numpy()

    def first(saved: Any) -> Any:
        iterator = iter(dataset)
        tf.train.Checkpoint(iterator=iterator).read(saved).assert_consumed()
        return next(iterator).numpy(), iterator

    saved, following = walked(step)
    checked(first, saved, following)
    return lambda: milliseconds(lambda: first(saved))


PEERS = {
    "playhead": playhead,
    "playhead, start": partial(playhead, step=0),
    "playhead, step 10^3": partial(playhead, step=NEAR),
    "playhead, step 10^5": partial(playhead, step=10**5),
    "grain, start": partial(grain, step=0),
    "grain, step 10^6": grain,
    "grain, 2 threads, step 10^6": partial(grain, threads=2),
    "StatefulDataLoader, start": partial(torch_loader, step=0),
    "StatefulDataLoader, step 10^3": torch_loader,
    "StatefulDataLoader, no workers, step 10^3": partial(torch_loader, workers=0),
    "tf.data checkpoint, step 10^3": tf_data,
}
