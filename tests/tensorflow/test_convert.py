"""Datasets as plain tf.data values."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import PipelineError
from playhead.plan.aligned import aligned_copy, aligned_empty
from playhead.tensorflow.convert import as_tensors


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


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i8", "u1", "u2", "c8", "?"])
def test_an_aligned_array_becomes_a_tensor_over_its_own_memory(dtype: str) -> None:
    array = aligned_copy(np.arange(300).reshape(3, 100).astype(dtype))
    tensor = as_tensors({"x": array})["x"]
    assert tensor.dtype == array.dtype and np.array_equal(tensor, array)
    array[...] = 0
    assert not tensor.numpy().any()


def odd_arrays() -> dict[str, np.ndarray]:
    """None that TensorFlow can compute in as it is, or that others may write to."""
    aligned = aligned_copy(np.arange(300, dtype=np.float32).reshape(3, 100))
    locked = aligned_copy(aligned)
    locked.flags.writeable = False
    return {
        "unaligned": aligned[1:],
        "columns": aligned[:, ::2],
        "locked": locked,
        "empty": aligned_empty((0, 5), np.dtype(np.int64)),
        "order": np.arange(4, dtype=">f4"),
        "brain": np.arange(4).astype(tf.bfloat16.as_numpy_dtype),
    }


@pytest.mark.parametrize("kind", odd_arrays())
def test_any_other_array_becomes_a_tensor_over_a_copy(kind: str) -> None:
    array = odd_arrays()[kind]
    before = array.copy()
    tensor = as_tensors(array)
    assert tensor.shape == array.shape and tensor.dtype == array.dtype
    array.flags.writeable = True
    array[...] = 0
    assert np.array_equal(tensor.numpy(), before)


def test_single_numbers_and_text_become_scalars() -> None:
    found = as_tensors({"a": np.array(3.5), "b": np.int16(2), "c": "é", "d": b"x", "e": True})
    assert [found[key].shape.rank for key in "abcde"] == [0] * 5
    assert [found[key].numpy() for key in "abcde"] == [3.5, 2, "é".encode(), b"x", True]


def test_a_tensor_keeps_its_batch_while_hundreds_pass_and_nothing_writes_into_it() -> None:
    ds = ph.Dataset.range(64 * 400).map(lambda x: np.full(512, x, np.float32)).batch(64)
    it = ph.tensorflow.iterator(ds.prefetch(4), epochs=1)
    held = []
    for number, batch in enumerate(it):
        tf.nn.relu(batch + 1)
        if number % 16 == 0:
            held.append((64 * number, batch))
    for first, batch in held:
        assert batch.numpy()[:, 0].tolist() == list(range(first, first + 64))


def test_a_split_dataset_has_no_way_into_plain_tf_data() -> None:
    split = ph.Dataset.range(8).batch(4).split(2, 0)
    with pytest.raises(PipelineError, match=r"iterator\(ds, strategy.*dataset_fn"):
        split.to_tf()
    with pytest.raises(PipelineError, match="split"):
        split.map(lambda x: x).prefetch(1).to_tf()
