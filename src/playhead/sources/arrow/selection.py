"""Which columns are read, in which types, and what stands for their nulls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playhead.errors import PipelineError
from playhead.sources.arrow.columns import Schema
from playhead.sources.arrow.types import (
    arrow_type,
    inside_of,
    leaf_type,
    offset_type,
    require_known,
    with_leaf,
)

if TYPE_CHECKING:
    import pyarrow as pa


def schema_of(
    types: pa.Schema,
    constructor: str,
    columns: Sequence[str] | None,
    dtypes: Mapping[str, Any] | None,
    fill: Mapping[str, Any] | None,
) -> Schema:
    """What `columns`, `dtypes` and `fill` make of a schema.

    In `dtypes` and `fill` a field of a struct is named behind a dot, as in "image.path". Raises
    `PipelineError` for names that are not there, for types that no element can have, and for fills that
    are not of their column's type.
    """
    import pyarrow as pa

    require_arguments(constructor, columns, dtypes, fill)
    names = list(types.names) if columns is None else list(columns)
    missing = [name for name in names if name not in types.names]
    missing += [name for name in [*(dtypes or ()), *(fill or ())] if not inside_of(types, name)]
    if missing or not names:
        raise PipelineError(
            f"{constructor}: no column {missing[0]!r}" if missing else f"{constructor}: no columns",
            help=f"there are {', '.join(map(repr, types.names))}" if types.names else None,
        )
    twice = [name for name in names if types.names.count(name) > 1 or names.count(name) > 1]
    if twice:
        raise PipelineError(
            f"{constructor}: there are several columns {twice[0]!r}",
            help="rename one, or name columns=",
        )
    fields = []
    for name in names:
        kind = types.field(name).type
        for path, dtype in (dtypes or {}).items():
            found_at = inside_of(types, path)
            if found_at is not None and found_at[0] == name:
                kind = with_leaf(kind, arrow_type(dtype, path), found_at[1])
        require_known(kind, name, constructor)
        fields.append(pa.field(name, offset_type(kind)))
    found = pa.schema(fields)
    for name, value in (fill or {}).items():
        place = inside_of(found, name)
        kind = None if place is None else leaf_type(found.field(place[0]).type, place[1])
        if kind is not None and pa.types.is_struct(kind):
            raise PipelineError(
                f"{constructor}: {name!r} is a {kind}, which fill cannot fill",
                help=f"name its fields, as in fill={{{f'{name}.{kind.field(0).name}'!r}: ...}}",
            )
        try:
            if kind is None:
                raise TypeError("columns= leaves this column out")
            if value is None:
                raise TypeError("None stands for nothing")
            pa.scalar(value, pa.list_(kind) if isinstance(value, list | tuple) else kind)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise PipelineError(f"{constructor}: fill for {name!r}: {error}") from None
    return Schema(found, dict(fill or {}))


def require_arguments(constructor: str, columns: Any, dtypes: Any = None, fill: Any = None) -> None:
    """Raise `PipelineError` where `columns` is no list, or `dtypes` or `fill` no dict."""
    if isinstance(columns, str) or not isinstance(columns, Iterable | None):
        raise PipelineError(
            f"{constructor}: columns is a list of names, not {columns!r}",
            help=f"columns=[{columns!r}]" if isinstance(columns, str) else None,
        )
    for argument, said in (("dtypes", dtypes), ("fill", fill)):
        if not isinstance(said, Mapping | None):
            raise PipelineError(
                f"{constructor}: {argument} is a dict by column, not {said!r}",
                help=f'{argument}={{"x": ...}} names the column',
            )
