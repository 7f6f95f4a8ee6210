"""What callbacks know besides the model, copied out and put back.

tf_keras' own are known by class, and so are classes derived from them; any other joins by having `get_state()`,
which returns None, numbers, strings, arrays, and lists and dicts of these, and `set_state(state)`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from playhead.keras.checkpoint import Array
from playhead.keras.remembered import Own, joins, matched


def _array(value: Any) -> Array | None:
    array = value.numpy() if tf.is_tensor(value) else value
    if isinstance(array, np.ndarray | np.generic) and not array.dtype.hasobject:
        return np.array(array)
    return None


OWN = Own(
    "tf_keras",
    {
        "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
        "ReduceLROnPlateau": ("wait", "cooldown_counter", "best"),
        "ModelCheckpoint": (
            "best",
            "epochs_since_last_save",
            "_batches_seen_since_last_saving",
            "_last_batch_seen",
        ),
        "TensorBoard": ("_global_train_batch", "_previous_epoch_iterations"),
    },
    _array,
)


def capture(callbacks: Sequence[Any]) -> tuple[list[dict[str, Any]], list[tuple[str, Array]]]:
    """The states of those that have one, as JSON, and the arrays in them, which it names by number.

    Raises `TrainingError` where a `get_state()` returns something else than a checkpoint can hold.
    """
    arrays: list[tuple[str, Array]] = []
    entries = []
    for callback in callbacks:
        entry = OWN.entry(callback, arrays)
        if _appends(callback):
            entry.update(file=callback.filename, bytes=_size(callback))
        if len(entry) > 1:
            entries.append(entry)
    return entries, arrays


def append_again(callbacks: Sequence[Any], entries: Sequence[Any]) -> list[Any]:
    """Before training begins: cuts the file of each CSVLogger back to the save, and has it go on there.

    Returns those that had been made with `append=False`, which is for the caller to give back to them.
    """
    changed = []
    for callback, entry in matched(callbacks, entries):
        if not _appends(callback) or entry.get("file") != callback.filename:
            continue
        if _size(callback) > entry["bytes"]:
            os.truncate(callback.filename, entry["bytes"])
        if not callback.append:
            callback.append = True
            changed.append(callback)
    return changed


def _appends(callback: Any) -> bool:
    return isinstance(callback, tf_keras.callbacks.CSVLogger) and not joins(callback)


def _size(callback: Any) -> int:
    """Of a logger's file, which it flushes at each row; 0 where there is none yet, or not on a local disk."""
    try:
        return os.path.getsize(callback.filename)
    except OSError:
        return 0
