"""TFRecord examples parsed by a TensorFlow function, playhead against tf.data in one run.

    python benchmarks/parse.py [--records 20000] [--repeats 7]

Records hold 784 bytes, an int64 and 16 floats; a full shuffle, `map(parse_single_example)`, batches of 256,
read-ahead. The feeds take turns; the table shows medians and the median of the ratios of neighbouring runs.
Both ends hand out TensorFlow tensors. Not counted: building playhead's index, tracing, one pass to warm up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import playhead as ph

BATCH = 256
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "x": tf.io.FixedLenFeature([16], tf.float32),
}


def write(path: str, records: int) -> None:
    """Random examples, numbered by their label."""
    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(records):
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[rng.bytes(784)])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=rng.random(16))),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def parse(record: Any) -> Any:
    """The same function for both."""
    example = tf.io.parse_single_example(record, FEATURES)
    image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [28, 28])
    return {"image": image, "x": example["x"]}, example["label"]


def rate(epoch: Iterable[Any]) -> float:
    """Examples per second over one epoch."""
    began = time.perf_counter()
    count = sum(len(label) for _, label in epoch)
    return count / (time.perf_counter() - began)


def through(ds: ph.Dataset) -> Callable[[], Iterable[Any]]:
    """One pass as tensors, the way a training loop takes it."""
    return lambda: ph.tensorflow.iterator(ds, epochs=1)


def feeds(path: str, records: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """What is compared: name -> one epoch."""
    source = ph.Dataset.from_tfrecords(path).shuffle(seed=1)
    unchecked = ph.Dataset.from_tfrecords(path, verify="index").shuffle(seed=1)
    parsed = ph.Dataset.from_tfrecords(path, features=FEATURES).shuffle(seed=1)
    theirs = tf.data.TFRecordDataset(path).shuffle(records)
    auto = tf.data.AUTOTUNE
    whole = theirs.batch(BATCH).map(lambda r: tf.io.parse_example(r, FEATURES), auto).prefetch(auto)
    return {
        "tf.data map(parse), AUTOTUNE": lambda: theirs.map(parse, auto).batch(BATCH).prefetch(auto),
        "playhead map(parse)": through(source.map(parse).batch(BATCH).prefetch()),
        "playhead map(parse), no read-ahead": through(source.map(parse).batch(BATCH)),
        'playhead map(parse), verify="index"': through(
            unchecked.map(parse).batch(BATCH).prefetch()
        ),
        "playhead features=, no TensorFlow": lambda: (
            (batch, batch["label"]) for batch in parsed.batch(BATCH).prefetch()
        ),
        "tf.data batch, then parse_example": lambda: ((b, b["label"]) for b in whole),
    }


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--records", type=int, default=20_000)
    arguments.add_argument("--repeats", type=int, default=7)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "examples.tfrecord")
        write(path, asked.records)
        compared = feeds(path, asked.records)
        rates: dict[str, list[float]] = {name: [] for name in compared}
        for repeat in range(asked.repeats + 1):
            for name, feed in compared.items():
                found = rate(feed())
                if repeat:
                    rates[name].append(found)
    first = next(iter(rates.values()))
    table = Table(title=f"{asked.records:,} examples, full shuffle, parsed, batch {BATCH}")
    for column in ("", "examples/s", "x tf.data's map"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in rates.items():
        ratios = [a / b for a, b in zip(found, first, strict=True)]
        table.add_row(name, f"{statistics.median(found):,.0f}", f"{statistics.median(ratios):.2f}")
    Console(width=112).print(table)


if __name__ == "__main__":
    main()
