"""TFRecord files under GZIP, which have to be walked: the records of the case `tfrecords`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.cases.sources import tfrecords
from benchmarks.cases.sources._reader import figures

NAME = "tfrecords_gzip"
FIGURES = figures(NAME, "TFRecord under GZIP, records of 1,000 bytes, batch 256")


def prepare(data: Path, quick: bool) -> None:
    tfrecords.prepare(data, quick, compressed=True)


playhead = partial(tfrecords.playhead, name=NAME)
tf_data = partial(tfrecords.tf_data, name=NAME, compression="GZIP")

PEERS = {
    "playhead": partial(playhead, window=10_000),
    "playhead, in order": partial(playhead, shuffled=False),
    "tf.data, shuffle(10,000)": tf_data,
    "tf.data, in order": partial(tf_data, shuffled=False),
}
