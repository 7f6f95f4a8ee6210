"""Parquet of an int64, eight float32 and a word, to columns, in batches of 256: 200,000 rows in 10 row groups.

Nothing of a pass is left in memory for the next one. playhead's shuffle is over the whole file, whose row
groups fit into its cache; coming back into a shuffle reads them all, into one of 10,000 rows two or three.
tf.data has no reader of Parquet.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured, replayed
from benchmarks.cases.sources._table import BATCH, arrays, check, cut, of_arrow, stacked, table
from benchmarks.frame import Measure

FIGURES = figures("parquet", "Parquet rows of 10 columns, batch 256", "rows")


def size(quick: bool) -> int:
    return 40_000 if quick else 200_000


def prepare(data: Path, quick: bool) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table(size(quick)), data / "a.parquet", row_group_size=size(quick) // 10)


def measure(reader: Reader, quick: bool, part: int = 1) -> Measure:
    return measured("parquet", reader, size(quick) // part, BATCH, check)


def playhead(data: Path, quick: bool, shuffled: bool = True, window: int | None = None) -> Measure:
    import playhead as ph

    def dataset() -> Any:
        rows = ph.Dataset.from_parquet(data / "a.parquet")
        return (rows.shuffle(window, seed=1) if shuffled else rows).batch(BATCH).prefetch()

    return measure(ours(dataset, anew=True), quick)


def pyarrow(data: Path, quick: bool) -> Measure:
    """`pyarrow.dataset`, its "Iterative (out of core or streaming) reads": `to_batches`. No place is kept."""
    from pyarrow import dataset

    return measure(
        cut(lambda: dataset.dataset(data / "a.parquet").to_batches(batch_size=BATCH)), quick
    )


def pyarrow_file(data: Path, quick: bool) -> Measure:
    """`ParquetFile.iter_batches`, which reads a row group at a time; it keeps no place."""
    import pyarrow.parquet as pq

    def batches() -> Any:
        return map(of_arrow, pq.ParquetFile(data / "a.parquet").iter_batches(BATCH))

    return measure(replayed(batches), quick)


def tenth(data: Path, quick: bool) -> str:
    """A tenth of the rows in as many row groups, for peers that go by rows."""
    import pyarrow.parquet as pq

    path, count = data / "tenth.parquet", size(quick) // 10
    if not path.exists():
        pq.write_table(table(count), path, row_group_size=count // 10)
    return str(path)


def hugging_face(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """The loader "parquet", streaming, with the default buffer of `shuffle`: as its guide "Stream" has it."""
    import datasets

    path = tenth(data, quick) if shuffled else str(data / "a.parquet")

    def dataset() -> Any:
        rows = datasets.load_dataset(
            "parquet", data_files={"train": path}, split="train", streaming=True
        )
        return (
            rows.shuffle(seed=1, buffer_size=_theirs.buffer(quick)) if shuffled else rows
        ).batch(BATCH)

    reader = _theirs.hugging_face(dataset, arrays, exact=not shuffled)
    return measure(reader, quick, part=10 if shuffled else 1)


def grain(data: Path, quick: bool) -> Measure:
    """`ParquetIterDataset` of its experimental part, which gives rows."""
    import grain

    path = tenth(data, quick)

    def dataset() -> Any:
        rows = grain.experimental.ParquetIterDataset(path)
        return rows.batch(BATCH, batch_fn=stacked)

    return measure(_theirs.grain(dataset), quick, part=10)


PEERS = {
    "playhead": playhead,
    "playhead, shuffle(10,000)": partial(playhead, window=10_000),
    "playhead, in order": partial(playhead, shuffled=False),
    "pyarrow.dataset, in order": pyarrow,
    "pyarrow iter_batches, in order": pyarrow_file,
    "datasets, shuffle(1,000), a tenth": hugging_face,
    "datasets, in order": partial(hugging_face, shuffled=False),
    "grain, a tenth, in order": grain,
}
