"""Where each record of a text file begins, kept in a file so that it is found out once.

What a record is, a `Cut` says: a line, or a row of a CSV file. The index of `data/train.txt` is
`data/playhead-index/train.txt.lines`; `keeping` says where else it may lie.

Layout, all integers little-endian, n records, m of them blank:

    offset         size      what
    0              8         magic, the ASCII letters PLAYHTXT
    8              4         uint32  version of this layout, 1
    12             4         nothing, 0
    16             8         uint64  size of the text file in bytes
    24             8         int64   its modification time in nanoseconds
    32             8         uint64  n
    40             8         uint64  m
    48             16        blake2b of the name of the `Cut`
    64             16        content: the first 16 bytes of the SHA-256 of the file's bytes
    80             16        blake2b of 64 bytes at each of 64 places spread over the file
    96             8(n+1)    int64   where each record begins, then the file's size
    104+8n         8m        int64   the numbers of the blank records, ascending
    104+8n+8m      4         uint32  CRC-32C of everything before it

An index is believed only if its own CRC holds, its offsets are those of a possible file, and size,
modification time and the sampled bytes are the file's. Anything else is built anew.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

from playhead import kernels
from playhead.sources.files import keeping
from playhead.sources.files.keeping import Mapped, changed, mapped
from playhead.sources.files.maps import Seen

MAGIC = b"PLAYHTXT"
VERSION = 1

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Advance: TypeAlias = Callable[[int], None]

_HEADER = struct.Struct("<8sIIQqQQ16s16s16s")
_STRIDE = 16 << 20
_SPOTS = 64
_SPOT = 64


class Cut(Protocol):
    """How a file's bytes fall into records."""

    @property
    def name(self) -> str:
        """What decides where it cuts."""
        ...

    @property
    def kind(self) -> str:
        """What the records are: the suffix of index files."""
        ...

    def __call__(self, buffer: Mapped, path: str, advance: Advance) -> Integers:
        """Where records begin (int64, ascending, the first at 0), then the file's size."""
        ...

    def blank(self, buffer: Mapped, edges: Integers) -> Integers:
        """The numbers of the records that hold nothing."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FileOffsets:
    """The index of one file: `edges` (int64, n + 1), the numbers of the `blank` records."""

    seen: Seen
    edges: Integers
    blank: Integers
    content: bytes
    sample: bytes


@dataclass(frozen=True, eq=False)
class Offsets:
    """The index of several files read one after the other.

    Record i is the `numbers[i]`th of all that the files hold (without `numbers`, the ith): in file
    f = `locate(i)`, between the bytes `edges[i + f]` and `edges[i + f + 1]`.
    """

    files: tuple[Seen, ...]
    contents: tuple[bytes, ...]
    starts: Integers
    edges: Integers
    numbers: Integers | None

    @staticmethod
    def of(files: Sequence[FileOffsets], *, skip_blank: bool, header: bool = False) -> Offsets:
        """Without the blank records, or without each file's first that is not blank: its header."""
        counts = np.array([len(f.edges) - 1 for f in files], np.int64)
        starts = np.cumsum(counts) - counts
        dropped = [np.empty(0, np.int64)]
        for start, file in zip(starts, files, strict=True):
            blank = file.blank if skip_blank else file.blank[:0]
            dropped.append(blank + start)
            if header:
                first = first_kept(blank)
                dropped.append(np.arange(first, min(first + 1, len(file.edges) - 1)) + start)
        gone = np.concatenate(dropped)
        numbers = np.delete(np.arange(counts.sum()), gone) if len(gone) else None
        return Offsets(
            files=tuple(f.seen for f in files),
            contents=tuple(f.content for f in files),
            starts=starts,
            edges=np.concatenate([np.empty(0, np.int64), *(f.edges for f in files)]),
            numbers=numbers,
        )

    @property
    def records(self) -> int:
        return len(self.edges) - len(self.files) if self.numbers is None else len(self.numbers)

    @cached_property
    def content(self) -> str:
        """A digest (hex) of the bytes of each file that holds any, in order."""
        held = [c for c, f in zip(self.contents, self.files, strict=True) if f.size]
        return hashlib.blake2b(b"".join(held), digest_size=16).hexdigest()

    def locate(self, index: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """For each record its file, its number there, where it begins and where it ends.

        Raises `IndexError` for a record that there is not.
        """
        outside = np.flatnonzero((index < 0) | (index >= self.records))
        if len(outside):
            raise IndexError(f"record {index[outside[0]]} of {self.records}")
        numbers = index if self.numbers is None else self.numbers[index]
        files = np.searchsorted(self.starts, numbers, side="right") - 1
        edges = numbers + files
        return files, numbers - self.starts[files], self.edges[edges], self.edges[edges + 1]


def first_kept(blank: Integers) -> int:
    """The number of the first record that is not blank."""
    leading = np.flatnonzero(blank != np.arange(len(blank)))
    return int(leading[0]) if len(leading) else len(blank)


def load_or_build(paths: Sequence[str], cut: Cut, where: str | None = None) -> list[FileOffsets]:
    """The indexes of local text files. Those that fit are read, the others built and kept.

    Raises what `cut` raises, and `SourceChanged` for a file that is written meanwhile.
    """
    found = {path: _load(path, cut, where) for path in dict.fromkeys(paths)}
    missing = [path for path, index in found.items() if index is None]
    total = sum(os.path.getsize(path) for path in missing)
    with keeping.progress(f"indexing {cut.kind}", total) as advance:
        for path in missing:
            found[path] = index = build(path, cut, advance)
            keeping.store(keeping.places(path, where, cut.kind), encode(index, cut))
    return [index for index in (found[path] for path in paths) if index is not None]


def build(path: str, cut: Cut, advance: Advance = lambda count: None) -> FileOffsets:
    """Look at every byte of a file."""
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), before.st_size)
        with ThreadPoolExecutor(1) as beside:
            hashing = beside.submit(content_of, buffer)
            edges = cut(buffer, path, advance)
            content = hashing.result()
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path, "while it was indexed")
    seen = Seen(path, before.st_size, before.st_mtime_ns)
    return FileOffsets(seen, edges, cut.blank(buffer, edges), content, sample_of(buffer))


