"""The same pipeline built with tf.data.Dataset and with playhead.Dataset, and what both give."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph

DATASETS = (tf.data.Dataset, ph.Dataset)


@dataclass(frozen=True)
class Functions:
    """What a row's functions need beyond operators: once with numpy's values, once with tensors."""

    name: str
    arange: Callable[..., Any]
    full: Callable[..., Any]
    size: Callable[..., Any]
    total: Callable[..., Any]
    cast: Callable[..., Any]
    constant: Callable[..., Any]
    stack: Callable[..., Any]
    text: Callable[..., Any]
    finite: Callable[..., Any]


def _finite(x: Any) -> Any:
    if not np.isfinite(x).all():
        raise ValueError("not a number that is finite")
    return x


NUMPY = Functions(
    name="numpy",
    arange=lambda n: np.arange(n, dtype=n.dtype),
    full=np.full,
    size=lambda x: np.int32(np.size(x)),
    total=np.sum,
    cast=lambda x, dtype: np.asarray(x).astype(dtype)[()],
    constant=lambda value, dtype: np.asarray(value, dtype)[()],
    stack=np.stack,
    text=str,
    finite=_finite,
)
TENSORFLOW = Functions(
    name="TensorFlow",
    arange=tf.range,
    full=tf.fill,
    size=tf.size,
    total=tf.reduce_sum,
    cast=tf.cast,
    constant=tf.constant,
    stack=tf.stack,
    text=tf.strings.as_string,
    finite=lambda x: tf.debugging.check_numerics(x, "not a number that is finite"),
)


@dataclass(frozen=True)
class Leaf:
    """An array as it can be compared: strings as bytes, values as lists."""

    dtype: str
    shape: tuple[int, ...] | None
    values: Any


@dataclass(frozen=True)
class Inner:
    """A dataset inside an element, by its elements."""

    elements: tuple[Any, ...]


def comparable(value: Any) -> Any:
    """An element, or a list of them, as it can be compared: nests of `Leaf` and `Inner`.

    Tensors are numpy's values. str and bytes are one thing, since tf.data turns both into bytes. Python's
    own numbers stay, so that a number without a dtype is unlike one with a dtype.
    """
    if isinstance(value, dict):
        return {key: comparable(part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [comparable(part) for part in value]
        return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, list):
        return [comparable(part) for part in value]
    if isinstance(value, DATASETS):
        return Inner(tuple(comparable(element) for element in value))
    if isinstance(value, tf.RaggedTensor):
        return Leaf(value.dtype.name, None, value.to_list())
    if isinstance(value, tf.TypeSpec | ph.ArraySpec):
        return kind(value)
    if isinstance(value, tf.TensorShape):
        return tuple(value.as_list())
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, str | bytes):
        return Leaf("string", (), _bytes(value))
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == object:
            flat = [_bytes(v) for v in np.asarray(value).flat]
            assert all(isinstance(v, bytes) for v in flat), flat
            return Leaf("string", value.shape, flat)
        return Leaf(value.dtype.name, value.shape, value.tolist())
    return value


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@dataclass(frozen=True)
class Kind:
    """What a leaf's spec says. `shape` is None where the rank is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def fits(self, other: Kind) -> bool:
        """Whether an array can be of both."""
        if self.dtype != other.dtype:
            return False
        if self.shape is None or other.shape is None:
            return True
        return len(self.shape) == len(other.shape) and all(
            a is None or b is None or a == b for a, b in zip(self.shape, other.shape, strict=True)
        )


def kind(spec: Any) -> Any:
    """The `Kind` of a tf.TensorSpec or a playhead.ArraySpec; other specs as they are."""
    if isinstance(spec, tf.TensorSpec):
        rank = spec.shape.rank
        return Kind(spec.dtype.name, None if rank is None else tuple(spec.shape.as_list()))
    if isinstance(spec, ph.ArraySpec):
        is_text = spec.dtype in (str, bytes)
        return Kind("string" if is_text else np.dtype(spec.dtype).name, spec.shape)
    return spec


def _kinds(spec: Any, path: str = "element") -> Iterable[tuple[str, Any]]:
    if isinstance(spec, dict):
        for key in sorted(spec):
            yield from _kinds(spec[key], f"{path}[{key!r}]")
    elif isinstance(spec, tuple):
        for position, part in enumerate(spec):
            yield from _kinds(part, f"{path}[{position}]")
    else:
        yield path, kind(spec)


def _arguments(make: Callable[..., Any]) -> int:
    parameters = inspect.signature(make).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


def _built(make: Callable[..., Any], dataset: type, functions: Functions) -> Any:
    return make(*(dataset, functions)[: _arguments(make)])


def _assert_same_declaration(theirs: tf.data.Dataset, ours: ph.Dataset, count: int) -> None:
    """Specs agree in structure, dtypes and the shapes that both know; so do the counts."""
    if count:
        expected, said = dict(_kinds(theirs.element_spec)), dict(_kinds(ours.element_spec))
        assert said.keys() == expected.keys()
        sure = {path: spec for path, spec in expected.items() if isinstance(spec, Kind)}
        unlike = {p: (said[p], spec) for p, spec in sure.items() if not spec.fits(said[p])}
        assert not unlike, f"playhead's and tf.data's element_spec: {unlike}"
    known = int(theirs.cardinality())
    if known == ph.UNKNOWN:
        assert int(ours.cardinality()) in (ph.UNKNOWN, count)
    elif known >= 0:
        assert int(ours.cardinality()) == len(ours) == known
    else:
        assert int(ours.cardinality()) == known
        with pytest.raises(TypeError):
            len(ours)


@pytest.fixture(scope="session")
def plain() -> Callable[[Any], Any]:
    """Elements and lists of them as they can be compared."""
    return comparable


@pytest.fixture
def alike() -> Callable[[Callable[..., Any]], None]:
    """Assert that `make(Dataset)` or `make(Dataset, functions)` gives the same with both Datasets.

    Compared are the elements, in two passes of playhead's, the declared specs and the count; or the value,
    where it is no dataset. Rows that take functions are built with playhead twice, since it takes numpy's
    functions and TensorFlow's.
    """

    def assert_alike(make: Callable[..., Any]) -> None:
        theirs = _built(make, tf.data.Dataset, TENSORFLOW)
        value = comparable(theirs)
        for functions in (NUMPY, TENSORFLOW)[: _arguments(make)]:
            ours = _built(make, ph.Dataset, functions)
            if not isinstance(theirs, tf.data.Dataset):
                assert comparable(ours) == value, f"with functions of {functions.name}"
                continue
            assert isinstance(ours, ph.Dataset)
            expected = list(value.elements)
            for _ in range(2):
                given = [comparable(element) for element in islice(ours, len(expected) + 1)]
                assert given == expected, f"with functions of {functions.name}"
            _assert_same_declaration(theirs, ours, len(expected))

    return assert_alike


@pytest.fixture
def both_refuse() -> Callable[[Callable[..., Any]], None]:
    """Assert that building `make(Dataset)`, or walking it, raises with both Datasets."""

    def assert_both_refuse(make: Callable[..., Any]) -> None:
        for dataset, functions in zip(DATASETS, (TENSORFLOW, NUMPY), strict=True):
            with pytest.raises(Exception):  # noqa: B017
                comparable(_built(make, dataset, functions))

    return assert_both_refuse
