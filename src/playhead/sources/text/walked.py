"""Lines of compressed text files, which can only be read from their beginning."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, ClassVar, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord, PlayheadError
from playhead.plan.block import Nest, Rows
from playhead.plan.compute import Chunk, Compute
from playhead.plan.losses import Lost, Part
from playhead.plan.places import Cursor, Places, Record
from playhead.sources.files.keeping import changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.unpacking import Broken, Packing, Unpacked, packed
from playhead.sources.files.walked import WalkedFiles
from playhead.sources.text.decoding import AsJson, AsText, Line, Undecodable

# file, line, byte in the decompressed file, lines delivered in this pass
State: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class WalkedLines(WalkedFiles):
    """The lines of several files of which some are compressed: a stream.

    The cursor is a file, a line in it, the byte where that begins once it is decompressed, and how
    many elements came before in this pass. Going on there decompresses the file up to it.
    """

    op: ClassVar[str] = "lines"
    counters: ClassVar[tuple[str, ...]] = ("file", "line", "byte", "index")
    elements: ClassVar[str] = "compressed lines"

    decoder: AsText | AsJson
    skip_blank: bool

    def static_spec(self) -> Nest | None:
        return self.decoder.spec()

    def describe(self) -> dict[str, Any]:
        said = {**super().describe(), **self.decoder.said()}
        return {**said, "skip_blank": True} if self.skip_blank else said

    def endure(self, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
        """The lines; the rest of a file that is damaged is lost as one."""
        epoch = cursor["epoch"]
        last: State = (cursor["file"], cursor["line"], cursor["byte"], cursor["index"])
        pace = compute.pace(self)
        rows: list[Any] = []
        states, begun = [last], [last]
        began = time.perf_counter()
        with contextlib.closing(self._raw(cursor)) as lines:
            try:
                for begin, state, raw in lines:
                    error: PlayheadError | None = None
                    if isinstance(raw, CorruptRecord):
                        error = raw
                    else:
                        try:
                            rows.append(self.decoder.element(raw))
                            begun.append(begin)
                            states.append(state)
                        except Undecodable as wrong:
                            error = wrong.at(Line(self.path(begin[0]), begin[1], begin[2]))
                    seconds = time.perf_counter() - began
                    if error is None and len(rows) < pace.size and seconds <= pace.seconds:
                        continue
                    if rows:
                        pace.report(len(rows), seconds)
                        yield self._chunk(epoch, rows, states, begun)
                    rows, states, begun = [], [state], [state]
                    began = time.perf_counter()
                    if error is not None:
                        yield Lost(error, _cursor(epoch, states, 0), [self._record(epoch, begin)])
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
        return [self._record(epoch, begun[j + 1])]

    def _record(self, epoch: int, begin: State) -> Record:
        file, line, _, index = begin
        return self.place(epoch, file, line, index)

    def _raw(
        self, cursor: Cursor
    ) -> Generator[tuple[State, State, bytes | CorruptRecord], None, None]:
        """The lines from a cursor on, each with where it begins, and where the stream stands behind it.

        In the place of what is damaged, to its file's end, stands the error.
        """
        line, byte, index = cursor["line"], cursor["byte"], cursor["index"]
        for number in range(cursor["file"], len(self.files)):
            try:
                with self._opened(number, byte) as file:
                    for raw in file:
                        begin = number, line, byte, index
                        line, byte = line + 1, byte + len(raw)
                        if self.skip_blank and not raw.strip():
                            continue
                        index += 1
                        yield begin, (number, line, byte, index), raw
            except Broken as error:
                self.require_unchanged(number)
                path = self.path(number)
                damage = CorruptRecord(
                    f"{path}, line {line + 1} at byte {byte} once decompressed: {error}",
                    help="the file is damaged or was cut short: compare it with its original, and "
                    "copy or write it again",
                    file=path,
                    line=line + 1,
                    record=line,
                    offset=byte,
                )
                damage.__cause__ = error
                begin = number, line, byte, index
                index += 1
                yield begin, (number + 1, 0, 0, index), damage
            line = byte = 0

    @contextlib.contextmanager
    def _opened(self, number: int, byte: int) -> Iterator[BinaryIO]:
        """A file, decompressed, from a byte on at which a line begins."""
        before = max(0, byte - 1)
        start = before if self.files[number].packing is None else 0
        blocks = self.blocks(number, f"{byte} bytes" if byte else None, start)
        with io.BufferedReader(Unpacked(blocks), 1 << 20) as file:
            left = before - start
            while left:
                left -= (skipped := len(file.read(min(left, 1 << 20))))
                if not skipped:
                    raise changed(self.path(number), "since the position was saved")
            if byte:
                end = file.read(1)
                if not end or (end != b"\n" and file.peek(1)):
                    raise changed(self.path(number), "since the position was saved")
            yield file


class WalkedJson(WalkedLines):
    """The JSON values in the lines of several files of which some are compressed: a stream."""

    op: ClassVar[str] = "json_lines"


def walked_lines(
    files: Sequence[Seen],
    kinds: Sequence[Packing | None],
    opening: Opening,
    decoder: AsText | AsJson,
    skip_blank: bool,
) -> WalkedLines:
    """The lines of files that are there."""
    kind = WalkedJson if isinstance(decoder, AsJson) else WalkedLines
    return kind(packed(files, kinds, opening), opening, decoder, skip_blank)


def _cursor(epoch: int, states: list[State], j: int) -> Cursor:
    file, line, byte, index = states[j]
    return {"epoch": epoch, "file": file, "line": line, "byte": byte, "index": index}
