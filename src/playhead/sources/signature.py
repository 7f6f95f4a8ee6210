"""What a generator's items are said to be, as tf.data has it said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.errors import ElementError, PipelineError
from playhead.plan.block import Element, Nest, map_nest, taken
from playhead.sources.taking import Column, column, integers, scalars, whole


@dataclass(frozen=True, slots=True)
class Expected:
    """What a leaf of a generator's items is said to be: its dtype, and its shape where that is known."""

    dtype: np.dtype[Any] | type
    shape: tuple[int | None, ...] | None


def signature_of(types: Nest | None, shapes: Nest | None, specs: Nest | None) -> Nest | None:
    """The nest of `Expected` for tf.data's `output_types` and `output_shapes`, or its `output_signature`.

    Raises `PipelineError` for both at once, for shapes alone, and for what is no array.
    """
    if specs is not None:
        if types is not None or shapes is not None:
            raise PipelineError("from_generator takes output_signature, or output_types, not both")
        return map_nest(lambda spec: _expected(getattr(spec, "dtype", None), spec), specs)
    if types is None:
        if shapes is not None:
            raise PipelineError("from_generator(output_shapes=...) needs output_types")
        return None
    if shapes is None:
        return map_nest(lambda dtype: _expected(dtype, None), types)
    return map_nest(_expected, types, shapes)


def _expected(dtype: Any, spec: Any) -> Expected:
    kind = type(spec).__name__
    if kind in ("RaggedTensorSpec", "SparseTensorSpec", "DatasetSpec"):
        raise PipelineError(
            f"from_generator: elements hold arrays, and {kind} is none",
            help="leave it out of the signature: lists of unequal lengths may be leaves of a tuple",
        )
    shape = getattr(spec, "shape", spec)
    rank = getattr(shape, "rank", 0) if not isinstance(shape, list | tuple) else len(shape)
    sizes = None
    if shape is not None and rank is not None:
        sizes = tuple(None if d in (None, -1) else int(d) for d in shape)
    found = getattr(dtype, "as_numpy_dtype", dtype)
    if found in (str, bytes):
        return Expected(found, sizes)
    if found is object:
        return Expected(bytes, sizes)
    try:
        return Expected(np.dtype(found), sizes)
    except TypeError:
        raise PipelineError(f"from_generator: {dtype!r} is no dtype of an array") from None


def fitted(signature: Nest, item: Any) -> Element:
    """An item in the dtypes of the signature. Raises `ElementError` where it does not fit."""
    try:
        return map_nest(_fitted, signature, _as_nest(item, signature))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ElementError):
            raise
        raise ElementError(f"an item does not fit the signature {signature}: {error}") from None


def _as_nest(item: Any, signature: Nest) -> Any:
    """Where the signature has a tuple, a list is one, as in tf.data."""
    if isinstance(signature, tuple) and isinstance(item, list):
        item = tuple(item)
    if isinstance(signature, tuple) and isinstance(item, tuple):
        if len(item) != len(signature):
            raise ElementError(f"an item has {len(item)} parts, and the signature {len(signature)}")
        return tuple(_as_nest(part, at) for part, at in zip(item, signature, strict=True))
    if isinstance(signature, dict):
        return {key: _as_nest(item[key], at) for key, at in signature.items()}
    return item


def _fitted(expected: Expected, value: Any) -> Any:
    if isinstance(expected.dtype, np.dtype):
        array = np.array(value, expected.dtype)
        if array.size and np.asarray(value).dtype.kind in "fc" and expected.dtype.kind in "iub":
            raise ElementError(f"an item has {value!r} where the signature has {expected.dtype}")
        made = array if array.ndim else array[()]
    else:
        made = taken(value)
    shape = np.shape(made) if isinstance(made, np.ndarray) else ()
    wanted = expected.shape
    if wanted is not None and (
        len(shape) != len(wanted)
        or any(w not in (None, n) for n, w in zip(shape, wanted, strict=True))
    ):
        raise ElementError(f"an item has shape {shape} where the signature has {wanted}")
    return made


def columns_of(signature: Nest, first: Any) -> list[Column] | None:
    """Columns of which each takes what is like its part of the first item, as `fitted` would; None: none do."""
    kind = type(first)
    if kind is not type(signature) or kind not in (dict, tuple) or len(first) != len(signature):
        return None
    expected, parts = signature, first
    if isinstance(signature, dict):
        if list(first) != list(signature):
            return None
        expected, parts = signature.values(), first.values()
    return whole(_column(*pair) for pair in zip(expected, parts, strict=True))


def _column(expected: Any, first: Any) -> Column | None:
    if not isinstance(expected, Expected):
        return None
    kind, dtype, wanted = type(first), expected.dtype, expected.shape
    if kind is np.ndarray:
        fits = first.dtype == dtype and (wanted is None or first.shape == wanted)
        return column(first) if fits else None
    if wanted:
        return None
    if not isinstance(dtype, np.dtype):
        return scalars(dtype) if kind is dtype else None
    if not dtype.isnative or dtype.kind in "SU":
        return None  # as scalars they are of another dtype, each of its own
    if kind is int and dtype.kind in "iu":
        return integers(dtype)
    plain = (kind is float and dtype.kind == "f") or (kind is bool and dtype.kind == "b")
    return scalars(kind, dtype) if plain or kind is dtype.type else None
