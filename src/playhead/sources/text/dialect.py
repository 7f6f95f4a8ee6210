"""How rows of CSV files are written, and where each begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.errors import CorruptRecord
from playhead.sources.files.keeping import Mapped
from playhead.sources.text.offsets import Advance, Integers

BOM = b"\xef\xbb\xbf"
_STRIDE = 16 << 20


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

    def __call__(self, buffer: Mapped, path: str, advance: Advance) -> Integers:
        """Raises `CorruptRecord` for quotes that stand elsewhere."""
        text: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(buffer, np.uint8)
        parts = [np.zeros(min(1, len(text)), np.int64)]
        quotes, last = 0, 0
        for start in range(0, len(text), _STRIDE):
            piece = text[start : start + _STRIDE]
            ends = np.flatnonzero((piece == 10) | (piece == 13)) + start
            if self.dialect.quote is not None:
                found = np.flatnonzero(piece == ord(self.dialect.quote)) + start
                self._require_plain(text, found, quotes, path)
                inside = (quotes + np.searchsorted(found, ends)) % 2
                ends = ends[inside == 0]
                quotes, last = quotes + len(found), int(found[-1]) if len(found) else last
            after = text[np.minimum(ends + 1, len(text) - 1)]
            twofold = (text[ends] == 13) & (after == 10) & (ends + 1 < len(text))
            parts.append(ends[~twofold] + 1)
            advance(len(piece))
        if quotes % 2:
            raise _misquoted(path, last, "the quote that opens here is never closed")
        edges = np.concatenate(parts).astype(np.int64, copy=False)
        whole = len(edges) > 0 and edges[-1] == len(text)
        return edges if whole else np.append(edges, np.int64(len(text)))

    def _require_plain(
        self, text: np.ndarray[Any, Any], found: Integers, before: int, path: str
    ) -> None:
        """Raise where a quote neither opens nor closes a field nor is one of two."""
        assert self.dialect.quote is not None
        allowed = np.zeros(256, bool)
        allowed[[10, 13, ord(self.dialect.delimiter), ord(self.dialect.quote)]] = True
        closes = (before + np.arange(len(found))) % 2 == 1
        beside = np.where(closes, found + 1, found - 1)
        border = (beside < 0) | (beside == len(text))
        good = border | allowed[text[np.clip(beside, 0, len(text) - 1)]]
        good |= (found == len(BOM)) & (text[: len(BOM)].tobytes() == BOM)
        bad = np.flatnonzero(~good)
        if len(bad):
            what = "a quote stands inside a field that is not quoted, or before its end"
            raise _misquoted(path, int(found[bad[0]]), what)

    def blank(self, buffer: Mapped, edges: Integers) -> Integers:
        if len(edges) < 2:
            return np.empty(0, np.int64)
        first = np.frombuffer(buffer, np.uint8)[edges[:-1]]
        return np.flatnonzero((first == 10) | (first == 13)).astype(np.int64, copy=False)


def _misquoted(path: str, offset: int, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}, byte {offset}: {what}, so that rows cannot be told apart",
        help="quote the field and double the quotes in it; quote_char=None reads files in which quotes mean "
        "nothing",
        file=path,
        offset=offset,
    )
