"""How rows of CSV files are written, and where each begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.errors import CorruptRecord
from playhead.sources.text.cuts import Cutting, Integers

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How rows are written; `quote` is None where none of the characters is special."""

    delimiter: str
    quote: str | None
    encoding: str


@dataclass(frozen=True)
class Rows:
    """A record is a row with its line end: \\n, \\r\\n or \\r outside of quotes.

    That is exact for files in which a quote opens a field at its very beginning, closes it at its very end
    and is doubled inside, as RFC 4180 has it. Anything else is refused.
    """

    dialect: Dialect
    kind: str = "rows"

    @property
    def name(self) -> str:
        return f"rows {self.dialect.delimiter!r} {self.dialect.quote!r}"

    def begin(self, path: str) -> Cutting:
        """Its cutting raises `CorruptRecord` for quotes that stand elsewhere."""
        return _RowCutting(self.dialect, path)


class _RowCutting:
    """What a byte means depends on the one before and the one behind it, so the last always waits."""

    def __init__(self, dialect: Dialect, path: str) -> None:
        self._dialect, self._path = dialect, path
        # What is held begins at byte `_base` of the file; its first `_seen` bytes, one or none, are done.
        self._held, self._base, self._seen = b"", 0, 0
        self._head = b""
        self._begins = [np.empty(0, np.int64)]
        self._blank = [np.empty(0, np.int64)]
        self._number = 0  # of the row that is not ended
        self._quotes, self._last = 0, 0

    def feed(self, block: bytes) -> None:
        self._head += block[: len(BOM) - len(self._head)]
        self._look(self._held + block, final=False)

    def found(self) -> tuple[Integers, Integers]:
        return np.concatenate(self._begins), np.concatenate(self._blank)

    def finish(self) -> tuple[Integers, Integers]:
        self._look(self._held, final=True)
        if self._quotes % 2:
            what = "the quote that opens here is never closed"
            raise _misquoted(self._path, self._last, what)
        edges, blank = self.found()
        size = self._base + len(self._held)
        whole = len(edges) > 0 and edges[-1] == size
        return edges if whole else np.append(edges, np.int64(size)), blank

    def _look(self, held: bytes, final: bool) -> None:
        text = np.frombuffer(held, np.uint8)
        stop = len(text) if final else len(text) - 1
        if stop <= self._seen:
            self._held = held
            return
        if self._base + self._seen == 0:
            self._note(text, np.zeros(1, np.int64), 0)
        piece = text[self._seen : stop]
        ends = np.flatnonzero((piece == 10) | (piece == 13)) + self._seen
        if self._dialect.quote is not None:
            quotes = np.flatnonzero(piece == ord(self._dialect.quote)) + self._seen
            self._require_plain(text, quotes)
            inside = (self._quotes + np.searchsorted(quotes, ends)) % 2
            ends = ends[inside == 0]
            self._quotes += len(quotes)
            self._last = self._base + int(quotes[-1]) if len(quotes) else self._last
        behind = text[np.minimum(ends + 1, len(text) - 1)]
        twofold = (text[ends] == 13) & (behind == 10) & (ends + 1 < len(text))
        begins = ends[~twofold] + 1
        self._note(text, begins, self._number + 1)
        self._number += len(begins)
        self._held, self._base, self._seen = held[stop - 1 :], self._base + stop - 1, 1

    def _note(self, text: np.ndarray[Any, Any], begins: Integers, number: int) -> None:
        """Rows begin at these bytes of `text`, the first of them being row `number`."""
        self._begins.append((begins + self._base).astype(np.int64, copy=False))
        first = text[begins[begins < len(text)]]
        blank = np.flatnonzero((first == 10) | (first == 13)) + number
        self._blank.append(blank.astype(np.int64, copy=False))

    def _require_plain(self, text: np.ndarray[Any, Any], quotes: Integers) -> None:
        """Raise where a quote neither opens nor closes a field nor is one of two."""
        assert self._dialect.quote is not None
        allowed = np.zeros(256, bool)
        allowed[[10, 13, ord(self._dialect.delimiter), ord(self._dialect.quote)]] = True
        closes = (self._quotes + np.arange(len(quotes))) % 2 == 1
        beside = np.where(closes, quotes + 1, quotes - 1)
        border = (beside < 0) | (beside == len(text))
        good = border | allowed[text[np.clip(beside, 0, len(text) - 1)]]
        good |= (quotes + self._base == len(BOM)) & (self._head == BOM)
        bad = np.flatnonzero(~good)
        if len(bad):
            what = "a quote stands inside a field that is not quoted, or before its end"
            raise _misquoted(self._path, self._base + int(quotes[bad[0]]), what)


def _misquoted(path: str, offset: int, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}, byte {offset}: {what}, so that rows cannot be told apart",
        help="quote the field and double the quotes in it; quote_char=None reads files in which quotes mean "
        "nothing",
        file=path,
        offset=offset,
    )