def content_of(buffer: Mapped) -> bytes:
    """The digest of a file's bytes."""
    digest = hashlib.sha256()  # in the processor's own instructions on most machines
    with memoryview(buffer) as view:
        for start in range(0, len(view), _STRIDE):
            digest.update(view[start : start + _STRIDE])
    return digest.digest()[:16]


def sample_of(buffer: Mapped) -> bytes:
    """A digest of a few of a file's bytes, for noticing cheaply that it is another."""
    digest = hashlib.blake2b(digest_size=16)
    last = max(0, len(buffer) - _SPOT)
    for place in np.linspace(0, last, _SPOTS).astype(np.int64).tolist():
        digest.update(buffer[place : place + _SPOT])
    return digest.digest()


def encode(index: FileOffsets, cut: Cut) -> bytes:
    """The index as the bytes of an index file."""
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        index.seen.size,
        index.seen.mtime_ns,
        len(index.edges) - 1,
        len(index.blank),
        _named(cut),
        index.content,
        index.sample,
    )
    body = head + index.edges.astype("<i8").tobytes() + index.blank.astype("<i8").tobytes()
    return body + struct.pack("<I", kernels.crc32c(body))


def decode(blob: bytes, path: str, cut: Cut) -> FileOffsets | None:
    """The index of `path` from an index file's bytes; None for bytes that are not a sound one."""
    if len(blob) < _HEADER.size + 12:
        return None
    magic, version, _, size, mtime, count, blanks, name, content, sample = _HEADER.unpack_from(blob)
    if magic != MAGIC or version != VERSION or name != _named(cut):
        return None
    if len(blob) != _HEADER.size + 8 * (count + 1 + blanks) + 4:
        return None
    if kernels.crc32c(blob[:-4]) != int.from_bytes(blob[-4:], "little"):
        return None
    edges = np.frombuffer(blob, "<i8", count + 1, _HEADER.size).astype(np.int64, copy=False)
    blank = np.frombuffer(blob, "<i8", blanks, _HEADER.size + 8 * (count + 1))
    blank = blank.astype(np.int64, copy=False)
    if edges[0] != 0 or edges[-1] != size or (np.diff(edges) <= 0).any():
        return None
    if (np.diff(blank) <= 0).any() or (blanks and not 0 <= blank[0] <= blank[-1] < count):
        return None
    return FileOffsets(Seen(path, size, mtime), edges, blank, content, sample)


def _named(cut: Cut) -> bytes:
    return hashlib.blake2b(cut.name.encode(), digest_size=16).digest()


def _load(path: str, cut: Cut, where: str | None) -> FileOffsets | None:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), status.st_size)
    for place in keeping.places(path, where, cut.kind):
        try:
            index = decode(place.read_bytes(), path, cut)
        except OSError:
            continue
        if (
            index is not None
            and (index.seen.size, index.seen.mtime_ns) == (status.st_size, status.st_mtime_ns)
            and index.sample == sample_of(buffer)
        ):
            return index
    return None


@dataclass(frozen=True)
class Lines:
    """A record is a line with its line end; the last may have none."""

    name: str = "lines"
    kind: str = "lines"

    def __call__(self, buffer: Mapped, path: str, advance: Advance) -> Integers:
        text: Bytes = np.frombuffer(buffer, np.uint8)
        parts = [np.zeros(min(1, len(text)), np.int64)]
        for start in range(0, len(text), _STRIDE):
            piece = text[start : start + _STRIDE]
            parts.append(np.flatnonzero(piece == ord("\n")) + (start + 1))
            advance(len(piece))
        edges = np.concatenate(parts).astype(np.int64, copy=False)
        whole = len(edges) > 0 and edges[-1] == len(text)
        return edges if whole else np.append(edges, np.int64(len(text)))

    def blank(self, buffer: Mapped, edges: Integers) -> Integers:
        if len(edges) < 2:
            return np.empty(0, np.int64)
        starts = edges[:-1]
        candidates = np.flatnonzero(np.frombuffer(buffer, np.uint8)[starts] <= ord(" "))
        found = [k for k in candidates.tolist() if not buffer[edges[k] : edges[k + 1]].strip()]
        return np.array(found, np.int64)
