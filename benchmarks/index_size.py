"""What the index of many small TFRecords weighs: its size, the time to build and to open it, and a read.

    python -m benchmarks.index_size [RECORDS]

The file (10 million records of 16 bytes unless said otherwise) is written to a temporary directory first.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

import playhead as ph
from playhead import kernels

_LENGTH = 16
_DISTINCT = 1000

T = TypeVar("T")


def written(path: Path, records: int) -> None:
    """A file of so many records, of which each thousandth is the same."""
    rows = np.random.default_rng(0).bytes(_LENGTH * _DISTINCT)
    frames = []
    for k in range(_DISTINCT):
        data = rows[_LENGTH * k : _LENGTH * (k + 1)]
        footer = kernels.FOOTER.pack(kernels.masked_crc32c(data))
        frames.append(kernels.header(_LENGTH) + data + footer)
    piece = b"".join(frames)
    with open(path, "wb") as file:
        for _ in range(records // _DISTINCT):
            file.write(piece)


def timed(function: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def main(records: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, kept = Path(folder, "small.tfrecord"), Path(folder, "kept")
        written(data, records)
        size = data.stat().st_size
        built, ds = timed(lambda: ph.Dataset.from_tfrecords(data, index=kept))
        (index,) = kept.iterdir()
        opened, ds = timed(lambda: ph.Dataset.from_tfrecords(data, index=kept))
        order = np.random.default_rng(1).integers(0, len(ds), 100_000)
        ds.node.gather(order[:256])
        read, _ = timed(
            lambda: [ds.node.gather(order[k : k + 256]) for k in range(0, 100_000, 256)]
        )
        print(f"records           {len(ds):,} of {_LENGTH} bytes, {size / 1e6:,.0f} MB in all")
        print(f"index             {index.stat().st_size / 1e6:,.0f} MB")
        print(f"building it       {built:.2f} s, {len(ds) / built / 1e6:.1f} million records/s")
        print(f"                  {size / built / 1e6:,.0f} MB/s")
        print(f"opening it        {opened * 1e3:.0f} ms")
        print(f"reading, shuffled {100_000 / read / 1e6:.2f} million records/s in batches of 256")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"memory, at most   {peak:,.0f} MB, the mapped file among it")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
