"""A table of an int64, eight float32 and a word: what CSV and Parquet files of these cases hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.cases.sources._reader import Reader, replayed

BATCH = 256
NUMBERS = tuple(f"x{k}" for k in range(8))
DTYPES = {"id": np.dtype(np.int64), **dict.fromkeys(NUMBERS, np.dtype(np.float32))}
COLUMNS = (*DTYPES, "word")


def table(count: int) -> Any:
    """As an Arrow table."""
    import pyarrow as pa

    numbers = np.random.default_rng(0).random((8, count), np.float32).round(5)
    words = np.array([f"word{k}" for k in range(1000)])
    return pa.table(
        {
            "id": np.arange(count),
            **dict(zip(NUMBERS, numbers, strict=True)),
            "word": words[np.arange(count) % 1000],
        }
    )


def check(batch: Any) -> int:
    """How many rows a batch has, which must be of this table."""
    assert tuple(batch) == COLUMNS, list(batch)
    for key, dtype in DTYPES.items():
        assert batch[key].dtype == dtype, (key, batch[key].dtype)
    assert isinstance(batch["word"][0], str | bytes), batch["word"][0]
    return len(batch["id"])


def arrays(columns: Any) -> dict[str, Any]:
    """What a list or an array a column holds, as this table has it."""
    made: dict[str, Any] = {key: np.asarray(columns[key], dtype) for key, dtype in DTYPES.items()}
    return {**made, "word": np.asarray(columns["word"], object)}


def of_arrow(batch: Any) -> dict[str, Any]:
    """An Arrow batch as arrays."""
    return {name: batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}


def cut(pieces: Callable[[], Iterable[Any]]) -> Reader:
    """Arrow batches of any size, cut to batches of 256 rows that cross their borders; no place is kept."""
    import pyarrow as pa

    def batches() -> Iterator[dict[str, Any]]:
        rest = None
        for piece in pieces():
            whole = pa.Table.from_batches([piece])
            if rest is not None and rest.num_rows:
                whole = pa.concat_tables([rest, whole])
            full = whole.num_rows // BATCH * BATCH
            for start in range(0, full, BATCH):
                yield of_arrow(whole.slice(start, BATCH))
            rest = whole.slice(full)
        if rest is not None and rest.num_rows:
            yield of_arrow(rest)

    return replayed(batches)


def stacked(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Rows as arrays."""
    every = list(rows)
    return arrays({key: [row[key] for row in every] for key in COLUMNS})
