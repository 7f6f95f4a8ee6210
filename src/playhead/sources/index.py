"""Where each record of a TFRecord file lies, kept in a file so that it is found out once.

The index of `data/train.tfrecord` is `data/playhead-index/train.tfrecord.index`: in a directory of
its own, so that a pattern that names the data (`train-*`) never names an index. Where that cannot
be written, or where the caller names a directory, the name also carries a digest of the data's
absolute path.

Layout, all integers little-endian, n records:

    offset      size      what
    0           8         magic, the ASCII letters PLAYHIDX
    8           4         uint32  version of this layout, 1
    12          4         uint32  flags; bit 0: the CRC of every record's data was checked
    16          8         uint64  size of the data file in bytes
    24          8         int64   its modification time in nanoseconds
    32          8         uint64  n
    40          16        content: blake2b over n times (int64 length, uint32 stored data CRC)
    56          8(n+1)    int64   where each record's frame begins, then where the last ends
    64+8n       4n        uint32  the masked CRC of each record's data, as the data file stores it
    64+12n      4         uint32  CRC-32C of everything before it

An index is believed only if its own CRC holds, its offsets are those of a possible file, size and
modification time are the file's, and 64 frames spread over the file are as it says. Anything else
is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import mmap
import os
import secrets
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import CorruptRecord, MissingSource, SourceChanged, SourceError
from playhead.kernels import FRAME

DIRECTORY = "playhead-index"
MAGIC = b"PLAYHIDX"
VERSION = 1
SAMPLE = 64

Verify: TypeAlias = Literal["always", "index", "never"]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Checksums: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
Mapped: TypeAlias = bytes | mmap.mmap

_HEADER = struct.Struct("<8sIIQqQ16s")
_VERIFIED = 1
_STRIDE = 64 << 20
_LONG = 256 << 20
_HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """The index of one file: `edges` (int64, n + 1) and stored data `crcs` (uint32, n)."""

    path: str
    size: int
    mtime_ns: int
    verified: bool
    edges: Integers
    crcs: Checksums
    content: bytes


@dataclass(frozen=True, eq=False)
class Index:
    """The index of several files read one after the other.

    Record i lies in file f = `locate(i)`, between the bytes `edges[i + f]` and `edges[i + f + 1]`
    of it; `starts[f]` is the number of f's first record.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    mtimes_ns: tuple[int, ...]
    counts: Integers
    starts: Integers
    edges: Integers
    crcs: Checksums
    single: str | None

    @staticmethod
    def of(files: Sequence[FileIndex]) -> Index:
        counts = np.array([len(f.crcs) for f in files], np.int64)
        return Index(
            paths=tuple(f.path for f in files),
            sizes=tuple(f.size for f in files),
            mtimes_ns=tuple(f.mtime_ns for f in files),
            counts=counts,
            starts=np.cumsum(counts) - counts,
            edges=_joined([f.edges for f in files], np.int64),
            crcs=_joined([f.crcs for f in files], np.uint32),
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
        return content_of(lengths - FRAME, self.crcs).hex()

    def locate(self, records: Integers) -> Integers:
        """The file of each record."""
        return np.searchsorted(self.starts, records, side="right") - 1

    def file(self, number: int) -> FileIndex:
        """The part of the index that is about one file, as views."""
        start, stop = int(self.starts[number]), int(self.starts[number] + self.counts[number])
        edges, crcs = self.edges[start + number : stop + number + 1], self.crcs[start:stop]
        path, size, mtime = self.paths[number], self.sizes[number], self.mtimes_ns[number]
        return FileIndex(path, size, mtime, False, edges, crcs, b"")


def load_or_build(
    paths: Sequence[str], *, where: str | None = None, verify: Verify = "always"
) -> Index:
    """The index of local, uncompressed TFRecord files, in the order of `paths`.

    Indexes that fit are read; the others are built, with a progress bar where that takes long and
    someone is watching, and kept in `where` if given, else beside the data, else in the local
    cache. With `verify` other than "never" the CRC of every record has been checked, now or when
    the index was built.

    Raises `MissingSource` for a file that is not there, `CorruptRecord` for one that is damaged
    (with `file`, `offset` in bytes, `record` and `reason`), `SourceChanged` for one that is written
    meanwhile, and `SourceError` for one that is remote or compressed.
    """
    check = verify != "never"
    for path in paths:
        refuse_unreadable(path)
    found = {path: _load(path, where, check) for path in dict.fromkeys(paths)}
    missing = [path for path, index in found.items() if index is None]
    with _progress(sum(os.path.getsize(path) for path in missing)) as advance:
        for path in missing:
            found[path] = index = build(path, check, advance)
            _store(index, where)
    return Index.of([index for index in (found[path] for path in paths) if index is not None])


def refuse_unreadable(path: str) -> None:
    """Raise for what this version cannot read: remote or compressed files, directories, nothing."""
    kind = "remote" if "://" in path else "compressed" if path.endswith((".gz", ".zz")) else None
    if kind is not None:
        raise _unsupported(path, kind)
    if os.path.isdir(path):
        raise MissingSource(
            f"{path} is a directory, not a TFRecord file",
            help=f"name the files in it, as in {os.path.join(path, '*.tfrecord')!r}",
            file=path,
        )
    if not os.path.exists(path):
        raise MissingSource(
            f"no file {path} (the working directory is {os.getcwd()})",
            help="check the spelling, and that the data is mounted on this machine",
            file=path,
        )


def build(
    path: str, check: bool = True, advance: Callable[[int], None] = lambda count: None
) -> FileIndex:
    """Scan one file; `advance` hears of every stretch of bytes that is done."""
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), before.st_size)
        scans: list[kernels.Scan] = []
        position = records = 0
        while position < before.st_size:
            scans.append(kernels.scan(buffer, position, check, position + _STRIDE))
            damage = scans[-1].damage
            if damage is not None:
                if damage.offset == 0 and _is_compressed(buffer):
                    raise _unsupported(path, "compressed")
                raise corrupt(path, damage.offset, records + damage.record, damage.reason)
            advance(scans[-1].end - position)
            position, records = scans[-1].end, records + len(scans[-1].offsets)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path, "while it was indexed")
    crcs = _joined([s.crcs for s in scans], np.uint32)
    content = content_of(_joined([s.lengths for s in scans], np.int64), crcs)
    edges = _joined([s.offsets for s in scans] + [np.array([before.st_size])], np.int64)
    return FileIndex(path, before.st_size, before.st_mtime_ns, check, edges, crcs, content)


