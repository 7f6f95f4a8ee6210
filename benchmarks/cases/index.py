"""Building the index of a TFRecord file of 0.9 KB records, both checksums of each record checked.

The file is in the system's cache. TensorFlow has no index: one pass over the file, which checks the
same, stands beside it for scale.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.frame import Measure

TITLE = "index of a TFRecord file (0.9 KB records, both CRCs checked)"
UNIT = "MB/s"
SIZE = 900


def prepare(data: Path, quick: bool) -> None:
    """The file, a tenth of it, and the tenth with one bit in its last record's content turned."""
    from playhead import kernels

    count = 11_000 if quick else 110_000
    records = np.random.default_rng(0).integers(0, 256, (count, SIZE), np.uint8)
    length = struct.pack("<Q", SIZE)
    head = length + struct.pack("<I", kernels.masked_crc32c(length))
    parts = []
    for record in records:
        content = record.tobytes()
        parts += [head, content, struct.pack("<I", kernels.masked_crc32c(content))]
    whole = b"".join(parts)
    part = whole[: len(whole) // 10]
    broken = bytearray(part)
    broken[-SIZE // 2] ^= 1
    (data / "whole.tfrecord").write_bytes(whole)
    (data / "part.tfrecord").write_bytes(part)
    (data / "broken.tfrecord").write_bytes(broken)


def megabytes(path: Path, read: Callable[[Path], int], damage: type[Exception]) -> Measure:
    """MB/s of `read`, which says how many records it found and raises `damage` at a wrong checksum."""
    try:
        read(path.parent / "broken.tfrecord")
    except damage:
        pass
    else:
        raise RuntimeError("a wrong checksum was not noticed")
    size = path.stat().st_size
    expected = size // (SIZE + 16)

    def measure() -> float:
        began = time.perf_counter()
        found = read(path)
        seconds = time.perf_counter() - began
        if found != expected:
            raise RuntimeError(f"{found} records were found where {expected} are")
        return size / seconds / 1e6

    return measure


def indexed(path: Path) -> int:
    """Build the index of `path` in a folder that has none."""
    import playhead as ph

    with tempfile.TemporaryDirectory() as folder:
        return len(ph.Dataset.from_tfrecords(path, index=folder))


def playhead(data: Path, quick: bool) -> Measure:
    from playhead import kernels
    from playhead.errors import CorruptRecord

    if not kernels.NATIVE:
        raise RuntimeError("playhead was built without its C kernels")
    return megabytes(data / "whole.tfrecord", indexed, CorruptRecord)


def without_c(data: Path, quick: bool) -> Measure:
    """On a tenth of the file."""
    os.environ["PLAYHEAD_KERNELS"] = "reference"
    from playhead import kernels
    from playhead.errors import CorruptRecord

    if kernels.NATIVE:
        raise RuntimeError("the C kernels are in use")
    return megabytes(data / "part.tfrecord", indexed, CorruptRecord)


def tensorflow(data: Path, quick: bool) -> Measure:
    """`TFRecordDataset` with a buffer of 8 MB (its page: 1 to 100 MB), counted inside TensorFlow."""
    import tensorflow as tf

    def read(path: Path) -> int:
        dataset = tf.data.TFRecordDataset(str(path), buffer_size=8 << 20).batch(1024)
        return int(dataset.reduce(np.int64(0), lambda n, x: n + tf.size(x, tf.int64)))

    return megabytes(data / "whole.tfrecord", read, tf.errors.DataLossError)


PEERS = {
    "playhead": playhead,
    "playhead, without C": without_c,
    "tensorflow, reading it once": tensorflow,
}
