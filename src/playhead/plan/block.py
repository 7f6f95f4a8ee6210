"""Elements and blocks of elements.

An element is a nest (dicts and tuples) whose leaves are numpy arrays, numpy scalars, bytes, str, or any
object. A block is n elements together: `Columns` where every element has the same structure, shapes and
dtypes, else `Rows`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import IntegerOverflow, UnequalElements
from playhead.plan.aligned import aligned_copy, aligned_empty

Nest: TypeAlias = Any
Element: TypeAlias = Any

_INT32 = range(-(2**31), 2**31)


def map_nest(fn: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """`nest` with `fn` applied to its leaves (and to the leaves of equally built `others`)."""
    if isinstance(nest, dict):
        return {key: map_nest(fn, nest[key], *(o[key] for o in others)) for key in nest}
    if isinstance(nest, tuple):
        parts = [map_nest(fn, *group) for group in zip(nest, *others, strict=True)]
        return type(nest)._make(parts) if hasattr(nest, "_make") else tuple(parts)
    return fn(nest, *others)


def leaves(nest: Nest) -> Iterator[Any]:
    """The leaves of `nest`, in its own order."""
    if isinstance(nest, dict):
        for value in nest.values():
            yield from leaves(value)
    elif isinstance(nest, tuple):
        for value in nest:
            yield from leaves(value)
    else:
        yield nest


def named_leaves(nest: Nest, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) for each leaf; a path reads like the expression that reaches it, as in `["image"][0]`."""
    if isinstance(nest, dict):
        for key, value in nest.items():
            yield from named_leaves(value, f"{path}[{key!r}]")
    elif isinstance(nest, tuple):
        for position, value in enumerate(nest):
            yield from named_leaves(value, f"{path}[{position}]")
    else:
        yield path, nest


def _aligned_row(leaf: Any) -> Any:
    return aligned_copy(leaf) if isinstance(leaf, np.ndarray) else leaf


def object_array(items: Sequence[Any]) -> np.ndarray[Any, Any]:
    """A one-dimensional object array that holds `items` as they are."""
    return np.fromiter(items, object, len(items))


def as_element(value: Any) -> Element:
    """`value` with its leaves as playhead keeps them.

    Python int becomes int32, float float32, bool bool, lists become arrays, numpy's fixed-width strings
    become objects (they strip NULs); numpy dtypes, str, bytes and other objects stay. Tensors of other
    libraries become numpy arrays. Raises `IntegerOverflow` where a Python int does not fit int32.
    """
    return map_nest(_as_leaf, value)


def _as_leaf(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "SU":
            value = _unpadded(value)
        return value[()] if value.ndim == 0 else value
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.bytes_):
        return bytes(value)
    if isinstance(value, np.generic | str | bytes) or value is None:
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return _as_int32(value)
    if isinstance(value, float):
        return np.float32(value)
    if isinstance(value, list):
        return as_array(value)
    if hasattr(value, "__array__") and not isinstance(value, type):
        return _as_leaf(np.asarray(value))
    return value


def _as_int32(value: int) -> np.int32:
    if value not in _INT32:
        raise IntegerOverflow(
            f"{value} does not fit int32, which a Python int becomes",
            help=f"say the dtype outright: np.int64({value})",
            value=value,
        )
    return np.int32(value)


_NUMBERS: dict[type, Callable[[Any], Any]] = {int: _as_int32, float: np.float32, bool: np.bool_}
_SCALARS = {str, bytes, *(np.dtype(code).type for code in np.typecodes["All"] if code not in "SUO")}


