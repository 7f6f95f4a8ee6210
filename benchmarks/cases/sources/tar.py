"""WebDataset shards: samples of an array of 784 uint8 (npy) and a class (cls), decoded, in batches of 256.

16,000 samples in four shards. tf.data has no reader of tar files.
"""

from __future__ import annotations

import io
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured, replayed
from benchmarks.frame import Measure

FIGURES = figures("tar", "tar shards of 784 bytes and a class, decoded, batch 256", "samples")
BATCH, SHARDS = 256, 4


def size(quick: bool) -> int:
    return 4_000 if quick else 16_000


def prepare(data: Path, quick: bool) -> None:
    random = np.random.default_rng(0)
    each = size(quick) // SHARDS
    for shard in range(SHARDS):
        with tarfile.open(data / f"shard-{shard:06}.tar", "w") as tar:
            for k in range(shard * each, (shard + 1) * each):
                array = io.BytesIO()
                np.save(array, random.integers(0, 256, 784, np.uint8))
                members = {"npy": array.getvalue(), "cls": b"%d" % (k % 10)}
                for extension, content in members.items():
                    info = tarfile.TarInfo(f"{k:08}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def shards(data: Path) -> list[str]:
    return [str(data / f"shard-{shard:06}.tar") for shard in range(SHARDS)]


def check(batch: Any) -> int:
    pixels, labels = batch
    assert pixels.shape[1:] == (784,) and pixels.dtype == np.uint8, (pixels.shape, pixels.dtype)
    assert labels.shape == (len(pixels),) and labels.dtype.kind == "i", labels.dtype
    return len(labels)


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("tar", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    import playhead as ph

    def dataset() -> Any:
        samples = ph.Dataset.from_tar(shards(data), decode="auto")
        samples = (samples.shuffle(seed=1) if shuffled else samples).batch(BATCH)
        return samples.map(lambda batch: (batch["npy"], batch["cls"])).prefetch()

    return measure(ours(dataset), quick)


def web_dataset(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """`WebDataset` with shards and 1,000 samples shuffled, as its documentation has it.

    Its README: random access is what it gives up; a place is not kept, and a run that comes back reads again
    from the beginning. That beginning is the same by a seed for both of its shuffles.
    """
    import webdataset

    def batches() -> Any:
        pipeline = webdataset.WebDataset(
            shards(data), shardshuffle=SHARDS if shuffled else False, seed=1
        )
        pipeline = pipeline.shuffle(1_000, seed=1) if shuffled else pipeline
        return iter(pipeline.decode().to_tuple("npy", "cls").batched(BATCH))

    def arrays() -> Any:
        return ((pixels, np.asarray(labels)) for pixels, labels in batches())

    return measure(replayed(arrays), quick)


def hugging_face(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """The loader "webdataset", streaming, with the default buffer of `shuffle`."""
    import datasets

    def dataset() -> Any:
        samples = datasets.load_dataset(
            "webdataset", data_files={"train": shards(data)}, split="train", streaming=True
        )
        return (
            samples.shuffle(seed=1, buffer_size=_theirs.buffer(quick)) if shuffled else samples
        ).batch(BATCH)

    def arrays(batch: Any) -> Any:
        return np.array(batch["npy"], np.uint8), np.array(batch["cls"])

    return measure(_theirs.hugging_face(dataset, arrays, exact=not shuffled), quick)


PEERS = {
    "playhead": playhead,
    "playhead, in order": partial(playhead, shuffled=False),
    "webdataset, shuffle(1,000)": web_dataset,
    "webdataset, in order": partial(web_dataset, shuffled=False),
    "datasets, shuffle(1,000)": hugging_face,
    "datasets, in order": partial(hugging_face, shuffled=False),
}
