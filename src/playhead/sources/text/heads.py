"""The first rows of CSV files, read without an index."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from playhead.errors import CorruptRecord, PipelineError
from playhead.sources.files.keeping import changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.text.dialect import BOM, Dialect, Rows

# What is read of each file at once, in bytes.
START = 64 << 10
_ROWS = 1 << 14
_MOST = 64 << 20
_LOOKED_AT = 1 << 20  # bytes of rows by which types are told

Starts: TypeAlias = Mapping[str, bytes]


def rows(seen: Seen, start: bytes, cut: Rows, opening: Opening) -> Iterator[bytes]:
    """The rows of a file, of which `start` was read, from its beginning, without blank ones.

    Raises `CorruptRecord` for quotes that stand where none may, `SourceChanged` for a file of another size.
    """
    if len(start) > seen.size:
        raise changed(seen.path, "while its first rows were read")
    cutting, held, given = cut.begin(seen.path), start, 0
    cutting.feed(start)
    while True:
        whole = len(held) == seen.size
        edges, blank = cutting.finish() if whole else cutting.found()
        hollow = set(blank.tolist())
        for number in range(given, len(edges) - 1):
            if number not in hollow:
                yield held[edges[number] : edges[number + 1]]
        if whole or len(held) >= _MOST:
            break
        given = max(0, len(edges) - 1)
        more = opening.read(seen, len(held), min(seen.size, max(_LOOKED_AT + START, 2 * len(held))))
        if not more:
            raise changed(seen.path, "while its first rows were read")
        cutting.feed(more)
        held += more
    if not whole and len(edges) < 2:
        raise CorruptRecord(
            f"{seen.path}: no row ends in its first {len(held) >> 20} MiB",
            help="a quote that opens there may not be closed; quote_char=None reads files in which quotes mean "
            "nothing",
            file=seen.path,
            offset=0,
        )


def header(files: Sequence[Seen], starts: Starts, cut: Rows, opening: Opening) -> tuple[str, ...]:
    """The names in the first row of each file that has any. Raises `PipelineError` where they differ."""
    first: tuple[str, tuple[str, ...]] | None = None
    for seen in dict.fromkeys(files):
        row = next(rows(seen, starts[seen.path], cut, opening), None)
        if row is None:
            continue
        names = _names(seen, row, cut.dialect)
        if first is None:
            first = seen.path, names
        elif names != first[1]:
            raise PipelineError(
                f"{first[0]} has the columns {', '.join(first[1])}, and {seen.path} {', '.join(names)}",
                help="all files have the same header, in one order; column_names= names the columns where "
                "files have none",
                file=seen.path,
            )
    if first is None:
        raise PipelineError(
            "from_csv: the files are empty, and a first row with the columns' names was expected",
            help="column_names= names the columns of files without a header",
        )
    return first[1]


def first_rows(
    files: Iterable[Seen], starts: Starts, cut: Rows, opening: Opening, headed: bool
) -> list[bytes]:
    """The first megabyte of rows, or 16384 of them, of files read one after the other.

    headed: the first row of each file is left out.
    """
    found: list[bytes] = []
    size = 0
    for seen in files:
        below = rows(seen, starts[seen.path], cut, opening)
        for row in itertools.islice(below, int(headed), None):
            found.append(row)
            size += len(row)
            if len(found) == _ROWS or size >= _LOOKED_AT:
                return found
    return found


def _names(seen: Seen, row: bytes, dialect: Dialect) -> tuple[str, ...]:
    text = row.removeprefix(BOM).decode(dialect.encoding, "replace").rstrip("\r\n")
    if dialect.quote is None:
        return tuple(text.split(dialect.delimiter))
    try:
        return tuple(next(csv.reader([text], delimiter=dialect.delimiter, quotechar=dialect.quote)))
    except csv.Error as error:
        raise CorruptRecord(
            f"{seen.path}: its first row does not hold the names of columns: {error}",
            help="is it a CSV file? column_names= names the columns of files without a header",
            file=seen.path,
            offset=0,
        ) from error
