"""Arrow's columns as playhead's: numpy arrays, objects, and rows where lists vary in length.

Numbers, booleans, dates and times keep their dtype; text is str, binary is bytes; a struct is a dict,
a list an array, a dictionary what it stands for. A null is NaN in a column of floats and NaT in one of
dates; elsewhere it is an error, unless `fill` says what stands for it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.errors import ElementError, PipelineError
from playhead.plan.aligned import aligned_copy
from playhead.plan.block import Block, Columns, Nest, Rows, map_nest, stack
from playhead.sources.arrow.types import (
    is_list,
    said_of,
    spec_of_type,
    varies,
)

if TYPE_CHECKING:
    import pyarrow as pa


_NONE: Mapping[str, np.ndarray[Any, Any]] = {}


class BadValue(Exception):
    """A value that cannot be an element's: its column, its row among those that were read, and why."""

    def __init__(self, column: str, row: int, reason: str, help: str) -> None:
        super().__init__(column, row, reason, help)
        self.column, self.row, self.reason, self.help = column, row, reason, help


@dataclass(frozen=True, eq=False)
class Schema:
    """The columns to be read, each in the type it is to have, and what stands for their nulls."""

    types: pa.Schema
    fill: Mapping[str, Any]

    @cached_property
    def names(self) -> list[str]:
        return list(self.types.names)

    @cached_property
    def _fields(self) -> list[pa.Field]:
        return list(self.types)

    @cached_property
    def _numbers(self) -> dict[str, pa.DataType]:
        """The types of the columns of numbers."""
        import pyarrow as pa

        kinds = {field.name: field.type for field in self.types}
        is_number = (pa.types.is_integer, pa.types.is_floating)
        return {name: kind for name, kind in kinds.items() if any(of(kind) for of in is_number)}

    @cached_property
    def columnar(self) -> bool:
        """Whether all elements have the same shapes."""
        return not any(varies(field.type) for field in self.types)

    def spec(self) -> dict[str, Nest]:
        return {field.name: spec_of_type(field.type) for field in self.types}

    def digest(self) -> str:
        """16 hexadecimal digits: names, types, fills."""
        said = [[f.name, said_of(f.type), repr(self.fill.get(f.name))] for f in self.types]
        said += [[name, repr(self.fill[name])] for name in sorted({*self.fill} - {*self.names})]
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=8).hexdigest()

    def block(
        self, table: pa.Table | None, count: int, ready: Mapping[str, np.ndarray[Any, Any]] = _NONE
    ) -> Block:
        """`count` rows in memory of their own. The table has these columns, but for the `ready` ones.

        It may be None where all are ready. Raises `BadValue`.
        """
        nest: dict[str, Column] = {}
        for name, field in zip(self.names, self._fields, strict=True):
            nest[name] = ready[name] if name in ready else self._column(table, field)
        if self.columnar:
            return Columns(nest, count)
        rows = [_rows(column, count, name) for name, column in nest.items()]
        return Rows([dict(zip(nest, row, strict=True)) for row in zip(*rows, strict=True)])

    def cast(self, table: pa.Table) -> pa.Table:
        """A table of some of these columns with each in its type here. Raises `BadValue`."""
        import pyarrow as pa

        fields = [self.types.field(name) for name in table.column_names]
        columns = [_cast(_array(table.column(field.name)), field) for field in fields]
        return pa.table(columns, pa.schema(fields))

    def views(self, table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of a table that are arrays of numbers as they lie there, read-only."""
        pairs = ((name, self._view(table.column(name), name)) for name in self.names)
        return {name: view for name, view in pairs if view is not None}

    def _view(self, column: pa.ChunkedArray, name: str) -> np.ndarray[Any, Any] | None:
        kind = self._numbers.get(name)
        if kind is None or column.type != kind or column.null_count or column.num_chunks != 1:
            return None
        found: np.ndarray[Any, Any] = column.chunk(0).to_numpy()
        return found

    def _column(self, table: pa.Table, field: pa.Field) -> Column:
        column = table.column(field.name)
        view = self._view(column, field.name)
        if view is not None:
            return aligned_copy(view)
        array = _array(column)
        if array.type != field.type:
            array = _cast(array, field)
        return _column(array, field.name, None, self.fill)


@dataclass(frozen=True, slots=True)
class Lists:
    """A column of lists: list k holds the values from `edges[k]` to `edges[k + 1]`."""

    edges: np.ndarray[Any, np.dtype[np.int64]]
    values: Column


Column = np.ndarray[Any, Any] | Lists | dict[str, Any]


def _array(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    import pyarrow as pa

    try:
        return array.cast(field.type)
    except pa.ArrowException as whole:
        for row in range(len(array)):
            try:
                array.slice(row, 1).cast(field.type)
            except pa.ArrowException as error:
                help = f"another dtype in dtypes={{{field.name!r}: ...}}"
                raise BadValue(field.name, row, f"{error}", help) from None
        raise PipelineError(f"the column {field.name!r}: {whole}") from None


def _column(
    array: pa.Array, name: str, rows: np.ndarray[Any, Any] | None, fill: Mapping[str, Any]
) -> Column:
    """An array's values; `rows` tells the row of each where it stands inside of lists."""
    import pyarrow as pa

    t = pa.types
    if isinstance(array, pa.ExtensionArray):
        found = _column(array.storage, name, rows, fill)
        if isinstance(array.type, pa.FixedShapeTensorType) and isinstance(found, np.ndarray):
            return found.reshape(len(array), *array.type.shape)
        return found
    if t.is_dictionary(array.type):
        return _column(array.dictionary_decode(), name, rows, fill)
    if t.is_struct(array.type):  # where it is null, all its fields are
        parts = zip(array.type, array.flatten(), strict=True)
        named = [(field.name, f"{name}.{field.name}", part) for field, part in parts]
        return {key: _column(part, path, rows, fill) for key, path, part in named}
    nested = is_list(array.type)
    if array.null_count and name in fill and isinstance(fill[name], list | tuple) == nested:
        array = array.fill_null(pa.scalar(fill[name], array.type))
    as_nan = t.is_floating(array.type) or t.is_temporal(array.type)
    if array.null_count and not as_nan:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        row = row if rows is None else int(rows[row])
        inside = "holds a null" if rows is not None else "is null"
        said = "[]" if nested else "..."
        help = f"fill={{{name!r}: {said}}} says what stands for it; columns=[...] leaves the column out"
        raise BadValue(name, row, f"the column {name!r} {inside}", help)
    if t.is_fixed_size_list(array.type):
        size = array.type.list_size
        within = _inside(array, rows, np.full(len(array), size))
        inner = _column(array.flatten(), name, within, fill)
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(array), size, *inner.shape[1:])
        return Lists(np.arange(len(array) + 1, dtype=np.int64) * size, inner)
    if is_list(array.type):
        edges = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        values = array.values.slice(edges[0], edges[-1] - edges[0])
        edges = edges - edges[0]
        return Lists(edges, _column(values, name, _inside(array, rows, np.diff(edges)), fill))
    try:
        found = array.to_numpy(zero_copy_only=False)
    except (UnicodeDecodeError, pa.ArrowException):
        row = next((k for k in range(len(array)) if not _is_text(array[k])), -1)
        if row < 0:
            raise
        row = row if rows is None else int(rows[row])
        help = f"dtypes={{{name!r}: bytes}} reads bytes"
        raise BadValue(name, row, f"the column {name!r} is no UTF-8", help) from None
    return found if found.dtype.hasobject else aligned_copy(found)


