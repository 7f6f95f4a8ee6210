"""Writing TFRecord files."""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

from playhead import kernels
from playhead.errors import PipelineError
from playhead.kernels import FOOTER
from playhead.sources.files.paths import is_remote
from playhead.sources.tfrecord.encoding import example
from playhead.sources.tfrecord.inflating import Compression, checked

_BITS = {"GZIP": 31, "ZLIB": 15}


def write_tfrecords(
    dataset: Iterable[Any],
    pattern: str | os.PathLike[str],
    *,
    shards: int = 1,
    order: Literal["contiguous", "round_robin"] = "contiguous",
    compression: str | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Write one pass over a dataset, or any elements, to TFRecord files; their paths come back.

    Elements are dicts, each written as a `tf.train.Example` (integers and booleans as int64, floats as
    float32, bytes and str as bytes; shapes are not kept), or bytes, written as they are.

    pattern: with fields, as in "train-{shard:05d}-of-{shards:05d}"; or a `*` stands for
    "00000-of-00004"; otherwise, with several shards, that is appended behind a "-".
    order: "contiguous" gives each shard a run of neighbours, so that the files in their order hold the
    elements in theirs; it needs a dataset whose length is known. "round_robin" deals them out in turn.
    compression: "GZIP", "ZLIB" or None. Such files can only be read from their beginning.

    Files appear whole, under their names, after the last element. Raises `PipelineError` for elements
    that cannot be written, endless datasets, and files that are there already, unless `overwrite`.

    >>> import os, tempfile
    >>> from playhead import Dataset
    >>> ds = Dataset.range(3).map(lambda x: {"x": x})
    >>> paths = write_tfrecords(ds, os.path.join(tempfile.mkdtemp(), "train-*"), shards=2)
    >>> [os.path.basename(path) for path in paths]
    ['train-00000-of-00002', 'train-00001-of-00002']
    >>> len(Dataset.from_tfrecords(paths))
    3
    """
    paths = _paths(os.fspath(pattern), shards)
    if order not in ("contiguous", "round_robin"):
        raise PipelineError(f'order is "contiguous" or "round_robin", not {order!r}')
    kind = checked(compression, "compression") or ""
    there = [path for path in paths if os.path.lexists(path)]
    if there and not overwrite:
        raise PipelineError(
            f"{there[0]} exists" + (f", and {len(there) - 1} more" if there[1:] else ""),
            help="write under another name, or with overwrite=True",
            file=there[0],
        )
    count = _length(dataset)
    if shards > 1 and order == "contiguous" and count is None:
        raise PipelineError(
            "how many elements there are is not known, so they cannot be cut into contiguous shards",
            help='order="round_robin" deals them out in turn; or shards=1',
        )
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_Writing(path, kind)) for path in paths]
        with contextlib.closing(_elements(dataset)) as elements:
            for number, element in enumerate(elements):
                if order == "round_robin" or count is None:
                    shard = number % shards
                else:
                    shard = min(number * shards // max(count, 1), shards - 1)
                files[shard].write(_record(element))
        for file in files:
            file.finish()
    return paths


def _paths(pattern: str, shards: int) -> list[str]:
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise PipelineError(f"shards is a positive number, not {shards!r}", shards=shards)
    if is_remote(pattern):
        raise PipelineError(
            f"{pattern!r} is a URL, and write_tfrecords writes local files",
            help="write to a local directory, and copy it there",
        )
    if "{" not in pattern:
        numbered = "{shard:05d}-of-{shards:05d}"
        if pattern.count("*") == 1:
            before, after = pattern.split("*")
            made = [before + numbered.format(shard=k, shards=shards) + after for k in range(shards)]
        elif "*" in pattern:
            raise PipelineError(f"{pattern!r} has several *")
        elif shards == 1:
            made = [pattern]
        else:
            ends = [numbered.format(shard=k, shards=shards) for k in range(shards)]
            made = [f"{pattern}-{end}" for end in ends]
    else:
        try:
            made = [pattern.format(shard=k, shards=shards) for k in range(shards)]
        except (KeyError, IndexError, ValueError) as error:
            raise PipelineError(
                f"{pattern!r} cannot be filled in: {error}",
                help='its fields are shard and shards, as in "train-{shard:05d}-of-{shards:05d}"',
            ) from None
    if len(set(made)) < shards:
        raise PipelineError(f"{pattern!r} gives several shards one name", help="use {shard}")
    return [os.path.abspath(path) for path in made]


def _length(dataset: Any) -> int | None:
    """How many elements come, where that is known. Raises `PipelineError` for an endless dataset."""
    if hasattr(dataset, "iterator"):
        count = int(dataset.cardinality())
        if count == -1:
            raise PipelineError("the dataset has no end", help="take(n) ends it")
        return None if count < 0 else count
    return len(dataset) if hasattr(dataset, "__len__") else None


def _elements(dataset: Any) -> Generator[Any, None, None]:
    if not hasattr(dataset, "iterator"):
        yield from dataset
        return
    iterator = dataset.iterator(epochs=1)
    try:
        yield from iterator
    finally:
        iterator.close()


def _record(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, Mapping):
        return example(element)
    raise PipelineError(
        f"an element is {type(element).__name__}, and only dicts and bytes are written",
        help='make dicts of them, as in map(lambda x, y: {"x": x, "y": y})',
    )


class _Writing:
    """A TFRecord file that is there under its name only once it is whole."""

    def __init__(self, path: str, compression: Compression) -> None:
        self.path = path
        directory, name = os.path.split(path)
        os.makedirs(directory, exist_ok=True)
        # The dot keeps it out of what patterns match.
        self._temporary = os.path.join(directory, f".{name}.{secrets.token_hex(4)}.tmp")
        self._file = open(self._temporary, "xb")  # noqa: SIM115
        bits = _BITS.get(compression)
        self._engine = None if bits is None else zlib.compressobj(wbits=bits)
        self._finished = False

    def __enter__(self) -> _Writing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if not self._finished:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)

    def write(self, record: bytes) -> None:
        footer = FOOTER.pack(kernels.masked_crc32c(record))
        frame = b"".join((kernels.header(len(record)), record, footer))
        self._file.write(frame if self._engine is None else self._engine.compress(frame))

    def finish(self) -> None:
        if self._engine is not None:
            self._file.write(self._engine.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        self._finished = True
