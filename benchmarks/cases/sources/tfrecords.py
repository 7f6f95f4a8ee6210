"""TFRecord files, their records as bytes: 40,000 of 1,000 bytes in four files, in batches of 256.

What parsing costs is in the case `examples`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import figures, measured
from benchmarks.frame import Measure

FIGURES = figures("tfrecords", "TFRecord, records of 1,000 bytes, batch 256")
BATCH, SIZE, FILES = 256, 1_000, 4


def size(quick: bool) -> int:
    return 4_000 if quick else 40_000


def prepare(data: Path, quick: bool, compressed: bool = False) -> None:
    """Records of letters a to p, which a compression makes half as large."""
    import playhead as ph

    letters = np.random.default_rng(0).integers(97, 113, (size(quick), SIZE), np.uint8)
    ph.write_tfrecords(
        ph.Dataset.from_sequence([row.tobytes() for row in letters], version="1"),
        str(data / "a-*.tfrecord"),
        shards=FILES,
        **({"compression": "GZIP"} if compressed else {}),
    )


def check(batch: Any) -> int:
    assert isinstance(batch[0], bytes) and len(batch[0]) == SIZE, batch[0]
    return len(batch)


def playhead(
    data: Path,
    quick: bool,
    name: str = "tfrecords",
    shuffled: bool = True,
    window: int | None = None,
) -> Measure:
    import playhead as ph

    def dataset() -> Any:
        records = ph.Dataset.from_tfrecords(str(data / "a-*"))
        return (records.shuffle(window, seed=1) if shuffled else records).batch(BATCH).prefetch()

    return measured(name, ours(dataset), size(quick), BATCH, check)


def tf_data(
    data: Path,
    quick: bool,
    name: str = "tfrecords",
    shuffled: bool = True,
    compression: str = "",
) -> Measure:
    """As the guide "tf.data: Build TensorFlow input pipelines" consumes TFRecord data."""
    import tensorflow as tf

    files = sorted(map(str, data.glob("a-*")))

    def dataset() -> Any:
        records = tf.data.TFRecordDataset(files, compression)
        records = records.shuffle(_theirs.WINDOW, seed=1) if shuffled else records
        return records.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    return measured(name, _theirs.tf_data(dataset, data), size(quick), BATCH, check)


PEERS = {
    "playhead": playhead,
    "playhead, in order": partial(playhead, shuffled=False),
    "tf.data, shuffle(10,000)": tf_data,
    "tf.data, in order": partial(tf_data, shuffled=False),
}
