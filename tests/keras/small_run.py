"""A small training run that the tests break off: its data, its model, and what it went through.

As a program: `small_run.py CHECKPOINT LOG [fit arguments as JSON]` appends one line a step to LOG.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import keras
import numpy as np

import playhead as ph
from playhead.keras import fit

N, BATCH, STEPS = 52, 8, 7


def data(seed: int | None = 3, *, n: int = N, batch: int = BATCH) -> ph.Dataset:
    """Seven batches an epoch, the last one short, shuffled and augmented anew each time."""
    rng = np.random.default_rng(0)
    x = rng.random((n, 4), np.float32)
    y = (x.sum(axis=1, keepdims=True) > 2).astype(np.float32)
    ds = ph.Dataset.from_tensor_slices((x, y)).shuffle(seed=seed)
    return ds.map(jitter, rng=True, seed=None if seed is None else seed + 1).batch(batch)


def jitter(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return x + rng.normal(0, 0.01, x.shape).astype(np.float32), y


def model(optimizer: Any = "adam", *, width: int = 8, **compiled: Any) -> Any:
    """Unbuilt, with everything that carries state: batch statistics, dropout, an optimizer, a metric."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    made = keras.Sequential(
        [
            layers.Dense(width, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    made.compile(optimizer, "binary_crossentropy", **{"metrics": ["accuracy"], **compiled})
    return made


class Broken(Exception):
    """Where a test breaks a run off."""


class Journal(keras.callbacks.Callback):
    """Notes what a run goes through, to the bit, and breaks it off after `stop` steps."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.stop = stop
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.note(f"epoch {self._epoch} batch {batch} {sorted(logs.items())} {digest(self.model)}")
        if self.stop is not None and len(self.lines) == self.stop:
            raise Broken

    def note(self, line: str) -> None:
        self.lines.append(line)


def digest(model: Any) -> str:
    """Of every variable that training changes."""
    hashed = hashlib.blake2b(digest_size=8)
    for variable in [*model.variables, *model.optimizer.variables]:
        hashed.update(np.asarray(variable.numpy()).tobytes())
    return hashed.hexdigest()


class File(Journal):
    """A journal on disk, with a pause after each step so that a kill finds the run in the middle."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def note(self, line: str) -> None:
        with open(self._path, "a") as file:
            file.write(line + "\n")
        time.sleep(0.05)


if __name__ == "__main__":
    where, log, *rest = sys.argv[1:]
    arguments = {
        "epochs": 3,
        "save_every": 2,
        "verbose": 0,
        **(json.loads(rest[0]) if rest else {}),
    }
    trained = model()
    history = fit(
        trained,
        data(),
        checkpoint=where,
        callbacks=[File(log)],
        validation_data=data(),
        **arguments,
    )
    print(json.dumps([history.epoch, history.history, digest(trained)]))
