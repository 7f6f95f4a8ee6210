"""Keras' step functions on TensorFlow, traced for what varies among batches before they see one.

A plain loop hands them eager tensors, whose shapes are known. The last batch of a pass, which is shorter, would
have them traced once more; of a large model that takes a while.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from playhead.plan.block import ArraySpec, Nest, leaves, map_nest

if TYPE_CHECKING:
    import tensorflow as tf


def differ_in_rows(spec: Nest) -> bool:
    """Whether batches differ in their number of rows alone.

    Where other axes are open too, an axis that may vary need not, and layers that are built from a batch want
    to know it (features, say): TensorFlow opens those in turn that it sees vary.
    """
    found = list(leaves(spec))
    return all(leaf.shape and None not in leaf.shape[1:] for leaf in found) and any(
        leaf.shape[0] is None for leaf in found
    )


def tensor_spec(leaf: ArraySpec) -> tf.TensorSpec:
    """Of batches of any number of rows."""
    import tensorflow as tf

    dtype = tf.string if leaf.dtype in (str, bytes) else tf.as_dtype(leaf.dtype)
    return tf.TensorSpec((None, *leaf.shape[1:]), dtype)


def trace(model: Any, kind: str, spec: Nest) -> None:
    """Traces what `model` does in `kind` ("train", "test" or "predict") with batches of `spec`, of any rows.

    What Keras has made otherwise than this expects (or runs eagerly) is left to be traced as it comes.
    """
    import tensorflow as tf

    batch = map_nest(tensor_spec, spec)
    function = getattr(model, f"{kind}_function", None)
    if kind == "predict":
        step, batch = function, [batch]
    elif inspect.isfunction(function):
        step = inspect.getclosurevars(function).nonlocals.get("one_step_on_data")
        step = getattr(step, "__wrapped__", None)
    else:
        return
    if isinstance(step, tf.types.experimental.PolymorphicFunction):
        step.get_concrete_function(batch)
