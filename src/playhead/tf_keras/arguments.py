"""What `model.fit` was to be called with: checked, and what is read here set apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from playhead.errors import TrainingError
from playhead.keras.asked import refuse, whole

_REFUSED = {"initial_epoch": "the checkpoint knows how far the run is"}


class Arguments:
    """`epochs`, `verbose`, `steps_per_epoch`, `class_weight`, `callbacks` (flat).

    `rest` goes on to tf_keras.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        rest = dict(given)
        refuse(rest, _REFUSED)
        self.epochs = whole(rest.pop("epochs", 1), "epochs")
        verbose = rest.pop("verbose", "auto")
        self.verbose = 1 if verbose == "auto" else int(verbose)
        steps = rest.pop("steps_per_epoch", None)
        self.steps_per_epoch = None if steps is None else whole(steps, "steps_per_epoch")
        self.class_weight = rest.pop("class_weight", None)
        callbacks = rest.pop("callbacks", None)
        if isinstance(callbacks, tf_keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        self.callbacks = [c for c in tf.nest.flatten(callbacks or []) if c is not None]
        for callback in self.callbacks:
            if isinstance(callback, tf_keras.callbacks.BackupAndRestore):
                raise TrainingError(
                    "BackupAndRestore is among the callbacks: it would put back weights and an epoch of "
                    "its own",
                    help="remove it; playhead.tf_keras.fit saves and restores by itself",
                )
            if not isinstance(callback, tf_keras.callbacks.Callback):
                raise TypeError(
                    f"{type(callback).__module__}.{type(callback).__name__} is no callback of tf_keras; "
                    "models of Keras 3 and their callbacks are for playhead.keras.fit"
                )
        self.rest = rest
