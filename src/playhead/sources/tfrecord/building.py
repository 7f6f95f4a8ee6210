"""Building the indexes of TFRecord files, and telling whether one that was kept fits its file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import numpy as np

from playhead import kernels
from playhead.kernels import FOOTER, HEADER
from playhead.sources.files.keeping import changed, mapped, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import coalesced
from playhead.sources.files.shelf import Shelf
from playhead.sources.files.telling import Advance
from playhead.sources.tfrecord.framing import stretches
from playhead.sources.tfrecord.index import (
    BEGINNING,
    SAMPLE,
    FileIndex,
    Index,
    Part,
    Verify,
    agrees,
    broken_part,
    corrupt,
    decode,
    encode,
    index_of,
)

CHECKED: tuple[Verify, ...] = ("always", "index")

_STRIDE = 64 << 20


@dataclass(frozen=True)
class Records:
    """The indexes of TFRecord files; with `check` the CRC of every record is checked.

    tolerant: what lies behind a broken frame is one record, that cannot be read.
    """

    check: bool = True
    tolerant: bool = False
    suffix: ClassVar[str] = "index"
    what: ClassVar[str] = "TFRecords"

    def build(self, seen: Seen, opening: Opening, advance: Advance) -> FileIndex:
        """Raises `MissingSource`, `CorruptRecord`, `SourceChanged`."""
        index = build(seen.path, self.check, advance, opening, self.tolerant)
        if index.seen != seen:
            raise changed(seen.path, "before it was indexed")
        return index

    def encode(self, index: FileIndex) -> bytes:
        """As `index.encode` does."""
        return encode(index)

    def decode(self, blob: bytes, path: str) -> FileIndex | None:
        """As `index.decode` does."""
        return decode(blob, path)

    def fits(self, index: FileIndex, opening: Opening) -> bool:
        """Whether 64 frames are as it says, and every CRC was checked where that is asked for."""
        if (self.check and not index.verified) or (index.broken and not self.tolerant):
            return False
        if not is_remote(index.path):
            with _opened(index.path) as file:
                return agrees(index, mapped(file.fileno(), os.fstat(file.fileno()).st_size))
        if index.mtime_ns:  # the store tells one version from another
            return True
        count = len(index.crcs)
        if index.broken:
            count -= 1
            begin = int(index.edges[count])
            end = min(begin + BEGINNING, index.size)
            if kernels.masked_crc32c(opening.remote.read(index.seen, begin, end)) != index.crcs[-1]:
                return False
        spread = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
        starts, stops = index.edges[spread], index.edges[spread + 1]
        begins = np.concatenate([starts, stops - FOOTER.size])
        ends = np.concatenate([starts + HEADER.size, stops])
        spans, which = coalesced(begins, ends)
        read = opening.remote.read_all([(index.seen, *span) for span in spans])
        lengths = (stops - starts - kernels.FRAME).tolist()
        expected = [kernels.header(length) for length in lengths]
        expected += [FOOTER.pack(crc) for crc in index.crcs[spread].tolist()]
        return all(
            read[span][begin - spans[span][0] : end - spans[span][0]] == what
            for span, begin, end, what in zip(
                which.tolist(), begins.tolist(), ends.tolist(), expected, strict=True
            )
        )


def load_or_build(
    paths: Sequence[str], *, where: str | None = None, verify: Verify = "always"
) -> Index:
    """The index of uncompressed TFRecord files, in the order of `paths`.

    Indexes that fit are read; the others are built and kept, where `Shelf` says (`where` is what `index=`
    names). With `verify` "always" or "index" the CRC of every record has been checked, now or when the index
    was built.

    Raises `MissingSource` for a file that is not there, `CorruptRecord` for one that is damaged
    (with `file`, `offset` in bytes, `record` and `reason`), `SourceChanged` for one that is written
    meanwhile, and `SourceError` for one that cannot be reached.
    """
    opening = Opening()
    shelf = Shelf(Records(verify in CHECKED), opening, where)
    return Index.of(shelf.load_or_build(opening.look(paths)))


def build(
    path: str,
    check: bool = True,
    advance: Advance = lambda count: None,
    opening: Opening | None = None,
    tolerant: bool = False,
) -> FileIndex:
    """Scan one file; `advance` hears of every stretch of bytes that is done.

    Raises `MissingSource`, `CorruptRecord`, `SourceChanged`; where `tolerant`, a broken frame ends the scan
    and what lies behind it is one record.
    """
    if is_remote(path):
        return _streamed(path, check, advance, opening or Opening(), tolerant)
    with _opened(path) as file:
        before = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), before.st_size)
        seen = Seen(path, before.st_size, before.st_mtime_ns)
        parts: list[Part] = []
        position = records = 0
        while position < before.st_size:
            scan = kernels.scan(buffer, position, check, position + _STRIDE)
            parts.append((scan.offsets, scan.lengths, scan.crcs))
            damage = scan.damage
            if damage is not None:
                if not tolerant or damage.reason == "data":
                    raise corrupt(path, damage.offset, records + damage.record, damage.reason)
                beginning = buffer[damage.offset : damage.offset + BEGINNING]
                parts.append(broken_part(seen, damage.offset, beginning))
                advance(before.st_size - position)
                break
            advance(scan.end - position)
            position, records = scan.end, records + len(scan.offsets)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path, "while it was indexed")
    return index_of(seen, check, parts)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        yield file


def _streamed(
    path: str, check: bool, advance: Advance, opening: Opening, tolerant: bool
) -> FileIndex:
    (seen,) = opening.look([path])

    def blocks() -> Iterator[bytes]:
        for block in opening.blocks(seen):
            yield block
            advance(len(block))

    parts: list[Part] = []
    records = 0
    for stretch in stretches(blocks(), check):
        parts.append((stretch.offsets + stretch.base, stretch.lengths, stretch.crcs))
        records += len(stretch)
        if stretch.damage is not None:
            where = stretch.base + stretch.damage.offset
            if not tolerant or stretch.damage.reason == "data":
                raise corrupt(path, where, records, stretch.damage.reason)
            end = min(where + BEGINNING, seen.size)
            parts.append(broken_part(seen, where, opening.remote.read(seen, where, end)))
    opening.remote.require_same(seen, "while it was indexed")
    return index_of(seen, check, parts)
