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

from playhead.keras.checkpoint import Array, Named
from playhead.keras.remembered import decoded, encoded, joins, matched

ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("wait", "cooldown_counter", "best"),
    "ModelCheckpoint": (
        "best",
        "epochs_since_last_save",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "TensorBoard": ("_global_train_batch", "_previous_epoch_iterations"),
}


def capture(callbacks: Sequence[Any]) -> tuple[list[dict[str, Any]], list[tuple[str, Array]]]:
    """The states of those that have one, as JSON, and the arrays in them, which it names by number.

    Raises `TrainingError` where a `get_state()` returns something else than a checkpoint can hold.
    """
    arrays: list[tuple[str, Array]] = []
    entries = []
    for callback in callbacks:
        name, entry = type(callback).__name__, {}
        known = _attributes(callback)
        if known:
            entry["state"] = encoded(
                {key: getattr(callback, key) for key in known}, name, arrays, _array
            )
        if joins(callback):
            entry["own"] = encoded(callback.get_state(), name, arrays, _array)
        elif _appends(callback):
            entry.update(file=callback.filename, bytes=_size(callback))
        if entry:
            entries.append({"class": name, **entry})
    return entries, arrays


def restore(
    callbacks: Sequence[Any], entries: Sequence[Any], arrays: Named, *, anew: bool = False
) -> None:
    """Puts the states back into the callbacks of the same classes, in their order.

    A callback that was not there is left as it is, a state whose callback is gone is not used. `anew` is
    for a run that one of them had stopped and that is to go on: patience begins again.
    """
    for callback, entry in matched(callbacks, entries):
        if "state" in entry:
            state = decoded(entry["state"], arrays)
            for key in _attributes(callback):
                if key in state:
                    setattr(callback, key, state[key])
            if anew and "stopped_epoch" in state:
                callback.wait = callback.stopped_epoch = 0
        if "own" in entry and joins(callback):
            callback.set_state(decoded(entry["own"], arrays))


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


def _attributes(callback: Any) -> tuple[str, ...]:
    for kind in type(callback).__mro__:
        if kind.__name__ in ATTRIBUTES and kind.__module__.split(".")[0] == "tf_keras":
            return tuple(key for key in ATTRIBUTES[kind.__name__] if hasattr(callback, key))
    return ()


def _array(value: Any) -> Array | None:
    array = value.numpy() if tf.is_tensor(value) else value
    if isinstance(array, np.ndarray | np.generic) and not array.dtype.hasobject:
        return np.array(array)
    return None
