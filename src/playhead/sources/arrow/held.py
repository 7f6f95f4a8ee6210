"""A row group in memory: its numbers row by row, the other columns as Arrow has them.

A shuffled batch takes few rows each of many row groups. What lies row by row is taken at one go for all
columns of numbers, and a row is one place in memory instead of one for each column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.kernels import Buffer
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


@dataclass(frozen=True, slots=True)
class Held:
    """The rows of a row group, each column in one place.

    `schema` is that of all its columns. `packed` (void[rows]) holds those named in `fields` side by side, as
    these fields of `dtype`; `table` holds the others, and `texts` shows where the values of some of them lie.
    """

    schema: pa.Schema
    fields: Mapping[str, str]
    dtype: np.dtype[Any]
    packed: np.ndarray[Any, Any]
    table: pa.Table
    texts: Mapping[str, Text]

    @property
    def nbytes(self) -> int:
        return int(self.packed.nbytes + self.table.nbytes)


def hold(table: pa.Table, schema: Schema) -> Held:
    """The columns of `schema` in a row group."""
    views = schema.views(table)
    fields = {name: f"f{k}" for k, name in enumerate(views)}  # numpy knows no field named ""
    dtype = np.dtype([(fields[name], view.dtype) for name, view in views.items()])
    packed = np.empty(table.num_rows if views else 0, f"V{dtype.itemsize or 1}")
    for start in range(0, len(packed), max(1, _TILE // packed.itemsize)):
        tile = packed[start : start + max(1, _TILE // packed.itemsize)].view(dtype)
        for name, view in views.items():
            tile[fields[name]] = view[start : start + len(tile)]
    others = table.select([name for name in schema.names if name not in views])
    return Held(table.schema, fields, dtype, packed, others, _texts(others, schema))


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
