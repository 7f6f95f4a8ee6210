"""Text lines of about 100 characters, in batches of 256: 100,000 of them in two files, in the system's cache.

Strings come from playhead, datasets and Python, and bytes from tf.data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured, replayed
from benchmarks.frame import Measure

FIGURES = figures("lines", "text lines of 100 characters, batch 256", "lines")
BATCH = 256


def size(quick: bool) -> int:
    return 4_000 if quick else 100_000


def prepare(data: Path, quick: bool) -> None:
    random = np.random.default_rng(0)
    count = size(quick)
    letters = random.integers(97, 123, (count, 120), np.uint8).tobytes().decode()
    lengths = random.integers(60, 120, count).tolist()
    lines = [f"{k:07} {letters[120 * k : 120 * k + lengths[k]]}\n" for k in range(count)]
    (data / "a.txt").write_text("".join(lines[: count // 2]))
    (data / "b.txt").write_text("".join(lines[count // 2 :]))


def files(data: Path) -> list[str]:
    return [str(data / "a.txt"), str(data / "b.txt")]


def check(batch: Any) -> int:
    assert isinstance(batch[0], str | bytes) and 68 <= len(batch[0]) <= 128, batch[0]
    return len(batch)


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("lines", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    import playhead as ph

    def dataset() -> Any:
        lines = ph.Dataset.from_lines(files(data))
        return (lines.shuffle(seed=1) if shuffled else lines).batch(BATCH).prefetch()

    return measure(ours(dataset), quick)


def tf_data(data: Path, quick: bool, shuffled: bool = True, skip: bool = False) -> Measure:
    """`TextLineDataset`, as the guide "tf.data: Build TensorFlow input pipelines" consumes text data."""
    import tensorflow as tf

    def dataset() -> Any:
        lines = tf.data.TextLineDataset(files(data))
        lines = lines.shuffle(_theirs.WINDOW, seed=1) if shuffled else lines
        return lines.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    reader = _theirs.tf_data_skip(dataset) if skip else _theirs.tf_data(dataset, data)
    return measure(reader, quick)


def hugging_face(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """The loader "text", streaming, with the default buffer of `shuffle`: as its guide "Stream" has it."""
    import datasets

    def dataset() -> Any:
        lines = datasets.load_dataset(
            "text", data_files={"train": files(data)}, split="train", streaming=True
        )
        return (
            lines.shuffle(seed=1, buffer_size=_theirs.buffer(quick)) if shuffled else lines
        ).batch(BATCH)

    return measure(
        _theirs.hugging_face(dataset, lambda batch: batch["text"], exact=not shuffled), quick
    )


def python(data: Path, quick: bool) -> Measure:
    """A loop by hand, as small training scripts have it; it keeps no place."""

    def batches() -> Iterator[list[str]]:
        with ExitStack() as opened:
            every = [opened.enter_context(open(path, encoding="utf-8")) for path in files(data)]
            lines = (line.rstrip("\n") for line in chain(*every))
            while batch := list(islice(lines, BATCH)):
                yield batch

    return measure(replayed(batches), quick)


PEERS = {
    "playhead": playhead,
    "playhead, in order": partial(playhead, shuffled=False),
    "tf.data, shuffle(10,000)": tf_data,
    "tf.data, in order": partial(tf_data, shuffled=False),
    "tf.data, skip, in order": partial(tf_data, shuffled=False, skip=True),
    "datasets, shuffle(1,000)": hugging_face,
    "datasets, in order": partial(hugging_face, shuffled=False),
    "Python by hand, in order": python,
}
