"""Records that lie in memory: arrays cut along their first axis, one element, a range of numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import ElementError, PipelineError, UnequalElements
from playhead.plan.block import (
    ArraySpec,
    Block,
    Columns,
    Nest,
    Rows,
    as_array,
    as_element,
    leaves,
    map_nest,
    named_leaves,
    own,
    spec_of,
)
from playhead.plan.description import fingerprint, operations
from playhead.plan.node import INFINITE, Node, Source
from playhead.plan.places import Index, Record

WHOLE = 64 << 20  # bytes up to which all content is hashed
SAMPLES = 1024
_UNEQUAL = (
    "from_sequence({}) keeps rows of unequal shapes, those of several as list(zip(x, y)), and padded_batch "
    "makes batches of them"
)


@dataclass(frozen=True, eq=False)
class TensorSlices(Source):
    """Element k is row k of every array."""

    op: ClassVar[str] = "tensor_slices"

    columns: Columns
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @cached_property
    def unlocked(self) -> bool:
        return not any(column.dtype.hasobject for column in leaves(self.columns.nest))

    @property
    def cardinality(self) -> int:
        return len(self.columns)

    def gather(self, index: Index) -> Block:
        return self.columns.select(index)

    def gather_apart(self, index: Index, ends: list[int]) -> list[Block] | None:
        return list(self.columns.select_apart(index, ends))

    def static_spec(self) -> Nest:
        return self._spec

    @cached_property
    def _spec(self) -> Nest:
        def of(column: np.ndarray[Any, Any]) -> ArraySpec:
            spec = spec_of(column)
            return ArraySpec(spec.shape[1:], spec.dtype)

        return map_nest(of, self.columns.nest)

    @cached_property
    def content(self) -> tuple[str, str]:
        return digest(self.columns.nest)

    def describe(self) -> dict[str, Any]:
        content, kind = self.content
        return {"op": self.op, "records": len(self.columns), "content": content, "kind": kind}


@dataclass(frozen=True, eq=False)
class Files(TensorSlices):
    """Paths of files."""

    op: ClassVar[str] = "list_files"

    def record(self, epoch: int, index: int) -> Record:
        path = self.columns.nest[index]
        return Record(self.info.name or self.op, epoch, index, str(path))


def tensor_slices(tensors: Nest) -> Columns:
    """The columns of a nest of array-likes with equal first axes. Raises `PipelineError` otherwise."""
    columns = map_nest(_as_column, tensors)
    sizes = {path or "the array": len(column) for path, column in named_leaves(columns)}
    if not sizes:
        raise PipelineError("from_tensor_slices needs at least one array")
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{path}: {size}" for path, size in sizes.items())
        raise PipelineError(f"from_tensor_slices needs arrays with equally many rows, not {said}")
    return Columns(columns, next(iter(sizes.values())))


def _as_column(value: Any) -> np.ndarray[Any, Any]:
    try:
        column = as_array(value)
    except UnequalElements as error:
        help = _UNEQUAL.format("rows") if _is_ragged(value) else error.help
        raise UnequalElements(f"from_tensor_slices: {error.what}", help=help) from None
    except TypeError as error:
        help = None
        if type(value).__name__ == "RaggedTensor":
            help = _UNEQUAL.format("ragged.to_list()")
        raise PipelineError(f"from_tensor_slices: {error}", help=help) from None
    if column.ndim == 0:
        raise PipelineError(
            "from_tensor_slices cuts along the first axis, and a scalar has none",
            help="from_tensors makes one element of it",
        )
    return column


def _is_ragged(rows: Any) -> bool:
    """Whether it is rows that have arrays of different shapes, each of which is an element by itself."""
    try:
        return len({np.shape(as_element(row)) for row in rows}) > 1
    except ElementError:
        return False


def digest(nest: Nest) -> tuple[str, str]:
    """A hash of structure, dtypes, shapes and contents, and its kind.

    "full"; "sampled" above 64 MB in all; "declared" where an object is neither str nor bytes, so that only
    its type is known. The order of a dict's keys does not matter.
    """
    hashed = hashlib.blake2b(digest_size=8)
    arrays = sorted(named_leaves(nest), key=lambda named: named[0])
    total = sum(array.nbytes for _, array in arrays)
    kind = "full" if total <= WHOLE else "sampled"
    opaque = False
    for path, array in arrays:
        hashed.update(f"{path}:{array.dtype.str}{array.shape};".encode())
        rows = array
        if kind == "sampled" and len(array) > SAMPLES:
            rows = array[np.linspace(0, len(array) - 1, SAMPLES).astype(np.int64)]
        if array.dtype.hasobject:
            for item in rows.flat:
                raw = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
                inside = getattr(item, "node", None)
                if isinstance(inside, Node):  # a dataset among the elements
                    raw = fingerprint(operations(inside)).encode()
                opaque = opaque or not isinstance(raw, bytes)
                raw = raw if isinstance(raw, bytes) else b""
                kind_of = type(item).__name__.encode()
                hashed.update(kind_of + b":" + len(raw).to_bytes(8, "little") + raw)
        else:
            little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
            hashed.update(np.ascontiguousarray(little).view(np.uint8).reshape(-1).data)
    return hashed.hexdigest(), "declared" if opaque else kind


@dataclass(frozen=True, eq=False)
class Tensors(Source):
    """One element."""

    op: ClassVar[str] = "tensors"

    element: Any
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return 1

    def gather(self, index: Index) -> Block:
        return Rows([own(self.element) for _ in index])

    def static_spec(self) -> Nest:
        return spec_of(self.element)

    @cached_property
    def content(self) -> str:
        return digest(map_nest(_hashable, self.element))[0]

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "content": self.content}


def _hashable(leaf: Any) -> np.ndarray[Any, Any]:
    if isinstance(leaf, np.ndarray):
        return leaf
    if isinstance(leaf, np.generic):
        return np.asarray(leaf).reshape(1)
    column = np.empty(1, object)
    column[0] = leaf
    return column


def tensors(value: Any) -> Any:
    """A nest as one element, copied so that later changes to the caller's arrays do not show."""
    return own(as_element(value))


@dataclass(frozen=True, eq=False)
class Range(Source):
    """int64 numbers from `first`, `increment` apart, before `stop` (None: endless)."""

    op: ClassVar[str] = "range"

    first_number: int
    stop: int | None
    increment: int
    dtype: np.dtype[Any]
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        if self.stop is None:
            return INFINITE
        return len(range(self.first_number, self.stop, self.increment))

    def gather(self, index: Index) -> Block:
        numbers = (self.first_number + index * self.increment).astype(self.dtype)
        return Columns(numbers, len(index))

    def static_spec(self) -> Nest:
        return ArraySpec((), self.dtype)

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "start": self.first_number, "stop": self.stop}
        said["step"] = self.increment
        if self.dtype != np.int64:
            said["dtype"] = self.dtype.name
        return said


def number_range(*args: int, dtype: Any = np.int64) -> tuple[int, int, int, np.dtype[Any]]:
    """(start, stop, step, dtype) for the arguments of `range`. Raises TypeError or ValueError as it does."""
    numbers = range(*args)
    kind = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    if kind.kind not in "iuf":
        raise ElementError(f"range makes numbers, not {kind}")
    return numbers.start, numbers.stop, numbers.step, kind
