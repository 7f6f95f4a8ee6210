"""What callbacks know besides the model, copied out and put back.

Keras' own are known by class, and so are classes derived from them; any other joins by having `get_state()`,
which returns None, numbers, strings, arrays, and lists and dicts of these, and `set_state(state)`. A class
that does both keeps both. `on_train_begin` resets a callback, so its state comes back after that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from playhead.keras import events
from playhead.keras.checkpoint import Array
from playhead.keras.remembered import Own, joins, matched


def _array(value: Any) -> Array | None:
    if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return np.asarray(value)
    return None


_SAVING = ("best", "_batches_seen_since_last_saving", "_last_batch_seen")
OWN = Own(
    "keras",
    {
        "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
        "ReduceLROnPlateau": ("wait", "cooldown_counter", "best"),
        "ModelCheckpoint": _SAVING,
        "OrbaxCheckpoint": (*_SAVING, "_total_batches_seen"),
        "SwapEMAWeights": ("_ema_weights_in_model",),
        "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    },
    _array,
)
# What Keras' own callbacks need for going on: nothing (they decide by what they are given), attributes (those
# above), a file, a place in fit itself, or that they are not there. A class that is not listed is a new one.
KNOWN = {
    "BackupAndRestore": "refused",
    "CSVLogger": "file",
    "Callback": "nothing",
    "CallbackList": "nothing",
    "EarlyStopping": "attributes",
    "History": "fit",
    "LambdaCallback": "nothing",
    "LearningRateScheduler": "nothing",
    "ModelCheckpoint": "attributes",
    "OrbaxCheckpoint": "attributes",
    "ProgbarLogger": "fit",
    "ReduceLROnPlateau": "attributes",
    "RemoteMonitor": "nothing",
    "SwapEMAWeights": "attributes",
    "TensorBoard": "attributes and files",
    "TerminateOnNaN": "nothing",
}


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
        if _writes_events(callback):
            entry.update(log_dir=callback.log_dir, files=events.noted(callback))
        if len(entry) > 1:
            entries.append(entry)
    return entries, arrays


def cut_back(callbacks: Sequence[Any], entries: Sequence[Any]) -> None:
    """The files of CSVLogger and TensorBoard as they were at the save.

    Before the callbacks are told of the model: TensorBoard then begins a file of its own.
    """
    for callback, entry in matched(callbacks, entries):
        if _appends(callback) and entry.get("file") == callback.filename:
            size = _size(callback)
            if size is not None and entry["bytes"] is not None and size > entry["bytes"]:
                os.truncate(callback.filename, entry["bytes"])
        if _writes_events(callback) and entry.get("log_dir") == callback.log_dir:
            events.cut_back(callback.log_dir, entry["files"])


def appending(callbacks: Sequence[Any]) -> list[Any]:
    """Before they are told that training begins: has each CSVLogger go on in its file.

    Returns those that had been made with `append=False`, which is for the caller to give back to them.
    """
    changed = [callback for callback in callbacks if _appends(callback) and not callback.append]
    for callback in changed:
        callback.append = True
    return changed


def swaps_averages_for_good(callbacks: Sequence[Any]) -> bool:
    """Whether the last epoch's end overwrites the trained weights where no save can see them before."""
    return any(
        isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch
        for callback in callbacks
    )


def _appends(callback: Any) -> bool:
    return isinstance(callback, keras.callbacks.CSVLogger) and not joins(callback)


def _writes_events(callback: Any) -> bool:
    return isinstance(callback, keras.callbacks.TensorBoard)


def _size(callback: Any) -> int | None:
    """Of a logger's file, which it flushes at each row; None where it is not on a local disk."""
    try:
        return os.path.getsize(callback.filename)
    except OSError:
        return None
