"""Positions at step 1,000 in 200,000 shuffled records of 100 bytes, batch 128, as each library keeps them."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = 200_000
SIZE = 100
BATCH = 128
STEP = 1_000
WINDOW = 100_000


@dataclass(frozen=True)
class Saved:
    """A run at step 1,000.

    save: writes its position to files, not waiting for the disk, and says how many bytes those are.
    restore: reads them into a new iterator, before its first batch, and gives that.
    """

    save: Callable[[], int]
    restore: Callable[[], Any]


def milliseconds(
    action: Callable[[], Any],
    after: Callable[[Any], object] = lambda made: None,
    *,
    most: int = 9,
    limit: float = 1.0,
) -> float:
    """The median of `action`'s times: of up to `most`, begun within `limit` seconds. `after` is not counted."""
    times: list[float] = []
    while not times or (len(times) < most and sum(times) < 1000 * limit):
        began = time.perf_counter()
        made = action()
        times.append(1000 * (time.perf_counter() - began))
        after(made)
        del made
    return statistics.median(times)


def prepare(data: Path, quick: bool) -> None:
    """The records as an array. Step 1,000 is where the positions are, so quick runs have as many."""
    records = np.random.default_rng(0).integers(0, 256, (RECORDS, SIZE), np.uint8)
    np.save(data / "records.npy", records)


def walk(iterator: Any) -> Any:
    """`iterator`, 1,000 batches on."""
    for _ in range(STEP):
        next(iterator)
    return iterator


def same(ours: Any, theirs: Any) -> None:
    """Raise unless a restored iterator goes on with the batch the run goes on with."""
    if np.shape(ours) != (BATCH, SIZE) or not np.array_equal(ours, theirs):
        raise RuntimeError("the restored iterator goes on with another batch")


def _as_json(data: Path, state: Callable[[], Any], restore: Callable[[Any], Any]) -> Saved:
    """For a state that is JSON already."""
    path = Path(tempfile.mkdtemp(dir=data), "position.json")

    def save() -> int:
        return path.write_bytes(json.dumps(state()).encode())

    return Saved(save, lambda: restore(json.loads(path.read_bytes())))


def playhead(data: Path) -> Saved:
    import playhead as ph

    records = np.load(data / "records.npy")
    dataset = ph.Dataset.from_tensor_slices(records).shuffle(seed=1).batch(BATCH).prefetch()
    iterator = walk(dataset.iterator(epochs=None))
    path = Path(tempfile.mkdtemp(dir=data), "position.json")

    def save() -> int:
        return path.write_bytes(iterator.position.to_json().encode())

    def restore() -> Any:
        again = dataset.iterator(epochs=None)
        again.load_state_dict(path.read_bytes())
        return again

    save()
    with restore() as again, dataset.iterator(epochs=None) as other:
        same(next(again), next(walk(other)))
    return Saved(save, restore)


def tf_data(data: Path) -> Saved:
    """`tf.train.Checkpoint(iterator)`, as "tf.data: Build TensorFlow input pipelines" shows it.

    shuffle(100_000): half of the records, and 10 MB of them, are in its buffer and so in the checkpoint.
    """
    import tensorflow as tf

    records = np.load(data / "records.npy")

    def pipeline() -> Any:
        shuffled = tf.data.Dataset.from_tensor_slices(records).shuffle(WINDOW, seed=1).repeat()
        return shuffled.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    dataset = pipeline()
    run = [walk(iter(dataset))]
    folder = Path(tempfile.mkdtemp(dir=data))

    def save() -> int:
        tf.train.Checkpoint(iterator=run[0]).write(str(folder / "position"))
        return sum(file.stat().st_size for file in folder.iterdir())

    def restore() -> Any:
        again = iter(dataset)
        tf.train.Checkpoint(iterator=again).read(str(folder / "position")).assert_consumed()
        return again

    save()
    same(next(restore()).numpy(), next(run[0]).numpy())
    run[0] = restore()
    return Saved(save, restore)


