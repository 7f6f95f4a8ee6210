"""Rows out of several row groups in memory, put in the order in which a batch has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead import kernels
from playhead.kernels import Records
from playhead.plan.aligned import aligned_copy
from playhead.plan.places import Index
from playhead.sources.arrow.held import Held, Text

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows of row groups, `rows[g]` of `held[g]`: a slice of neighbours, or their numbers in any order.

    Row k of a batch is row `back[k]` of these, one group after the other; without `back`, row k.
    """

    held: Sequence[Held]
    rows: Sequence[slice | Index]
    back: Index | None

    def numbers(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns that are packed in all groups, in a batch's order and in memory of their own."""
        first = self.held[0]
        shared = [name for name in first.fields if all(name in held.fields for held in self.held)]
        if not shared:
            return {}
        found = self._neighbours(shared)
        if found:
            return found
        pieces = [held.packed[rows] for held, rows in zip(self.held, self.rows, strict=True)]
        if all(held.fields == first.fields for held in self.held):
            whole = self._ordered(pieces).view(first.dtype)
            return {name: aligned_copy(whole[field]) for name, field in first.fields.items()}
        views = [piece.view(held.dtype) for piece, held in zip(pieces, self.held, strict=True)]
        for name in shared:
            pairs = zip(views, self.held, strict=True)
            found[name] = aligned_copy(self._ordered([v[held.fields[name]] for v, held in pairs]))
        return found

    def _neighbours(self, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The columns `names` where all rows of each group are neighbours in columns that lie as they were."""
        if self.back is not None or not all(isinstance(rows, slice) for rows in self.rows):
            return {}
        views = [held.views for held in self.held]
        if len(views) == 1 and views[0] is not None:
            return {name: aligned_copy(views[0][name][self.rows[0]]) for name in names}
        parts = [
            (view, rows) for view, rows in zip(views, self.rows, strict=True) if view is not None
        ]
        if len(parts) < len(views):
            return {}
        return {
            name: aligned_copy(np.concatenate([view[name][rows] for view, rows in parts]))
            for name in names
        }

    def texts(self) -> dict[str, np.ndarray[Any, Any]]:
        """Columns of str and bytes (object[n]) without a null in any group, in a batch's order.

        Leaves out those that are no UTF-8; and all where all rows are neighbours, of which Arrow makes objects
        as quickly.
        """
        found: dict[str, np.ndarray[Any, Any]] = {}
        if all(isinstance(rows, slice) for rows in self.rows):
            return found
        for name in self.held[0].texts:
            if all(name in held.texts for held in self.held):
                try:
                    values = self._values([held.texts[name] for held in self.held])
                except UnicodeDecodeError:
                    continue
                found[name] = np.empty(len(values), object)
                found[name][:] = values
        return found

    def _values(self, texts: Sequence[Text]) -> list[str] | list[bytes]:
        edges = [text.edges for text in texts]
        starts = [e[:-1][rows] for e, rows in zip(edges, self.rows, strict=True)]
        stops = [e[1:][rows] for e, rows in zip(edges, self.rows, strict=True)]
        which = [np.repeat(np.arange(len(texts)), [len(part) for part in starts])]
        spans = (self._ordered(parts).astype(np.int64) for parts in (which, starts, stops))
        values = kernels.slices(Records([text.data for text in texts], *spans))
        return [value.decode() for value in values] if texts[0].is_str else values

    def tables(self, names: Sequence[str]) -> list[pa.Table]:
        """The columns `names` of each group's rows, not yet in a batch's order."""
        return [_table(held, rows, names) for held, rows in zip(self.held, self.rows, strict=True)]

    def _ordered(self, pieces: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole if self.back is None else whole.take(self.back)


def _table(held: Held, rows: slice | Index, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    packed = [name for name in names if name in held.fields]
    others = held.table.select([name for name in names if name not in held.fields])
    if isinstance(rows, slice):
        others = others.slice(rows.start, rows.stop - rows.start)
    elif others.num_columns:
        others = others.take(pa.array(rows))
    if not packed:
        return others
    numbers = held.packed[rows].view(held.dtype)
    columns = {name: pa.array(numbers[held.fields[name]]) for name in packed}
    columns.update(zip(others.column_names, others.columns, strict=True))
    schema = pa.schema([held.schema.field(name) for name in names])
    return pa.table([columns[name] for name in names], schema)
