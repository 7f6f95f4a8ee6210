"""Files of text: lines, JSON lines, CSV; and of the tokens that text is made into."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np

from playhead.instead import LINES, TABLES, refusing
from playhead.plan.block import Nest
from playhead.readers.reader import OnError, Reader, info_here, leaving_out


class Text(Reader):
    """The constructors of `Dataset` that read files of text and of tokens."""

    __slots__ = ()

    @classmethod
    @refusing(LINES)
    def from_lines(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        encoding: str | None = "utf-8",
        errors: str = "strict",
        skip_blank: bool = False,
        index: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        r"""The lines of text files as str, or as bytes for `encoding=None`, without their ends (\n or \r\n).

        files: a path, a glob pattern, a URL that fsspec knows ("s3://bucket/*.txt"), or a sequence of them; a
        pattern's files are sorted. Seekable through an index that is built once and kept beside the files
        (or in the directory or URL `index`), of remote files when it is first needed; a stream where any
        file is compressed (gzip, bz2, xz, or zstd with `playhead[zstd]`).
        storage_options: what fsspec is given for remote files.
        errors: what Python's `bytes.decode` takes. skip_blank: without lines that hold only white space.
        on_error: "skip" leaves out lines that are not in the encoding, and makes a stream; of a compressed file
        that is damaged or cut short the rest counts as one. The position counts them, and `ignored` lists them.

        Raises `MissingSource`, `SourceError`; when read, `UnparsableRecord` (file, line, byte) for what is
        not in the encoding, `SourceChanged`.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("one\ntwo\n")
        >>> list(ph.Dataset.from_lines(path))
        ['one', 'two']
        """
        from playhead.sources.text.lines import lines

        node = lines(
            files,
            encoding=encoding,
            errors=errors,
            skip_blank=skip_blank,
            index=index,
            storage_options=storage_options,
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
    def from_json_lines(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        dtypes: Nest | None = None,
        encoding: str = "utf-8",
        skip_blank: bool = True,
        index: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        r"""The JSON value in each line of text files: objects are dicts, lists arrays, null is None.

        Whole numbers become int32 and others float32, unless `dtypes` names theirs, by key: numpy dtypes,
        str, bytes, or `object` for what Python's `json` gives, such as lists of unequal ones. Under a
        dtype of floats null is NaN. Files, URLs and index as in `from_lines`.
        on_error: "skip" leaves out lines that are not JSON of these dtypes; otherwise as in `from_lines`.

        Raises `MissingSource`; when read, `UnparsableRecord` (file, line, byte), `SourceChanged`.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.jsonl")
        >>> _ = path.write_text('{"id": 3000000000, "tags": ["a", "b"]}\n')
        >>> list(ph.Dataset.from_json_lines(path, dtypes={"id": np.int64}))
        [{'id': np.int64(3000000000), 'tags': array(['a', 'b'], dtype=object)}]
        """
        from playhead.sources.text.lines import json_lines

        node = json_lines(
            files,
            dtypes=dtypes,
            encoding=encoding,
            skip_blank=skip_blank,
            index=index,
            storage_options=storage_options,
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
    @refusing(TABLES)
    def from_csv(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        fill: Mapping[str, Any] | None = None,
        column_names: Sequence[str] | None = None,
        delimiter: str = ",",
        quote_char: str | None = '"',
        encoding: str = "utf-8",
        index: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        r"""The rows of CSV files as dicts of columns, parsed by pyarrow. Seekable.

        Types are pyarrow's guess from the first megabyte, unless `dtypes` names a column's. An empty
        cell is NaN in a column of floats, "" in one of text, and elsewhere an error unless `fill` says
        what stands for it. columns: which to read. column_names: for files without a header.
        quote_char=None: quotes mean nothing. Files, URLs and index as in `from_lines`.
        on_error: "skip" leaves out rows that cannot be read as these types, and makes a stream; the position
        counts them, and `ignored` lists them.

        Needs `playhead[arrow]`. Raises `MissingSource`, `CorruptRecord` (file, byte) for quotes that do
        not stand as RFC 4180 has them, `PipelineError` for files of different columns; when read,
        `UnparsableRecord` (file, row, byte, column), `SourceChanged`.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.csv")
        >>> _ = path.write_text('x,word\n1,"a\nb"\n2,c\n')
        >>> list(ph.Dataset.from_csv(path, dtypes={"x": np.int32}))
        [{'x': np.int32(1), 'word': 'a\nb'}, {'x': np.int32(2), 'word': 'c'}]
        """
        from playhead.sources.text.separated import separated

        node = separated(
            files,
            columns=columns,
            dtypes=dtypes,
            fill=fill,
            column_names=column_names,
            delimiter=delimiter,
            quote_char=quote_char,
            encoding=encoding,
            index=index,
            storage_options=storage_options,
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
    def from_tokens(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        dtype: Any,
        *,
        length: int,
        stride: int | None = None,
        targets: bool = False,
        documents: Literal["files"] | Sequence[int] | np.ndarray[Any, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Self:
        """Windows of `length` tokens over files of tokens: raw numbers of `dtype`, or `.npy`. Seekable.

        With `targets` an element is (window, the window one token further). Windows begin `stride` tokens
        apart (`length` unless told). They run over the borders of files, one after the other, unless
        `documents` is "files", or the ascending numbers of the tokens where documents begin: then each
        lies in one of these, and what is left over at its end is in no window. Local files are mapped into
        memory and cost nothing to open; files and URLs as in `from_lines`.

        Raises `MissingSource`, `CorruptRecord` for a size that is no whole number of tokens,
        `PipelineError`; when read, `SourceChanged`.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.bin")
        >>> np.arange(9, dtype=np.uint16).tofile(path)
        >>> ph.Dataset.from_tokens(path, np.uint16, length=4, targets=True)[1]
        (array([4, 5, 6, 7], dtype=uint16), array([5, 6, 7, 8], dtype=uint16))
        """
        from playhead.sources.tokens import tokens

        node = tokens(
            files,
            dtype,
            length=length,
            stride=stride,
            targets=targets,
            documents=documents,
            storage_options=storage_options,
        )
        return cls(replace(node, info=info_here(name)))
