"""Lines of compressed text files, which can only be read from their beginning."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import os
import time
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, BinaryIO, ClassVar, TypeAlias

import numpy as np

from playhead.errors import (
    CorruptRecord,
    PipelineError,
    PlayheadError,
    SlowResume,
    SourceError,
    warn,
)
from playhead.plan.block import Block, Nest, Rows
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, has_counts
from playhead.sources.files.keeping import changed, require_file
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.text.decoding import AsJson, AsText, Line, Undecodable

OPENERS: dict[str, Any] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}
_SUFFIXES = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}
_MAGIC = {b"\x1f\x8b\x08": "gzip", b"\xfd7zXZ\0": "xz"}
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)

# file, line, byte in the decompressed file, lines delivered in this pass
State: TypeAlias = tuple[int, int, int, int]


def compression(path: str) -> str | None:
    """How a file is compressed: "gzip", "bz2", "xz", or None. Raises `SourceError` for others."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in (".zst", ".zip", ".7z"):
        raise SourceError(
            f"{path} is compressed in a way that is not read",
            help="decompress it, or compress it with gzip, bz2 or xz",
            file=path,
        )
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    with open(path, "rb") as file:
        start = file.read(6)
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


@dataclass(frozen=True, eq=False)
class WalkedLines(Source):
    """The lines of several files of which some are compressed: a stream.

    The cursor is a file, a line in it, the byte where that begins once it is decompressed, and how
    many elements came before in this pass. Going on there decompresses the file up to it.
    """

    op: ClassVar[str] = "lines"
    counters: ClassVar[tuple[str, ...]] = ("file", "line", "byte", "index")

    files: tuple[Seen, ...]
    samples: tuple[bytes, ...]
    decoder: AsText | AsJson
    skip_blank: bool
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return 0 if not any(seen.size for seen in self.files) else UNKNOWN

    @cached_property
    def seekable(self) -> bool:
        return False

    def gather(self, index: Index) -> Block:
        raise PipelineError("compressed lines cannot be jumped to")

    def static_spec(self) -> Nest | None:
        return self.decoder.spec()

    def describe(self) -> dict[str, Any]:
        """A digest of the files' sizes and of their first and last bytes."""
        content = hashlib.blake2b(b"".join(self.samples), digest_size=16).hexdigest()
        said = {"op": self.op, "content": content, "kind": "sampled", **self.decoder.said()}
        return {**said, "skip_blank": True} if self.skip_blank else said

    def start_stream(self, epoch: int) -> Cursor:
        return _cursor(epoch, [(0, 0, 0, 0)], 0)

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counted = has_counts(cursor, self.counters) and cursor.get("epoch") == epoch
        return counted and cursor["file"] <= len(self.files)

    def behind(self, cursor: Cursor) -> Cursor | None:
        """Past the next line, whatever it holds; None where its file cannot be read."""
        try:
            for state, _ in self._raw(cursor):
                return _cursor(cursor["epoch"], [state], 0)
        except PlayheadError:
            pass
        return None

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch = cursor["epoch"]
        last: State = (cursor["file"], cursor["line"], cursor["byte"], cursor["index"])
        pace = compute.pace(self)
        rows: list[Any] = []
        states, begun = [last], [last]
        began = time.perf_counter()
        with contextlib.closing(self._raw(cursor)) as lines:
            try:
                for state, raw in lines:
                    begin = _line_before(state, raw)
                    try:
                        rows.append(self.decoder.element(raw))
                    except Undecodable as error:
                        file, number, offset, _ = begin
                        line = Line(self.files[file].path, number, offset)
                        raise error.at(line) from None
                    begun.append(begin)
                    states.append(state)
                    seconds = time.perf_counter() - began
                    if len(rows) >= pace.size or seconds > pace.seconds:
                        pace.report(len(rows), seconds)
                        yield self._chunk(epoch, rows, states, begun)
                        rows, states, begun = [], [state], [state]
                        began = time.perf_counter()
            except Exception:
                if rows:
                    yield self._chunk(epoch, rows, states, begun)
                raise
            if rows:
                yield self._chunk(epoch, rows, states, begun)

    def _chunk(self, epoch: int, rows: list[Any], states: list[State], begun: list[State]) -> Chunk:
        first = states[0][3]
        places = np.arange(first, first + len(rows), dtype=np.int64)
        return Chunk(
            Rows(rows),
            Places(epoch, places),
            partial(_cursor, epoch, states),
            partial(self._records, epoch, begun),
        )

    def _records(self, epoch: int, begun: list[State], j: int) -> list[Record]:
        file, line, _, index = begun[j + 1]
        return [Record(self.info.name or self.op, epoch, index, self.files[file].path, line)]

    def _raw(self, cursor: Cursor) -> Generator[tuple[State, bytes], None, None]:
        """The lines from a cursor on, each with where the stream stands behind it."""
        line, byte, index = cursor["line"], cursor["byte"], cursor["index"]
        for number in range(cursor["file"], len(self.files)):
            path = self.files[number].path
            try:
                with self._opened(number, byte) as file:
                    for raw in file:
                        line, byte = line + 1, byte + len(raw)
                        if self.skip_blank and not raw.strip():
                            continue
                        index += 1
                        yield (number, line, byte, index), raw
            except BROKEN as error:
                if isinstance(error, PlayheadError | FileNotFoundError | PermissionError):
                    raise
                raise CorruptRecord(
                    f"{path}, line {line + 1} at byte {byte} once decompressed: {error}",
                    help="the file is damaged or was cut short: compare it with its original, and "
                    "copy or write it again",
                    file=path,
                    line=line + 1,
                    record=line,
                    offset=byte,
                ) from error
            line = byte = 0

    @contextlib.contextmanager
    def _opened(self, number: int, byte: int) -> Iterator[BinaryIO]:
        seen = self.files[number]
        require_file(seen.path, "text file", "*.txt")
        status = os.stat(seen.path)
        if (status.st_size, status.st_mtime_ns) != (seen.size, seen.mtime_ns) and (
            sample_at(seen.path) != self.samples[number]
        ):
            raise changed(seen.path, "since the dataset was made")
        kind = compression(seen.path)
        opener = open if kind is None else OPENERS[kind]
        with opener(seen.path, "rb") as raw, io.BufferedReader(raw, 1 << 20) as file:
            if byte:
                if kind is not None:
                    warn(
                        f"resuming in {seen.path} decompresses {byte} bytes again; files that are not "
                        "compressed are resumed at once",
                        SlowResume,
                    )
                file.seek(byte - 1)
                before = file.read(1)
                if not before or (before != b"\n" and file.peek(1)):
                    raise changed(seen.path, "since the position was saved")
            yield file


class WalkedJson(WalkedLines):
    """The JSON values in the lines of several files of which some are compressed: a stream."""

    op: ClassVar[str] = "json_lines"


def walked_lines(paths: list[str], decoder: AsText | AsJson, skip_blank: bool) -> WalkedLines:
    """The lines of files that are there."""
    statuses = [os.stat(path) for path in paths]
    seen = tuple(
        Seen(path, status.st_size, status.st_mtime_ns)
        for path, status in zip(paths, statuses, strict=True)
    )
    kind = WalkedJson if isinstance(decoder, AsJson) else WalkedLines
    return kind(seen, tuple(sample_at(path) for path in paths), decoder, skip_blank)


def sample_at(path: str) -> bytes:
    status = os.stat(path)
    return Opening().sample(Seen(path, status.st_size, status.st_mtime_ns))


def _line_before(state: State, raw: bytes) -> State:
    """Where the line began that ends at `state`."""
    file, line, byte, index = state
    return file, line - 1, byte - len(raw), index - 1


def _cursor(epoch: int, states: list[State], j: int) -> Cursor:
    file, line, byte, index = states[j]
    return {"epoch": epoch, "file": file, "line": line, "byte": byte, "index": index}
