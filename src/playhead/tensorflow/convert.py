"""Elements as tensors, and datasets as `tf.data` values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from playhead.errors import PipelineError, UnequalElements
from playhead.kernels import ALIGNMENT
from playhead.plan.aligned import aligned_copy
from playhead.plan.block import ArraySpec, Element, Nest, map_nest, named_leaves, object_array
from playhead.plan.description import unseeded
from playhead.plan.node import INFINITE, UNKNOWN, Node
from playhead.tensorflow.agreement import tasks

if TYPE_CHECKING:
    from playhead.dataset import Dataset

Value = TypeVar("Value")


def to_tf(ds: Dataset, output_signature: Nest | None = None) -> tf.data.Dataset:
    """A `tf.data.Dataset` whose every iteration is the next pass over `ds`; its position is not saved.

    output_signature: a nest of `tf.TensorSpec`, where what `ds.element_spec` says does not fit every element.
    str leaves as tf.string. Raises `PipelineError` for elements that no tensor holds.

    >>> import playhead as ph
    >>> [int(x) for x in to_tf(ph.Dataset.range(3))]
    [0, 1, 2]
    """
    require_dataset(ds, "to_tf")
    if ds.node.parted:
        raise PipelineError(
            "to_tf of a dataset that is split: a strategy would shard it once more, and train on a fraction "
            "of the data",
            help="playhead.tensorflow.iterator(ds, strategy=strategy) over the whole dataset gives each "
            "replica its part; for strategy.distribute_datasets_from_function, "
            "playhead.tensorflow.dataset_fn(ds)",
        )
    random = unseeded(ds.node)
    if random is not None and len(tasks()) > 1:
        raise PipelineError(
            f"to_tf among several workers: {random.op} ({random.info.where}) has no seed, so each would read "
            "in an order of its own, and a strategy that shares the batches out would lose rows",
            help="give it seed=, or ds.seed(n)",
        )
    signature = output_signature
    if signature is None:
        signature = type_specs(eagerly(lambda: ds.element_spec))

    def one_pass() -> Any:
        for element in ds:
            if output_signature is None:
                _require_fit(element, signature)
            yield map_nest(as_numpy, element)

    made = tf.data.Dataset.from_generator(one_pass, output_signature=signature)
    count = ds.cardinality()
    if count == UNKNOWN:
        return made
    known = tf.data.INFINITE_CARDINALITY if count == INFINITE else count
    return made.apply(tf.data.experimental.assert_cardinality(known))


def _require_fit(element: Element, signature: Nest) -> None:
    try:
        fitting(element, signature)
    except UnequalElements as error:
        raise UnequalElements(
            f"to_tf: {error.what}",
            help="padded_batch evens out shapes; or say to_tf(output_signature=) with None along that axis",
            **error.facts,
        ) from None


def require_dataset(ds: Any, name: str) -> None:
    """Raises TypeError for what is no playhead dataset, saying how to make one."""
    if not isinstance(getattr(ds, "node", None), Node):
        raise TypeError(
            f"playhead.tensorflow.{name} takes a playhead.Dataset, not {type(ds).__name__}: "
            "change the pipeline's first line, as in playhead.Dataset.from_tfrecords(files)"
        )


def eagerly(compute: Callable[[], Value]) -> Value:
    """What `compute` returns outside of any graph: where one is being built here, in another thread."""
    if tf.executing_eagerly():
        return compute()
    with ThreadPoolExecutor(1) as outside:
        return outside.submit(compute).result()


def type_specs(spec: Nest) -> Nest:
    """A nest of `tf.TensorSpec` for one of `ArraySpec`."""
    found = iter(
        [tf.TensorSpec(leaf.shape, _dtype(path, leaf)) for path, leaf in named_leaves(spec)]
    )
    return map_nest(lambda _: next(found), spec)


def _dtype(path: str, leaf: ArraySpec) -> tf.DType:
    if leaf.dtype in (bytes, str):
        return tf.string
    if leaf.dtype is not object:
        try:
            return tf.as_dtype(leaf.dtype)
        except TypeError:
            pass
    raise _no_tensor(path, leaf.dtype.__name__ if isinstance(leaf.dtype, type) else leaf.dtype.name)


def as_tensors(element: Element) -> Nest:
    """`element` with its leaves as eager tensors."""
    found = iter([_as_tensor(path, leaf) for path, leaf in named_leaves(element)])
    return map_nest(lambda _: next(found), element)


def _as_tensor(path: str, leaf: Any) -> tf.Tensor:
    text = isinstance(leaf, str | bytes) or (isinstance(leaf, np.ndarray) and leaf.dtype == object)
    try:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            return _over(leaf)
        return tf.constant(leaf, tf.string if text else None)
    except (TypeError, ValueError):
        raise _no_tensor(path, _kind(leaf)) from None


def _over(array: np.ndarray[Any, Any]) -> tf.Tensor:
    """A tensor over an array's own memory, where TensorFlow can compute there, else over a copy of it."""
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable and array.ctypes.data % ALIGNMENT == 0):
        array = aligned_copy(array)
    try:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    except BufferError:  # another byte order, or a dtype that DLPack has not
        return tf.constant(array)


def as_numpy(leaf: Any) -> Any:
    """A leaf as TensorFlow takes it from Python: str becomes bytes."""
    if isinstance(leaf, str):
        return leaf.encode()
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        flat = [value.encode() if isinstance(value, str) else value for value in leaf.flat]
        return object_array(flat).reshape(leaf.shape)
    return leaf


def in_order(expected: Nest, nest: Nest) -> Iterator[Any]:
    """The leaves of `nest`, in the order of those of `expected`.

    Raises KeyError, TypeError or ValueError where the two are built differently.
    """
    if isinstance(expected, dict):
        if len(expected) != len(nest):
            raise ValueError
        for key, part in expected.items():
            yield from in_order(part, nest[key])
    elif isinstance(expected, tuple):
        for part, value in zip(expected, nest, strict=True):
            yield from in_order(part, value)
    elif isinstance(nest, dict | tuple):
        raise TypeError
    else:
        yield nest


def fitting(element: Element, specs: Nest) -> list[Any]:
    """The leaves of `element` in the order of `specs`, a nest of `tf.TensorSpec`, which each must fit."""
    try:
        given = list(in_order(specs, element))
    except (KeyError, TypeError, ValueError):
        raise UnequalElements(
            "an element has another structure than the first, and the graph was built for that one",
            help="make elements alike in a map",
        ) from None
    for (path, spec), leaf in zip(named_leaves(specs), given, strict=True):
        shape = getattr(leaf, "shape", ())
        dtype = getattr(leaf, "dtype", np.dtype(object))
        if dtype != spec.dtype.as_numpy_dtype or not spec.shape.is_compatible_with(shape):
            raise UnequalElements(
                f"element{path} is {_kind(leaf)} of shape {shape}, and the graph was built for the first "
                f"one, {spec.dtype.name} of shape {spec.shape}",
                help="padded_batch evens out shapes; or call next in Python and pass the batch to the "
                "tf.function",
                path=path,
            )
    return [as_numpy(leaf) for leaf in given]


def _no_tensor(path: str, kind: str) -> PipelineError:
    return PipelineError(
        f"TensorFlow cannot hold element{path}: it is {kind}",
        help="map it to arrays, numbers, str or bytes, or leave it out of the elements",
        path=path,
    )


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic) else type(leaf).__name__
