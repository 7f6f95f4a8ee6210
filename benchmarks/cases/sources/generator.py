"""A Python generator of rows of 64 float32 and a label, in batches of 256: 20,000 rows.

A generator has one order. playhead's takes `start=` or is walked; a torch dataset keeps its own number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured
from benchmarks.frame import Measure

FIGURES = figures("generator", "rows of 64 float32 from a generator, batch 256", "rows")
BATCH, WIDTH = 256, 64


def size(quick: bool) -> int:
    return 4_000 if quick else 20_000


def prepare(data: Path, quick: bool) -> None:
    rows = np.random.default_rng(0).random((size(quick), WIDTH), np.float32)
    np.save(data / "rows.npy", rows)


def check(batch: Any) -> int:
    rows, labels = batch
    assert rows.shape[1:] == (WIDTH,) and str(rows.dtype).endswith("float32"), rows.dtype
    assert len(rows) == len(labels)
    return len(labels)


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("generator", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, walked: bool = False) -> Measure:
    import playhead as ph

    stored = np.load(data / "rows.npy")

    def rows(start: int = 0) -> Iterator[Any]:
        for k in range(start, len(stored)):
            yield stored[k], k % 10

    def from_the_start() -> Iterator[Any]:
        return rows()

    def dataset() -> Any:
        made = ph.Dataset.from_generator(from_the_start if walked else rows, version="1")
        return made.batch(BATCH).prefetch()

    return measure(ours(dataset), quick)


def tf_data(data: Path, quick: bool) -> Measure:
    """`from_generator` with a signature; it cannot be saved, and `skip` is what is left."""
    import tensorflow as tf

    stored = np.load(data / "rows.npy")

    def rows() -> Iterator[Any]:
        for k in range(len(stored)):
            yield stored[k], k % 10

    def dataset() -> Any:
        spec = (tf.TensorSpec((WIDTH,), tf.float32), tf.TensorSpec((), tf.int32))
        made = tf.data.Dataset.from_generator(rows, output_signature=spec)
        return made.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    return measure(_theirs.tf_data_skip(dataset), quick)


def torch_loader(data: Path, quick: bool) -> Measure:
    """An IterableDataset whose iterator keeps its own state, as torchdata's tutorial has it. No workers."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    stored = np.load(data / "rows.npy")

    class Walk:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            if self.at == len(stored):
                raise StopIteration
            self.at += 1
            return stored[self.at - 1], (self.at - 1) % 10

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    class Rows(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return Walk()

    def loader() -> Any:
        return StatefulDataLoader(Rows(), BATCH)

    return measure(_theirs.stateful_loader(loader, tuple), quick)


def hugging_face(data: Path, quick: bool) -> Measure:
    """`IterableDataset.from_generator` and its `state_dict`, which skips the rows before."""
    import datasets

    stored = np.load(data / "rows.npy")

    def rows() -> Iterator[Any]:
        for k in range(len(stored)):
            yield {"row": stored[k], "label": k % 10}

    def dataset() -> Any:
        return datasets.IterableDataset.from_generator(rows).batch(BATCH)

    def arrays(batch: Any) -> Any:
        return np.array(batch["row"], np.float32), np.array(batch["label"])

    return measure(_theirs.hugging_face(dataset, arrays), quick)


PEERS = {
    "playhead": playhead,
    "playhead, walked": partial(playhead, walked=True),
    "tf.data, skip": tf_data,
    "StatefulDataLoader": torch_loader,
    "datasets": hugging_face,
}
