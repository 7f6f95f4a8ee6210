"""Records of ArrayRecord files, read at random by the package array-record."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from playhead.errors import CorruptRecord, PipelineError, SourceError, UnparsableRecord
from playhead.plan.block import ArraySpec, Block, Columns, Nest, object_array
from playhead.plan.lock import Lock
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.files.keeping import changed, mapped, require_file, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.files.paths import Paths, expand, is_remote
from playhead.sources.files.spots import sample_of
from playhead.sources.tfrecord.example import Feature, Parser

_OPEN_FILES = 256
_BUFFER = 32 << 10
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # what array-record names for random reads
_END = 1 << 20  # bytes at a file's end that hold, or begin, its table of records
_AT = re.compile(r"chunk at (\d+)")


@dataclass(frozen=True, eq=False)
class ArrayRecords(Source):
    """The records of several ArrayRecord files as one source."""

    op: ClassVar[str] = "array_records"

    readers: Readers
    parser: Parser | None
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.readers.count

    def gather(self, index: Index) -> Block:
        """The records at `index` (int64[n], in any order) as n elements. Thread-safe.

        Without features: `Columns` of one object array of `bytes`, shape (n,). With features: what
        `Parser.parse` gives. Raises `IndexError`, `CorruptRecord`, `SourceChanged`, and `UnparsableRecord`
        naming file and record.
        """
        found = self.readers.read(index)
        if self.parser is None:
            return Columns(object_array(found), len(found))
        try:
            return self.parser.parse(found)
        except UnparsableRecord as error:
            path, record = self.readers.place(int(index[error.facts["position"]]))
            reason = error.facts["reason"]
            raise UnparsableRecord(
                f"{path}, record {record}: {reason}",
                help=error.help,
                key=error.facts["key"],
                reason=reason,
                file=path,
                record=record,
            ) from None

    def record(self, epoch: int, index: int) -> Record:
        path, number = self.readers.place(index)
        return Record(self.info.name or self.op, epoch, index, path, number)

    def describe(self) -> dict[str, Any]:
        """How many records, and digests of parts of the files and of the features; never paths."""
        said = {"op": self.op, "records": self.readers.count, "content": self.readers.content}
        said["kind"] = "sampled"
        return said if self.parser is None else {**said, "features": self.parser.digest}

    def static_spec(self) -> Nest:
        return ArraySpec((), bytes) if self.parser is None else self.parser.spec()


@dataclass(frozen=True, slots=True)
class Counted:
    """An ArrayRecord file as it was when its records were counted."""

    seen: Seen
    count: int
    content: bytes


class Readers:
    """The records of several files, of which those read last stay open.

    Thread-safe, as a reader of array-record is; a copy made by pickle opens them anew.
    """

    def __init__(self, files: tuple[Counted, ...]) -> None:
        self.files = files
        self._starts = np.cumsum([0, *(file.count for file in files)])
        self.count = int(self._starts[-1])
        self._open: OrderedDict[int, tuple[Any, os.stat_result]] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Readers], tuple[tuple[Counted, ...]]]:
        return Readers, (self.files,)

    @property
    def content(self) -> str:
        """A digest (hex) of the contents of the files that hold records, in order."""
        held = b"".join(file.content for file in self.files if file.count)
        return hashlib.blake2b(held, digest_size=16).hexdigest()

    def place(self, index: int) -> tuple[str, int]:
        """The file of a record, and its number there."""
        file = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.files[file].seen.path, index - int(self._starts[file])

    def read(self, index: Index) -> list[bytes]:
        """The records at `index` (int64, any order, repeats allowed), in that order."""
        outside = np.flatnonzero((index < 0) | (index >= self.count))
        if len(outside):
            raise IndexError(f"record {index[outside[0]]} of {self.count}")
        files = np.searchsorted(self._starts, index, side="right") - 1
        names = np.unique(files).tolist()
        if len(names) == 1:
            return self._of(names[0], (index - self._starts[names[0]]).tolist())
        found = [b""] * len(index)
        for file in names:
            here = np.flatnonzero(files == file)
            for position, data in zip(
                here.tolist(),
                self._of(file, (index[here] - self._starts[file]).tolist()),
                strict=True,
            ):
                found[position] = data
        return found

    def _of(self, file: int, numbers: list[int]) -> list[bytes]:
        reader, known = self._reader(file)
        try:
            found: list[bytes] = reader.read(numbers)
        except RuntimeError as error:
            self._require_same(file, reader, known)
            raise self._damage(file, reader, numbers, str(error)) from None
        self._require_same(file, reader, known)
        if len(found) != len(numbers):
            raise self._damage(file, reader, numbers, f"{len(found)} of {len(numbers)} records")
        return found

    def _reader(self, file: int) -> tuple[Any, os.stat_result]:
        with self._lock:
            found = self._open.get(file)
            if found is not None:
                self._open.move_to_end(file)
                return found
        known = self.files[file]
        opened, status = _opened(known.seen.path)
        if (status.st_size, status.st_mtime_ns) != (known.seen.size, known.seen.mtime_ns) and (
            _content(known.seen.path) != known.content
        ):
            raise changed(known.seen.path, "after its records were counted")
        if not opened.ok() or opened.num_records() != known.count:
            raise changed(known.seen.path, "after its records were counted")
        self._keep(file, opened, status)
        return opened, status

    def _keep(self, file: int, reader: Any, status: os.stat_result) -> None:
        with self._lock:
            self._open[file] = reader, status
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)  # closed when nobody reads from it any more

    def _require_same(self, file: int, reader: Any, known: os.stat_result) -> None:
        """Raises `SourceChanged` where the open file was written to.

        One replaced under its name does not matter: the old one is read on.
        """
        path = self.files[file].seen.path
        try:
            status = os.stat(path)
        except OSError:
            return
        same = (status.st_size, status.st_mtime_ns) == (known.st_size, known.st_mtime_ns)
        if status.st_ino != known.st_ino or same:
            return
        if status.st_size != known.st_size or _content(path) != self.files[file].content:
            raise changed(path, "while it was in use")
        self._keep(file, reader, status)

    def _damage(self, file: int, reader: Any, numbers: list[int], reason: str) -> CorruptRecord:
        """The error for the first record that cannot be read."""
        record = numbers[0]
        for number in numbers if len(numbers) > 1 else ():
            try:
                reader.read([number])
            except RuntimeError as error:
                record, reason = number, str(error)
                break
        path = self.files[file].seen.path
        offset = _AT.search(reason)
        return CorruptRecord(
            f"{path}, record {record}: {reason}",
            help="the file is damaged: compare it with its original, and copy or write it again; "
            "ignore_errors() leaves such records out",
            file=path,
            record=record,
            offset=None if offset is None else int(offset[1]),
            reason=reason,
        )


def array_records(
    files: Paths, *, features: Mapping[str, Feature | Any] | None = None
) -> ArrayRecords:
    """The records of local ArrayRecord files, one file after the other.

    Raises `MissingSource`, `CorruptRecord` for what is no whole ArrayRecord file, `SourceError` for a URL,
    `PipelineError` where array-record is missing.
    """
    _module()
    parser = None if features is None else Parser(features)
    paths = expand(files, "from_array_records")
    for path in paths:
        if is_remote(path):
            raise SourceError(
                f"{path} is remote, and array-record, which reads these files, knows local ones only",
                help="mount the store as a directory (gcsfuse, Mountpoint for S3), or copy the files first, as "
                'with fsspec.filesystem("gs").get("bucket/train/", "train/", recursive=True)',
                file=path,
            )
    found = {path: _counted(path) for path in dict.fromkeys(paths)}
    return ArrayRecords(Readers(tuple(found[path] for path in paths)), parser)


def _module() -> Any:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError:
        raise PipelineError(
            "from_array_records reads with array-record, which is not installed",
            help='pip install "playhead[array-record]"',
        ) from None


def _opened(path: str) -> tuple[Any, os.stat_result]:
    """A reader, and the file's status; it may be of no whole file: `ok` tells."""
    require_file(path, "ArrayRecord file", "*.array_record")
    try:
        with open(path, "rb"):  # the reader takes what it may not read for an empty file
            status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    reader = _module().ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER)
    return reader, status


def _counted(path: str) -> Counted:
    reader, status = _opened(path)
    if not reader.ok():
        raise CorruptRecord(
            f"{path} ({status.st_size} bytes) has no table of records at its end",
            help="it is no ArrayRecord file, or was cut short, or its writer was never closed: copy or write "
            "it again",
            file=path,
        )
    count = int(reader.num_records())
    reader.close()
    return Counted(Seen(path, status.st_size, status.st_mtime_ns), count, _content(path))


def _content(path: str) -> bytes:
    """A digest of a file's size, of 64 pieces spread over it, and of its end."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        digest.update(sample_of(mapped(file.fileno(), size)))
        file.seek(max(0, size - _END))
        digest.update(file.read(_END))
    return digest.digest()
