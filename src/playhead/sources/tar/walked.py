"""Samples of compressed tar files, which can only be read from their beginning."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, ClassVar, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord, UnparsableRecord
from playhead.plan.block import Rows
from playhead.plan.compute import Chunk, Compute
from playhead.plan.losses import Lost, Part
from playhead.plan.node import UNKNOWN
from playhead.plan.places import Cursor, Places, Record
from playhead.sources.files.keeping import changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.unpacking import Broken, Packing, Unpacked, packed
from playhead.sources.files.walked import WalkedFiles
from playhead.sources.tar.extensions import ByExtension
from playhead.sources.tar.index import require_whole
from playhead.sources.tar.members import Member, Readable, cut, members, split
from playhead.sources.tar.sample import as_sample

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


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a file that is damaged or cut short, in the place of its sample `number`."""

    file: int
    number: int
    index: int
    error: CorruptRecord

    @property
    def behind(self) -> State:
        return self.file + 1, 0, self.index + 1


@dataclass(frozen=True, eq=False)
class WalkedTar(WalkedFiles):
    """The samples of several tar files of which some are compressed: a stream.

    The cursor is a file, how many samples were taken of it, and how many in this pass. Going on there
    decompresses the file up to the next one.
    """

    op: ClassVar[str] = "tar"
    counters: ClassVar[tuple[str, ...]] = ("file", "sample", "index")
    elements: ClassVar[str] = "samples of compressed tar files"

    decoding: ByExtension

    @property
    def cardinality(self) -> int:
        return UNKNOWN  # a file of no bytes is a damaged archive

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.decoding.said()}

    def endure(self, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
        """The samples; the rest of a file that is damaged is lost as one.

        What comes before the damage is decided by the file's bytes alone.
        """
        epoch = cursor["epoch"]
        states: list[State] = [(cursor["file"], cursor["sample"], cursor["index"])]
        pace = compute.pace(self)
        rows: list[Any] = []
        began = time.perf_counter()
        with contextlib.closing(self._raw(cursor)) as found:
            try:
                for taken in found:
                    path = self.path(taken.file)
                    error: CorruptRecord | UnparsableRecord | None = None
                    try:
                        if isinstance(taken, Rest):
                            raise taken.error
                        rows.append(
                            as_sample(
                                taken.members, taken.bytes_of, self.decoding, path, taken.number
                            )
                        )
                        states.append(taken.behind)
                    except (CorruptRecord, UnparsableRecord) as raised:
                        error = raised
                    seconds = time.perf_counter() - began
                    if error is None and len(rows) < pace.size and seconds <= pace.seconds:
                        continue
                    if rows:
                        pace.report(len(rows), seconds)
                        yield self._chunk(epoch, rows, states)
                    rows, states, began = [], [taken.behind], time.perf_counter()
                    if error is not None:
                        record = self.place(epoch, taken.file, taken.number, taken.index)
                        yield Lost(error, _cursor(epoch, states, 0), [record])
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
        return [self.place(epoch, file, after - 1, index - 1)]

    def _raw(self, cursor: Cursor) -> Generator[Taken | Rest, None, None]:
        """The samples from a cursor on."""
        number, index = cursor["sample"], cursor["index"]
        before: tuple[str, frozenset[str], str] | None = None
        for file in range(cursor["file"], len(self.files)):
            path = self.path(file)
            broken: CorruptRecord | None = None
            try:
                with self._opened(file, number) as raw:
                    for found in _within(_samples(raw, path, number)):
                        key, extensions = _group(found.members)
                        if before is not None:
                            require_whole(before[:2], (key, extensions), before[2], path)
                        before = key, extensions, path
                        yield Taken(file, number, index, found.members, found.data)
                        number, index = number + 1, index + 1
            except _Damaged as damaged:
                broken = damaged.error
            except Broken as error:
                broken = CorruptRecord(
                    f"{path}, sample {number}: {error}",
                    help="the file is damaged or was cut short: compare it with its original, and "
                    "copy or write it again",
                    file=path,
                    record=number,
                )
                broken.__cause__ = error
            if broken is not None:
                self.require_unchanged(file)
                yield Rest(file, number, index, broken)
                index, before = index + 1, None
            number = 0

    @contextlib.contextmanager
    def _opened(self, file: int, number: int) -> Iterator[Readable]:
        blocks = self.blocks(file, f"{number} samples" if number else None)
        with io.BufferedReader(Unpacked(blocks), 1 << 18) as buffered:
            yield Forwards(buffered)


class _Damaged(Exception):
    """What is wrong with a file itself, told from what is wrong between two."""

    def __init__(self, error: CorruptRecord) -> None:
        super().__init__(str(error))
        self.error = error


class Forwards:
    """A file that is read from its beginning; where one seeks forwards in it, what lies between is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._at += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """Raises `io.UnsupportedOperation` for what was passed already."""
        if offset < self._at:
            raise io.UnsupportedOperation(f"byte {offset} was passed")
        while self._at < offset and self.read(min(offset - self._at, 1 << 20)):
            pass
        return self._at


@dataclass(frozen=True, slots=True)
class _Sample:
    members: list[Member]
    data: dict[int, bytes]


def _within(samples: Iterator[_Sample]) -> Iterator[_Sample]:
    """The samples; damage of their file is told from what is wrong between two files."""
    try:
        yield from samples
    except CorruptRecord as error:
        raise _Damaged(error) from error


def _samples(file: Readable, path: str, skip: int) -> Iterator[_Sample]:
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


def walked_tar(
    files: Sequence[Seen],
    kinds: Sequence[Packing | None],
    opening: Opening,
    decoding: ByExtension,
) -> WalkedTar:
    """The samples of files that are there. Raises `MissingSource` for one that cannot be read."""
    return WalkedTar(packed(files, kinds, opening), opening, decoding)


def _cursor(epoch: int, states: list[State], j: int) -> Cursor:
    file, sample, index = states[j]
    return {"epoch": epoch, "file": file, "sample": sample, "index": index}
