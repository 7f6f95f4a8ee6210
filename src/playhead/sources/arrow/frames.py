"""Rows of tables in memory: pandas, polars, Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from playhead.errors import ElementError, PipelineError
from playhead.plan.block import Block, Columns, Nest
from playhead.plan.node import Node, Source
from playhead.plan.places import Index
from playhead.sources.arrays import SAMPLES, WHOLE, TensorSlices, digest
from playhead.sources.arrow import columns as arrow
from playhead.sources.arrow.columns import BadValue, Schema
from playhead.sources.arrow.selection import schema_of
from playhead.sources.arrow.types import require, with_offsets

if TYPE_CHECKING:
    import pyarrow as pa


class FrameSlices(TensorSlices):
    """Rows that all have the same shapes."""

    op: ClassVar[str] = "frame"


@dataclass(frozen=True, eq=False)
class FrameRows(Source):
    """Rows in which lists vary in length."""

    op: ClassVar[str] = "frame"

    table: pa.Table
    schema: Schema
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return int(self.table.num_rows)

    def gather(self, index: Index) -> Block:
        try:
            return self.schema.block(self.table.take(index), len(index))
        except BadValue as error:
            raise _unfit(error, int(index[error.row])) from None

    def static_spec(self) -> Nest:
        return self.schema.spec()

    @cached_property
    def content(self) -> tuple[str, str]:
        table, count = self.table, self.table.num_rows
        if table.nbytes > WHOLE and count > SAMPLES:
            table = table.take(np.linspace(0, count - 1, SAMPLES).astype(np.int64))
        columns = {name: table.column(name).combine_chunks() for name in self.schema.names}
        found, kind = digest({name: arrow.flat(column) for name, column in columns.items()})
        return found, kind if table is self.table else "sampled"

    def describe(self) -> dict[str, Any]:
        content, kind = self.content
        said = {"op": self.op, "records": self.cardinality, "schema": self.schema.digest()}
        return {**said, "content": content, "kind": kind}


def frame(
    data: Any,
    columns: Sequence[str] | None,
    dtypes: Mapping[str, Any] | None,
    fill: Mapping[str, Any] | None,
) -> FrameSlices | FrameRows:
    """The rows of a pandas or polars frame, or of an Arrow table, as dicts.

    Raises `PipelineError` for what is no table, `ElementError` naming row and column for a null that nothing
    stands for.
    """
    require("from_frame")
    table = with_offsets(_table(data))
    schema = schema_of(table.schema, "from_frame", columns, dtypes, fill)
    table = table.select(schema.names)
    if not schema.columnar:
        return FrameRows(table.combine_chunks(), schema)
    try:
        block = schema.block(table, table.num_rows)
    except BadValue as error:
        raise _unfit(error, error.row) from None
    assert isinstance(block, Columns)
    return FrameSlices(block)


def _table(data: Any) -> pa.Table:
    import pyarrow as pa

    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        try:
            return pa.Table.from_pandas(data, preserve_index=False)
        except (pa.ArrowException, TypeError) as error:
            raise PipelineError(
                f"from_frame: pandas holds what Arrow has no type for: {error}",
                help="give the column one type, as in df.astype({...})",
            ) from None
        except ValueError as error:
            raise PipelineError(f"from_frame: {error}", help="rename one of them") from None
    if isinstance(data, pa.Table | pa.RecordBatch) or hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise PipelineError(
                f"from_frame: {type(data).__name__} is no table: {error}",
                help="s.to_frame() makes a table of a Series"
                if hasattr(data, "to_frame")
                else None,
            ) from None
    collect = " (collect() a LazyFrame first)" if hasattr(data, "collect") else ""
    raise PipelineError(
        f"from_frame reads pandas and polars frames and Arrow tables, not {type(data).__name__}{collect}",
        help="from_tensor_slices reads dicts of arrays",
    )


def _unfit(error: BadValue, row: int) -> ElementError:
    return ElementError(
        f"from_frame, row {row}: {error.reason}", help=error.help, row=row, column=error.column
    )
