"""A small Estimator that writes down what it is trained on.

As a program: `train_run.py MODEL_DIR LOG PIPELINE STEPS [PAUSE MARK]` trains STEPS steps and prints the weight;
after PAUSE of them it makes the file MARK and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import playhead as ph

EPOCH = 4  # batches


def pipeline(kind: str = "seekable", *, size: int = 3) -> ph.Dataset:
    """Four batches of up to three numbers an epoch, in another order each time."""
    ds = ph.Dataset.range(11)
    if kind == "stream":
        ds = ph.Dataset.range(15).filter(lambda x: x % 4 != 3)
        return ds.map(lambda x: np.float32(x)).batch(size)
    return (
        ds.shuffle(seed=None if kind == "unseeded" else 7).map(lambda x: np.float32(x)).batch(size)
    )


def model_fn(features: Any, mode: Any, params: dict[str, Any]) -> Any:
    weight = tf.compat.v1.get_variable("weight", (), initializer=tf.compat.v1.zeros_initializer())
    step = tf.compat.v1.train.get_or_create_global_step()
    total = tf.reduce_sum(features)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=total)

    def note(batch: np.ndarray) -> np.int64:
        with open(params["log"], "a") as file:
            file.write(" ".join(str(int(x)) for x in batch) + "\n")
        return np.int64(0)

    noted = tf.compat.v1.py_func(note, [features], tf.int64)
    with tf.control_dependencies([noted]):
        updated = tf.compat.v1.assign_add(weight, total)
    with tf.control_dependencies([updated]):
        train_op = tf.compat.v1.assign_add(step, 1)
    return tf.estimator.EstimatorSpec(mode, loss=tf.identity(updated), train_op=train_op)


def estimator(model_dir: str, log: str, every: int = 3) -> Any:
    config = tf.estimator.RunConfig(save_checkpoints_steps=every, tf_random_seed=1)
    return tf.estimator.Estimator(model_fn, model_dir, config, params={"log": log})


class Pause(tf.estimator.SessionRunHook):  # type: ignore[misc]
    """Stops training for ever once it has run so many steps, so that a kill finds it between two saves."""

    def __init__(self, steps: int, mark: Path) -> None:
        self.left, self.mark = steps, mark

    def after_run(self, context: Any, values: Any) -> None:
        self.left -= 1
        if not self.left:
            self.mark.touch()
            time.sleep(600)


if __name__ == "__main__":
    where, log, kind, steps, *pause = sys.argv[1:]
    hooks = [Pause(int(pause[0]), Path(pause[1]))] if pause else []
    made = estimator(where, log)
    made.train(ph.tensorflow.input_fn(pipeline(kind), where), steps=int(steps), hooks=hooks)
    print(made.get_variable_value("weight"))
