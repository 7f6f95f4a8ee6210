"""A Python function of one element, as a graph of TensorFlow operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from playhead.errors import FormError
from playhead.plan.block import Block, Columns, Nest, leaves, map_nest, named_leaves
from playhead.plan.functions import UserFunction
from playhead.tensorflow.convert import in_order

PYTHON = 'form="python" runs it once per element, outside of any graph'


@dataclass(frozen=True)
class Signature:
    """What the elements look like that a function was traced for: `nest` holds a `tf.TensorSpec` per leaf."""

    function: UserFunction
    nest: Nest

    @classmethod
    def of(cls, function: UserFunction, one: Block) -> Signature:
        """Columns have the same shape in every block; of rows only the rank stays."""
        if isinstance(one, Columns):
            element, exact = one.nest, True
        else:
            element, exact = one.rows()[0], False
        if not any(True for _ in leaves(element)):
            raise FormError(
                f"{called(function)} is given elements with nothing in them", help=PYTHON
            )
        specs = iter([_leaf_spec(function, *named, exact) for named in named_leaves(element)])
        return cls(function, map_nest(lambda _: next(specs), element))

    @property
    def specs(self) -> list[tf.TensorSpec]:
        return list(leaves(self.nest))

    def flat(self, nest: Nest) -> list[Any]:
        """The leaves of an element, or of columns, in the traced order."""
        try:
            return list(in_order(self.nest, nest))
        except (KeyError, TypeError, ValueError):
            raise self._misfit("has another structure") from None

    def check(self, leaf: Any, spec: tf.TensorSpec) -> None:
        """Raises where a leaf of a later element cannot go through the graph of the first."""
        array = isinstance(leaf, np.ndarray | np.generic)
        dtype = leaf.dtype if array and leaf.dtype != object else np.dtype(object)
        if dtype != spec.dtype.as_numpy_dtype:
            raise self._misfit(f"has {dtype} where that one had {spec.dtype.name}")
        if (leaf.ndim if array else 0) != spec.shape.rank:
            raise self._misfit(
                f"has the shape {np.shape(leaf)} where that one had {spec.shape.rank} axes"
            )

    def _misfit(self, what: str) -> FormError:
        return FormError(
            f"{called(self.function)} was traced for its first element, and a later one {what}",
            help=f"make elements alike in a map before it, or {PYTHON}",
        )


def _leaf_spec(function: UserFunction, path: str, leaf: Any, exact: bool) -> tf.TensorSpec:
    """The spec of a leaf of rows, or, where `exact`, of a column's rows."""
    shape: tuple[int | None, ...] = leaf.shape if isinstance(leaf, np.ndarray) else ()
    shape = shape[1:] if exact else (None,) * len(shape)
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != object:
        try:
            return tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))
        except TypeError:
            raise _not_a_tensor(function, path, str(leaf.dtype)) from None
    values = leaf.flat if isinstance(leaf, np.ndarray) else [leaf]
    for value in values:
        if not isinstance(value, str | bytes):
            raise _not_a_tensor(function, path, type(value).__name__)
    return tf.TensorSpec(shape, tf.string)


def _not_a_tensor(function: UserFunction, path: str, kind: str) -> FormError:
    return FormError(
        f"{called(function)} cannot be traced: element{path} is {kind}, which no tensor holds",
        help=PYTHON,
        path=path,
    )


@dataclass(frozen=True)
class Result:
    """One leaf of what a traced function returns: `shape` is None where not even the rank is known."""

    dtype: tf.DType
    shape: tuple[int | None, ...] | None

    @property
    def fixed(self) -> bool:
        return self.shape is not None and None not in self.shape


@dataclass(frozen=True)
class Traced:
    """The graph over one element, and the nest of `Result`s that it gives.

    The graph returns `parts` (see `_parts`) one by one where all results are `fixed`, else packed together as
    one scalar: a `tf.experimental.Optional`'s variant.
    """

    graph: tf.types.experimental.ConcreteFunction
    results: Nest
    parts: list[tf.TensorSpec]
    fixed: bool


