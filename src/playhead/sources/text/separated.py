"""Rows of CSV files, read at random through their offsets and parsed by pyarrow."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from playhead.errors import PipelineError, SourceError, UnparsableRecord
from playhead.plan.block import Block, Nest
from playhead.plan.places import Index
from playhead.sources.arrow.columns import BadValue, Schema
from playhead.sources.arrow.selection import require_arguments, schema_of
from playhead.sources.arrow.types import arrow_type, require
from playhead.sources.files.indexed import indexed
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import Paths
from playhead.sources.files.remote import Remote
from playhead.sources.files.shelf import Shelf, absolute
from playhead.sources.files.unpacking import packing_of
from playhead.sources.text import heads
from playhead.sources.text.decoding import as_text
from playhead.sources.text.dialect import BOM, Dialect, Rows
from playhead.sources.text.offsets import FileOffsets, Offsets, OffsetsKind
from playhead.sources.text.texts import Raws, TextRecords, Texts, ended

if TYPE_CHECKING:
    import pyarrow as pa

_ROW = re.compile(r"Row #\d+: ")  # pyarrow's own count, from where it began to read
_COLUMN = re.compile(r"In CSV column #(\d+): ")


@dataclass(frozen=True, eq=False)
class SeparatedRows(TextRecords):
    """The rows of several CSV files as one source."""

    op: ClassVar[str] = "csv"

    parser: Parser

    @cached_property
    def unlocked(self) -> bool:
        return not self.texts.spans.far

    def gather(self, index: Index) -> Block:
        """The rows at `index` (int64[n], in any order) as n dicts: `Columns`. Thread-safe.

        Raises `IndexError`, `SourceChanged`, `UnparsableRecord` naming file, row, byte and column.
        """
        return self._block(self._table(index), index)

    def gather_apart(self, index: Index, ends: list[int]) -> list[Block] | None:
        table = self._table(index)
        bounds = itertools.pairwise([0, *ends])
        return [self._block(table.slice(low, high - low), index[low:high]) for low, high in bounds]

    def _table(self, index: Index) -> pa.Table:
        rows = self.texts.read(index)
        try:
            return self.parser.parse(rows)
        except UnparsableText as error:
            raise self._unfit(int(index[error.row]), error.reason, error.help, None) from None

    def _block(self, table: pa.Table, index: Index) -> Block:
        try:
            return self.parser.schema.block(table, len(index))
        except BadValue as error:
            row = int(index[error.row])
            raise self._unfit(row, error.reason, error.help, error.column) from None

    def _unfit(self, index: int, reason: str, help: str, column: str | None) -> UnparsableRecord:
        path, row, offset = self.texts.place(index)
        return UnparsableRecord(
            f"{path}, row {row} at byte {offset}: {reason}",
            help=f"{help}; ignore_errors() leaves such rows out",
            file=path,
            record=row,
            offset=offset,
            column=column,
            reason=reason,
        )

    def describe(self) -> dict[str, Any]:
        """How many rows, and digests of the files' bytes and of what is read; never paths."""
        index = self.texts.index
        said = {"op": self.op, "records": index.records, "content": index.content}
        said["schema"] = self.parser.schema.digest()
        encoding = self.parser.dialect.encoding
        return said if encoding == "utf8" else {**said, "encoding": encoding}

    def static_spec(self) -> Nest:
        return self.parser.schema.spec()


class UnparsableText(Exception):
    """A row that pyarrow refuses: which of those that were parsed, and why."""

    def __init__(self, row: int, reason: str, help: str) -> None:
        super().__init__(row, reason, help)
        self.row, self.reason, self.help = row, reason, help


@dataclass(frozen=True, eq=False)
class Parser:
    """pyarrow's CSV parser for rows of these columns, in the types of `schema`."""

    names: tuple[str, ...]
    dialect: Dialect
    schema: Schema

    def parse(self, rows: Raws) -> pa.Table:
        """Raises `UnparsableText`."""
        import pyarrow as pa

        if not len(rows):
            return self.schema.types.empty_table()
        try:
            table = parsed(rows.ended(), self.names, self.dialect, self.schema.types)
            if table.num_rows == len(rows):
                return table
            reason = f"{len(rows)} rows are read as {table.num_rows}"
        except (pa.ArrowException, UnicodeDecodeError) as error:
            reason = str(error)
        if len(rows) == 1:
            help = "mend the row, or name other dtypes="
            if "UTF8" in reason or "decode" in reason:
                help = 'name the encoding it has, as in encoding="latin-1"'
            elif " columns, got " in reason:
                help = "mend the row, or check delimiter= and column_names="
            reason = _COLUMN.sub(self._column, _ROW.sub("", reason.splitlines()[0]))
            raise UnparsableText(0, reason, help)
        for number, row in enumerate(rows.parts(1)):
            try:
                self.parse(row)
            except UnparsableText as error:
                raise UnparsableText(number, error.reason, error.help) from None
        raise AssertionError(reason)

    def _column(self, found: re.Match[str]) -> str:
        return f"the column {self.names[int(found[1])]!r}: "


