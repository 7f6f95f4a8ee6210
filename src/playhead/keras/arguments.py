"""What `model.fit` was to be called with: checked, and what is read here set apart."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import keras

from playhead.errors import TrainingError

_REFUSED = {
    "x": "the dataset is the second argument",
    "y": "targets belong in the dataset: its elements are (inputs, targets)",
    "sample_weight": "weights belong in the dataset: its elements are (inputs, targets, sample weights)",
    "batch_size": "the pipeline's batch(...) says it",
    "shuffle": "Keras would permute batches, which no position could name; the pipeline's shuffle(...) says it",
    "validation_split": "split the data into two datasets and pass one as validation_data",
}


class Arguments:
    """`epochs`, `verbose`, `initial_epoch`, `steps_per_epoch`, `callbacks` (flat); `rest` goes on to Keras."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        rest = dict(given)
        for name, reason in _REFUSED.items():
            if name in rest:
                raise TypeError(f"{name}= is refused: {reason}")
        self.epochs = capped(whole(rest.pop("epochs", 1), "epochs"), "max_epochs")
        self.verbose = rest.pop("verbose", "auto")
        self.initial_epoch = whole(rest.pop("initial_epoch", 0), "initial_epoch", least=0)
        steps = rest.pop("steps_per_epoch", None)
        self.steps_per_epoch = None if steps is None else whole(steps, "steps_per_epoch")
        callbacks = rest.pop("callbacks", None)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        self.callbacks = [c for c in keras.tree.flatten(callbacks or []) if c is not None]
        for callback in self.callbacks:
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                raise TrainingError(
                    "BackupAndRestore is among the callbacks: it would put back weights and an epoch of "
                    "its own",
                    help="remove it; playhead.keras.fit saves and restores by itself",
                )
        self.rest = rest


def whole(value: Any, name: str, *, least: int = 1) -> int:
    """`value` as an int. Raises ValueError for anything but a whole number from `least` on."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r} is not a whole number from {least} on")
    return number


def capped(count: int, limit: str) -> int:
    """`count`, or Keras' own limit for debugging runs where one is set (newer versions have them)."""
    read = getattr(keras.config, limit, None)
    return min(count, read() or count) if read is not None else count
