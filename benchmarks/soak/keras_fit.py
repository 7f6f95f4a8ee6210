"""Keras' `fit` on any backend, over a stream: nobody knows how many batches a pass has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import playhead as ph
from playhead.cli.logbook import WEIGHTS, Writer
from playhead.keras import checkpoint
from playhead.position import write_atomically

ROWS, BATCH = 300, 16
CHECKPOINTS = "checkpoints"


def pipeline(seed: int) -> ph.Dataset:
    """(features float32[16, 8], [label, record] float32[16, 2]): shuffled, with noise, a part left out."""
    x = np.random.default_rng(seed).random((ROWS, 8), np.float32)
    y = np.stack([x.sum(axis=1) > 4, np.arange(ROWS)], axis=1).astype(np.float32)
    ds = ph.Dataset.from_tensor_slices((x, y)).shuffle(seed=seed).filter(lambda x, y: x[0] > 0.2)
    return ds.map(noisy, rng=True, seed=seed).batch(BATCH, drop_remainder=True).prefetch()


def noisy(x: Any, y: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal(scale=0.05, size=x.shape).astype(np.float32), y


def expected(data: Path, seed: int, epochs: int) -> dict[int, tuple[int, ...]]:
    batches = pipeline(seed).iterator(epochs=epochs)
    return {k: tuple(y[:, 1].astype(int).tolist()) for k, (_, y) in enumerate(batches, 1)}


def train(run: Path, data: Path, seed: int, epochs: int, every: int, log: Writer) -> None:
    """Loss, metrics and History are compared as well: History lies among the final weights."""
    import keras

    class Records(keras.metrics.Metric):  # type: ignore[misc]
        """The records of the last batch, which only the step itself can have seen."""

        def __init__(self) -> None:
            super().__init__(name="records")
            self.last = self.add_weight(shape=(BATCH,), initializer="zeros", name="last")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.last.assign(y_true[:, 1])

        def result(self) -> Any:
            return self.last[0] + 0.0

    def loss(y_true: Any, y_pred: Any) -> Any:
        return keras.losses.binary_crossentropy(y_true[:, :1], y_pred)

    class Witness(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            last = keras.ops.convert_to_numpy(seen.last).astype(int).tolist()
            log("batch", step=step, loss=float(logs["loss"]).hex(), records=last)

    keras.utils.set_random_seed(seed)
    seen, layers = Records(), keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(32, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=[seen])
    history = ph.keras.fit(
        model,
        pipeline(seed),
        checkpoint=run / CHECKPOINTS,
        save_every=every,
        epochs=epochs,
        callbacks=[Witness()],
        validation_data=pipeline(seed + 1),
        verbose=0,
    )
    variables = [*model.variables, *model.optimizer.variables]
    arrays = {f"{k:03d} {v.path}": keras.ops.convert_to_numpy(v) for k, v in enumerate(variables)}
    arrays |= {f"history {name}": np.asarray(v) for name, v in history.history.items()}
    keep(run, arrays)


def keep(run: Path, arrays: dict[str, Any]) -> None:
    """The final weights, whole or not at all, where `compare` finds them."""
    import io

    file = io.BytesIO()
    np.savez(file, **arrays)
    write_atomically(run / WEIGHTS, file.getvalue())


def newest(run: Path) -> int:
    root = run / CHECKPOINTS
    return int(checkpoint.latest(root)[1]["step"]) if checkpoint.saves(root) else 0


def doing(run: Path) -> str | None:
    root = run / CHECKPOINTS
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    if any(name.startswith(".writing-") for name in names):
        return "writing a checkpoint"
    return "removing an old one" if any(n.startswith(".removing-") for n in names) else None
