"""A custom loop under MirroredStrategy: two replicas, `tf.train.CheckpointManager`, the step in a graph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import playhead as ph
from benchmarks.soak.keras_fit import CHECKPOINTS, keep
from playhead.cli.logbook import Writer

ROWS, BATCH = 205, 16


def pipeline(seed: int) -> ph.Dataset:
    """Batches of {"x": float32[b, 8], "y": float32[b, 1], "record": int64[b]}, the last of a pass short."""
    x = np.random.default_rng(seed).random((ROWS, 8), np.float32)
    rows = {"x": x, "y": x.sum(axis=1, keepdims=True), "record": np.arange(ROWS)}
    ds = ph.Dataset.from_tensor_slices(rows).shuffle(seed=seed)
    return ds.map(noisy, rng=True, seed=seed).batch(BATCH).prefetch(4)


def noisy(row: Any, rng: np.random.Generator) -> Any:
    return {**row, "x": row["x"] + rng.normal(scale=0.05, size=8).astype(np.float32)}


def expected(data: Path, seed: int, epochs: int) -> dict[int, tuple[int, ...]]:
    batches = pipeline(seed).iterator(epochs=epochs)
    return {k: tuple(batch["record"].tolist()) for k, batch in enumerate(batches, 1)}


def train(run: Path, data: Path, seed: int, epochs: int, every: int, log: Writer) -> None:
    import keras
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(1)]
        )
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64)
    ds = pipeline(seed)
    it = ph.tensorflow.iterator(ds, strategy=strategy, epochs=epochs, step=step)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, data=it),
        str(run / CHECKPOINTS),
        max_to_keep=2,
        step_counter=step,
        checkpoint_interval=every,
    )
    manager.restore_or_initialize()

    def step_fn(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(batch["x"], training=True) - batch["y"]) ** 2) / BATCH
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss, batch["record"]

    @tf.function
    def one(it: Any) -> Any:
        losses, records = strategy.run(step_fn, args=(next(it),))
        step.assign_add(1)
        whole = tf.concat(strategy.experimental_local_results(records), axis=0)
        return strategy.reduce("SUM", losses, axis=None), whole

    for number in range(int(step.numpy()) + 1, epochs * len(ds) + 1):
        loss, records = one(it)
        log("batch", step=number, loss=float(loss).hex(), records=records.numpy().tolist())
        manager.save(checkpoint_number=number, check_interval=True)
    variables = [*model.variables, *optimizer.variables]
    keep(run, {f"{k:03d} {v.path}": v.numpy() for k, v in enumerate(variables)})


def newest(run: Path) -> int:
    """As TensorFlow's own note in the directory says, which it replaces when a checkpoint is whole."""
    note = run / CHECKPOINTS / "checkpoint"
    found = (
        re.match(r'model_checkpoint_path: ".*?-(\d+)"', note.read_text()) if note.exists() else None
    )
    return int(found[1]) if found else 0


def doing(run: Path) -> str | None:
    root = run / CHECKPOINTS
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return "writing a checkpoint" if any("temp" in name for name in names) else None
