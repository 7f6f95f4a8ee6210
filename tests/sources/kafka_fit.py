"""A Keras run over a Kafka topic: `kafka_fit.py SERVERS TOPIC MESSAGES CHECKPOINT LOG`.

The model counts how often it was trained on each message. Prints those counts and its weights.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np

import playhead as ph


class Counting(keras.layers.Layer):
    """Passes numbers of messages on as columns of numbers, and counts them."""

    def __init__(self, messages: int) -> None:
        super().__init__()
        self.counts = self.add_weight(shape=(messages,), initializer="zeros", trainable=False)

    def call(self, numbers, training=False):
        if training:
            met = keras.ops.one_hot(numbers, self.counts.shape[0])
            self.counts.assign(self.counts + keras.ops.sum(met, axis=0))
        return keras.ops.cast(numbers, "float32")[:, None] / self.counts.shape[0]


class Slow(keras.callbacks.Callback):
    def __init__(self, log: str) -> None:
        super().__init__()
        self.log = log

    def on_train_batch_end(self, batch, logs=None):
        with open(self.log, "a") as file:
            file.write(f"{batch}\n")
        time.sleep(0.05)


def pair(message):
    number = np.int32(int(message["value"]))
    return number, np.float32([number % 2])


if __name__ == "__main__":
    servers, topic, messages, checkpoint, log = sys.argv[1:]
    keras.utils.set_random_seed(1)
    counting = Counting(int(messages))
    model = keras.Sequential([counting, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ds = ph.Dataset.from_kafka(
        topic, bootstrap_servers=servers, until="end", config={"log_level": 0}
    )
    ph.keras.fit(
        model,
        ds.map(pair).batch(5),
        checkpoint=checkpoint,
        epochs=2,
        save_every=3,
        verbose=0,
        callbacks=[Slow(log)],
    )
    weights = [value.tolist() for value in model.get_weights()]
    print(json.dumps([keras.ops.convert_to_numpy(counting.counts).tolist(), weights]))
