"""Keras' own fit, evaluate and predict read a dataset as a loop over it would."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import playhead as ph
from playhead.errors import PipelineError, TrainingError
from playhead.keras import fit

HERE = Path(__file__).parent
BACKENDS = ["tensorflow", "jax", "torch"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_reads_pass_after_pass_and_the_rest_the_first(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    result = subprocess.run(
        [sys.executable, HERE / "to_keras_run.py"],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert len(found) >= 40
    assert {name: case for name, case in found.items() if not case["same"]} == {}


def linear() -> Any:
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def pairs(n: int = 12, batch: int = 4) -> ph.Dataset:
    x = np.arange(n, dtype=np.float32)[:, None]
    return ph.Dataset.from_tensor_slices((x, x)).batch(batch)


class Order(keras.Model):
    """Notes the inputs that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen: list[list[float]] = []
        self.traces = 0
        self.compile("sgd", "mse", run_eagerly=True)

    def call(self, x: Any) -> Any:
        self.traces += 1
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        self.seen[-1].extend(float(value) for value in data[0][:, 0])
        return super().train_step(data)


def test_arrays_are_shuffled_anew_in_each_epoch_and_alike_in_each_program() -> None:
    def orders(seed: int | None) -> list[list[float]]:
        keras.utils.set_random_seed(1)
        x = np.arange(40, dtype=np.float32)[:, None]
        ds = ph.Dataset.from_tensor_slices((x, x)).shuffle(seed=seed).batch(8)
        net = Order()

        class Epochs(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                net.seen.append([])

        net.fit(ds.to_keras(), epochs=3, verbose=0, callbacks=[Epochs()])
        return net.seen

    first = orders(5)
    assert len({tuple(order) for order in first}) == 3
    assert all(sorted(order) == list(range(40)) for order in first)
    assert orders(5) == first and orders(6) != first
    assert len({tuple(order) for order in orders(None)}) == 3


@pytest.mark.parametrize(
    ("argument", "value"), [("class_weight", {0: 2.0}), ("sample_weight", np.ones(12))]
)
def test_what_keras_would_leave_out_in_silence_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(TrainingError, match=f"{argument}= beside a playhead dataset"):
        linear().fit(pairs().to_keras(), verbose=0, **{argument: value})


def test_targets_beside_the_dataset_are_refused() -> None:
    with pytest.raises(TrainingError, match="y= beside a playhead dataset"):
        linear().fit(pairs().to_keras(), np.ones(12), verbose=0)


def test_data_without_end_needs_a_number_of_steps() -> None:
    net, endless = linear(), pairs().repeat()
    with pytest.raises(PipelineError, match="no end") as raised:
        net.fit(endless.to_keras(), verbose=0)
    assert "steps_per_epoch=" in str(raised.value)
    with pytest.raises(PipelineError, match="no end"):
        net.evaluate(endless.to_keras(), verbose=0)
    assert len(net.fit(endless.to_keras(), steps_per_epoch=5, epochs=2, verbose=0).epoch) == 2


def test_an_empty_dataset_is_refused_at_once() -> None:
    with pytest.raises(PipelineError, match="empty"):
        pairs().take(0).to_keras()


def test_a_pass_that_gives_nothing_is_an_error_and_no_epoch() -> None:
    nothing = pairs().unbatch().filter(lambda x, y: False).batch(4, drop_remainder=True)
    with pytest.raises(PipelineError, match="gave no element"):
        linear().fit(nothing.to_keras(), verbose=0)


def test_elements_without_a_batch_axis_are_refused_with_what_to_do() -> None:
    with pytest.raises(PipelineError, match="batch axis"):
        linear().fit(ph.Dataset.range(5).map(lambda x: (x, x)).to_keras(), verbose=0)


def test_playheads_fit_says_that_it_takes_the_dataset_itself(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="give ds itself"):
        fit(linear(), pairs().to_keras(), checkpoint=tmp_path)  # type: ignore[arg-type]


def test_a_function_that_fails_stops_keras_with_its_words() -> None:
    def failing(x: Any, y: Any) -> Any:
        if x[0] > 5:
            raise RuntimeError("record 6 is bad")
        return x, y

    for ds in (
        pairs().unbatch().map(failing, form="python").batch(5),
        pairs().unbatch().map(failing, form="python").batch(4),
    ):
        with pytest.raises(Exception, match="record 6 is bad"):
            linear().fit(ds.to_keras(), verbose=0)


def padded(n: int = 40) -> ph.Dataset:
    """Batches as long as their longest row, the last one short: 10 shapes or so."""

    def row(k: Any) -> Any:
        return np.ones((3 + int(k) * 7 % 11, 2), np.float32), np.float32(k)

    return ph.Dataset.range(n).map(row, form="python").padded_batch(3)


def test_only_axes_that_vary_are_traced_anew_and_a_model_is_built_from_what_it_sees() -> None:
    traced = []

    class Summing(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(tuple(x.shape))
            return keras.ops.sum(x, axis=1)

    net = keras.Sequential([keras.layers.Dense(4), Summing(), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    data = padded().to_keras()
    shapes = {batch[0].shape for batch in padded().epoch(0)}
    net.fit(data, epochs=2, verbose=0)
    assert len(shapes) == 5
    assert traced[-1] == (None, None, 4) and len(set(traced)) <= 3
    assert net.predict(data, verbose=0).shape == (40, 1)


def test_a_last_batch_with_fewer_rows_is_no_reason_to_trace_again() -> None:
    traced = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(tuple(x.shape))
            return x

    net = keras.Sequential([keras.Input((1,)), Counting(), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    traced.clear()
    data = pairs(14).to_keras()
    net.fit(data, epochs=2, validation_data=data, verbose=0)
    net.evaluate(data, verbose=0)
    net.predict(data, verbose=0)
    assert traced == [(None, 1)] * 3  # for training, for validation and evaluation, for prediction


def test_nothing_runs_on_after_fit() -> None:
    before = set(threading.enumerate())
    for data in (pairs(), pairs(14)):
        net = linear()
        net.fit(data.to_keras(), epochs=2, validation_data=data.to_keras(), verbose=0)
    del net
    keras.backend.clear_session()
    gc.collect()
    left = [t.name for t in set(threading.enumerate()) - before if t.name.startswith("playhead")]
    assert left == []


def test_dicts_and_sample_weights_reach_keras() -> None:
    x = np.ones((8, 2), np.float32)
    inputs = {"a": x, "b": x[:, :1]}
    ds = ph.Dataset.from_tensor_slices((inputs, x[:, 0], np.zeros(8, np.float32))).batch(3)
    a, b = keras.Input((2,), name="a"), keras.Input((1,), name="b")
    net = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))
    net.compile("sgd", "mse")
    assert net.fit(ds.to_keras(), verbose=0).history["loss"] == [0.0]  # the weights are 0
    assert net.predict(ds.map(lambda x, y, w: x).to_keras(), verbose=0).shape == (8, 1)
