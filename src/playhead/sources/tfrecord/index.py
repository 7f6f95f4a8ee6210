"""Where each record of a TFRecord file lies, kept in a file so that it is found out once.

The index of `data/train.tfrecord` is `data/playhead-index/train.tfrecord.index`; `shelf` says where
else it may lie.

Layout, all integers little-endian, n records:

    offset      size      what
    0           8         magic, the ASCII letters PLAYHIDX
    8           4         uint32  version of this layout, 2
    12          4         uint32  flags; bit 0: the CRC of every record's data was checked; bit 1: the last
                                  record is no frame, but all that lies behind one that is broken
    16          8         uint64  size of the data file in bytes
    24          8         int64   its modification time in nanoseconds; of a remote file a number that
                                  stands for its version, as the store tells it (0: it tells none)
    32          8         uint64  n
    40          16        content: blake2b over n times (int64 length, uint32 stored data CRC); the
                                  length of what is no frame is -1 less its bytes
    56          8(n+1)    int64   where each record's frame begins, then where the last ends
    64+8n       4n        uint32  the masked CRC of each record's data, as the data file stores it; of
                                  what is no frame that of its first 64 KiB
    64+12n      4         uint32  CRC-32C of everything before it

An index is believed only if its own CRC holds, its offsets are those of a possible file, size and
modification time are the file's, and 64 frames spread over the file are as it says. Anything else
is built anew.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import CorruptRecord, UnparsableRecord
from playhead.kernels import FRAME
from playhead.sources.files.keeping import Mapped as Mapped
from playhead.sources.files.keeping import mapped as mapped
from playhead.sources.files.maps import Seen

MAGIC = b"PLAYHIDX"
VERSION = 2
SAMPLE = 64
BEGINNING = 64 << 10

Verify: TypeAlias = Literal["always", "index", "read", "never"]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Checksums: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
Part: TypeAlias = tuple[Integers, Integers, Checksums]

_HEADER = struct.Struct("<8sIIQqQ16s")
_VERIFIED = 1
_BROKEN = 2
_HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """The index of one file: `edges` (int64, n + 1) and stored data `crcs` (uint32, n).

    `broken`: the last record is no frame. It is the rest of the file, in which no frame can be found.
    """

    path: str
    size: int
    mtime_ns: int
    verified: bool
    edges: Integers
    crcs: Checksums
    content: bytes
    broken: bool = False

    @property
    def seen(self) -> Seen:
        """The file as it was when it was indexed."""
        return Seen(self.path, self.size, self.mtime_ns)


@dataclass(frozen=True, eq=False)
class Index:
    """The index of several files read one after the other.

    Record i lies in file f = `locate(i)`, between the bytes `edges[i + f]` and `edges[i + f + 1]`
    of it; `starts[f]` is the number of f's first record. `broken` are the numbers of those that are no frames.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    mtimes_ns: tuple[int, ...]
    counts: Integers
    starts: Integers
    edges: Integers
    crcs: Checksums
    broken: Integers
    single: str | None

    @staticmethod
    def of(files: Sequence[FileIndex]) -> Index:
        counts = np.array([len(f.crcs) for f in files], np.int64)
        ends = np.cumsum(counts)
        return Index(
            paths=tuple(f.path for f in files),
            sizes=tuple(f.size for f in files),
            mtimes_ns=tuple(f.mtime_ns for f in files),
            counts=counts,
            starts=ends - counts,
            edges=_joined([f.edges for f in files], np.int64),
            crcs=_joined([f.crcs for f in files], np.uint32),
            broken=ends[[f.broken for f in files]] - 1,
            single=files[0].content.hex() if len(files) == 1 else None,
        )

    @property
    def records(self) -> int:
        """How many records all files hold."""
        return len(self.crcs)

    @cached_property
    def content(self) -> str:
        """A digest (hex) of every record's length and stored CRC, in order, wherever they lie."""
        if self.single is not None:
            return self.single
        lengths = np.delete(np.diff(self.edges), self.starts[1:] + np.arange(len(self.starts) - 1))
        lengths -= FRAME
        lengths[self.broken] = -1 - FRAME - lengths[self.broken]
        return content_of(lengths, self.crcs).hex()

    def locate(self, records: Integers) -> Integers:
        """The file of each record."""
        return np.searchsorted(self.starts, records, side="right") - 1

    def frames(self, records: Integers) -> tuple[Integers, Integers, Integers, Integers, Checksums]:
        """Where records lie, as `kernels.frames` says it. Raises `IndexError`."""
        index = np.ascontiguousarray(records, np.int64)
        return kernels.frames(index, self.starts, self.edges, self.crcs)

    def file(self, number: int) -> FileIndex:
        """The part of the index that is about one file, as views."""
        start, stop = int(self.starts[number]), int(self.starts[number] + self.counts[number])
        edges, crcs = self.edges[start + number : stop + number + 1], self.crcs[start:stop]
        seen, broken = self.seen(number), bool(np.isin(stop - 1, self.broken))
        return FileIndex(seen.path, seen.size, seen.mtime_ns, False, edges, crcs, b"", broken)

    def seen(self, number: int) -> Seen:
        """A file as it was when it was indexed."""
        return Seen(self.paths[number], self.sizes[number], self.mtimes_ns[number])


