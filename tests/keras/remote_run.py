"""A training run that reads TFRecords from a web server: `remote_run.py TRAIN VALIDATION CHECKPOINT EPOCHS`."""

from __future__ import annotations

import json
import sys

import keras
import numpy as np

import playhead as ph
from playhead.keras import fit

FEATURES = {"x": ph.FixedLenFeature((4096,), np.float32), "y": ph.FixedLenFeature((), np.float32)}


def pairs(url: str) -> ph.Dataset:
    """Batches of four, shuffled."""
    ds = ph.Dataset.from_tfrecords(url, features=FEATURES).shuffle(seed=1)
    return ds.map(lambda row: (row["x"][..., :4], row["y"])).batch(4)


def model() -> keras.Model:
    """One neuron."""
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


if __name__ == "__main__":
    train, validation, where, epochs = sys.argv[1:]
    history = fit(
        model(),
        pairs(train),
        checkpoint=where,
        epochs=int(epochs),
        save_every=1,
        validation_data=pairs(validation),
        verbose=0,
    )
    print(json.dumps(history.history))
