"""ArrayRecord: 30,000 records of 1,000 bytes, a record a group as Grain asks for, in batches of 256."""

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

FIGURES = figures("array_records", "ArrayRecord, records of 1,000 bytes, batch 256")
BATCH, SIZE = 256, 1_000


def size(quick: bool) -> int:
    return 4_000 if quick else 30_000


def prepare(data: Path, quick: bool) -> None:
    try:
        from array_record.python.array_record_module import ArrayRecordWriter
    except ImportError:
        return  # the peers say so themselves
    random = np.random.default_rng(0)
    writer = ArrayRecordWriter(path(data), "group_size:1")
    for k in range(size(quick)):
        writer.write(b"%08d" % k + random.bytes(SIZE - 8))
    writer.close()


def path(data: Path) -> str:
    return str(data / "a.array_record")


def check(batch: Any) -> int:
    assert isinstance(batch[0], bytes) and len(batch[0]) == SIZE, batch[0]
    return len(batch)


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("array_records", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    import playhead as ph

    def dataset() -> Any:
        records = ph.Dataset.from_array_records(path(data))
        return (records.shuffle(seed=1) if shuffled else records).batch(BATCH).prefetch()

    return measure(ours(dataset), quick)


def grain(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """A source of random access, shuffled and batched, read by Grain's default threads: "Dataset basics"."""
    import grain

    def dataset() -> Any:
        source = grain.sources.ArrayRecordDataSource([path(data)])
        records = grain.MapDataset.source(source)
        records = records.shuffle(seed=1) if shuffled else records
        return records.batch(BATCH, batch_fn=list).to_iter_dataset()

    return measure(_theirs.grain(dataset), quick)


def array_record(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """The package's own data source, a batch by `__getitems__`; the place is a number that the loop keeps."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    def batches(start: int) -> Iterator[list[bytes]]:
        with ArrayRecordDataSource([path(data)]) as source:
            order = np.arange(len(source))
            order = np.random.default_rng(1).permutation(order) if shuffled else order
            for k in range(start, len(order), BATCH):
                yield source.__getitems__(order[k : k + BATCH].tolist())

    def saved(count: int) -> tuple[int, Any]:
        return count * BATCH, first(count * BATCH)[0]

    def first(start: int) -> tuple[Any, Any]:
        iterator = batches(start)
        return next(iterator), iterator.close

    return measure(Reader(lambda: batches(0), saved, first), quick)


PEERS = {
    "playhead": playhead,
    "playhead, in order": partial(playhead, shuffled=False),
    "grain": grain,
    "grain, in order": partial(grain, shuffled=False),
    "array_record by hand": array_record,
    "array_record by hand, in order": partial(array_record, shuffled=False),
}
