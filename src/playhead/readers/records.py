"""Files of records: TFRecord, ArrayRecord, tar, and pictures in directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from playhead.instead import PICTURES, RECORDS, refusing
from playhead.readers.reader import OnError, Reader, leaving_out, skips


class Records(Reader):
    """The constructors of `Dataset` that read files of records."""

    __slots__ = ()

    @classmethod
    @refusing(RECORDS)
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
        num_parallel_reads: int | None = None,
        buffer_size: int | None = None,
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
        num_parallel_reads, buffer_size: accepted for tf.data's sake; `prefetch` says how many work ahead, and
        records always come file by file.
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
    @refusing(PICTURES)
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
        `ds.class_names` has them. labels: a list of numbers instead, or None for no labels; then the
        files come from anywhere below. decode: uint8 [height, width, 3] by Pillow instead of bytes.
        directory: a path, or a URL that fsspec knows and lists, with `storage_options` for it.

        on_error: "skip" leaves out files that cannot be decoded, and makes a stream; the position counts them,
        and `ignored` lists them.

        Raises `MissingSource`, `PipelineError`; when read, `CorruptRecord` (file) for what cannot be decoded,
        `SourceChanged` for a file of another size.

        >>> import playhead as ph
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for path in "cat/1.png", "dog/1.png":
        ...     (root / path).parent.mkdir()
        ...     _ = (root / path).write_bytes(path.encode())
        >>> ds = ph.Dataset.from_image_folder(root)
        >>> ds.class_names, ds[1]
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
