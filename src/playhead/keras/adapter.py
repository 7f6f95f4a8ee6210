"""What Keras reads batches from, on every backend: one `DataAdapter`, each loop in its own form.

Keras takes a `DataAdapter` as it is and asks it for batches in its backend's form. On TensorFlow those are
eager tensors from a plain loop: bringing a batch from Python into a tf.data pipeline costs as much as training
a tiny model on it. Two readers want a `tf.data.Dataset`: a strategy, which shares batches out, and an execution
of several steps, which is one graph then, and takes its batches without Python.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Iterator as IteratorABC
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from playhead.errors import PipelineError
from playhead.keras.reader import Call, calling
from playhead.keras.text import holds_text, kinds, may_read_text, no_numbers, refuse_text
from playhead.keras.tracing import tensor_spec, trace
from playhead.plan.block import Nest, map_nest, named_leaves

if TYPE_CHECKING:
    import tensorflow as tf

Pass = Callable[[], IteratorABC[Any]]


class Adapter(DataAdapter):  # type: ignore[misc]
    """Batches of `spec`, read in passes that `_coming` chooses."""

    def _coming(self, call: Call | None) -> Pass:
        """What the reader that `call` tells of will read next, in whatever thread."""
        raise NotImplementedError

    @property
    def spec(self) -> Nest:
        """Of a batch as Keras gets it."""
        raise NotImplementedError

    def _traced(self) -> Nest | None:
        """The spec that Keras' step functions are traced for before they see a batch; None: as they come."""
        raise NotImplementedError

    @property
    def batch_size(self) -> int | None:
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        return None

    @property
    def partial_batch_size(self) -> int | None:
        return None

    def get_numpy_iterator(self) -> IteratorABC[Any]:
        return self._coming(calling())()

    def get_jax_iterator(self) -> IteratorABC[Any]:
        return self._coming(calling())()

    def get_torch_dataloader(self) -> IteratorABC[Any]:
        to_tensor = keras.ops.convert_to_tensor
        return (keras.tree.map_structure(to_tensor, b) for b in self._coming(calling())())

    def get_tf_dataset(self) -> Any:
        """An iterable of eager tensors, or a `tf.data.Dataset`."""
        call = calling()
        coming = self._coming(call)
        if call is None or call.reader.steps_per_execution > 1 or _is_distributed(call.model):
            return _tf_dataset(coming, self.spec, None if call is None else call.model)
        return _Tensors(coming, call, self._traced())


class _Tensors:
    """Passes of eager tensors, each ending as Keras' loop on TensorFlow has to be told."""

    def __init__(self, coming: Pass, call: Call, traced: Nest | None) -> None:
        self._coming, self._kind, self._traced = coming, call.kind, traced
        self._model = None if call.model is None else weakref.ref(call.model)

    def __iter__(self) -> IteratorABC[Any]:
        import tensorflow as tf

        to_tensor = tf.convert_to_tensor
        looked = False
        try:
            for batch in self._coming():
                if not looked:
                    refuse_text(batch, None if self._model is None else self._model())
                    looked = True
                if self._traced is not None:
                    self._trace()
                yield map_nest(to_tensor, batch)
        except tf.errors.OutOfRangeError as error:
            raise PipelineError(
                f"a function of the pipeline raised OutOfRangeError: {error}, which Keras would take for the "
                "end of the data",
                help="catch it in the function",
            ) from error
        raise tf.errors.OutOfRangeError(None, None, "the pass is over")

    def _trace(self) -> None:
        """Once, and not before a batch is there: that what is wrong with it is said first."""
        model = None if self._model is None else self._model()
        if model is not None:
            trace(model, self._kind, self._traced)
        self._traced = None


def _tf_dataset(coming: Pass, spec: Nest, model: Any) -> tf.data.Dataset:
    import tensorflow as tf

    _require_arrays(spec, model)
    signature = map_nest(tensor_spec, spec)
    made = tf.data.Dataset.from_generator(coming, output_signature=signature)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    # A strategy gives each replica its part of a batch; there is nothing to deal out among workers.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return made.prefetch(tf.data.AUTOTUNE).with_options(options)


def _is_distributed(model: Any) -> bool:
    import tensorflow as tf

    own = getattr(model, "_distribute_strategy", None)
    return own is not None or bool(tf.distribute.has_strategy())


def packed(batch: Nest) -> Nest:
    """`batch` as a dict or a tuple."""
    if isinstance(batch, dict):
        return batch
    return tuple(batch) if isinstance(batch, tuple) else (batch,)


def as_keras_batch(batch: Any) -> Any:
    """`batch` as Keras takes it: a dict, or a tuple of (inputs[, targets[, sample weights]]).

    Raises `PipelineError`, naming the leaf, for what a model cannot learn from.
    """
    for path, leaf in named_leaves(batch):
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
            raise _no_array(path, _kind(leaf))
        if leaf.dtype.kind in "biufc" or leaf.dtype.isbuiltin != 1:
            continue
        if not (holds_text(leaf) and may_read_text(None)):
            raise no_numbers(path, kinds(leaf))
    if isinstance(batch, dict):
        return batch
    parts = packed(batch)
    if not 1 <= len(parts) <= 3:
        raise PipelineError(
            f"an element has {len(parts)} parts, where fit takes (inputs, targets, sample weights)",
            help="bring the parts into a dict or a tuple of inputs in a map",
        )
    return parts


def _require_arrays(spec: Nest, model: Any) -> None:
    """What `as_keras_batch` and `model` require of a batch, as far as `spec` tells."""
    for path, leaf in named_leaves(spec):
        if leaf.shape == ():
            raise _no_array(path, f"one {getattr(leaf.dtype, '__name__', leaf.dtype)}")
        if leaf.dtype is object or (leaf.dtype in (str, bytes) and not may_read_text(model)):
            raise no_numbers(path, getattr(leaf.dtype, "__name__", "objects"))


def _no_array(path: str, kind: str) -> PipelineError:
    return PipelineError(
        f"element{path} is {kind}, where fit needs an array with a batch axis",
        help="end the pipeline with batch(...)",
        path=path,
    )


def _kind(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray | np.generic):
        return f"one {leaf.dtype}"
    return f"one {type(leaf).__name__}"
