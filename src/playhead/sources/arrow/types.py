"""Arrow's types: which of them an element can have, and as what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import ArraySpec, Nest, map_nest

if TYPE_CHECKING:
    import pyarrow as pa


def require(constructor: str) -> None:
    """Raise `PipelineError` where pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise PipelineError(
            f"{constructor} reads through pyarrow, which is not installed",
            help='pip install "playhead[arrow]"',
        ) from None


def with_offsets(table: pa.Table) -> pa.Table:
    """A table in which text and lists are told by offsets: from others no rows can be taken."""
    schema = table.schema
    for number, field in enumerate(schema):
        schema = schema.set(number, field.with_type(offset_type(field.type)))
    return table if schema == table.schema else table.cast(schema)


def arrow_type(dtype: Any, name: str) -> pa.DataType:
    """The Arrow type of a dtype as users write it. Raises `PipelineError`."""
    import pyarrow as pa

    if isinstance(dtype, pa.DataType):
        return dtype
    if dtype in (str, bytes):
        return pa.string() if dtype is str else pa.binary()
    try:
        return pa.from_numpy_dtype(np.dtype(getattr(dtype, "as_numpy_dtype", dtype)))
    except (TypeError, pa.ArrowException):
        raise PipelineError(f"dtypes: {dtype!r} is no dtype for the column {name!r}") from None


def is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values are str or bytes, in a layout from which rows can be taken or that is made into one."""
    import pyarrow as pa

    t = pa.types
    text = (t.is_string, t.is_large_string, t.is_string_view)
    binary = (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary)
    return any(fits(kind) for fits in (*text, *binary))


def inside_of(schema: pa.Schema, name: str) -> tuple[str, tuple[str, ...]] | None:
    """The column and the fields in it that a name with dots leads to; None where it leads nowhere."""
    if name in schema.names:
        return name, ()
    for column in schema.names:
        path = tuple(name.removeprefix(f"{column}.").split("."))
        if name.startswith(f"{column}.") and _leads(schema.field(column).type, path):
            return column, path
    return None


def _leads(kind: pa.DataType, path: tuple[str, ...]) -> bool:
    import pyarrow as pa

    bare = plain(kind)
    while is_list(bare):
        bare = plain(bare.value_type)
    if not path:
        return True
    there = pa.types.is_struct(bare) and bare.get_field_index(path[0]) >= 0
    return there and _leads(bare.field(path[0]).type, path[1:])


def leaf_type(kind: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    """The type of the values in the innermost lists, at a `path` that leads somewhere."""
    bare = plain(kind)
    while is_list(bare):
        bare = plain(bare.value_type)
    return leaf_type(bare.field(path[0]).type, path[1:]) if path else bare


def with_leaf(kind: pa.DataType, leaf: pa.DataType, path: tuple[str, ...] = ()) -> pa.DataType:
    """A type with the values of its innermost lists, at a `path` that leads somewhere, in another one."""
    import pyarrow as pa

    if path and pa.types.is_struct(kind):
        return pa.struct(
            [
                f.with_type(with_leaf(f.type, leaf, path[1:])) if f.name == path[0] else f
                for f in kind
            ]
        )
    if not is_list(kind) or (is_list(leaf) and not path):
        return leaf
    inner = with_leaf(kind.value_type, leaf, path)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def offset_type(kind: pa.DataType) -> pa.DataType:
    """A type in which text and lists are told by offsets, not by views."""
    import pyarrow as pa

    t = pa.types
    if t.is_string_view(kind) or t.is_binary_view(kind):
        return pa.large_string() if t.is_string_view(kind) else pa.large_binary()
    if t.is_struct(kind):
        return pa.struct([field.with_type(offset_type(field.type)) for field in kind])
    if t.is_fixed_size_list(kind):
        return pa.list_(offset_type(kind.value_type), kind.list_size)
    if is_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        inner = offset_type(kind.value_type)
        return kind if is_list(kind) and inner == kind.value_type else pa.large_list(inner)
    return kind


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without what only says how it is stored."""
    import pyarrow as pa

    if isinstance(kind, pa.FixedShapeTensorType):
        bare = kind.value_type
        for size in reversed(kind.shape):
            bare = pa.list_(bare, size)
        return bare
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    return plain(kind.value_type) if pa.types.is_dictionary(kind) else kind


def require_known(kind: pa.DataType, name: str, constructor: str) -> None:
    import pyarrow as pa

    t, bare = pa.types, plain(kind)
    if t.is_struct(bare):
        for field in bare:
            require_known(field.type, f"{name}.{field.name}", constructor)
        return
    if is_list(bare):
        require_known(bare.value_type, name, constructor)
        return
    numbers = (t.is_integer, t.is_floating, t.is_boolean, t.is_timestamp, t.is_date, t.is_duration)
    if not is_text(bare) and not any(fits(bare) for fits in numbers):
        cast = "np.int64" if t.is_time(bare) else "np.float64"
        if t.is_null(bare):
            cast = "str"
        helps = t.is_decimal(bare) or t.is_time(bare) or t.is_null(bare)
        kinds = "text" if cast == "str" else "numbers"
        instead = f"dtypes={{{name!r}: {cast}}} reads it as {kinds}; " if helps else ""
        raise PipelineError(
            f"{constructor}: the column {name!r} is of the type {kind}, which no array holds",
            help=f"{instead}columns=[...] leaves it out",
        )


def said_of(kind: pa.DataType) -> str:
    """A type in words that do not depend on how it is stored, nor on pyarrow's names for what is inside."""
    import pyarrow as pa

    bare = plain(kind)
    if pa.types.is_struct(bare):
        return "{" + ", ".join(f"{field.name!r}: {said_of(field.type)}" for field in bare) + "}"
    if is_list(bare):
        size = bare.list_size if pa.types.is_fixed_size_list(bare) else ""
        return f"[{said_of(bare.value_type)}]{size}"
    return str(offset_type(bare)).removeprefix("large_")


def varies(kind: pa.DataType) -> bool:
    import pyarrow as pa

    bare = plain(kind)
    if pa.types.is_struct(bare):
        return any(varies(field.type) for field in bare)
    if pa.types.is_fixed_size_list(bare):
        return varies(bare.value_type)
    return is_list(bare)


def spec_of_type(kind: pa.DataType) -> Nest:
    import pyarrow as pa

    t, bare = pa.types, plain(kind)
    if t.is_struct(bare):
        return {field.name: spec_of_type(field.type) for field in bare}
    if is_list(bare):
        size = bare.list_size if t.is_fixed_size_list(bare) else None
        inner = spec_of_type(bare.value_type)
        return map_nest(lambda s: ArraySpec((size, *s.shape), s.dtype), inner)
    if is_text(bare):
        return ArraySpec((), str if t.is_string(bare) or t.is_large_string(bare) else bytes)
    return ArraySpec((), pa.array([], bare).to_numpy(zero_copy_only=False).dtype)
