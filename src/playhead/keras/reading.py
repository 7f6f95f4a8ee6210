"""Where a run stands in its data, for callbacks that want to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from playhead.iterator import Iterator
from playhead.position import Position


class Reading:
    """What `playhead.keras.fit` gives every callback with a method `set_reading`, before training begins.

    In `on_train_batch_end` the position counts the batches up to that one: with `steps_per_execution`, all of
    the execution. Reading ahead never shows in it.

    >>> import keras
    >>> class Noting(keras.callbacks.Callback):
    ...     def set_reading(self, reading):
    ...         self.reading = reading
    ...     def on_train_batch_end(self, batch, logs=None):
    ...         print(self.reading.position.step)
    """

    def __init__(self, iterator: Iterator, step: Callable[[], int]) -> None:
        self._iterator, self._step = iterator, step

    @property
    def position(self) -> Position:
        """After the batches that the model has learned."""
        return self._iterator.position_at(self._step())

    @property
    def waited(self) -> float:
        """Seconds for which no batch was ready when Keras asked for one, in this process.

        Under a strategy and with `steps_per_execution` a thread of TensorFlow's asks, and runs ahead: the loop
        itself has waited no longer than this.
        """
        return self._iterator.stats()["waited"]


def show(reading: Reading, callbacks: Iterable[Any]) -> None:
    """Hands `reading` to the callbacks that take it."""
    for callback in callbacks:
        take = getattr(callback, "set_reading", None)
        if callable(take):
            take(reading)