def trace(function: UserFunction, signature: Signature, with_rng: bool) -> Traced:
    """Calls the function once, on symbols. Raises `FormError`, from the original error where there is one."""
    fn = function.fn
    found: list[tuple[Nest, list[tf.TensorSpec], bool]] = []
    refused: list[FormError] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def arguments(tensors: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
        given = iter(tensors)
        element = map_nest(lambda _: next(given), signature.nest)
        return (*(element if type(element) is tuple else (element,)), *given)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def flattened(result: Any) -> list[tf.Tensor]:
        try:
            tensors = _tensors(function, result)
        except FormError as error:  # which autograph would wrap
            refused.append(error)
            raise
        kinds = [Result(t.dtype, None if t.shape.rank is None else tuple(t.shape)) for t in tensors]
        parts = [part for t, kind in zip(tensors, kinds, strict=True) for part in _parts(t, kind)]
        specs = [tf.TensorSpec(part.shape, part.dtype) for part in parts]
        fixed = all(kind.fixed for kind in kinds)
        each = iter(kinds)
        found.append((map_nest(lambda _: next(each), result), specs, fixed))
        return parts if fixed else [tf.raw_ops.OptionalFromValue(components=parts)]

    def one_element(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return flattened(fn(*arguments(tensors)))  # type: ignore[no-any-return]

    specs = [*signature.specs, *([tf.TensorSpec((2,), tf.int32)] if with_rng else [])]
    try:
        graph = tf.function(one_element, input_signature=specs).get_concrete_function()
    except Exception as error:
        if refused:
            raise refused[0] from None
        raise FormError(
            f"{called(function)} cannot be traced by TensorFlow: {type(error).__name__}: {error}",
            help=PYTHON,
        ) from error
    return Traced(graph, *found[-1])


def _tensors(function: UserFunction, result: Any) -> list[tf.Tensor]:
    """The leaves of what a function returns. Raises `FormError` for what cannot be stacked or tested."""
    tensors = [_as_tensor(function, path, leaf) for path, leaf in named_leaves(result)]
    if not tensors:
        raise FormError(
            f"{called(function)} returns nothing", help="return a tensor or a nest of them"
        )
    if function.op == "filter":
        truth = tensors[0]
        if (
            isinstance(result, dict | tuple)
            or truth.dtype != tf.bool
            or truth.shape.rank not in (0, None)
        ):
            raise FormError(
                f"{called(function)} must return one bool per element",
                help="tf.reduce_all makes one of several",
            )
    return tensors


def _as_tensor(function: UserFunction, path: str, leaf: Any) -> tf.Tensor:
    sparse = isinstance(leaf, tf.SparseTensor)
    if sparse or isinstance(leaf, tf.RaggedTensor):
        instead = "tf.sparse.to_dense(x)" if sparse else "x.to_tensor()"
        raise FormError(
            f"{called(function)} returns a {type(leaf).__name__} at result{path}",
            help=f"return {instead}; results of varying shape may stay so until padded_batch",
            path=path,
        )
    try:
        tensor = None if leaf is None else tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        tensor = None
    if tensor is None or tensor.dtype in (tf.resource, tf.variant):
        raise FormError(
            f"{called(function)} returns a {type(leaf).__name__} at result{path}, which is no tensor",
            help="return tensors, in dicts and tuples; a list is one array",
            path=path,
        )
    return tensor


def _parts(tensor: tf.Tensor, kind: Result) -> list[tf.Tensor]:
    """One result as tensors that a chunk's can be stacked or joined of: its values, its shape, its rank."""
    if kind.fixed:
        return [tensor]
    parts = [tf.reshape(tensor, [-1]), tf.shape(tensor, tf.int64)]
    return parts if kind.shape is not None else [*parts, tf.rank(tensor)]


def called(function: UserFunction) -> str:
    """How errors name a function: its operation, its name, the user's own line."""
    return f"{function.op}({function.name})" + (f" at {function.where}" if function.where else "")
