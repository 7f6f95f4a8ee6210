"""Samples of compressed tar files, which can only be read from their beginning."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, BinaryIO, ClassVar, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord, PipelineError, PlayheadError, SlowResume, warn
from playhead.plan.block import Block, Rows
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, has_counts
from playhead.sources.files.keeping import changed, require_file, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.tar.extensions import ByExtension
from playhead.sources.tar.index import require_whole
from playhead.sources.tar.members import Member, cut, members, split
from playhead.sources.tar.sample import as_sample
from playhead.sources.text.walked import BROKEN, OPENERS, compression, sample_at

# file, samples taken of it, samples taken in this pass
State: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample's members and their bytes; its place is (`file`, `number`), and `index` in the pass."""

    file: int
    number: int
    index: int
    members: list[Member]
    data: dict[int, bytes]  # by a member's offset

    def bytes_of(self, member: Member) -> bytes:
        return self.data[member.offset]

    @property
    def behind(self) -> State:
        return self.file, self.number + 1, self.index + 1


@dataclass(frozen=True, eq=False)
class WalkedTar(Source):
    """The samples of several tar files of which some are compressed: a stream.

    The cursor is a file, how many samples were taken of it, and how many in this pass. Going on there
    decompresses the file up to the next one.
    """

    op: ClassVar[str] = "tar"
    counters: ClassVar[tuple[str, ...]] = ("file", "sample", "index")

    files: tuple[Seen, ...]
    samples: tuple[bytes, ...]
    decoding: ByExtension
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return UNKNOWN

    @cached_property
    def seekable(self) -> bool:
        return False

    def gather(self, index: Index) -> Block:
        raise PipelineError("samples of compressed tar files cannot be jumped to")

    def describe(self) -> dict[str, Any]:
        """A digest of the files' sizes and of their first and last bytes."""
        content = hashlib.blake2b(b"".join(self.samples), digest_size=16).hexdigest()
        return {"op": self.op, "content": content, "kind": "sampled", **self.decoding.said()}

    def start_stream(self, epoch: int) -> Cursor:
        return _cursor(epoch, [(0, 0, 0)], 0)

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counted = has_counts(cursor, self.counters) and cursor.get("epoch") == epoch
        return counted and cursor["file"] < len(self.files)

    def behind(self, cursor: Cursor) -> Cursor | None:
        """Past the next sample, whatever it holds; None where its file cannot be read."""
        with contextlib.suppress(PlayheadError):
            for taken in self._raw(cursor):
                return _cursor(cursor["epoch"], [taken.behind], 0)
        return None

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch = cursor["epoch"]
        states: list[State] = [(cursor["file"], cursor["sample"], cursor["index"])]
        pace = compute.pace(self)
        rows: list[Any] = []
        began = time.perf_counter()
        with contextlib.closing(self._raw(cursor)) as found:
            try:
                for taken in found:
                    path = self.files[taken.file].path
                    rows.append(
                        as_sample(taken.members, taken.bytes_of, self.decoding, path, taken.number)
                    )
                    states.append(taken.behind)
                    seconds = time.perf_counter() - began
                    if len(rows) >= pace.size or seconds > pace.seconds:
                        pace.report(len(rows), seconds)
                        yield self._chunk(epoch, rows, states)
                        rows, states, began = [], [taken.behind], time.perf_counter()
            except Exception:
                if rows:
                    yield self._chunk(epoch, rows, states)
                raise
            if rows:
                yield self._chunk(epoch, rows, states)

    def _chunk(self, epoch: int, rows: list[Any], states: list[State]) -> Chunk:
        first = states[0][2]
        places = np.arange(first, first + len(rows), dtype=np.int64)
        return Chunk(
            Rows(rows),
            Places(epoch, places),
            partial(_cursor, epoch, states),
            partial(self._records, epoch, states),
        )

    def _records(self, epoch: int, states: list[State], j: int) -> list[Record]:
        file, after, index = states[j + 1]
        path = self.files[file].path
        return [Record(self.info.name or self.op, epoch, index - 1, path, after - 1)]

    def _raw(self, cursor: Cursor) -> Generator[Taken, None, None]:
        """The samples from a cursor on."""
        number, index = cursor["sample"], cursor["index"]
        before: tuple[str, frozenset[str], str] | None = None
        for file in range(cursor["file"], len(self.files)):
            path = self.files[file].path
            try:
                with self._opened(file, number) as raw:
                    for found in _samples(raw, path, number):
                        key, extensions = _group(found.members)
                        if before is not None:
                            require_whole(before[:2], (key, extensions), before[2], path)
                        before = key, extensions, path
                        yield Taken(file, number, index, found.members, found.data)
                        number, index = number + 1, index + 1
            except BROKEN as error:
                if isinstance(error, PlayheadError):
                    raise
                raise CorruptRecord(
                    f"{path}, sample {number}: {error}",
                    help="the file is damaged or was cut short: compare it with its original, and "
                    "copy or write it again",
                    file=path,
                    record=number,
                ) from error
            number = 0

    @contextlib.contextmanager
    def _opened(self, file: int, number: int) -> Iterator[BinaryIO]:
        seen = self.files[file]
        require_file(seen.path, "tar file", "*.tar")
        try:
            status = os.stat(seen.path)
            same = (status.st_size, status.st_mtime_ns) == (seen.size, seen.mtime_ns)
            if not same and sample_at(seen.path) != self.samples[file]:
                raise changed(seen.path, "since the dataset was made")
            kind = compression(seen.path)
            opened = (open if kind is None else OPENERS[kind])(seen.path, "rb")
        except PlayheadError:
            raise
        except OSError as error:
            raise unreadable(seen.path, error) from error
        if number and kind is not None:
            warn(
                f"resuming in {seen.path} decompresses {number} samples again; files that are not "
                "compressed are resumed at once",
                SlowResume,
            )
        with opened as raw, io.BufferedReader(_AsItComes(raw), 1 << 18) as buffered:
            yield buffered