def grain(data: Path) -> Saved:
    """`get_state` and `set_state` of its iterator, as "Dataset basics" in Grain's documentation shows them."""
    import grain

    records = np.load(data / "records.npy")
    source = grain.MapDataset.source(records).shuffle(seed=1).repeat().batch(BATCH)
    dataset = source.to_iter_dataset()
    iterator = walk(iter(dataset))

    def restore(state: Any) -> Any:
        again = iter(dataset)
        again.set_state(state)
        return again

    saved = _as_json(data, iterator.get_state, restore)
    saved.save()
    same(next(saved.restore()), source[STEP])
    return saved


def torch_loader(data: Path, workers: int = 2) -> Saved:
    """`state_dict` and `load_state_dict` as torchdata's "Stateful DataLoader Tutorial" shows them.

    A worker a core, or none. The state holds tensors and goes through `torch.save`. `load_state_dict`
    only keeps the state: `iter` is what restores, starts the workers and goes through the epoch's order.
    """
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    records = torch.from_numpy(np.load(data / "records.npy"))
    path = Path(tempfile.mkdtemp(dir=data), "position.pt")

    def loader() -> Any:
        random = torch.Generator()
        random.manual_seed(1)
        return StatefulDataLoader(
            torch.utils.data.TensorDataset(records),
            BATCH,
            shuffle=True,
            num_workers=workers,
            generator=random,
        )

    made = loader()
    iterator = walk(iter(made))

    def save() -> int:
        torch.save(made.state_dict(), path)
        return path.stat().st_size

    def restore() -> Any:
        again = loader()
        again.load_state_dict(torch.load(path, weights_only=False))
        return iter(again)

    save()
    same(next(restore())[0].numpy(), next(walk(iter(loader())))[0].numpy())
    del iterator
    return Saved(save, restore)


def mosaicml(data: Path) -> Saved:
    """`StreamingDataLoader.state_dict`, as "Fast Resumption" in Streaming's documentation shows it.

    Batches are made by a worker a core. The restored loader works its place out at the first batch. The dataset
    stays open and is told that no epoch has begun, as it would be in a new process.
    """
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    folder = tempfile.mkdtemp(dir=data)
    with MDSWriter(out=folder, columns={"x": f"ndarray:uint8:{SIZE}"}) as writer:
        for record in np.load(data / "records.npy"):
            writer.write({"x": record})
    dataset = StreamingDataset(local=folder, shuffle=True, shuffle_seed=1, batch_size=BATCH)

    def loader() -> Any:
        return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2)

    made = loader()
    iterator = walk(iter(made))
    state = made.state_dict()
    following = next(iterator)["x"].numpy()
    made.num_samples_yielded -= BATCH
    if made.state_dict() != state:
        raise RuntimeError("Streaming's state has another form")

    def restore(found: Any) -> Any:
        dataset.next_epoch = 0
        again = loader()
        again.load_state_dict(found)
        return again

    saved = _as_json(data, made.state_dict, restore)
    saved.save()
    same(next(iter(saved.restore()))["x"].numpy(), following)
    return saved


def hugging_face(data: Path) -> Saved:
    """`IterableDataset.state_dict`, as its page in the reference of datasets shows it.

    With the default buffer of its `shuffle`. The state names the place behind that buffer, not what is in it:
    those records do not come after restoring. The others here come back exactly.
    """
    import datasets

    records = np.load(data / "records.npy")
    source = datasets.Dataset.from_dict({"x": [record.tobytes() for record in records]})

    def pipeline() -> Any:
        stream = source.to_iterable_dataset(num_shards=8)
        return stream.shuffle(seed=1, buffer_size=1_000).batch(BATCH)

    dataset = pipeline()
    iterator = walk(iter(dataset))

    def restore(state: Any) -> Any:
        again = pipeline()
        again.load_state_dict(state)
        return iter(again)

    saved = _as_json(data, dataset.state_dict, restore)
    saved.save()
    if len(next(saved.restore())["x"]) != BATCH:
        raise RuntimeError("the restored iterator has no batch")
    del iterator
    return saved
