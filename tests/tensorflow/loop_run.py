"""Custom training loops that the tests kill: `loop_run.py LOOP DIRECTORY LOG [LINES]`.

Each appends a line to LOG after every step and, where LINES is given, ends itself by SIGKILL after so many. The
"weight" takes in every batch, so that one number tells all that was trained on, and in which order.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import tensorflow as tf

import playhead as ph

EPOCHS, STEPS, PRIME = 3, 5, 1_000_003


def batches() -> ph.Dataset:
    """Five batches an epoch, the last one short."""
    return ph.Dataset.range(14).shuffle(seed=3).batch(3).prefetch(4)


def noise() -> ph.Dataset:
    return ph.Dataset.range(100).shuffle(seed=8)


def mixed(weight: Any, batch: Any) -> Any:
    return (weight * 31 + tf.reduce_sum(batch)) % PRIME


class Log:
    def __init__(self, path: str, stop: int) -> None:
        self._path, self._left = path, stop

    def write(self, *values: Any) -> None:
        with open(self._path, "a") as file:
            file.write(" ".join(str(int(value)) for value in values) + "\n")
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def by_epochs(directory: str, log: Log) -> None:
    """The usual loop: variables for epoch and step, two iterators, a save each third step, two kept."""
    step, epoch = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
    weight = tf.Variable(0, dtype=tf.int64)
    train = ph.tensorflow.iterator(batches(), epochs=EPOCHS, step=step)
    other = ph.tensorflow.iterator(noise())
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step, epoch=epoch, weight=weight, train=train, other=other),
        directory,
        max_to_keep=2,
        step_counter=step,
        checkpoint_interval=3,
    )
    manager.restore_or_initialize()
    for rest in train.epochs():
        for batch in rest:
            weight.assign(mixed(weight, batch))
            weight.assign(mixed(weight, next(other)))
            step.assign_add(1)
            manager.save(checkpoint_number=step, check_interval=True)
            log.write(epoch, step, weight)
        epoch.assign_add(1)


def in_graph(directory: str, log: Log) -> None:
    """Three steps a call of a `tf.function`; saved behind the loop, which goes on meanwhile."""
    step, weight = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
    it = ph.tensorflow.iterator(batches(), epochs=EPOCHS, step=step)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step, weight=weight, data=it), directory, max_to_keep=3
    )
    manager.restore_or_initialize()
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)

    @tf.function
    def three(it: Any) -> None:
        for _ in tf.range(3):
            weight.assign(mixed(weight, next(it)))
            step.assign_add(1)

    while int(step) < EPOCHS * STEPS:
        three(it)
        log.write(step, weight)
        manager.save(checkpoint_number=step, options=options)
        time.sleep(0.05)
    manager.checkpoint.sync()


if __name__ == "__main__":
    loop, where, path, *stop = sys.argv[1:]
    {"by_epochs": by_epochs, "in_graph": in_graph}[loop](
        where, Log(path, int(stop[0]) if stop else 0)
    )