def _is_text(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _inside(array: pa.Array, rows: Any, counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.repeat(np.arange(len(array)) if rows is None else rows, counts)


def _rows(column: Column, count: int, name: str) -> list[Any]:
    """The values of a column, one for each row."""
    if isinstance(column, dict):
        parts = [_rows(part, count, f"{name}.{key}") for key, part in column.items()]
        return [dict(zip(column, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(column, np.ndarray):
        return [aligned_copy(row) if isinstance(row, np.ndarray) else row for row in column]
    pairs = enumerate(itertools.pairwise(column.edges.tolist()))
    return [_listed(column.values, start, stop, name, row) for row, (start, stop) in pairs]


def _listed(values: Column, start: int, stop: int, name: str, row: int) -> Any:
    """A list's values: an array, or a dict of arrays."""
    if isinstance(values, dict):
        return {key: _listed(v, start, stop, f"{name}.{key}", row) for key, v in values.items()}
    if isinstance(values, np.ndarray):
        return aligned_copy(values[start:stop])
    part = Lists(values.edges[start : stop + 1], values.values)
    inner = _rows(part, stop - start, name)
    if not inner:
        return map_nest(lambda v: v[None][:0], _listed(values.values, 0, 0, name, row))
    try:
        return stack(inner)
    except ElementError:
        help = "columns=[...] leaves it out; lists of lists must be of one length in each row"
        raise BadValue(name, row, f"the lists in the column {name!r} are not alike", help) from None


def flat(array: pa.Array) -> Any:
    """A nest of arrays that says the same as an Arrow array, for a digest."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return flat(array.storage)
    if pa.types.is_dictionary(array.type):
        return flat(array.dictionary_decode())
    if pa.types.is_struct(array.type):
        return {f.name: flat(part) for f, part in zip(array.type, array.flatten(), strict=True)}
    if is_list(array.type):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        return {"lengths": lengths, "values": flat(array.flatten())}
    return array.to_numpy(zero_copy_only=False)
