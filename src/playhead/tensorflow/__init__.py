"""playhead for TensorFlow: iterators that a checkpoint holds, and plain `tf.data` values.

>>> import playhead as ph
>>> import tensorflow as tf
>>> it = ph.tensorflow.iterator(ph.Dataset.range(10).batch(2))
>>> checkpoint = tf.train.Checkpoint(data=it)
>>> next(it).numpy().tolist()
[0, 1]
"""

from __future__ import annotations

from playhead.tensorflow.convert import to_tf
from playhead.tensorflow.dataset_fn import DatasetFn, dataset_fn
from playhead.tensorflow.device import prefetch_to_device
from playhead.tensorflow.estimator import input_fn
from playhead.tensorflow.iterator import Iterator, iterator

__all__ = [
    "DatasetFn",
    "Iterator",
    "dataset_fn",
    "input_fn",
    "iterator",
    "prefetch_to_device",
    "to_tf",
]