class _AsItComes(io.RawIOBase):
    """A decompressed file that hands out what it has before it says that the rest is missing."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@dataclass(frozen=True, slots=True)
class _Sample:
    members: list[Member]
    data: dict[int, bytes]


def _samples(file: BinaryIO, path: str, skip: int) -> Iterator[_Sample]:
    """The samples of a tar file behind the first `skip`, whose bytes are passed over.

    Raises `SourceChanged` where there are fewer.
    """
    key: str | None = None
    number = -1
    current = _Sample([], {})
    for member in members(file, path):
        named = split(member.name)
        if named is None:
            continue
        if named[0] != key:
            if current.members:
                yield current
            key, number, current = named[0], number + 1, _Sample([], {})
        if number < skip:
            continue
        data = file.read(member.size)
        if len(data) < member.size:
            raise cut(path, member.name, member.offset)
        current.members.append(member)
        current.data[member.offset] = data
    if current.members:
        yield current
    elif number + 1 < skip:
        raise changed(path, "since the position was saved")


def _group(found: list[Member]) -> tuple[str, frozenset[str]]:
    parts = [part for member in found if (part := split(member.name))]
    return parts[0][0], frozenset(extension for _, extension in parts)


def walked_tar(paths: list[str], decoding: ByExtension) -> WalkedTar:
    """The samples of files that are there. Raises `MissingSource` for one that cannot be read."""
    seen: list[Seen] = []
    samples: list[bytes] = []
    for path in paths:
        try:
            status = os.stat(path)
            samples.append(sample_at(path))
        except OSError as error:
            raise unreadable(path, error) from error
        seen.append(Seen(path, status.st_size, status.st_mtime_ns))
    return WalkedTar(tuple(seen), tuple(samples), decoding)


def _cursor(epoch: int, states: list[State], j: int) -> Cursor:
    file, sample, index = states[j]
    return {"epoch": epoch, "file": file, "sample": sample, "index": index}
