"""A small tf_keras run that the tests break off: its data, its model, and what it went through.

As a program, started with a JSON of settings: trains, noting each step in a file, and says how it ended.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import playhead as ph
from playhead.errors import CheckpointError
from playhead.tf_keras import fit

STEPS = 7  # of an epoch


def data(*, seed: int | None = 3) -> ph.Dataset:
    """Seven batches an epoch, the last one short, shuffled and augmented anew each time."""
    x = np.random.default_rng(0).random((52, 4), np.float32)
    y = (x.sum(axis=1, keepdims=True) > 2).astype(np.float32)
    ds = ph.Dataset.from_tensor_slices((x, y)).shuffle(seed=seed)
    return ds.map(jitter, rng=True, seed=None if seed is None else seed + 1).batch(8)


def jitter(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return x + rng.normal(0, 0.01, x.shape).astype(np.float32), y


def model(
    strategy: Any = None, optimizer: Any = "adam", *, plain: bool = False, **compiled: Any
) -> Any:
    """Unbuilt, with everything that carries state, or `plain` without batch statistics and dropout."""
    tf_keras.utils.set_random_seed(1)
    layers = tf_keras.layers
    with (strategy or tf.distribute.get_strategy()).scope():
        states = [] if plain else [layers.BatchNormalization(), layers.Dropout(0.3)]
        made = tf_keras.Sequential(
            [
                layers.Dense(8, activation="relu"),
                *states,
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        made.compile(optimizer, "binary_crossentropy", **{"metrics": ["accuracy"], **compiled})
    return made


class Broken(Exception):
    """Where a test breaks a run off."""


class Journal(tf_keras.callbacks.Callback):
    """Notes what a run goes through, to the bit, and breaks it off after `stop` steps."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._stop, self._epoch = stop, 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.note(f"epoch {self._epoch} batch {batch} {sorted(logs.items())} {digest(self.model)}")
        if self._stop is not None and len(self.lines) == self._stop:
            raise Broken

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.note(f"epoch {epoch} {sorted(logs.items())}")

    def note(self, line: str) -> None:
        self.lines.append(line)


def digest(model: Any) -> str:
    """Of the variables that training changes; those that replicas have for themselves, by the first here."""
    hashed = hashlib.blake2b(digest_size=8)
    given = model.optimizer.variables
    for variable in [*model.variables, *(given() if callable(given) else given)]:
        first = getattr(variable, "values", (variable,))[0]
        hashed.update(np.asarray(first.numpy()).tobytes())
    return hashed.hexdigest()


class File(Journal):
    """A journal on disk, with a pause after each step so that a kill finds the run in the middle."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def note(self, line: str) -> None:
        with open(self._path, "a") as file:
            file.write(line + "\n")
        time.sleep(0.03)


def refused(kind: type[Exception], call: Any) -> str:
    """What an error said that had to come."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} came")


def main(where: str, log: str, whole: str | None = None) -> None:
    """A run in `where`; then, in `whole`, one that nobody kills, and what else is given and refused."""
    tf_keras.backend.experimental.enable_tf_random_generator()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    arguments = {"epochs": 3, "validation_data": data(), "verbose": 0}

    def run(where: str, log: str, **more: Any) -> tuple[Any, dict[str, Any]]:
        made = model(strategy)
        stopping = tf_keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
        callbacks = [stopping, File(log)]
        settings = {"save_every": 2, "callbacks": callbacks, **arguments, **more}
        history = fit(made, data(), checkpoint=where, **settings)
        best = getattr(stopping, "best", None)
        return made, {"history": history.history, "digest": digest(made), "best": float(best or 0)}

    told: dict[str, Any] = {"run": run(where, log)[1]}
    if whole is not None:
        nowhere = where if strategy.cluster_resolver.task_id == 0 else f"{whole}-nowhere"
        told["whole"] = run(whole, f"{log}.whole")[1]
        told["finished"] = run(where, log)[1]
        told["clock"] = refused(ValueError, lambda: run(where, log, save_every="10min", epochs=5))
        told["lost"] = refused(CheckpointError, lambda: run(nowhere, log, epochs=5))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