def content_of(lengths: Integers, crcs: Checksums) -> bytes:
    """The digest that names records' bytes: blake2b over (int64 length, uint32 CRC) of each."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(crcs), _HASHED_AT_ONCE):
        part = slice(start, start + _HASHED_AT_ONCE)
        pairs = np.empty(len(crcs[part]), [("length", "<i8"), ("crc", "<u4")])
        pairs["length"], pairs["crc"] = lengths[part], crcs[part]
        digest.update(pairs.tobytes())
    return digest.digest()


def agrees(index: FileIndex, buffer: Mapped) -> bool:
    """Whether 64 frames spread over the file, first and last among them, are as indexed.

    And what is no frame, too.
    """
    count = len(index.crcs)
    if index.broken:
        count -= 1
        begin, end = int(index.edges[count]), int(index.edges[count + 1])
        beginning = buffer[begin : min(end, begin + BEGINNING)]
        if kernels.masked_crc32c(beginning) != index.crcs[count]:
            return False
    spread = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
    for record in spread.tolist():
        start, stop = int(index.edges[record]), int(index.edges[record + 1])
        if buffer[start : start + 12] != kernels.header(stop - start - FRAME):
            return False
        if buffer[stop - 4 : stop] != kernels.FOOTER.pack(index.crcs[record]):
            return False
    return True


def broken_part(seen: Seen, offset: int, beginning: bytes) -> Part:
    """What stands in an index for the rest of a file from a broken frame on; `beginning`: its first bytes."""
    crc = kernels.masked_crc32c(beginning[:BEGINNING])
    size = seen.size - offset
    return np.array([offset]), np.array([-1 - size]), np.array([crc], np.uint32)


def index_of(seen: Seen, checked: bool, parts: Sequence[Part]) -> FileIndex:
    """The index of a file, of which `parts` are the frames' offsets, data lengths and stored CRCs.

    The last may be a `broken_part`.
    """
    stored = _joined([crcs for _, _, crcs in parts], np.uint32)
    content = content_of(_joined([lengths for _, lengths, _ in parts], np.int64), stored)
    edges = _joined([*(offsets for offsets, _, _ in parts), np.array([seen.size])], np.int64)
    broken = bool(parts) and bool((parts[-1][1] < 0).any())
    return FileIndex(seen.path, seen.size, seen.mtime_ns, checked, edges, stored, content, broken)


def corrupt(
    path: str, offset: int, record: int, reason: kernels.Reason, size: int | None = None
) -> CorruptRecord:
    """The error for a damaged frame; `size` bytes of the file from there on go with it, where that is known."""
    what = {
        "truncated": "the file ends inside this record",
        "length": "the record's length does not match its CRC",
        "data": "the record's data does not match its CRC",
    }[reason]
    asking = " (or this is not a TFRecord file)" if record == 0 and reason != "data" else ""
    rest = "" if size is None else f"; no frame can be found in the {size} bytes from there on"
    return CorruptRecord(
        f"{path}, record {record} at byte {offset}: {what}{asking}{rest}",
        help="the file is damaged or was cut short: compare it with its original, and copy or "
        "write it again",
        file=path,
        offset=offset,
        record=record,
        reason=reason,
        size=size,
    )


def unparsable(error: UnparsableRecord, path: str, record: int, offset: int) -> UnparsableRecord:
    """The parser's error, with the place of the record."""
    reason = error.facts["reason"]
    return UnparsableRecord(
        f"{path}, record {record} at byte {offset}: {reason}",
        help=error.help,
        key=error.facts["key"],
        reason=reason,
        file=path,
        record=record,
        offset=offset,
    )


def encode(index: FileIndex) -> bytes:
    """The index as the bytes of an index file."""
    flags = (_VERIFIED if index.verified else 0) | (_BROKEN if index.broken else 0)
    head = _HEADER.pack(
        MAGIC, VERSION, flags, index.size, index.mtime_ns, len(index.crcs), index.content
    )
    edges = np.ascontiguousarray(index.edges, "<i8")
    body = b"".join((head, edges.data, np.ascontiguousarray(index.crcs, "<u4").data))
    return body + struct.pack("<I", kernels.crc32c(body))


def decode(blob: bytes, path: str) -> FileIndex | None:
    """The index of `path` from an index file's bytes; None for bytes that are not a sound one."""
    if len(blob) < _HEADER.size + 12:
        return None
    magic, version, flags, size, mtime_ns, count, content = _HEADER.unpack_from(blob)
    if magic != MAGIC or version != VERSION or len(blob) != _HEADER.size + 8 + 12 * count + 4:
        return None
    if kernels.crc32c(memoryview(blob)[:-4]) != int.from_bytes(blob[-4:], "little"):
        return None
    edges = np.frombuffer(blob, "<i8", count + 1, _HEADER.size).astype(np.int64, copy=False)
    crcs = np.frombuffer(blob, "<u4", count, _HEADER.size + 8 * count + 8)
    crcs = crcs.astype(np.uint32, copy=False)
    broken = bool(flags & _BROKEN)
    if broken and not count:
        return None
    # Of numbers that are not negative, no difference overflows.
    if edges[0] != 0 or edges[-1] != size or edges.min() < 0 or (np.diff(edges) < 1).any():
        return None
    if (np.diff(edges)[: count - broken] < FRAME).any():
        return None
    return FileIndex(path, size, mtime_ns, bool(flags & _VERIFIED), edges, crcs, content, broken)


def _joined(parts: Sequence[np.ndarray[Any, Any]], dtype: type) -> np.ndarray[Any, Any]:
    if len(parts) == 1:
        return parts[0].astype(dtype, copy=False)
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)
