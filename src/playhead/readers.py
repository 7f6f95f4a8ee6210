"""The constructors of `Dataset` that read what lies outside of the program: files, topics, other pipelines.

Each makes the one node of a source; what a source needs is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import Nest
from playhead.plan.failing import IgnoreErrors
from playhead.plan.node import Info, Node

if TYPE_CHECKING:
    import tensorflow as tf

OnError: TypeAlias = Literal["raise", "skip"]

_HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep


def info_here(name: str | None = None) -> Info:
    """The user's own line that called into playhead."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HOME):
        frame = frame.f_back
    return Info(name=name, where=f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")


def leaving_out(node: Node, on_error: OnError, name: str | None) -> Node:
    """A source where the user made it, and for "skip" what leaves out the records that cannot be had of it."""
    info = info_here(name)
    made = replace(node, info=info)
    return IgnoreErrors((made,), False, info=info) if skips(on_error) else made


def skips(on_error: OnError) -> bool:
    """Whether that says "skip". Raises `PipelineError` for what is neither."""
    if on_error not in ("raise", "skip"):
        raise PipelineError(f'on_error is "raise" or "skip", not {on_error!r}', on_error=on_error)
    return on_error == "skip"


class Readers:
    """What `Dataset` is made of: the node at its end."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    @classmethod
    def from_tf(
        cls,
        tf_dataset: tf.data.Dataset,
        *,
        state: Literal["skip", "iterator"] = "skip",
        name: str | None = None,
    ) -> Self:
        """An existing `tf.data.Dataset`, unchanged, as a source. A stream; leaves become numpy arrays.

        Pass e is what iterating `tf_dataset` for the (e + 1)-th time gives in a fresh process, however often
        it was iterated in this one.
        state: "skip" counts elements; resuming takes and drops what came before, inside TensorFlow, and says
        how long that took. "iterator" also keeps tf.data's own iterator state, saved about every second (its
        shuffle and prefetch buffers and caches are in it, up to 256 MB), so that resuming drops little.

        Raises `PipelineError` for a shuffle without a seed (unless "iterator"), for
        `deterministic=False`, for RaggedTensor and SparseTensor leaves, and for "iterator" where TensorFlow
        cannot save the state; `UnrepeatableFunction` for stateful random operations. Variables keep the values
        they have now. What files hold, and Python code in it, is not part of the description.

        >>> import playhead as ph
        >>> import tensorflow as tf
        >>> ds = ph.Dataset.from_tf(tf.data.Dataset.range(10).shuffle(10, seed=1).batch(4))
        >>> it = ds.iterator(epochs=2)
        >>> next(it).shape, it.position.cursor
        ((4,), [0, 1])
        """
        from_tf = importlib.import_module("playhead.tensorflow.pipeline").from_tf
        return cls(replace(from_tf(tf_dataset, state), info=info_here(name)))

    @classmethod
    def from_tfrecords(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        features: dict[str, Any] | Literal["infer"] | None = None,
        context_features: dict[str, Any] | None = None,
        sequence_features: dict[str, Any] | None = None,
        verify: Literal["always", "index", "read", "never"] = "always",
        index: str | os.PathLike[str] | None = None,
        compression_type: str | None = None,
        storage_options: dict[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """The records of TFRecord files, read at random through an index that is built once.

        files: a path, a glob pattern, a URL that fsspec knows ("gs://bucket/train-*"), or a sequence of
        them; a pattern's files are sorted. Without `features` an element is the record's bytes; with
        `features` (name -> `FixedLenFeature`, `VarLenFeature` or `FixedLenSequenceFeature`, playhead's or
        `tf.io`'s) it is the parsed `tf.train.Example` as a dict; "infer" guesses them from the first
        records and prints them. With `context_features` and `sequence_features` it is the parsed
        `tf.train.SequenceExample`: a pair of dicts.
        verify: check both CRCs "always" (when the index is built and at each read), when the "index" is
        built, at each "read" (so that `ignore_errors` can leave out what is damaged), or "never".
        index: a directory or URL for the index. Unless told it lies beside the files, where that cannot be
        written in the directory of the run that `playhead.keras.fit` saves, and last in the user's cache;
        that of remote files in the run's directory first.
        compression_type: "GZIP", "ZLIB" or "" for all files; None tells it from each file's first bytes.
        Where one file is compressed, all are a stream: resuming decompresses the file it stands in again.
        storage_options: what fsspec is given for remote files.
        on_error: "skip" leaves out records that are damaged or do not parse, and makes a stream; what lies
        behind a frame that is broken or cut off, to its file's end, counts as one. The position counts them,
        and `ignored` lists them. Data are then checked at each read, not when the index is built.

        Raises `MissingSource`, `CorruptRecord` (file, byte offset, record number), `SourceChanged`.
        """
        from playhead.sources.tfrecord.records import tfrecords

        node = tfrecords(
            files,
            features=features,
            context_features=context_features,
            sequence_features=sequence_features,
            verify=verify,
            index=index,
            compression_type=compression_type,
            storage_options=storage_options,
            tolerant=skips(on_error),
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
    def from_image_folder(
        cls,
        directory: str | os.PathLike[str],
        *,
        labels: Literal["inferred"] | Sequence[int] | None = "inferred",
        class_names: Sequence[str] | None = None,
        extensions: Sequence[str] = (".bmp", ".gif", ".jpeg", ".jpg", ".png"),
        decode: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """Pictures in a directory for each class: tuples of a file's bytes and its label, int32. Seekable.

        Files, order and labels are those of `tf.keras.utils.image_dataset_from_directory(shuffle=False)`:
        classes are the directories' sorted names, or in the order of `class_names`, and
        `ds.node.class_names` has them. labels: a list of numbers instead, or None for no labels; then the
        files come from anywhere below. decode: uint8 [height, width, 3] by Pillow instead of bytes.
        directory: a path, or a URL that fsspec knows and lists, with `storage_options` for it.

        on_error: "skip" leaves out files that cannot be decoded, and makes a stream; the position counts them,
        and `ignored` lists them. The source then is `ds.node.parent`.

        Raises `MissingSource`, `PipelineError`; when read, `CorruptRecord` (file) for what cannot be decoded,
        `SourceChanged` for a file of another size.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for path in "cat/1.png", "dog/1.png":
        ...     (root / path).parent.mkdir()
        ...     _ = (root / path).write_bytes(path.encode())
        >>> ds = ph.Dataset.from_image_folder(root)
        >>> ds.node.class_names, ds[1]
        (('cat', 'dog'), (b'dog/1.png', np.int32(1)))
        """
        from playhead.sources.images import image_folder

        node = image_folder(
            directory,
            labels=labels,
            class_names=class_names,
            extensions=extensions,
            decode=decode,
            storage_options=storage_options,
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
    def from_array_records(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        features: dict[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """The records of ArrayRecord files. Seekable; nothing is indexed, the files hold their own tables.

        files: a local path, a glob pattern, or a sequence of them; a pattern's files are sorted, and URLs are
        refused. An element is the record's bytes, or with `features` the parsed `tf.train.Example`, as in
        `from_tfrecords`.

        on_error: "skip" leaves out records that are damaged or do not parse, and makes a stream; the position
        counts them, and `ignored` lists them.

        Needs `playhead[array-record]`. Raises `MissingSource`, `CorruptRecord` (file) for a file that is cut
        short; when read, `CorruptRecord` (file, record), `UnparsableRecord`, `SourceChanged`.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> path = str(pathlib.Path(tempfile.mkdtemp(), "a.array_record"))
        >>> writer = ArrayRecordWriter(path, "group_size:1")
        >>> writer.write(b"one"), writer.write(b"two"), writer.close()
        (None, None, None)
        >>> ph.Dataset.from_array_records(path)[1]
        b'two'
        """
        from playhead.sources.array_record import array_records

        return cls(leaving_out(array_records(files, features=features), on_error, name))

    @classmethod
    def from_tar(
        cls,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        decode: Literal["auto"] | Mapping[str, Any] | None = None,
        index: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
    ) -> Self:
        """The samples of tar files as WebDataset writes them: dicts of bytes by extension, and `__key__`.

        Neighbouring members that share their path up to the first dot of its last part are a sample.
        files: paths, patterns and URLs as in `from_tfrecords`, with `storage_options` for these. Seekable
        through an index of members that is built once and kept beside the files (or in the directory or
        URL `index`); a stream where any file is compressed (gzip, bz2, xz, zstd).
        decode: "auto" decodes the usual extensions (txt, json, cls, npy, npz; jpg and png by Pillow, to
        uint8 [height, width, 3]); a dict gives a function of bytes, or "auto", for single extensions.
        on_error: "skip" leaves out samples that cannot be decoded, and makes a stream; of a file that is
        damaged or cut short the rest counts as one. The position counts them, and `ignored` lists them.

        Raises `MissingSource`, `CorruptRecord` (file, offset, member) for a file that is damaged or cut
        short; when read, `UnparsableRecord` (file, record, member, offset), `SourceChanged`.

        >>> import playhead as ph
        >>> import io, pathlib, tarfile, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.tar")
        >>> with tarfile.open(path, "w") as tar:
        ...     for member, data in {"0/x.txt": b"one", "0/x.cls": b"7"}.items():
        ...         info = tarfile.TarInfo(member)
        ...         info.size = len(data)
        ...         tar.addfile(info, io.BytesIO(data))
        >>> ph.Dataset.from_tar(path, decode="auto")[0]
        {'__key__': '0/x', 'txt': 'one', 'cls': np.int32(7)}
        """
        from playhead.sources.tar.samples import tar

        node = tar(
            files,
            decode=decode,
            index=index,
            storage_options=storage_options,
            tolerant=skips(on_error),
        )
        return cls(leaving_out(node, on_error, name))

    @classmethod
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
        >>> import pathlib, tempfile, pyarrow as pa, pyarrow.parquet as pq
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

    @classmethod
    def from_kafka(
        cls,
        topics: str | Sequence[str],
        *,
        bootstrap_servers: str | Sequence[str],
        until: Any = None,
        start: Any = "beginning",
        order: Literal["round_robin", "arrival"] = "round_robin",
        on_gap: Literal["error", "accept"] = "error",
        patience: float = 60.0,
        config: Mapping[str, Any] | None = None,
        fields: Sequence[str] = ("key", "value", "timestamp", "topic", "partition", "offset"),
        name: str | None = None,
    ) -> Self:
        """The messages of Kafka topics. A stream; offsets live in the position, and none is committed.

        An element is a dict of `fields`: `key` and `value` (bytes, or None), `timestamp` (int64, milliseconds
        since 1970), `topic` (str), `partition` (int32), `offset` (int64); where asked for also `headers`
        (object array (n, 2) of names and values: `dict(headers)`, or a loop over pairs) and `timestamp_type`
        (int32, as confluent-kafka numbers them: 1 when it was made, 2 when the broker took it).

        start, until: where each partition begins and ends. "beginning" and "end", a dict of offsets by
        (topic, partition) or, of one topic, by partition, or a time (a datetime with its zone, or
        milliseconds since 1970: the first message at or after it). They are found out when the first pass
        begins and are part of the position from then on, so that what was resumed, and every later pass,
        has the same range. `until=None` has no end, and notices partitions that are added.
        order: "round_robin" takes one message of each partition in turn, the same on every walk of a range
        with an end. "arrival" takes them as they come, each exactly once.
        on_gap: what retention has removed before it was read is `MessagesGone`, or is passed over and written
        into the position ("accept").
        patience: seconds without any broker after which `SourceError` is raised. config: more settings of
        the client, such as those for security.

        Needs `playhead[kafka]`. Raises `PipelineError`; when read, `MissingSource` for a topic not there.

        >>> import playhead as ph
        >>> ds = ph.Dataset.from_kafka("clicks", bootstrap_servers="localhost:9092", until="end")
        >>> ds.map(lambda message: message["value"]).batch(32).seekable
        False
        """
        from playhead.sources.kafka.messages import messages

        node = messages(
            topics,
            bootstrap_servers,
            start=start,
            until=until,
            order=order,
            on_gap=on_gap,
            patience=patience,
            config=config,
            fields=fields,
        )
        return cls(replace(node, info=info_here(name)))


for _name, _made in vars(Readers).items():
    if isinstance(_made, classmethod):
        # Python's own errors about arguments name the class that users know.
        _made.__func__.__qualname__ = f"Dataset.{_name}"
