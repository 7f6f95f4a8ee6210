"""A row group in memory: as Arrow has it, or its numbers row by row.

A shuffled batch takes few rows each of many row groups. What lies row by row is taken at one go for all
columns of numbers, and a row is one place in memory instead of one for each column. Neighbours are taken
from the columns as they lie, and who reads in order never needs another form of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.kernels import Buffer
from playhead.plan.lock import Lock
from playhead.sources.arrow.columns import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_TILE = 1 << 20  # bytes of rows put together at once, which stay in a processor's cache


@dataclass(frozen=True, slots=True)
class Text:
    """A column of str or bytes without nulls: value k is `data[edges[k]:edges[k + 1]]`."""

    edges: np.ndarray[Any, Any]
    data: Buffer
    is_str: bool


class Held:
    """The rows of a row group, each column in one place. Thread-safe.

    `schema` is that of all its columns. Those of numbers are named in `fields`: as these fields of `dtype` they
    lie side by side in `packed` (void[rows]), which is made when it is first asked for. `table` holds the other
    columns, and `texts` shows where the values of some of them lie.
    """

    def __init__(self, table: pa.Table, schema: Schema) -> None:
        views = schema.views(table)
        self.schema = table.schema
        self.fields = {
            name: f"f{k}" for k, name in enumerate(views)
        }  # numpy knows no field named ""
        self.dtype = np.dtype([(self.fields[name], view.dtype) for name, view in views.items()])
        self.table = table.select([name for name in schema.names if name not in views])
        self.texts: Mapping[str, Text] = _texts(self.table, schema)
        self.rows: int = table.num_rows if views else 0
        self.nbytes = self.rows * self.dtype.itemsize + int(self.table.nbytes)
        self._views: Mapping[str, np.ndarray[Any, Any]] | None = views
        self._packed: np.ndarray[Any, Any] | None = None
        self._lock = Lock()

    @property
    def views(self) -> Mapping[str, np.ndarray[Any, Any]] | None:
        """The columns of numbers as they lie, read-only; None where they are packed by now."""
        return self._views

    @property
    def packed(self) -> np.ndarray[Any, Any]:
        """The columns of numbers side by side. Either this is held or `views`, not both."""
        with self._lock:
            if self._packed is None:
                assert self._views is not None
                self._packed = self._put_together(self._views)
                self._views = None
            return self._packed

    def _put_together(self, views: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        packed = np.empty(self.rows, f"V{self.dtype.itemsize or 1}")
        step = max(1, _TILE // packed.itemsize)
        for start in range(0, len(packed), step):
            tile = packed[start : start + step].view(self.dtype)
            for name, view in views.items():
                tile[self.fields[name]] = view[start : start + len(tile)]
        return packed


def _texts(table: pa.Table, schema: Schema) -> dict[str, Text]:
    import pyarrow as pa

    edged = {pa.string(): np.int32, pa.binary(): np.int32}
    edged |= {pa.large_string(): np.int64, pa.large_binary(): np.int64}
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = schema.types.field(name).type
        if kind in edged and column.type == kind and column.num_chunks == 1:
            array = column.chunk(0)
            if not array.null_count:
                _, edges, data = array.buffers()
                edges = np.frombuffer(edges, edged[kind])[array.offset :][: len(array) + 1]
                is_str = kind in (pa.string(), pa.large_string())
                found[name] = Text(edges, b"" if data is None else data, is_str)
    return found