def mapped(descriptor: int, size: int) -> Mapped:
    """The file's bytes, mapped read-only; nothing for an empty file, which cannot be mapped."""
    if not size:
        return b""
    if sys.version_info >= (3, 13) and sys.platform != "win32":
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


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
    """Whether 64 frames spread over the file, first and last among them, are as indexed."""
    count = len(index.crcs)
    spread = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
    for record in spread.tolist():
        start, stop = int(index.edges[record]), int(index.edges[record + 1])
        if buffer[start : start + 12] != kernels.header(stop - start - FRAME):
            return False
        if buffer[stop - 4 : stop] != kernels.FOOTER.pack(index.crcs[record]):
            return False
    return True


def corrupt(path: str, offset: int, record: int, reason: kernels.Reason) -> CorruptRecord:
    """The error for a damaged frame."""
    what = {
        "truncated": "the file ends inside this record",
        "length": "the record's length does not match its CRC",
        "data": "the record's data does not match its CRC",
    }[reason]
    asking = " (or this is not a TFRecord file)" if record == 0 and reason != "data" else ""
    return CorruptRecord(
        f"{path}, record {record} at byte {offset}: {what}{asking}",
        help="the file is damaged or was cut short: compare it with its original, and copy or "
        "write it again",
        file=path,
        offset=offset,
        record=record,
        reason=reason,
    )


