"""A position as it was when an asynchronous save began: TensorFlow writes it later, in another thread."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def save_now(owner: Any, object_map: Any) -> None:
    """Put what `owner.serialize()` says at this moment where TensorFlow finds it when it writes."""
    if owner not in object_map:
        with tf.init_scope():
            object_map[owner] = _Snapshot()
    # After the first save TensorFlow runs this as a graph.
    inside = tf.inside_function()
    line = tf.numpy_function(owner.serialize, [], tf.string) if inside else owner.serialize()
    object_map[owner].line.assign(line)


class _Snapshot(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The position of an iterator as it was when an asynchronous save began."""

    def __init__(self) -> None:
        with tf.device("/CPU:0"):
            self.line = tf.Variable("", trainable=False, dtype=tf.string, shape=())

    def serialize(self) -> bytes:
        line: bytes = self.line.numpy()
        return line

    def deserialize(self, string_value: str | bytes) -> None:
        self.line.assign(string_value)
