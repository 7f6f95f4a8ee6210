"""Records of TFRecord files, read at random through an index."""

from __future__ import annotations

import glob
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import MissingSource, PipelineError, PlayheadError, UnparsableRecord
from playhead.kernels import FOOTER, HEADER, Records
from playhead.plan.block import ArraySpec, Block, Columns, Nest
from playhead.plan.lock import Lock
from playhead.plan.node import Source
from playhead.plan.places import Record
from playhead.sources import index as indexing
from playhead.sources.example import Feature, Parser
from playhead.sources.index import Checksums, Index, Integers, Mapped, Verify

if sys.platform != "win32":
    import resource

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def _most_open_files() -> int:
    """How many files may stay mapped: a mapping takes a file descriptor before Python 3.13."""
    if sys.version_info >= (3, 13) or sys.platform == "win32":
        return 8192
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8192 if soft == resource.RLIM_INFINITY else min(8192, max(16, soft // 4))


_OPEN_FILES = _most_open_files()
_FILES_AT_ONCE = 64


def tfrecords(
    files: Paths,
    *,
    features: Mapping[str, Feature | Any] | None = None,
    verify: Verify = "always",
    index: str | os.PathLike[str] | None = None,
) -> TFRecords:
    """The records of local, uncompressed TFRecord files, one file after the other.

    `files` is a path or a pattern (`*`, `?`, `[...]`, `**`), or several in the order they are read
    in; what a pattern matches is sorted by name. Each record is `bytes`, or with `features` (a dict
    of `FixedLenFeature` and `VarLenFeature`, playhead's or `tf.io`'s) the dict that
    `tf.io.parse_single_example` would give.

    `verify` says when the CRC of a record's data is checked: "always" is when indexing and at each
    read, "index" only when indexing, "never" not at all. `index` names a directory for the index,
    which otherwise lies beside the data, or in the local cache where that cannot be written.

    Files are mapped into memory. Truncating one while it is in use ends the process (SIGBUS), as
    with any mapping.

    Raises `MissingSource`, `CorruptRecord`, `SourceChanged`, or `SourceError` for remote and
    compressed files.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "empty.tfrecord")
    >>> open(path, "wb").close()
    >>> tfrecords(path).cardinality
    0
    """
    if verify not in ("always", "index", "never"):
        raise PipelineError(
            f'verify is "always", "index" or "never", not {verify!r}', verify=verify
        )
    parser = None if features is None else Parser(features)
    where = None if index is None else os.path.abspath(index)
    found = indexing.load_or_build(expand(files), where=where, verify=verify)
    return TFRecords((), Reader(found, verify), parser)


def expand(files: Paths) -> list[str]:
    """Absolute paths of what `files` names, in reading order, patterns replaced by matches."""
    if isinstance(files, str | os.PathLike):
        files = [files]
    if not len(files):
        raise MissingSource(
            "from_tfrecords was given an empty list of files",
            help="the pattern that made the list matched nothing: check it, and that the data is mounted",
        )
    return [
        os.path.abspath(path) if "://" not in path else path for f in files for path in _matches(f)
    ]


def _matches(file: str | os.PathLike[str]) -> list[str]:
    path = os.fspath(file)
    if not isinstance(path, str):
        raise TypeError(f"a path is str or os.PathLike[str], not {type(path).__name__}")
    if not glob.has_magic(path) or "://" in path or os.path.exists(path):
        return [path]
    found = [
        match
        for match in sorted(glob.glob(path, recursive=True))
        if os.path.isfile(match) and indexing.DIRECTORY not in match.split(os.sep)
    ]
    if not found:
        raise MissingSource(
            f"no file matches {path!r} (the working directory is {os.getcwd()})",
            help="check the pattern, and that the data is mounted on this machine",
            pattern=path,
        )
    return found


@dataclass(frozen=True, eq=False)
class TFRecords(Source):
    """The records of several TFRecord files as one source."""

    op: ClassVar[str] = "tfrecords"

    reader: Reader
    parser: Parser | None

    @property
    def cardinality(self) -> int:
        return self.reader.index.records

    def gather(self, index: Integers) -> Block:
        """The records at `index` (int64[n], in any order) as n elements. Pure and thread-safe.

        Without features: `Columns` of one object array of `bytes`, shape (n,). With features: what
        `Parser.parse` gives. Raises `IndexError`, `CorruptRecord`, `SourceChanged`, and
        `UnparsableRecord` naming file and record.
        """
        if self.parser is None:
            column = np.empty(len(index), object)
            column[:] = self.reader.read(index)
            return Columns(column, len(index))
        try:
            return self.reader.parse(index, self.parser)
        except UnparsableRecord as error:
            file, record, offset = self.reader.place(int(index[error.facts["position"]]))
            reason = error.facts["reason"]
            raise UnparsableRecord(
                f"{file}, record {record} at byte {offset}: {reason}",
                help=error.help,
                key=error.facts["key"],
                reason=reason,
                file=file,
                record=record,
                offset=offset,
            ) from None

    def record(self, epoch: int, index: int) -> Record:
        file, number, _ = self.reader.place(index)
        return Record(self.info.name or self.op, epoch, index, file, number)

    def describe(self) -> dict[str, Any]:
        """How many records, and digests of their bytes and of the features; never paths."""
        index = self.reader.index
        said = {"op": self.op, "records": index.records, "content": index.content}
        return said if self.parser is None else {**said, "features": self.parser.digest}

    def static_spec(self) -> Nest:
        return ArraySpec((), bytes) if self.parser is None else self.parser.spec()


class Reader:
    """The bytes of the records of an `Index`; files are mapped when first read. Thread-safe."""

    def __init__(self, index: Index, verify: Verify) -> None:
        self.index = index
        self.verify: Verify = verify
        self._maps: OrderedDict[int, Mapped] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Reader], tuple[Index, Verify]]:
        return Reader, (self.index, self.verify)

    def place(self, index: int) -> tuple[str, int, int]:
        """Where a record lies: its file, its number there, and the byte where its frame begins."""
        file = int(self.index.locate(np.array([index], np.int64))[0])
        number = index - int(self.index.starts[file])
        return self.index.paths[file], number, int(self.index.edges[index + file])

    def read(self, index: Integers) -> list[bytes]:
        """The data of the records at `index` (int64, any order, repeats allowed), in that order.

        Raises `IndexError`, and `CorruptRecord` or `SourceChanged` for bytes that are not what was
        indexed.
        """
        found: list[bytes] = []
        order: list[Integers] = []
        for here, records, crcs in self._located(index):
            if self.verify == "always":
                bad = kernels.check(records, crcs)
                if bad >= 0:
                    raise self._damage(int(index[here[bad]]))
            found += kernels.slices(records)
            order.append(here)
        if len(order) < 2:
            return found
        data = dict(zip(np.concatenate(order).tolist(), found, strict=True))
        return [data[position] for position in range(len(index))]

    def parse(self, index: Integers, parser: Parser) -> Block:
        """The records at `index`, parsed; raises what `read` and `Parser.parse` raise."""
        if kernels.NATIVE:
            for here, records, crcs in self._located(index):
                if len(here) < len(index):
                    break  # too many files to hold all of them open
                block = parser.parse_parts(records, crcs if self.verify == "always" else None)
                if block is not None:
                    return block
        return parser.parse(self.read(index))

    def _located(self, index: Integers) -> Iterator[tuple[Integers, Records, Checksums]]:
        """The records at `index`, in groups of few files: positions in `index`, where they lie, and
        the stored CRCs.
        """
        if index.size and int(index.view(np.uint64).max()) >= self.index.records:
            outside = np.flatnonzero((index < 0) | (index >= self.index.records))
            raise IndexError(f"record {index[outside[0]]} of {self.index.records}")
        files = self.index.locate(index)
        edges = index + files
        starts = self.index.edges[edges] + HEADER.size
        stops = self.index.edges[edges + 1] - FOOTER.size
        crcs = self.index.crcs[index]
        if len(self.index.paths) == 1:
            names, which = files[:1], files
        else:
            names, which = np.unique(files, return_inverse=True)
            which = which.astype(np.int64, copy=False)
        everyone = np.arange(len(index))
        # Few enough files all stay open; of more, what one call holds comes on top.
        every = len(self.index.paths) <= _OPEN_FILES
        size = len(names) if every else _FILES_AT_ONCE
        for first in range(0, len(names), max(1, size)):
            group = names[first : first + size]
            buffers = [self._map(file) for file in group.tolist()]
            if len(group) == len(names):
                yield everyone, Records(buffers, which, starts, stops), crcs
                return
            here = np.flatnonzero((which >= first) & (which < first + size))
            yield here, Records(buffers, which[here] - first, starts[here], stops[here]), crcs[here]

    def _map(self, file: int) -> Mapped:
        with self._lock:
            found = self._maps.get(file)
            if found is not None:
                self._maps.move_to_end(file)
                return found
        part = self.index.file(file)
        opened = self._open(part)
        with self._lock:
            self._maps[file] = opened
            if len(self._maps) > _OPEN_FILES:
                self._maps.popitem(last=False)
        return opened

    def _open(self, part: indexing.FileIndex) -> Mapped:
        indexing.refuse_unreadable(part.path)
        with open(part.path, "rb") as file:
            status = os.fstat(file.fileno())
            buffer = indexing.mapped(file.fileno(), status.st_size)
        same = status.st_size == part.size
        if same and status.st_mtime_ns != part.mtime_ns:
            same = indexing.agrees(part, buffer)
            if same and self.verify != "always":
                again = indexing.build(part.path, check=self.verify == "index")
                same = np.array_equal(again.edges, part.edges) and np.array_equal(
                    again.crcs, part.crcs
                )
        if not same:
            raise indexing.changed(part.path, "after it was indexed")
        return buffer

    def _damage(self, index: int) -> PlayheadError:
        """What is wrong with a record whose frame is not as the index says."""
        path, record, offset = self.place(index)
        file = self.index.paths.index(path)
        status = os.stat(path) if os.path.exists(path) else None
        known = (self.index.sizes[file], self.index.mtimes_ns[file])
        if status is None or (status.st_size, status.st_mtime_ns) != known:
            return indexing.changed(path, "while it was in use")
        scan = kernels.scan(self._map(file), offset, stop=offset + 1)
        if scan.damage is None:
            return indexing.changed(path, "while it was in use")
        return indexing.corrupt(path, offset, record, scan.damage.reason)