def taken(value: Any) -> Element:
    """`as_element` with a copy of each array: nobody else holds it, or writes to it later."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind in _NUMBERS:
        return _NUMBERS[kind](value)
    if kind is np.ndarray and value.ndim and value.dtype.kind not in "SU":
        return value.copy()
    if isinstance(value, dict):
        return {key: taken(part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [taken(part) for part in value]
        return kind._make(parts) if hasattr(value, "_make") else tuple(parts)
    return own(_as_leaf(value))


def own(element: Element) -> Element:
    """`element` with a copy of each array and list."""
    return map_nest(_copied, element)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, list):
        return copy.deepcopy(leaf)
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf


def _unpadded(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value.astype(object)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A list (or anything array-like) as an array of playhead's dtypes. Ragged: `UnequalElements`."""
    if isinstance(value, np.ndarray):
        return _unpadded(value) if value.dtype.kind in "SU" else value
    if hasattr(value, "__array__"):
        return as_array(np.asarray(value))
    if not isinstance(value, list | tuple | range):
        raise TypeError(f"cannot make an array of {type(value).__name__}")
    if not len(value):
        return np.empty((0,), np.float32)
    items = [as_array(v) if isinstance(v, list | tuple) else _as_leaf(v) for v in value]
    numeric = [isinstance(v, np.ndarray | np.generic) for v in items]
    if not any(numeric):
        return object_array(items)
    if not all(numeric):
        raise UnequalElements(
            f"a list holds {_kind(items[0])} and {_kind(items[numeric.index(not numeric[0])])}",
            help="return a tuple, whose parts may differ",
        )
    shapes = {np.shape(v) for v in items}
    if len(shapes) > 1:
        raise UnequalElements(
            f"a list holds parts of unequal shapes {sorted(shapes)}",
            help="pad the parts to one shape, or return a tuple, whose parts may differ",
        )
    return np.array(items, dtype=_common(_dtypes(value, items)))


def _dtypes(values: Sequence[Any], items: list[Any]) -> set[np.dtype[Any]]:
    """The dtypes that decide the list's: those of Python's numbers only where nothing else does."""
    own = {v.dtype for v, given in zip(items, values, strict=True) if type(given) not in _NUMBERS}
    weak = [v for v in items if v.dtype not in own]
    kinds = "biufc"
    if own and all(kinds.find(v.dtype.kind) <= max(kinds.find(d.kind) for d in own) for v in weak):
        return own
    return {v.dtype for v in items}


def _common(dtypes: set[np.dtype[Any]]) -> np.dtype[Any]:
    """numpy's common dtype, but Python's ints and floats stay float32 together, as in tf.data."""
    if dtypes <= {np.dtype(bool), np.dtype(np.int32), np.dtype(np.float32)} and len(dtypes) > 1:
        return np.dtype(np.float32 if np.dtype(np.float32) in dtypes else np.int32)
    return np.result_type(*dtypes)


