"""Rows of Parquet files, read at random, a row group at a time."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from playhead.errors import (
    CorruptRecord,
    PipelineError,
    SourceError,
    UnparsableRecord,
)
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import Block, Nest
from playhead.plan.lock import Lock
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.arrow.columns import BadValue, Schema
from playhead.sources.arrow.footers import Footer, digest_of_footer, read_footer, read_metadata
from playhead.sources.arrow.selection import schema_of
from playhead.sources.arrow.types import require, with_offsets
from playhead.sources.files.keeping import changed, require_file
from playhead.sources.files.paths import Paths
from playhead.sources.text.texts import named

if TYPE_CHECKING:
    import pyarrow as pa

KEPT = 256 << 20  # bytes of row groups that are kept in memory
_FOOTERS = 64  # open files whose footers are kept


@dataclass(frozen=True, eq=False)
class ParquetRows(Source):
    """The rows of several Parquet files as one source."""

    op: ClassVar[str] = "parquet"

    groups: Groups
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.groups.count

    def gather(self, index: Index) -> Block:
        """The rows at `index` (int64[n], in any order) as n dicts. Thread-safe.

        `Columns`, or `Rows` where lists vary in length. Raises `IndexError`, `SourceChanged`, `CorruptRecord`
        naming file and row group, `UnparsableRecord` naming file, row and column.
        """
        return self.groups.read(index)

    def record(self, epoch: int, index: int) -> Record:
        path, number = self.groups.place(index)
        return Record(self.info.name or self.op, epoch, index, path, number)

    def describe(self) -> dict[str, Any]:
        """How many rows, and digests of the files' footers and of what is read; never paths."""
        groups = self.groups
        said = {"op": self.op, "records": groups.count, "schema": groups.schema.digest()}
        return {**said, "content": groups.content}

    def static_spec(self) -> Nest:
        return self.groups.schema.spec()


@dataclass(frozen=True, slots=True)
class Held:
    """A row group in memory, and those of its columns that are arrays of numbers as they lie there."""

    table: pa.Table
    views: dict[str, np.ndarray[Any, Any]]