def parsed(
    text: bytes, names: Sequence[str], dialect: Dialect, types: pa.Schema | None
) -> pa.Table:
    """Rows as a table; without `types` pyarrow guesses them."""
    import pyarrow as pa

    while True:
        try:
            return _parsed(text.removeprefix(BOM), names, dialect, types)
        except pa.ArrowCancelled:
            # A signal came: pyarrow stops for it and sends it on. Where its handler raises nothing, the rows
            # are as good as before.
            continue


def _parsed(
    text: bytes, names: Sequence[str], dialect: Dialect, types: pa.Schema | None
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    return arrow_csv.read_csv(
        pa.BufferReader(text),
        arrow_csv.ReadOptions(
            use_threads=False,
            block_size=max(len(text) + 1, 1024),
            column_names=list(names),
            encoding=dialect.encoding,
        ),
        arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            newlines_in_values=dialect.quote is not None,
            invalid_row_handler=None if types is not None else lambda row: "skip",
        ),
        arrow_csv.ConvertOptions(
            column_types=types, include_columns=None if types is None else types.names
        ),
    )


def separated(
    files: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    column_names: Sequence[str] | None = None,
    delimiter: str = ",",
    quote_char: str | None = '"',
    encoding: str = "utf-8",
    index: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SeparatedRows:
    """The rows of CSV files, one file after the other, as dicts of columns.

    Seekable through an index of offsets that is built once, of remote files when it is first needed. Raises
    `MissingSource`, `SourceError` for compressed files and those that cannot be reached, `CorruptRecord` for
    quotes that stand where none may, `PipelineError` for files of different columns.
    """
    require("from_csv")
    require_arguments("from_csv", columns, dtypes, fill)
    dialect = _dialect(delimiter, quote_char, encoding)
    opening = Opening(Remote(storage_options or {}))
    found = opening.find(files, "from_csv", "CSV file", "*.csv")
    starts = {seen.path: start for seen, start in opening.starts(found, heads.START)}
    for seen in found:
        if packing_of(seen.path, starts[seen.path]) is not None:
            raise SourceError(
                f"{seen.path} is compressed, and from_csv reads rows at random",
                help="decompress it, as with gunzip, or walk its lines with from_lines",
                file=seen.path,
            )
    cut, headed = Rows(dialect), column_names is None
    names = (
        heads.header(found, starts, cut, opening) if column_names is None else tuple(column_names)
    )
    first = heads.first_rows(found, starts, cut, opening, headed)
    types = _types(first, names, dialect, dict(dtypes or {}))
    schema = schema_of(types, "from_csv", columns, None, fill)
    for name in dtypes or ():
        if name not in names:
            schema_of(types, "from_csv", columns, dtypes, fill)  # says which there are
    shelf = Shelf(OffsetsKind(cut), opening, None if index is None else absolute(index))

    def texts(found: list[FileOffsets]) -> Texts:
        return Texts(Offsets.of(found, skip_blank=True, header=headed), opening.remote)

    return SeparatedRows(indexed(shelf, found, texts), Parser(names, dialect, schema))


def _dialect(delimiter: str, quote: str | None, encoding: str) -> Dialect:
    for what, said in (("delimiter", delimiter), ("quote_char", quote)):
        if said is not None and (len(said) != 1 or not said.isascii() or said in "\r\n"):
            raise PipelineError(f"{what} is one ASCII character, not {said!r}")
    if delimiter == quote:
        raise PipelineError(f"delimiter and quote_char are both {quote!r}")
    name = as_text(encoding, "strict").encoding
    assert name is not None
    return Dialect(delimiter, quote, "utf8" if name == "utf-8" else name)


def _types(
    rows: list[bytes], names: tuple[str, ...], dialect: Dialect, dtypes: dict[str, Any]
) -> pa.Schema:
    """The types of all columns: as told, else as pyarrow guesses from the first rows."""
    import pyarrow as pa

    told = {n: arrow_type(dtypes[n], n) for n in names if n in dtypes}
    guessed: dict[str, pa.DataType] = {}
    if rows and len(told) < len(set(names)):
        try:
            table = parsed(ended(rows), names, dialect, None)
            if table.num_rows:
                guessed = {field.name: field.type for field in table.schema}
        except (pa.ArrowException, UnicodeDecodeError):
            pass  # not one row can be read; reading one says why
    # What is no text in its encoding is guessed as bytes; reading it as text names the row.
    odd = (pa.types.is_time, pa.types.is_binary, pa.types.is_large_binary)
    for name, kind in guessed.items():
        if any(is_odd(kind) for is_odd in odd):
            guessed[name] = pa.string()
    return pa.schema([(n, told.get(n, guessed.get(n, pa.string()))) for n in names])
