"""Keras' `fit` of a model so small that the input decides how fast it goes: 60,000 rows, all shuffled."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases.rows import BATCH, arrays, prepare
from benchmarks.frame import Measure

__all__ = ["PEERS", "TITLE", "UNIT", "prepare"]

TITLE = (
    "Keras fit of a single Dense layer (TensorFlow; 784 float32 and a label, shuffled, batch 256)"
)
UNIT = "examples/s"
EPOCHS = 4


def examples(data: Path) -> tuple[Any, Any]:
    rows, numbers = arrays(data)
    return rows, numbers % 10


def playhead(data: Path, quick: bool) -> Measure:
    """With a checkpoint, at its default of every ten minutes."""
    import playhead as ph

    rows, labels = examples(data)
    dataset = ph.Dataset.from_tensor_slices((rows, labels)).shuffle(seed=1).batch(BATCH)

    def train(model: Any, callback: Any) -> None:
        with tempfile.TemporaryDirectory() as run:
            ph.keras.fit(
                model, dataset, checkpoint=run, epochs=EPOCHS, verbose=0, callbacks=[callback]
            )

    return measured(train, len(rows))


def tf_data(data: Path, quick: bool) -> Measure:
    """As "Better performance with the tf.data API" says: shuffle over the whole set, batch, prefetch."""
    import tensorflow as tf

    rows, labels = examples(data)
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).shuffle(len(rows))
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    def train(model: Any, callback: Any) -> None:
        model.fit(dataset, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[callback])

    return measured(train, len(rows))


def keras_arrays(data: Path, quick: bool) -> Measure:
    """Arrays given to Keras itself, which shuffles them: what there is to reach."""
    rows, labels = examples(data)

    def train(model: Any, callback: Any) -> None:
        model.fit(rows, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[callback])

    return measured(train, len(rows))


def measured(train: Any, count: int) -> Measure:
    """Examples a second over all epochs but the first, which traces the model."""
    import keras

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

        def on_train_begin(self, logs: Any = None) -> None:
            self.ends: list[float] = []

    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)

    def measure() -> float:
        clock = Clock()
        train(model, clock)
        return count * (EPOCHS - 1) / (clock.ends[-1] - clock.ends[0])

    return measure


PEERS = {
    "playhead": playhead,
    "tf.data": tf_data,
    "numpy arrays": keras_arrays,
}
