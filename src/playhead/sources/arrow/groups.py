"""The row groups of Parquet files, decoded whole, those read last kept in memory."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.errors import CorruptRecord, SourceError, UnparsableRecord
from playhead.plan.block import Block
from playhead.plan.lock import Lock
from playhead.plan.places import Index
from playhead.sources.arrow.chunks import fetched
from playhead.sources.arrow.columns import BadValue, Schema
from playhead.sources.arrow.footers import Footer, Footers
from playhead.sources.arrow.held import Held
from playhead.sources.arrow.picked import Picked
from playhead.sources.arrow.types import with_offsets
from playhead.sources.files.flight import in_order
from playhead.sources.files.keeping import unreadable
from playhead.sources.files.paths import is_remote

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE = 8  # row groups of remote files that are fetched at once for one batch


class Groups:
    """The row groups of several files, those read last kept in memory up to `most` bytes.

    Thread-safe; a copy made by pickle reads anew.
    """

    def __init__(
        self, files: tuple[Footer, ...], schema: Schema, most: int, footers: Footers
    ) -> None:
        self.files, self.schema, self.most, self.footers = files, schema, most, footers
        self.far = any(is_remote(file.seen.path) for file in files)
        rows = [np.array(file.rows, np.int64) for file in files]
        counts = np.concatenate([np.empty(0, np.int64), *rows])
        self.edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self._edges: list[int] = self.edges.tolist()
        self.count: int = self._edges[-1]
        self._firsts = np.cumsum([0, *(len(file.rows) for file in files)])
        self._kept: OrderedDict[int, Held] = OrderedDict()
        self._reading: dict[int, Lock] = {}
        # what is wrong with a row group, as long as its file is as it was
        self._broken: dict[int, tuple[Any, str]] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Groups], tuple[tuple[Footer, ...], Schema, int, Footers]]:
        return Groups, (self.files, self.schema, self.most, self.footers)

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

        if not len(index):
            return self.schema.block(self.schema.types.empty_table(), 0)
        ends = int(index.min()), int(index.max())
        if ends[0] < 0 or ends[1] >= self.count:
            outside = np.flatnonzero((index < 0) | (index >= self.count))
            raise IndexError(f"row {index[outside[0]]} of {self.count}")
        picked, order, borders = self._picked(index, *ends)
        ready = {**picked.numbers(), **picked.texts()}
        rest = [name for name in self.schema.names if name not in ready]
        table = None
        if rest:
            pieces = picked.tables(rest)
            if any(piece.schema != pieces[0].schema for piece in pieces[1:]):
                for number, start in enumerate(borders):
                    try:
                        pieces[number] = self.schema.cast(pieces[number])
                    except BadValue as error:
                        raise self._unfit(error, int(index[order[start + error.row]])) from None
            table = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)
            if picked.back is not None:
                table = table.combine_chunks().take(pa.array(picked.back))
        try:
            return self.schema.block(table, len(index), ready)
        except BadValue as error:
            raise self._unfit(error, int(index[error.row])) from None

    def _picked(self, index: Index, low: int, high: int) -> tuple[Picked, Index, list[int]]:
        """The rows at `index`; which of `index` each of them is; and where those of each group begin.

        `low` and `high` are the first and the last of them in the files.
        """
        order = np.arange(len(index))
        first, last = (bisect.bisect_right(self._edges, row) - 1 for row in (low, high))
        if first == last:
            rows = index - self._edges[first]
            return Picked([self._held(first)], [_run(rows)], None), order, [0]
        groups = np.searchsorted(self.edges, index, side="right") - 1
        back = None
        if (groups[1:] < groups[:-1]).any():
            back, order = order.copy(), np.argsort(groups, kind="stable")
            back[order] = np.arange(len(index))
            groups = groups[order]
        rows = index[order] - self.edges[groups]
        borders = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist()]
        spans = itertools.pairwise([*borders, len(index)])
        held = list(self._several(groups[borders].tolist()))
        return Picked(held, [_run(rows[start:stop]) for start, stop in spans], back), order, borders

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

    def _several(self, groups: list[int]) -> Iterable[Held]:
        """Row groups, decoded; those of remote files are waited for together."""
        if not self.far or len(groups) < 2:
            return map(self._held, groups)
        return list(in_order(self._held, groups, _AT_ONCE))

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
                found = Held(self._decoded(group), self.schema)
                with self._lock:
                    self._kept[group] = found
                    self._reading.pop(group, None)
                    held = sum(kept.nbytes for kept in self._kept.values())
                    while held > self.most and len(self._kept) > 1:
                        held -= self._kept.popitem(last=False)[1].nbytes
        return found

    def _damage(self, group: int, reason: str) -> CorruptRecord:
        file, number = self._where(group)
        path = self.files[file].seen.path
        return CorruptRecord(
            f"{path}, row group {number}: {reason}",
            help="the file is damaged: compare it with its original, and copy or write it again",
            file=path,
            group=number,
            record=int(self.edges[group] - self.edges[self._firsts[file]]),
        )

    def _decoded(self, group: int) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file, number = self._where(group)
        seen, names = self.files[file].seen, self.schema.names
        metadata = self.footers.get(seen.path)
        known, reason = self._broken.get(group, (None, ""))
        if known is metadata:
            raise self._damage(group, reason)
        far = is_remote(seen.path)
        try:
            source = (
                fetched(seen, self.footers.remote, metadata, number, names) if far else seen.path
            )
            with pq.ParquetFile(
                source,
                metadata=metadata,
                memory_map=False,
                pre_buffer=False,
                page_checksum_verification=True,
            ) as opened:
                table = opened.read_row_group(number, columns=names, use_threads=False)
            if table.num_rows != self.files[file].rows[number]:
                raise pa.ArrowInvalid(f"{table.num_rows} rows")
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, SourceError):
                raise
            if isinstance(error, FileNotFoundError | PermissionError):
                raise unreadable(seen.path, error) from error
            self.footers.require_same(seen.path)
            self._broken[group] = metadata, str(error)
            raise self._damage(group, str(error)) from error
        self.footers.require_same(seen.path)
        return with_offsets(table.combine_chunks())


def _run(rows: Index) -> slice | Index:
    """The rows as a slice where they are neighbours, in order."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first == count - 1 and bool((rows[1:] - rows[:-1] == 1).all()):
        return slice(first, first + count)
    return rows
