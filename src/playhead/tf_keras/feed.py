"""A run's data and its validation data, as tf_keras takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tf_keras.src.engine.data_adapter import _make_class_weight_map_fn

from playhead.dataset import Dataset
from playhead.errors import PipelineError
from playhead.keras.asked import steps_of
from playhead.plan.block import map_nest
from playhead.tensorflow.convert import as_numpy, to_tf
from playhead.tensorflow.dataset_fn import DatasetFn


def parts(
    data: DatasetFn, class_weight: Mapping[int, float] | None
) -> Callable[[Any], tf.data.Dataset]:
    """`data`, with the sample weights that a class weight comes to.

    tf_keras weighs a dataset that is not distributed yet, and this one will be.
    """
    if not class_weight:
        return data
    weigh = _make_class_weight_map_fn(class_weight)
    return lambda context: data(context).map(weigh)


def epoch_length(ds: Dataset, given: int | None) -> int:
    """Steps of an epoch. Raises `PipelineError` where neither the data nor `steps_per_epoch` says it."""
    length = steps_of(ds, given)
    if length == -2:
        raise PipelineError(
            "nobody knows how many batches a pass over this stream has, and tf_keras needs to know how many "
            "steps of a distributed dataset make an epoch",
            help="say steps_per_epoch=; passes then follow each other without a gap",
        )
    return length


def validation(ds: Dataset) -> tf.data.Dataset:
    """The first pass over `ds`, in every iteration."""
    if ds.cardinality() == -1:
        raise PipelineError(
            "validation_data has no end", help="leave out repeat(), or take(...) a part of it"
        )
    like = to_tf(ds)

    def first_pass() -> Any:
        elements = ds.iterator(epochs=1)
        try:
            for element in elements:
                yield map_nest(as_numpy, element)
        finally:
            elements.release()  # the next validation has its workers

    made = tf.data.Dataset.from_generator(first_pass, output_signature=like.element_spec)
    return made.apply(tf.data.experimental.assert_cardinality(like.cardinality()))
