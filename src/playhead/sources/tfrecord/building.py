"""Finding indexes of TFRecord files where they are kept, and building those that are not there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from playhead import kernels
from playhead.kernels import FOOTER, HEADER
from playhead.sources.files import keeping
from playhead.sources.files.keeping import changed, mapped
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import coalesced
from playhead.sources.tfrecord.framing import stretches
from playhead.sources.tfrecord.index import (
    SAMPLE,
    FileIndex,
    Index,
    Verify,
    agrees,
    corrupt,
    decode,
    encode,
    index_of,
)

Advance: TypeAlias = Callable[[int], None]

CHECKED: tuple[Verify, ...] = ("always", "index")

WORKERS = min(4, os.cpu_count() or 1)

_STRIDE = 64 << 20
_LONG = 1 << 30
_KNOWN = 32 << 20


@dataclass(frozen=True)
class Shelf:
    """Where the indexes of a set are kept: `where` (a directory or a URL) if given, else beside the
    data, else in the local cache.
    """

    opening: Opening
    where: str | None = None

    def load(self, files: Sequence[Seen], check: bool) -> dict[str, FileIndex]:
        """The indexes that fit, by path; with `check` those by which every record's CRC was checked."""
        far = [seen for seen in dict.fromkeys(files) if is_remote(seen.path)]
        found = [self._load(seen, check) for seen in dict.fromkeys(files) if seen not in far]
        if far:
            with ThreadPoolExecutor(16, "playhead-index") as pool:
                found += pool.map(lambda seen: self._load(seen, check), far)
        return {index.path: index for index in found if index is not None}

    def add(self, seen: Seen, check: bool, advance: Advance) -> FileIndex:
        """Build the index of a file, and keep it as soon as it is there."""
        index = build(seen.path, check, advance, self.opening)
        self.keep(index)
        return index

    def keep(self, index: FileIndex) -> None:
        """Keep an index in the first place that can be written."""
        blob = encode(index)
        for place in self._places(index.path):
            if isinstance(place, Path):
                if keeping.store([place], blob) is not None:
                    return
            else:
                try:
                    self.opening.remote.put(place, blob)
                except OSError:
                    continue
                return

    def _places(self, path: str) -> list[Path | str]:
        """Files and URLs, the preferred one first."""
        where = self.where
        if not is_remote(path) and (where is None or not is_remote(where)):
            return [*keeping.places(path, where)]
        if is_remote(path):
            directory, _, name = path.partition("?")[0].rpartition("/")
            beside: Path | str = f"{directory}/{keeping.DIRECTORY}/{name}.index"
            elsewhere, last = keeping.named_for(path), keeping.cached(path)
        else:
            beside, last = keeping.places(path, None)
            elsewhere = last.name
        if where is None:
            return [beside, last]
        named: Path | str = Path(where) / elsewhere
        if is_remote(where):
            named = f"{where.rstrip('/')}/{elsewhere}"
        return [named, beside, last]

    def _load(self, seen: Seen, check: bool) -> FileIndex | None:
        # What lies near is asked first: whichever fits is as good.
        for place in sorted(self._places(seen.path), key=lambda place: isinstance(place, str)):
            index = self._read(place, seen.path)
            if (
                index is not None
                and index.seen == seen
                and (index.verified or not check)
                and self._agrees(index)
            ):
                return index
        return None

    def _read(self, place: Path | str, path: str) -> FileIndex | None:
        if isinstance(place, str):
            blob = self.opening.remote.get(place)
        else:
            try:
                blob = place.read_bytes()
            except OSError:
                return None
        return None if blob is None else decode(blob, path)

    def _agrees(self, index: FileIndex) -> bool:
        if not is_remote(index.path):
            with open(index.path, "rb") as file:
                return agrees(index, mapped(file.fileno(), os.fstat(file.fileno()).st_size))
        if index.mtime_ns:  # the store tells one version from another
            return True
        count = len(index.crcs)
        spread = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
        starts, stops = index.edges[spread], index.edges[spread + 1]
        begins = np.concatenate([starts, stops - FOOTER.size])
        ends = np.concatenate([starts + HEADER.size, stops])
        spans, which = coalesced(begins, ends)
        read = self.opening.remote.read_all([(index.seen, *span) for span in spans])
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

    Indexes that fit are read; the others are built, with a progress bar where that takes long and
    someone is watching, and kept in `where` if given, else beside the data, else in the local
    cache. With `verify` "always" or "index" the CRC of every record has been checked, now or when
    the index was built.

    Raises `MissingSource` for a file that is not there, `CorruptRecord` for one that is damaged
    (with `file`, `offset` in bytes, `record` and `reason`), `SourceChanged` for one that is written
    meanwhile, and `SourceError` for one that cannot be reached.
    """
    opening = Opening()
    shelf, files = Shelf(opening, where), opening.look(paths)
    check = verify in CHECKED
    return complete(shelf, files, shelf.load(files, check), check)


def complete(
    shelf: Shelf, files: Sequence[Seen], found: dict[str, FileIndex], check: bool
) -> Index:
    """The index of `files`, of which some are `found` and the others are built and kept."""
    missing = [seen for seen in dict.fromkeys(files) if seen.path not in found]
    total = sum(seen.size for seen in missing)
    with keeping.progress("indexing TFRecords", total) as shown:
        advance = _said_once(total, len(missing), shown)
        for index in built(shelf, missing, check, advance):
            found[index.path] = index
    return Index.of([found[seen.path] for seen in files])


def built(
    shelf: Shelf,
    files: Sequence[Seen],
    check: bool,
    advance: Advance = lambda count: None,
    workers: int = WORKERS,
) -> Iterator[FileIndex]:
    """Build the index of each file, several at once, and keep each as soon as it is there."""

    def one(seen: Seen) -> FileIndex:
        return shelf.add(seen, check, advance)

    if len(files) < 2 or workers < 2:
        yield from map(one, files)
        return
    with ThreadPoolExecutor(min(workers, len(files)), "playhead-index") as pool:
        futures = [pool.submit(one, seen) for seen in files]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def build(
    path: str,
    check: bool = True,
    advance: Advance = lambda count: None,
    opening: Opening | None = None,
) -> FileIndex:
    """Scan one file; `advance` hears of every stretch of bytes that is done."""
    if is_remote(path):
        return _streamed(path, check, advance, opening or Opening())
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), before.st_size)
        scans: list[kernels.Scan] = []
        position = records = 0
        while position < before.st_size:
            scans.append(kernels.scan(buffer, position, check, position + _STRIDE))
            damage = scans[-1].damage
            if damage is not None:
                raise corrupt(path, damage.offset, records + damage.record, damage.reason)
            advance(scans[-1].end - position)
            position, records = scans[-1].end, records + len(scans[-1].offsets)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path, "while it was indexed")
    seen = Seen(path, before.st_size, before.st_mtime_ns)
    parts = [(scan.offsets, scan.lengths, scan.crcs) for scan in scans]
    return index_of(seen, check, parts)


def _streamed(path: str, check: bool, advance: Advance, opening: Opening) -> FileIndex:
    (seen,) = opening.look([path])

    def blocks() -> Iterator[bytes]:
        for block in opening.blocks(seen):
            yield block
            advance(len(block))

    parts = []
    records = 0
    for stretch in stretches(blocks(), check):
        parts.append((stretch.offsets + stretch.base, stretch.lengths, stretch.crcs))
        records += len(stretch)
        if stretch.damage is not None:
            where = stretch.base + stretch.damage.offset
            raise corrupt(path, where, records, stretch.damage.reason)
    opening.remote.require_same(seen, "while it was indexed")
    return index_of(seen, check, parts)


def _said_once(total: int, files: int, advance: Advance) -> Advance:
    """Says on stderr what a long scan will take, once that is known."""
    if total < _LONG or sys.stderr is None:
        return advance
    began = time.monotonic()
    done, said = 0, False

    def heard(count: int) -> None:
        nonlocal done, said
        done += count
        if not said and done >= _KNOWN:
            said = True
            seconds = (time.monotonic() - began) / done * (total - done)
            which = "1 file" if files == 1 else f"{files} files"
            print(
                f"playhead: indexing {total / 1e9:.1f} GB of TFRecords in {which}, once: "
                f"about {_duration(seconds)}",
                file=sys.stderr,
            )
        advance(count)

    return heard


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
