"""An input_fn over TensorFlow's own file systems; with an Estimator, tests/estimator has it."""

from __future__ import annotations

import os
import tempfile
import uuid

import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import PipelineChanged
from playhead.tensorflow.estimator import FILE


def read(ds: ph.Dataset, model_dir: str) -> list[list[int]]:
    dataset = ph.tensorflow.input_fn(ds, model_dir, epochs=2)()
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def unseeded() -> ph.Dataset:
    return ph.Dataset.range(20).shuffle().batch(3)


def test_a_model_dir_that_only_tensorflow_can_reach_keeps_the_pipeline() -> None:
    model_dir = f"ram://{uuid.uuid4().hex}"
    whole = read(unseeded(), model_dir)
    assert len(whole) == 14 and tf.io.gfile.listdir(model_dir) == [FILE]
    step = tf.constant(9, tf.int64)
    prefix = f"{model_dir}/model.ckpt-9"
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=["global_step"], shape_and_slices=[""], tensors=[step]
    )
    tf.compat.v1.train.update_checkpoint_state(model_dir, prefix)
    assert read(unseeded(), model_dir) == whole[9:]
    with pytest.raises(PipelineChanged, match="size=3"):
        read(ph.Dataset.range(20).shuffle().batch(4), model_dir)


def test_each_call_has_the_worker_processes_of_the_one_before() -> None:
    ds = ph.Dataset.range(8).map(lambda x: os.getpid()).batch(2)
    ds = ds.prefetch(2, on="processes", workers=1)
    model_dir = tempfile.mkdtemp()
    first = read(ds, model_dir)
    assert first == [[first[0][0]] * 2] * 8 and first[0][0] != os.getpid()
    assert read(ds, model_dir) == first
