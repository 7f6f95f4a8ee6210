"""What MirroredStrategy over two CPU devices gives, as lines of JSON. Started by test_replicas.py."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras
from keras2_run import Broken, Journal, data, digest, model

from playhead.tf_keras import fit

_CPU = tf.config.list_physical_devices("CPU")[0]
_TWO = [tf.config.LogicalDeviceConfiguration()] * 2


def train(where: Path, strategy: Any, stop: int | None = None, **settings: Any) -> dict[str, Any]:
    """What a run went through, whether it ended or was broken off."""
    made = model(strategy, plain=settings.pop("plain", False))
    journal = Journal(stop)
    arguments = {"epochs": 2, "save_every": 3, "verbose": 0, "validation_data": data(), **settings}
    told: dict[str, Any] = {"lines": journal.lines}
    try:
        history = fit(made, data(), checkpoint=where, callbacks=[journal], **arguments)
        told |= {"history": history.history, "digest": digest(made)}
    except Broken:
        pass
    return told


def main(directory: str) -> None:
    tf.config.set_logical_device_configuration(_CPU, _TWO)
    tf_keras.backend.experimental.enable_tf_random_generator()
    root = Path(directory)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    whole = train(root / "whole", two)
    broken = [train(root / "broken", two, stop) for stop in (5, 4, 6)]
    ended = train(root / "broken", two)
    print(json.dumps({"whole": whole, "broken": broken, "ended": ended}))

    weights = {0: 1.0, 1: 3.0}
    one = tf.distribute.OneDeviceStrategy("/CPU:0")
    plain = {"plain": True, "class_weight": weights}
    weighted = train(root / "weighted", two, **plain)
    train(root / "moved", two, 5, **plain)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        moved = train(root / "moved", one, **plain)
    messages = [str(warning.message) for warning in said]
    print(json.dumps({"weighted": weighted, "moved": moved, "warned": messages}))


if __name__ == "__main__":
    main(sys.argv[1])
