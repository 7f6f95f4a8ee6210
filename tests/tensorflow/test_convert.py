"""Datasets as plain tf.data values."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import PipelineError


def test_every_iteration_is_the_next_pass() -> None:
    ds = ph.Dataset.range(50).shuffle(seed=3)
    tensors = ds.to_tf()
    for epoch in range(3):
        assert [int(x) for x in tensors] == [int(x) for x in ds.epoch(epoch)]


def test_the_signature_leaves_the_batch_open_and_keeps_the_structure() -> None:
    ds = ph.Dataset.from_tensor_slices(
        {"x": np.ones((5, 2), np.float32), "s": ["a", "ü", "c", "d", "e"]}
    )
    tensors = ds.batch(2).to_tf()
    assert tensors.element_spec == {
        "x": tf.TensorSpec((None, 2), tf.float32),
        "s": tf.TensorSpec((None,), tf.string),
    }
    assert next(iter(tensors))["s"].numpy().tolist() == [b"a", "ü".encode()]


def test_cardinality_is_known_where_the_dataset_knows_it() -> None:
    ds = ph.Dataset.range(5)
    assert ds.batch(2).to_tf().cardinality() == 3
    assert ds.repeat().to_tf().cardinality() == tf.data.INFINITE_CARDINALITY
    assert ds.filter(lambda x: x > 1).to_tf().cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_a_signature_may_be_given_for_elements_that_vary() -> None:
    ds = ph.Dataset.range(4).map(lambda x: np.arange(x))
    tensors = ds.to_tf(tf.TensorSpec((None,), tf.int64))
    assert [x.shape for x in tensors] == [(0,), (1,), (2,), (3,)]


def test_what_no_tensor_holds_is_named() -> None:
    ds = ph.Dataset.from_sequence([{"a": 1, "b": object()}])
    with pytest.raises(PipelineError, match=r"element\['b'\]: it is object"):
        ds.to_tf()


def test_an_element_that_does_not_fit_the_first_is_named_with_what_can_be_done():
    unequal = ph.Dataset.from_generator(lambda: iter([[1, 2], [3, 4, 5]]))
    with pytest.raises(tf.errors.OpError, match=r"padded_batch.*output_signature"):
        list(unequal.to_tf())
    signature = tf.TensorSpec([None], tf.int32)
    assert [x.shape[0] for x in unequal.to_tf(signature)] == [2, 3]


@pytest.mark.parametrize("door", [ph.tensorflow.iterator, ph.tensorflow.to_tf])
def test_a_tf_data_dataset_at_the_wrong_door_is_told_which_line_to_change(door):
    with pytest.raises(TypeError, match=r"not _RangeDataset.*from_tfrecords"):
        door(tf.data.Dataset.range(3))
