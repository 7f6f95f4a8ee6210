"""TFRecord Examples: 784 bytes, an int64 and 16 floats each, all shuffled, parsed, in batches of 256.

60,000 of them in one file. tf.data shuffles records of 0.9 KB in a buffer over the whole set; playhead shuffles
places. Other frameworks read the same content from the format that their own documentation advises.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cost import records
from benchmarks.frame import Measure, rate

TITLE = "TFRecord Examples (784 bytes, int64, 16 floats), full shuffle, parsed, batch 256"
UNIT = "examples/s"
BATCH = 256


def size(quick: bool) -> int:
    return 2_000 if quick else 60_000


def prepare(data: Path, quick: bool) -> None:
    records(data / "examples.tfrecord", size(quick))


def labels(batch: Any) -> int:
    return len(batch["label"])


def measured(batches: Callable[[], Any], count: int) -> Measure:
    """A measurement of whole passes, after one in which the first batch is looked at."""
    whole = iter(batches())
    first = next(whole)
    assert len(first["pixels"]) == BATCH, first
    assert 780 <= len(first["pixels"][0]) <= 784, first  # numpy's bytes lose zeros at their end
    assert first["label"].shape == (BATCH,) and first["label"].dtype == np.int64, first
    assert first["numbers"].shape == (BATCH, 16) and first["numbers"].dtype == np.float32, first
    for _ in whole:
        pass
    return lambda: rate(batches, labels, count)


def playhead(data: Path, quick: bool) -> Measure:
    import playhead as ph

    features = {
        "pixels": ph.FixedLenFeature((), bytes),
        "label": ph.FixedLenFeature((), np.int64),
        "numbers": ph.FixedLenFeature((16,), np.float32),
    }
    dataset = ph.Dataset.from_tfrecords(str(data / "examples.tfrecord"), features=features)
    dataset = dataset.shuffle(seed=1).batch(BATCH).prefetch()
    return measured(lambda: dataset, size(quick))


def _features() -> Any:
    import tensorflow as tf

    return {
        "pixels": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "numbers": tf.io.FixedLenFeature([16], tf.float32),
    }


def playhead_map(data: Path, quick: bool) -> Measure:
    """A pipeline of tf.data's as it stands: the function of TensorFlow operations in map."""
    import tensorflow as tf

    import playhead as ph

    features = _features()
    dataset = ph.Dataset.from_tfrecords(str(data / "examples.tfrecord")).shuffle(seed=1)
    dataset = dataset.map(lambda record: tf.io.parse_single_example(record, features))
    dataset = dataset.batch(BATCH).prefetch()
    return measured(lambda: dataset, size(quick))


def tf_data(data: Path, quick: bool) -> Measure:
    """As "Better performance with the tf.data API" says of vectorised mapping: batch, then parse_example."""
    import tensorflow as tf

    features, count = _features(), size(quick)
    dataset = tf.data.TFRecordDataset(str(data / "examples.tfrecord")).shuffle(count).batch(BATCH)
    dataset = dataset.map(
        lambda batch: tf.io.parse_example(batch, features), num_parallel_calls=tf.data.AUTOTUNE
    ).prefetch(tf.data.AUTOTUNE)
    return measured(dataset.as_numpy_iterator, count)


def tf_data_map(data: Path, quick: bool) -> Measure:
    """As the guide "TFRecord and tf.train.Example" parses: parse_single_example in a parallel map."""
    import tensorflow as tf

    features, count = _features(), size(quick)
    dataset = tf.data.TFRecordDataset(str(data / "examples.tfrecord")).shuffle(count)
    dataset = dataset.map(
        lambda record: tf.io.parse_single_example(record, features),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return measured(dataset.as_numpy_iterator, count)


def _contents(data: Path) -> list[bytes]:
    import playhead as ph

    return [bytes(record) for record in ph.Dataset.from_tfrecords(str(data / "examples.tfrecord"))]


def grain(data: Path, quick: bool) -> Measure:
    """As grain's data sources say: ArrayRecord, random access; the Examples parsed by protobuf. A quarter."""
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow.core.example.example_pb2 import Example

    path, count = str(data / "examples.arrayrecord"), size(quick) // 4
    writer = ArrayRecordWriter(path, "group_size:1")
    for record in _contents(data)[:count]:
        writer.write(record)
    writer.close()

    def parse(record: bytes) -> dict[str, Any]:
        feature = Example.FromString(record).features.feature
        return {
            "pixels": np.frombuffer(feature["pixels"].bytes_list.value[0], np.uint8),
            "label": np.int64(feature["label"].int64_list.value[0]),
            "numbers": np.array(feature["numbers"].float_list.value, np.float32),
        }

    source = grain.sources.ArrayRecordDataSource([path])
    batches = grain.MapDataset.source(source).shuffle(seed=1).map(parse).batch(BATCH)
    batches = batches.to_iter_dataset()
    return measured(lambda: batches, count)


def _columns(data: Path) -> list[dict[str, Any]]:
    import playhead as ph

    features = {
        "pixels": ph.FixedLenFeature((), bytes),
        "label": ph.FixedLenFeature((), np.int64),
        "numbers": ph.FixedLenFeature((16,), np.float32),
    }
    return list(ph.Dataset.from_tfrecords(str(data / "examples.tfrecord"), features=features))


def mosaicml(data: Path, quick: bool) -> Measure:
    """As streaming's "Dataset Conversion" says: MDS with the columns' own encodings, and a DataLoader."""
    import streaming
    from torch.utils.data import DataLoader

    folder, count = str(data / "mds"), size(quick)
    columns = {"pixels": "bytes", "label": "int64", "numbers": "ndarray:float32:16"}
    with streaming.MDSWriter(out=folder, columns=columns) as writer:
        for row in _columns(data):
            writer.write({**row, "label": np.int64(row["label"])})
    dataset = streaming.StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "pixels": [row["pixels"] for row in rows],
            "label": np.array([row["label"] for row in rows]),
            "numbers": np.stack([row["numbers"] for row in rows]),
        }

    loader: Any = DataLoader(dataset, batch_size=BATCH, collate_fn=collate)
    return measured(lambda: loader, count)


def hugging_face(data: Path, quick: bool) -> Measure:
    """As datasets' "Use with NumPy" and "shuffle" say: Arrow columns, batches as arrays."""
    import datasets

    rows, count = _columns(data), size(quick)
    dataset = datasets.Dataset.from_dict(
        {
            "pixels": [row["pixels"] for row in rows],
            "label": [int(row["label"]) for row in rows],
            "numbers": [row["numbers"] for row in rows],
        }
    )
    dataset = dataset.with_format("numpy")
    return measured(lambda: dataset.shuffle(seed=1).iter(BATCH), count)


PEERS = {
    "playhead": playhead,
    "playhead, map(parse_single_example)": playhead_map,
    "tf.data, batch -> parse_example": tf_data,
    "tf.data, map(parse_single_example)": tf_data_map,
    "grain, ArrayRecord": grain,
    "mosaicml-streaming, MDS": mosaicml,
    "datasets, Arrow": hugging_face,
}
