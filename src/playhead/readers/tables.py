"""Tables: Parquet, and frames in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from playhead.readers.reader import OnError, Reader, info_here, leaving_out


class Tables(Reader):
    """The constructors of `Dataset` that read tables."""

    __slots__ = ()

    @classmethod
    def from_parquet(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        fill: Mapping[str, Any] | None = None,
        cache_bytes: int = 256 << 20,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """The rows of Parquet files as dicts of columns. Seekable; row groups are read whole.

        The row groups read last are kept in memory, up to `cache_bytes`. A shuffle over more than fits
        reads one for about every row: `shuffle(buffer_size)` keeps neighbours together. Text is str,
        binary bytes, a list an array, a struct a dict. A null is NaN in a column of floats, NaT in one of
        dates, and elsewhere an error unless `fill` says what stands for it. dtypes: other types for columns.
        Both name a field of a struct behind a dot ("image.path").

        files: paths, patterns and URLs as in `from_tfrecords`, with `storage_options` for these. Of remote
        files the footers are read, then the columns' parts of the row groups that are wanted.
        on_error: "skip" leaves out rows that cannot be read as these types, and all rows of a row group that is
        damaged, and makes a stream; the position counts them, and `ignored` lists them.

        Needs `playhead[arrow]`. Raises `MissingSource`, `CorruptRecord`, `PipelineError` for types that no
        array holds; when read, `UnparsableRecord` (file, row, column), `SourceChanged`.

        >>> import playhead as ph
        >>> import pathlib, tempfile, numpy as np, pyarrow as pa, pyarrow.parquet as pq
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.parquet")
        >>> pq.write_table(pa.table({"x": [1.5, None], "word": ["a", "b"]}), path)
        >>> list(ph.Dataset.from_parquet(path, dtypes={"x": np.float32}))
        [{'x': np.float32(1.5), 'word': 'a'}, {'x': np.float32(nan), 'word': 'b'}]
        """
        from playhead.sources.arrow.parquet import parquet

        node = parquet(
            files,
            columns=columns,
            dtypes=dtypes,
            fill=fill,
            cache_bytes=cache_bytes,
            storage_options=storage_options,
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        fill: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Self:
        """The rows of a pandas or polars frame, or of an Arrow table, as dicts of columns. Seekable.

        Types, nulls and arguments as in `from_parquet`; pandas' index is left out. Columns of numbers are
        copied. Needs `playhead[arrow]`. Raises `PipelineError`, `ElementError` (row, column) for a null.

        >>> import playhead as ph
        >>> import pyarrow as pa
        >>> frame = pa.table({"x": [1, 2], "word": ["a", "b"]})
        >>> ph.Dataset.from_frame(frame)[1]
        {'x': np.int64(2), 'word': 'b'}
        """
        from playhead.sources.arrow.frames import frame as rows_of

        return cls(replace(rows_of(frame, columns, dtypes, fill), info=info_here(name)))
