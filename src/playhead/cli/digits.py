"""The training that `playhead demo` kills: a small Keras model on scikit-learn's digits.

`pipeline`, `model` and `train` are what a user would write.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import playhead as ph
from playhead.cli.logbook import Writer

SHARDS = 4
BATCH = 64
CHECKPOINTS = "checkpoints"


def pipeline(data: Path, seed: int) -> ph.Dataset:
    """Batches of ({"image": float32[b, 8, 8, 1], "record": int64[b]}, label int64[b])."""
    return (
        ph.Dataset.from_tfrecords(data / "digits-*.tfrecord")
        .map(parse)
        .shuffle(seed=seed)
        .map(augment, rng=True, seed=seed)
        .batch(BATCH)
        .prefetch()
    )


def parse(example: Any) -> Any:
    """One `tf.train.Example`, with TensorFlow."""
    import tensorflow as tf

    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "record": tf.io.FixedLenFeature([], tf.int64),
    }
    found = tf.io.parse_single_example(example, features)
    pixels = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), [8, 8, 1])
    return {"image": tf.cast(pixels, tf.float32) / 16.0, "record": found["record"]}, found["label"]


def augment(inputs: Any, label: Any, rng: np.random.Generator) -> Any:
    """Moves the digit by up to a pixel and adds noise: plain Python, with numbers it is handed."""
    down, right = rng.integers(-1, 2, size=2)
    image = np.roll(inputs["image"], (down, right), axis=(0, 1))
    image = image + rng.normal(scale=0.05, size=image.shape).astype(np.float32)
    return {"image": image, "record": inputs["record"]}, label


def model() -> Any:
    """A small convolutional network that takes what `pipeline` gives, and uses the images of it."""
    import keras

    from playhead.cli.witness import Witnessed

    layers = keras.layers
    image = keras.Input((8, 8, 1), name="image")
    record = keras.Input((), dtype="int64", name="record")
    x = image
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    x = layers.Dropout(0.2)(layers.Dense(64, activation="relu")(x))
    built = Witnessed({"image": image, "record": record}, layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    return built


def train(run: Path, data: Path, *, seed: int, epochs: int, save_every: int, log: Writer) -> None:
    """Trains, or goes on training, in the directory `run`, and leaves the final weights there."""
    import keras

    from playhead.cli.witness import Witness, save_weights

    # The weights and the dropout of a new run; a resumed one gets its own back.
    keras.utils.set_random_seed(seed)
    learner = model()
    ph.keras.fit(
        learner,
        pipeline(data, seed),
        checkpoint=run / CHECKPOINTS,
        save_every=save_every,
        epochs=epochs,
        callbacks=[Witness(log)],
        verbose=0,
    )
    log("finished", weights=save_weights(learner, run))


def write_records(data: Path) -> None:
    """The digits as TFRecord files of `tf.train.Example`, each with its own number in it.

    Whole or not at all: a kill leaves no half-written `data`.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    digits = load_digits()
    temporary = data.with_name(f"{data.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)

    def integer(value: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value)]))

    for shard, numbers in enumerate(np.array_split(np.arange(len(digits.target)), SHARDS)):
        name = f"digits-{shard:05d}-of-{SHARDS:05d}.tfrecord"
        with tf.io.TFRecordWriter(str(temporary / name)) as writer:
            for number in numbers:
                image = digits.images[number].astype(np.uint8).tobytes()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": integer(digits.target[number]),
                    "record": integer(number),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    os.rename(temporary, data)


def import_frameworks() -> float:
    """Loads TensorFlow and Keras, and says how many seconds that took."""
    began = time.perf_counter()
    for name in ("tensorflow", "keras"):
        importlib.import_module(name)
    return time.perf_counter() - began


def quiet_environment() -> dict[str, str]:
    """That of a training process: on the CPU, where the bits repeat without any switch."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
    }
    return {**os.environ, **quiet}


@click.command(name="demo-train", hidden=True)
@click.option("--run", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--seed", type=int, required=True)
@click.option("--epochs", type=int, required=True)
@click.option("--save-every", type=int, required=True)
def command(run: Path, data: Path, seed: int, epochs: int, save_every: int) -> None:
    """Train the demo's model; what `playhead demo` starts, kills and starts again."""
    log = Writer(run)
    log("began", pid=os.getpid())
    log("imported", seconds=import_frameworks())
    if not data.exists():
        began = time.perf_counter()
        write_records(data)
        log("wrote", seconds=time.perf_counter() - began)
    train(run, data, seed=seed, epochs=epochs, save_every=save_every, log=log)
