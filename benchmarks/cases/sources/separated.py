"""CSV of an int64, eight float32 and a word, to columns, in batches of 256: 100,000 rows, 8 MB.

Words come as strings, and from tf.data as bytes. The readers of pyarrow and pandas keep no place: they are
asked for batches from where they stood, as their options have it, and scan the rows before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured
from benchmarks.cases.sources._table import BATCH, COLUMNS, DTYPES, arrays, check, cut, table
from benchmarks.frame import Measure

FIGURES = figures("separated", "CSV rows of 10 columns, batch 256", "rows")


def size(quick: bool) -> int:
    return 4_000 if quick else 100_000


def prepare(data: Path, quick: bool) -> None:
    from pyarrow import csv

    csv.write_csv(table(size(quick)), data / "a.csv", csv.WriteOptions(quoting_style="none"))


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("separated", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    import playhead as ph

    def dataset() -> Any:
        rows = ph.Dataset.from_csv(data / "a.csv", dtypes=DTYPES)
        return (rows.shuffle(seed=1) if shuffled else rows).batch(BATCH).prefetch()

    return measure(ours(dataset), quick)


def tf_data(data: Path, quick: bool) -> Measure:
    """`make_csv_dataset` with the types told, its shuffle over 10,000 and everything else as it comes."""
    import tensorflow as tf

    def dataset() -> Any:
        return tf.data.experimental.make_csv_dataset(
            str(data / "a.csv"),
            BATCH,
            column_defaults=[tf.int64, *[tf.float32] * 8, tf.string],
            num_epochs=1,
            shuffle_seed=1,
        )

    return measure(_theirs.tf_data(dataset, data), quick)


def tf_data_csv(data: Path, quick: bool) -> Measure:
    """`CsvDataset`, "the lower level API" of the guide's "Consume CSV data"; 1,024 rows ahead of the batch."""
    import tensorflow as tf

    def dataset() -> Any:
        defaults = [tf.int64, *[tf.float32] * 8, tf.string]
        rows = tf.data.experimental.CsvDataset(str(data / "a.csv"), defaults, header=True)
        named = rows.batch(BATCH).map(lambda *columns: dict(zip(COLUMNS, columns, strict=True)))
        return named.prefetch(tf.data.AUTOTUNE)

    return measure(_theirs.tf_data(dataset, data), quick)


def skipping(batches: Callable[[int], Iterator[Any]]) -> Reader:
    """`batches(n)` reads from row n on: the place is a number of rows."""

    def first(rows: int) -> tuple[Any, Callable[[], object]]:
        iterator = batches(rows)
        return next(iterator), iterator.close

    def saved(count: int) -> tuple[int, Any]:
        iterator = batches(0)
        for _ in range(count):
            next(iterator)
        return count * BATCH, next(iterator)

    return Reader(lambda: batches(0), saved, first)


def pyarrow(data: Path, quick: bool) -> Measure:
    """`open_csv`, its "incremental reading", in blocks of its own size; `skip_rows_after_names`."""
    import pyarrow as pa
    from pyarrow import csv

    types = csv.ConvertOptions(
        column_types={key: pa.from_numpy_dtype(dtype) for key, dtype in DTYPES.items()}
    )

    def batches(start: int) -> Iterator[Any]:
        reading = csv.ReadOptions(skip_rows_after_names=start)
        return cut(lambda: csv.open_csv(data / "a.csv", reading, convert_options=types)).batches()

    return measure(skipping(batches), quick)


def pandas(data: Path, quick: bool) -> Measure:
    """`read_csv(chunksize=)`, "Iterating through files chunk by chunk", 100 batches a chunk; `skiprows`."""
    import pandas as pd

    def batches(start: int) -> Iterator[Any]:
        chunks = pd.read_csv(
            data / "a.csv", dtype=DTYPES, chunksize=100 * BATCH, skiprows=range(1, start + 1)
        )
        with chunks:
            for chunk in chunks:
                columns = {name: chunk[name].to_numpy() for name in COLUMNS}
                for at in range(0, len(chunk), BATCH):
                    yield arrays({key: values[at : at + BATCH] for key, values in columns.items()})

    return measure(skipping(batches), quick)


PEERS = {
    "playhead": playhead,
    "playhead, in order": partial(playhead, shuffled=False),
    "tf.data make_csv_dataset, shuffle(10,000)": tf_data,
    "tf.data CsvDataset, in order": tf_data_csv,
    "pyarrow open_csv, in order": pyarrow,
    "pandas chunks, in order": pandas,
}
