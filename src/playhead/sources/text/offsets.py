"""Where each record of a text file begins, kept in a file so that it is found out once.

What a record is, a `Cut` says: a line, or a row of a CSV file. The index of `data/train.txt` is
`data/playhead-index/train.txt.lines`; `shelf` says where else it may lie.

Layout, all integers little-endian, n records, m of them blank:

    offset         size      what
    0              8         magic, the ASCII letters PLAYHTXT
    8              4         uint32  version of this layout, 1
    12             4         nothing, 0
    16             8         uint64  size of the text file in bytes
    24             8         int64   its modification time in nanoseconds; of a remote file its version
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
import struct
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from playhead import kernels
from playhead.sources.files.keeping import Mapped, changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote
from playhead.sources.files.spots import Spots, sampled
from playhead.sources.files.telling import Advance
from playhead.sources.text.cuts import Cut, Integers

MAGIC = b"PLAYHTXT"
VERSION = 1

_HEADER = struct.Struct("<8sIIQqQQ16s16s16s")
_STRIDE = 16 << 20


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

    def run(self, index: Integers) -> tuple[int, Integers] | None:
        """Of neighbours in one file, in order: the file, and where each begins and the last one ends."""
        count = len(index)
        if not count:
            return None
        first, last = int(index[0]), int(index[-1])
        if last - first != count - 1 or first < 0 or last >= self.records:
            return None
        if not (index[1:] - index[:-1] == 1).all():
            return None
        if self.numbers is not None:
            first, last = int(self.numbers[first]), int(self.numbers[last])
            if last - first != count - 1:
                return None
        file, other = (np.searchsorted(self.starts, [first, last], side="right") - 1).tolist()
        return (file, self.edges[first + file : last + file + 2]) if file == other else None

    def locate(self, index: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """For each record its file, its number there, where it begins and where it ends.

        Raises `IndexError` for a record that there is not.
        """
        if len(index) and not 0 <= index.min() <= index.max() < self.records:
            outside = np.flatnonzero((index < 0) | (index >= self.records))
            raise IndexError(f"record {index[outside[0]]} of {self.records}")
        numbers = index if self.numbers is None else self.numbers[index]
        files = np.searchsorted(self.starts, numbers, side="right") - 1
        edges = numbers + files
        return files, numbers - self.starts[files], self.edges[edges], self.edges[edges + 1]


def first_kept(blank: Integers) -> int:
    """The number of the first record that is not blank."""
    leading = np.flatnonzero(blank != np.arange(len(blank)))
    return int(leading[0]) if len(leading) else len(blank)


@dataclass(frozen=True)
class OffsetsKind:
    """The indexes of text files that are cut so."""

    cut: Cut

    @property
    def suffix(self) -> str:
        """The cut's kind."""
        return self.cut.kind

    @property
    def what(self) -> str:
        """The cut's kind."""
        return self.cut.kind

    def build(
        self, seen: Seen, opening: Opening, advance: Advance = lambda count: None
    ) -> FileOffsets:
        """Looks at every byte of a file.

        Raises what the cut raises, `MissingSource`, and `SourceChanged` for a file that is not what it was.
        """
        cutting, spots, content = self.cut.begin(seen.path), Spots(seen.size), hashlib.sha256()
        with ThreadPoolExecutor(1, "playhead-digest") as beside:
            hashing: Future[None] | None = None
            for block in opening.blocks(seen):
                if hashing is not None:
                    hashing.result()
                hashing = beside.submit(content.update, block)
                cutting.feed(block)
                spots.feed(block)
                advance(len(block))
        # Of a remote file its blocks say that, at their end.
        if not is_remote(seen.path) and opening.look([seen.path], self.what, "*") != [seen]:
            raise changed(seen.path, "while it was indexed")
        edges, blank = cutting.finish()
        return FileOffsets(seen, edges, blank, content.digest()[:16], spots.digest())

    def encode(self, index: FileOffsets) -> bytes:
        """As `encode` does."""
        return encode(index, self.cut)

    def decode(self, blob: bytes, path: str) -> FileOffsets | None:
        """As `decode` does."""
        return decode(blob, path, self.cut)

    def fits(self, index: FileOffsets, opening: Opening) -> bool:
        """Whether the sampled bytes are the file's, where nothing else tells its versions apart."""
        if is_remote(index.seen.path) and index.seen.mtime_ns:
            return True
        return sampled(index.seen, opening) == index.sample


def content_of(buffer: Mapped) -> bytes:
    """The digest of a file's bytes."""
    digest = hashlib.sha256()  # in the processor's own instructions on most machines
    with memoryview(buffer) as view:
        for start in range(0, len(view), _STRIDE):
            digest.update(view[start : start + _STRIDE])
    return digest.digest()[:16]


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
    # Of numbers that are not negative, no difference overflows.
    if edges[0] != 0 or edges[-1] != size or edges.min() < 0 or (np.diff(edges) <= 0).any():
        return None
    if blanks and (blank.min() < 0 or blank[-1] >= count or (np.diff(blank) <= 0).any()):
        return None
    return FileOffsets(Seen(path, size, mtime), edges, blank, content, sample)


def _named(cut: Cut) -> bytes:
    return hashlib.blake2b(cut.name.encode(), digest_size=16).digest()