class Groups:
    """The row groups of several files, those read last kept in memory up to `most` bytes.

    Thread-safe; a copy made by pickle reads anew.
    """

    def __init__(self, files: tuple[Footer, ...], schema: Schema, most: int) -> None:
        self.files, self.schema, self.most = files, schema, most
        rows = [np.array(file.rows, np.int64) for file in files]
        counts = np.concatenate([np.empty(0, np.int64), *rows])
        self.edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self.count = int(self.edges[-1])
        self._firsts = np.cumsum([0, *(len(file.rows) for file in files)])
        self._kept: OrderedDict[int, Held] = OrderedDict()
        self._reading: dict[int, Lock] = {}
        self._metadata: OrderedDict[int, tuple[Any, os.stat_result]] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Groups], tuple[tuple[Footer, ...], Schema, int]]:
        return Groups, (self.files, self.schema, self.most)

    @property
    def content(self) -> str:
        """A digest (hex) of the footers of the files that hold rows, in order."""
        held = b"".join(file.content for file in self.files if sum(file.rows))
        return hashlib.blake2b(held, digest_size=16).hexdigest()

    def _where(self, group: int) -> tuple[int, int]:
        """The file of a row group, and its number there."""
        file = int(np.searchsorted(self._firsts, group, side="right")) - 1
        return file, group - int(self._firsts[file])

    def place(self, index: int) -> tuple[str, int]:
        """The file of a row, and its number there."""
        group = int(np.searchsorted(self.edges, index, side="right")) - 1
        file, _ = self._where(group)
        return self.files[file].seen.path, index - int(self.edges[self._firsts[file]])

    def read(self, index: Index) -> Block:
        """The rows at `index` (int64, any order, repeats allowed), in that order."""
        import pyarrow as pa

        outside = np.flatnonzero((index < 0) | (index >= self.count))
        if len(outside):
            raise IndexError(f"row {index[outside[0]]} of {self.count}")
        groups = np.searchsorted(self.edges, index, side="right") - 1
        order = np.argsort(groups, kind="stable")
        borders = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1))
        parts: list[
            tuple[Index, Index, Held]
        ] = []  # positions in `index`, rows, the group they are in
        for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            here = order[start:stop]
            group = int(groups[here[0]])
            parts.append((here, index[here] - self.edges[group], self._held(group)))
        ready: dict[str, np.ndarray[Any, Any]] = {}
        for name in self.schema.names:
            views = [held.views[name] for _, _, held in parts if name in held.views]
            if parts and len(views) == len(parts):
                ready[name] = out = aligned_empty((len(index),), views[0].dtype)
                for (here, rows, _), view in zip(parts, views, strict=True):
                    out[here] = view[rows]
        rest = [name for name in self.schema.names if name not in ready]
        table = self.schema.types.empty_table().select(rest)
        if rest and parts:
            pieces = [_taken(held.table.select(rest), rows) for _, rows, held in parts]
            if any(piece.schema != pieces[0].schema for piece in pieces):
                for number, (here, _, _) in enumerate(parts):
                    try:
                        pieces[number] = self.schema.cast(pieces[number])
                    except BadValue as error:
                        raise self._unfit(error, int(index[here[error.row]])) from None
            table = pa.concat_tables(pieces)
            if (order[:-1] > order[1:]).any():
                back = np.empty(len(order), np.int64)
                back[order] = np.arange(len(order))
                table = table.combine_chunks().take(back)
        try:
            return self.schema.block(table, len(index), ready)
        except BadValue as error:
            raise self._unfit(error, int(index[error.row])) from None

    def _unfit(self, error: BadValue, index: int) -> UnparsableRecord:
        path, row = self.place(index)
        return UnparsableRecord(
            f"{path}, row {row}: {error.reason}",
            help=f"{error.help}; ignore_errors() leaves such rows out",
            file=path,
            record=row,
            column=error.column,
            reason=error.reason,
        )

    def _held(self, group: int) -> Held:
        """A row group, decoded; by one thread only where several want it."""
        with self._lock:
            found = self._kept.get(group)
            if found is not None:
                self._kept.move_to_end(group)
                return found
            mine = self._reading.setdefault(group, Lock())
        with mine:
            with self._lock:
                found = self._kept.get(group)
            if found is None:
                table = self._decoded(group)
                found = Held(table, self.schema.views(table))
                with self._lock:
                    self._kept[group] = found
                    self._reading.pop(group, None)
                    held = sum(kept.table.nbytes for kept in self._kept.values())
                    while held > self.most and len(self._kept) > 1:
                        held -= self._kept.popitem(last=False)[1].table.nbytes
        return found

    def _decoded(self, group: int) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file, number = self._where(group)
        path = self.files[file].seen.path
        try:
            metadata = self._checked(file)
            with pq.ParquetFile(
                path, metadata=metadata, memory_map=False, page_checksum_verification=True
            ) as opened:
                table = opened.read_row_group(number, columns=self.schema.names, use_threads=False)
            if table.num_rows != self.files[file].rows[number]:
                raise pa.ArrowInvalid(f"{table.num_rows} rows")
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, SourceError | FileNotFoundError | PermissionError):
                raise
            self._checked(file)
            raise CorruptRecord(
                f"{path}, row group {number}: {error}",
                help="the file is damaged: compare it with its original, and copy or write it again",
                file=path,
                group=number,
                record=int(self.edges[group] - self.edges[self._firsts[file]]),
            ) from error
        return with_offsets(table.combine_chunks())

    def _checked(self, file: int) -> Any:
        """The metadata of a file that is the one whose footer was read. Raises `SourceChanged`."""
        known, path = self.files[file], self.files[file].seen.path
        require_file(path, "Parquet file", "*.parquet")
        status = os.stat(path)
        with self._lock:
            found = self._metadata.get(file)
        if found is not None and _same(found[1], status):
            return found[0]
        if digest_of_footer(path)[0] != known.content:
            raise changed(path, "after its footer was read")
        metadata = read_metadata(path)
        with self._lock:
            self._metadata[file] = metadata, status
            if len(self._metadata) > _FOOTERS:
                self._metadata.popitem(last=False)
        return metadata


def _same(a: os.stat_result, b: os.stat_result) -> bool:
    return (a.st_ino, a.st_size, a.st_mtime_ns) == (b.st_ino, b.st_size, b.st_mtime_ns)


def _taken(table: pa.Table, rows: Index) -> pa.Table:
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first == count - 1 and bool((np.diff(rows) == 1).all()):
        return table.slice(first, count)
    return table.take(rows)


def parquet(
    files: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    cache_bytes: int = KEPT,
) -> ParquetRows:
    """The rows of local Parquet files, one file after the other, as dicts of columns.

    Only the footers are read now. Raises `MissingSource`, `CorruptRecord` for what is no Parquet file,
    `PipelineError` for files of different columns and for columns of types that no element can have.
    """
    require("from_parquet")
    paths = named(files, "from_parquet", "Parquet file", "*.parquet")
    found = {path: read_footer(path) for path in dict.fromkeys(paths)}
    types = found[paths[0]][1]
    schema = schema_of(types, "from_parquet", columns, dtypes, fill)
    for path, (_, other) in found.items():
        for name in schema.names:
            there = other.field(name).type if name in other.names else None
            if there != types.field(name).type and (there is None or name not in (dtypes or ())):
                what = "no such column" if there is None else f"{there}"
                raise PipelineError(
                    f"from_parquet: the column {name!r} is {types.field(name).type} in {paths[0]}, and "
                    f"in {path} {what}",
                    help="columns=[...] names what they share; or write the files anew with one schema"
                    if there is None
                    else f"dtypes={{{name!r}: ...}} reads it alike from all; or write the files anew",
                    column=name,
                    file=path,
                )
    return ParquetRows(Groups(tuple(found[path][0] for path in paths), schema, cache_bytes))
