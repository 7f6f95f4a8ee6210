"""Keras' TensorBoard with curves of the input beside its own."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from typing import Any

import keras

from playhead.errors import PlayheadWarning, TrainingError, warn
from playhead.keras.reading import Reading


@dataclass(frozen=True)
class _Mark:
    """A moment, what had been read by then, and how long it had been waited for."""

    time: float
    records: int | None
    waited: float


class TensorBoard(keras.callbacks.TensorBoard):  # type: ignore[misc]
    """`keras.callbacks.TensorBoard`, with its arguments, that also writes where the run is in its data.

    Under `train`, for each epoch `epoch_input_...` and, with `update_freq` other than "epoch",
    `batch_input_...`:

    - `step`, `epoch`, `records`: the position;
    - `records_per_second`;
    - `waiting`: the share of time for which no batch was ready, from 0 to 1 (see `Reading.waited`).

    Rates are those since the epoch began or since the value before, in this process. Outside
    `playhead.keras.fit` it warns once and writes Keras' own curves. Raises `TrainingError` where TensorFlow or
    TensorBoard is not installed, with which Keras writes them on every backend.

    fit(model, ds, checkpoint="run", callbacks=[TensorBoard("logs", update_freq=10)])
    """

    def __init__(self, log_dir: Any = "logs", **given: Any) -> None:
        missing = [name for name in ("tensorflow", "tensorboard") if not _installed(name)]
        if missing:
            raise TrainingError(
                f"TensorBoard's files are written by {' and '.join(missing)}, not installed here",
                help="pip install tensorflow-cpu tensorboard: Keras may run on another backend beside them",
            )
        super().__init__(log_dir, **given)
        self._reading: Reading | None = None
        self._said = False
        self._since_epoch: _Mark | None = None
        self._since_batch: _Mark | None = None

    def set_reading(self, reading: Reading) -> None:
        """Called by `playhead.keras.fit`."""
        self._reading = reading

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        if self._reading is None:
            if self._said:
                return
            self._said = True
            warn(
                "playhead.keras.TensorBoard is used outside playhead.keras.fit, and writes Keras' curves only",
                PlayheadWarning,
            )
            return
        self._since_batch = self._mark(self._reading)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if self._reading is not None:
            self._since_epoch = self._mark(self._reading)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        if self.update_freq == "epoch" or self._global_train_batch % self.update_freq:
            return
        self._since_batch = self._write("batch", self._global_train_batch, self._since_batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._write("epoch", epoch, self._since_epoch)

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)
        self._reading = None

    def _write(self, kind: str, step: int, since: _Mark | None) -> _Mark | None:
        if self._reading is None:
            return None
        position = self._reading.position
        now = _Mark(time.perf_counter(), position.records, self._reading.waited)
        values: dict[str, float | None] = {
            "step": position.step,
            "epoch": position.epoch,
            "records": position.records,
        }
        if since is not None and now.time > since.time:
            seconds = now.time - since.time
            if now.records is not None and since.records is not None:
                values["records_per_second"] = (now.records - since.records) / seconds
            values["waiting"] = min((now.waited - since.waited) / seconds, 1.0)
        # Keras has left its own condition in force, which is of single steps and would leave out epochs.
        with self._train_writer.as_default(), self.summary.record_if(True):
            for name, value in values.items():
                if value is not None:
                    self.summary.scalar(f"{kind}_input_{name}", value, step=step)
        return now

    @staticmethod
    def _mark(reading: Reading) -> _Mark:
        return _Mark(time.perf_counter(), reading.position.records, reading.waited)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
