"""Writes down what each training step really consumed: the records in its batch, and its own loss.

Keras hands callbacks the mean of an epoch's losses so far. So the step itself leaves its loss, and
the record numbers that came with the images, in two variables. They belong to no layer: no
checkpoint holds them, and nothing that is learned depends on them.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from playhead.cli.logbook import WEIGHTS, Writer
from playhead.position import write_atomically


class Witnessed(keras.Model):  # type: ignore[misc]
    """A functional model with a "record" among its inputs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.consumed = _Consumed()

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        self.consumed.loss.assign(loss)
        self.consumed.records.assign(x["record"])
        return loss


class _Consumed:
    def __init__(self) -> None:
        self.loss = tf.Variable(0.0, trainable=False)
        self.records = tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)


class Witness(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs each step under the number of weight updates that the optimizer has made by then."""

    def __init__(self, log: Writer) -> None:
        super().__init__()
        self._log = log

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        consumed = self.model.consumed
        self._log(
            "batch",
            step=int(self.model.optimizer.iterations.numpy()),
            loss=float(consumed.loss.numpy()).hex(),
            records=consumed.records.numpy().tolist(),
        )


def save_weights(model: Any, run: Path) -> str:
    """Saves all variables of the model and its optimizer; returns the SHA-256 of their bytes."""
    variables = [*model.variables, *model.optimizer.variables]
    arrays: dict[str, Any] = {f"{k:03d} {v.path}": np.asarray(v) for k, v in enumerate(variables)}
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(array.tobytes())
    file = io.BytesIO()
    np.savez(file, **arrays)
    write_atomically(run / WEIGHTS, file.getvalue())
    return digest.hexdigest()