def changed(path: str, when: str) -> SourceChanged:
    """The error for a file that is not the one that was indexed."""
    return SourceChanged(
        f"{path} was written or replaced {when}",
        help="build the dataset again once the file is complete; write new data under a new name",
        file=path,
    )


def encode(index: FileIndex) -> bytes:
    """The index as the bytes of an index file."""
    flags = _VERIFIED if index.verified else 0
    head = _HEADER.pack(
        MAGIC, VERSION, flags, index.size, index.mtime_ns, len(index.crcs), index.content
    )
    body = head + index.edges.astype("<i8").tobytes() + index.crcs.astype("<u4").tobytes()
    return body + struct.pack("<I", kernels.crc32c(body))


def decode(blob: bytes, path: str) -> FileIndex | None:
    """The index of `path` from an index file's bytes; None for bytes that are not a sound one."""
    if len(blob) < _HEADER.size + 12:
        return None
    magic, version, flags, size, mtime_ns, count, content = _HEADER.unpack_from(blob)
    if magic != MAGIC or version != VERSION or len(blob) != _HEADER.size + 8 + 12 * count + 4:
        return None
    if kernels.crc32c(blob[:-4]) != int.from_bytes(blob[-4:], "little"):
        return None
    edges = np.frombuffer(blob, "<i8", count + 1, _HEADER.size).astype(np.int64, copy=False)
    crcs = np.frombuffer(blob, "<u4", count, _HEADER.size + 8 * count + 8)
    crcs = crcs.astype(np.uint32, copy=False)
    # Of numbers that are not negative, no difference overflows.
    if edges[0] != 0 or edges[-1] != size or edges.min() < 0 or (np.diff(edges) < FRAME).any():
        return None
    return FileIndex(path, size, mtime_ns, bool(flags & _VERIFIED), edges, crcs, content)


def _load(path: str, where: str | None, check: bool) -> FileIndex | None:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), status.st_size)
    for place in _places(path, where):
        try:
            index = decode(place.read_bytes(), path)
        except OSError:
            continue
        if (
            index is not None
            and (index.size, index.mtime_ns) == (status.st_size, status.st_mtime_ns)
            and (index.verified or not check)
            and agrees(index, buffer)
        ):
            return index
    return None


def _store(index: FileIndex, where: str | None) -> None:
    blob = encode(index)
    for place in _places(index.path, where):
        with contextlib.suppress(OSError):
            _write(place, blob)
            return


def _write(place: Path, blob: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f"{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _places(path: str, where: str | None) -> list[Path]:
    directory, name = os.path.split(path)
    key = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=8).hexdigest()
    elsewhere = f"{name}-{key}.index"
    named = [] if where is None else [Path(where) / elsewhere]
    return [*named, Path(directory, DIRECTORY, f"{name}.index"), _cache() / elsewhere]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    if sys.platform == "darwin":
        root = "~/Library/Caches"
    elif sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    return Path(os.path.expanduser(root), "playhead", "index")


def _is_compressed(buffer: Mapped) -> bool:
    start = buffer[:3]
    zlib = start[:1] == b"\x78" and int.from_bytes(start[:2], "big") % 31 == 0
    return start == b"\x1f\x8b\x08" or zlib


def _unsupported(path: str, kind: str) -> SourceError:
    return SourceError(
        f"{path} is {kind}, and only local, uncompressed TFRecord files are read in this version",
        help="copy it to a local disk"
        if kind == "remote"
        else "decompress it first, as with gunzip",
        file=path,
    )


def _joined(parts: Sequence[np.ndarray[Any, Any]], dtype: type) -> np.ndarray[Any, Any]:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    watched = sys.stderr is not None and sys.stderr.isatty()
    if total < _LONG or not watched or importlib.util.find_spec("rich") is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("indexing TFRecords"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