def _unstacked(nest: Nest, length: int) -> list[Element]:
    if isinstance(nest, dict):
        columns = [_unstacked(part, length) for part in nest.values()]
        if not columns:
            return [{} for _ in range(length)]
        return [dict(zip(nest, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(nest, tuple):
        if not nest:
            return [nest] * length
        rows = list(zip(*(_unstacked(part, length) for part in nest), strict=True))
        return [type(nest)._make(row) for row in rows] if hasattr(nest, "_make") else rows
    return list(nest)


@dataclass(frozen=True, slots=True)
class Columns:
    """n elements as a nest of arrays with a leading axis n.

    Only for elements whose structure, shapes and dtypes are the same in every block of a node.
    """

    nest: Nest
    length: int

    def __len__(self) -> int:
        return self.length

    def rows(self) -> list[Element]:
        """The elements, one by one: views into the columns."""
        return _unstacked(self.nest, self.length)

    def own_rows(self) -> list[Element]:
        """The elements for a consumer, who may keep one and drop the others."""
        if self.length == 1:
            return self.rows()
        return [map_nest(_aligned_row, row) for row in self.rows()]

    def slice(self, start: int, stop: int) -> Columns:
        return Columns(map_nest(lambda c: c[start:stop], self.nest), stop - start)

    def copied(self) -> Columns:
        """The same in aligned memory of its own."""
        return Columns(map_nest(aligned_copy, self.nest), self.length)

    def select(self, chosen: np.ndarray[Any, Any]) -> Columns:
        """The elements at the positions `chosen` (int64, any order)."""
        return Columns(map_nest(lambda c: gather(c, chosen), self.nest), len(chosen))

    def select_apart(self, chosen: np.ndarray[Any, Any], ends: list[int]) -> list[Columns]:
        """`select` for each part of `chosen`, part k ending before `ends[k]`."""
        sizes = np.diff([0, *ends]).tolist()
        apart = map_nest(lambda c: gather_apart(c, chosen, sizes), self.nest)
        return [
            Columns(map_nest(operator.itemgetter(k), apart), size) for k, size in enumerate(sizes)
        ]

    def stack(self) -> Element:
        """All elements as one batch."""
        return self.nest


@dataclass(frozen=True, slots=True)
class Rows:
    """n elements as a list."""

    elements: list[Element]

    def __len__(self) -> int:
        return len(self.elements)

    def rows(self) -> list[Element]:
        return self.elements

    def own_rows(self) -> list[Element]:
        return self.elements

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.elements[start:stop])

    def select(self, chosen: np.ndarray[Any, Any]) -> Rows:
        return Rows([self.elements[k] for k in chosen])

    def stack(self) -> Element:
        return stack(self.elements)


Block: TypeAlias = Columns | Rows


def gather(column: np.ndarray[Any, Any], index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of `column` at `index` (int64) in a fresh 64-byte aligned array."""
    return gather_apart(column, index, [len(index)])[0]


def gather_apart(
    column: np.ndarray[Any, Any], index: np.ndarray[Any, Any], sizes: Sequence[int]
) -> list[np.ndarray[Any, Any]]:
    """Rows of `column` at `index` (int64), so many of them in each of several such arrays."""
    outs = [aligned_empty((size, *column.shape[1:]), column.dtype) for size in sizes]
    if not column.dtype.hasobject:
        kernels.gather(column, index, *outs)
        return outs
    start = 0
    for out in outs:
        out[...] = column[index[start : start + len(out)]]
        start += len(out)
    return outs


def join(blocks: Sequence[Block]) -> Block:
    """Several blocks of one node as one."""
    if len(blocks) == 1:
        return blocks[0]
    columns = [b for b in blocks if isinstance(b, Columns)]
    if columns and len(columns) == len(blocks):

        def joined(*parts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            size = sum(len(p) for p in parts)
            out = aligned_empty((size, *parts[0].shape[1:]), parts[0].dtype)
            return np.concatenate(parts, axis=0, out=out)

        nest = map_nest(joined, *(c.nest for c in columns))
        return Columns(nest, sum(len(c) for c in columns))
    return Rows([element for block in blocks for element in block.rows()])


def stack(elements: Sequence[Element]) -> Element:
    """Equally built elements as one batch: each leaf gets a leading axis.

    bytes, str and other objects become object arrays. Raises `UnequalElements` naming the two elements and
    the leaf where structures, shapes or dtypes differ.
    """
    first = elements[0]
    if isinstance(first, dict):
        _same_structure(elements, dict, lambda e: e.keys())
        return {key: _stack_part(elements, key) for key in first}
    if isinstance(first, tuple):
        _same_structure(elements, tuple, len)
        parts = [_stack_part(elements, k) for k in range(len(first))]
        return type(first)._make(parts) if hasattr(first, "_make") else tuple(parts)
    return _stack_leaves(elements)


def _stack_part(elements: Sequence[Element], key: Any) -> Element:
    try:
        return stack([element[key] for element in elements])
    except UnequalElements as error:
        path = f"[{key!r}]{error.facts.get('path', '')}"
        raise _unequal(path, *(error.facts[k] for k in ("first", "second", "at"))) from None


def _same_structure(elements: Sequence[Element], kind: type, shape: Callable[[Any], Any]) -> None:
    expected = shape(elements[0])
    for position, element in enumerate(elements):
        if not isinstance(element, kind) or shape(element) != expected:
            raise _unequal("", _structure(elements[0]), _structure(element), position)


def _structure(nest: Nest) -> str:
    if isinstance(nest, dict):
        return "a dict with " + ", ".join(map(repr, nest))
    if isinstance(nest, tuple):
        return f"a tuple of {len(nest)}"
    return _kind(nest)


def _kind(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray | np.generic):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return type(leaf).__name__


def _unequal(path: str, first: str, second: str, at: int) -> UnequalElements:
    where = f" at element{path}" if path else ""
    return UnequalElements(
        f"cannot batch{where}: element 0 of the batch is {first}, element {at} is {second}",
        help="padded_batch pads arrays to one shape; or make shapes and dtypes equal in a map before batch",
        path=path,
        first=first,
        second=second,
        at=at,
    )


def _stack_leaves(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    first = values[0]
    if isinstance(first, np.ndarray | np.generic):
        shape, dtype = first.shape, first.dtype
        if not all_like(values, shape, dtype):
            for position, value in enumerate(values):
                if getattr(value, "shape", None) != shape or getattr(value, "dtype", None) != dtype:
                    raise _unequal("", _kind(first), _kind(value), position)
        out = aligned_empty((len(values), *shape), dtype)
        write_leaves(values, out)
        return out
    if type(first) in (str, bytes) and set(map(type, values)) == {type(first)}:
        return object_array(values)
    for position, value in enumerate(values):
        if isinstance(value, np.ndarray | np.generic | dict | tuple):
            raise _unequal("", _kind(first), _structure(value), position)
        if isinstance(first, str | bytes) and type(value) is not type(first):
            raise _unequal("", _kind(first), _kind(value), position)
    return object_array(values)


def all_like(values: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether all are arrays, or numpy scalars, of this shape and dtype."""
    if not shape and dtype.kind in "biufc" and dtype.isnative:
        return set(map(type, values)) == {dtype.type}
    try:
        return all(
            value.shape == shape and (value.dtype is dtype or value.dtype == dtype)
            for value in values
        )
    except AttributeError:
        return False


def write_leaves(values: Sequence[Any], out: np.ndarray[Any, Any]) -> None:
    """Arrays or scalars, each like a row of `out`, into its rows."""
    if out.ndim > 1 and out.size and not out.dtype.hasobject and out.flags.c_contiguous:
        np.concatenate(values, out=out.reshape(-1, *out.shape[2:]))
    elif out.ndim == 1 and not out.dtype.hasobject:
        out[...] = values
    else:
        for position, value in enumerate(values):
            out[position] = value


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """A leaf's `shape` (None where it varies) and `dtype` (a numpy dtype, `str`, `bytes` or `object`)."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any] | type

    def __repr__(self) -> str:
        name = self.dtype.__name__ if isinstance(self.dtype, type) else self.dtype.name
        inner = ", ".join("None" if d is None else str(d) for d in self.shape)
        return f"ArraySpec(({inner}{',' if len(self.shape) == 1 else ''}), {name})"

    def __getattr__(self, name: str) -> Any:
        said = f"ArraySpec has no {name!r}"
        if name == "most_specific_common_supertype":  # sample_from_datasets([ours, theirs]), say
            said += ": a function of TensorFlow wants a tf.data.Dataset, and to_tf() makes one"
        raise AttributeError(said)


def widened(specs: list[Nest]) -> Nest:
    """What fits several elements and others: None along the first axis, and where they differ."""

    def of(first: Any, *others: Any) -> Any:
        ranks = {len(spec.shape) for spec in (first, *others)}
        if not first.shape or len(ranks) > 1:
            return first
        axes = list(zip(*(spec.shape for spec in (first, *others)), strict=True))[1:]
        return ArraySpec((None, *(a[0] if len(set(a)) == 1 else None for a in axes)), first.dtype)

    try:
        return map_nest(of, *specs)
    except (KeyError, TypeError, ValueError, AttributeError):
        return specs[0]  # they are built differently: whoever asks will be told by the element


def spec_of(element: Element) -> Nest:
    """The `ArraySpec`s of one element."""

    def of(leaf: Any) -> ArraySpec:
        if isinstance(leaf, np.ndarray):
            if leaf.dtype == object:
                kinds = {type(v) for v in leaf.flat} or {str}  # of no words: words
                only = kinds.pop() if len(kinds) == 1 else object
                return ArraySpec(leaf.shape, only if only in (str, bytes) else object)
            return ArraySpec(leaf.shape, leaf.dtype)
        if isinstance(leaf, np.generic):
            return ArraySpec((), leaf.dtype)
        return ArraySpec((), type(leaf) if isinstance(leaf, str | bytes) else object)

    return map_nest(of, element)
