"""Which models read text: those that begin with layers for it, on TensorFlow, where tensors hold strings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import Nest, map_nest, named_leaves


def holds_text(leaf: np.ndarray[Any, Any]) -> bool:
    """Whether `leaf` is an array of str or bytes."""
    if leaf.dtype.kind in "SU":
        return True
    return leaf.dtype.kind == "O" and all(isinstance(value, str | bytes) for value in leaf.flat)


def may_read_text(model: Any) -> bool:
    """Whether nothing says that `model` cannot begin with text.

    That is said by a model of Keras' own layers alone, none of which reads text. What code of the user's takes,
    in a model or a layer, only that code knows.

    >>> may_read_text(keras.Sequential([keras.layers.Dense(1)]))
    False
    """
    if keras.backend.backend() != "tensorflow":
        return False
    if model is None:
        return True
    layers = keras.layers
    readers = (
        layers.StringLookup,
        layers.TextVectorization,
        layers.Hashing,
        layers.HashedCrossing,
        layers.Lambda,
        layers.TFSMLayer,
    )
    return any(
        isinstance(layer, readers)
        or not type(layer).__module__.startswith("keras.")
        or (isinstance(layer, layers.InputLayer) and layer.dtype == "string")
        for layer in model._flatten_layers()
    )


def refuse_text(batch: Nest, model: Any) -> None:
    """Raises `PipelineError`, naming the leaf of `batch`, for text that `model` cannot read."""
    for path, leaf in named_leaves(batch):
        if holds_text(leaf) and not may_read_text(model):
            raise no_numbers(path, kinds(leaf))


def text_as_tensors(batch: Nest) -> Nest:
    """`batch` with tensors in place of arrays of text, whose dtype Keras does not know."""

    def tensor(leaf: Any) -> Any:
        if not holds_text(leaf):
            return leaf
        import tensorflow as tf

        return tf.convert_to_tensor(leaf)

    return map_nest(tensor, batch)


def kinds(leaf: np.ndarray[Any, Any]) -> str:
    """What the values of `leaf` are."""
    if not leaf.dtype.hasobject:
        return str(leaf.dtype)
    return " and ".join(sorted({type(value).__name__ for value in leaf.flat}))


def no_numbers(path: str, kinds: str) -> PipelineError:
    help = "turn it into numbers in a map, or drop it"
    if set(kinds.split(" and ")) <= {"str", "bytes"}:
        help += (
            "; on Keras' TensorFlow backend, a model that begins with a layer for text (StringLookup, "
            "TextVectorization) reads it"
        )
    return PipelineError(
        f"element{path} holds {kinds}, which a model cannot learn from", help=help, path=path
    )
