"""What Keras is fed: each batch once, whoever looks ahead, and errors of the pipeline as themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_run import Journal, digest, model

import playhead as ph
from playhead.errors import TrainingError
from playhead.keras import fit
from playhead.keras.feed import Feed


def failing(x: Any, y: Any) -> Any:
    if x[0] > 0.9:
        raise tf.errors.OutOfRangeError(None, None, "of the user's own")
    return x, y


def rows(n: int = 40) -> ph.Dataset:
    x = np.linspace(0, 1, n, dtype=np.float32)[:, None]
    return ph.Dataset.from_tensor_slices((x, x))


def linear(**compiled: Any) -> Any:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", **compiled)
    return made


def on_one_device() -> Any:
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        return linear()


@pytest.mark.parametrize("build", [linear, lambda: linear(steps_per_execution=2), on_one_device])
def test_tensorflows_own_end_of_data_raised_by_a_function_ends_the_run_and_no_epoch(
    tmp_path: Path, build: Any
) -> None:
    seen = Journal()
    ds = rows().map(failing, form="python").batch(4)
    with pytest.raises(tf.errors.OutOfRangeError, match="of the user's own"):
        fit(build(), ds, checkpoint=tmp_path, epochs=2, verbose=0, callbacks=[seen])
    assert len(seen.lines) < 10 and {line.split()[1] for line in seen.lines} <= {"0"}


def test_a_step_is_traced_once_for_batches_that_differ_in_rows(tmp_path: Path) -> None:
    traced = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(tuple(x.shape))
            return x

    net = keras.Sequential([keras.Input((1,)), Counting(), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    traced.clear()
    fit(net, rows(14).batch(4), checkpoint=tmp_path, epochs=2, verbose=0)
    assert traced == [(None, 1)]


def test_a_step_is_traced_once_for_padded_batches(tmp_path: Path) -> None:
    traced = []

    class Summing(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(tuple(x.shape))
            return keras.ops.sum(x, axis=1)

    def row(k: Any) -> Any:
        return np.ones((3 + int(k) * 7 % 11, 2), np.float32), np.float32(k)

    net = keras.Sequential([keras.layers.Dense(4), Summing(), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    ds = ph.Dataset.range(20).map(row, form="python").padded_batch(3)
    fit(net, ds, checkpoint=tmp_path, epochs=2, verbose=0)
    assert [shape for shape in traced if shape[0] is None] == [(None, None, 4)]
    assert len(traced) <= 3  # the others built the model


def test_class_weights_without_targets_are_refused(tmp_path: Path) -> None:
    ds = ph.Dataset.from_tensor_slices({"x": np.ones((8, 1), np.float32)}).batch(4)
    with pytest.raises(TrainingError, match="class_weight= needs elements of"):
        fit(linear(), ds, checkpoint=tmp_path, verbose=0, class_weight={0: 2.0})


def test_class_weights_weigh_as_keras_weighs(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((24, 4), np.float32)
    y = (x[:, :1] > 0.5).astype(np.float32)
    ds, weights = ph.Dataset.from_tensor_slices((x, y)).batch(8), {0: 0.5, 1: 3.0}
    mine, kerass = model(), model()
    fit(mine, ds, checkpoint=tmp_path, epochs=2, verbose=0, class_weight=weights)
    kerass.fit(x, y, batch_size=8, epochs=2, verbose=0, class_weight=weights, shuffle=False)
    assert digest(mine) == digest(kerass)


def test_readers_that_nobody_listens_to_take_no_batch_from_the_one_that_counts() -> None:
    feed = Feed(ph.Dataset.range(10).batch(1).iterator(epochs=None), class_weight=None)
    feed.begin(6)
    before = feed._rest()
    first = next(before)
    counting, other = feed._rest(), feed._rest()
    taken = []
    for step, (batch,) in enumerate(counting, 1):
        taken.append(int(batch[0]))
        feed.trained(step)
        if step == 3:
            assert [int(b[0]) for (b,) in other] == [3, 4, 5, 6, 7, 8]
            assert list(before) == []
    assert int(first[0][0]) == 0 and taken == [0, 1, 2, 3, 4, 5]
    feed.close()
    assert list(feed._rest()) == []
