"""2,000 JPEG pictures of 96 by 96 in a folder for each of four classes, decoded to float32 in batches of 32.

Nothing has to be resized. Batches are pairs [32, 96, 96, 3] and [32]; torchvision's have the channels first.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured
from benchmarks.frame import Measure

FIGURES = figures("image_folder", "folders of JPEG pictures of 96 by 96, batch 32", "pictures")
BATCH, SIDE, CLASSES, WORKERS = 32, 96, 4, 2


def size(quick: bool) -> int:
    return 400 if quick else 2_000


def prepare(data: Path, quick: bool) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for k in range(size(quick)):
        folder = data / "train" / f"class{k % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), np.uint8))
        coarse.resize((SIDE, SIDE)).save(folder / f"{k:06}.jpg", quality=90)


def check(batch: Any) -> int:
    pictures, labels = batch
    shape = tuple(pictures.shape[1:])
    assert shape in ((SIDE, SIDE, 3), (3, SIDE, SIDE)), shape
    assert str(pictures.dtype).removeprefix("torch.") == "float32", pictures.dtype
    assert len(labels) == len(pictures)
    return len(labels)


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("image_folder", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool) -> Measure:
    """Decoded by Pillow, as `decode=True` has it."""
    import playhead as ph

    def dataset() -> Any:
        pictures = ph.Dataset.from_image_folder(data / "train", decode=True).shuffle(seed=1)
        batches = pictures.batch(BATCH)
        return batches.map(lambda x, y: (x.astype(np.float32), y)).prefetch()

    return measure(ours(dataset), quick)


def playhead_tf(data: Path, quick: bool) -> Measure:
    """Decoded by TensorFlow in `map`."""
    import tensorflow as tf

    import playhead as ph

    def decode(content: Any, label: Any) -> Any:
        return tf.cast(tf.io.decode_jpeg(content, 3), tf.float32), label

    def dataset() -> Any:
        files = ph.Dataset.from_image_folder(data / "train").shuffle(seed=1)
        return files.map(decode).batch(BATCH).prefetch()

    return measure(ours(dataset), quick)


def tf_data(data: Path, quick: bool) -> Measure:
    """`image_dataset_from_directory`, as the guide "Load and preprocess images" has it, and its checkpoint."""
    import keras
    import tensorflow as tf

    def dataset() -> Any:
        pictures = keras.utils.image_dataset_from_directory(
            data / "train", image_size=(SIDE, SIDE), batch_size=BATCH, seed=1, verbose=False
        )
        return pictures.prefetch(tf.data.AUTOTUNE)

    return measure(_theirs.tf_data(dataset, data), quick)


def torch_loader(data: Path, quick: bool, workers: int = WORKERS) -> Measure:
    """`ImageFolder` in a DataLoader that shuffles, a worker a core or none; StatefulDataLoader comes back."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchvision import datasets, transforms

    def loader() -> Any:
        random = torch.Generator()
        random.manual_seed(1)
        pictures = datasets.ImageFolder(str(data / "train"), transforms.ToTensor())
        return StatefulDataLoader(
            pictures,
            BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=random,
        )

    return measure(_theirs.stateful_loader(loader, tuple), quick)


PEERS = {
    "playhead": playhead,
    "playhead, decode_jpeg in map": playhead_tf,
    "tf.data image_dataset_from_directory": tf_data,
    "torchvision ImageFolder, 2 workers": torch_loader,
    "torchvision ImageFolder, no workers": partial(torch_loader, workers=0),
}
