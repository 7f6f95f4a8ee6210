"""What `model.fit` was to be called with: checked, and what is read here set apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from playhead.errors import TrainingError
from playhead.keras.asked import refuse, whole

_REFUSED = {
    "shuffle": "Keras would permute batches, which no position could name; the pipeline's shuffle(...) says it",
}


class Arguments:
    """`epochs`, `verbose`, `initial_epoch`, `steps_per_epoch`, `callbacks` (flat); `rest` goes on to Keras."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        rest = dict(given)
        refuse(rest, _REFUSED)
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


def capped(count: int, limit: str) -> int:
    """`count`, or Keras' own limit for debugging runs where one is set (newer versions have them)."""
    read = getattr(keras.config, limit, None)
    return min(count, read() or count) if read is not None else count
