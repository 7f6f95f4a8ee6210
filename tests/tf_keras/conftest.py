"""tf_keras tests run on the CPU, quietly, with dropout that can be saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

sys.path.insert(0, str(Path(__file__).parent))  # programs that tests here also import

collect_ignore = ["two_replicas.py"]  # importing it makes the CPU two devices


@pytest.fixture(autouse=True)
def saved_dropout() -> Iterator[None]:
    """What a user calls first; whoever runs tests after these has it as it was."""
    import tf_keras

    before = tf_keras.src.backend.is_tf_random_generator_enabled()
    tf_keras.backend.experimental.enable_tf_random_generator()
    yield
    if not before:
        tf_keras.backend.experimental.disable_tf_random_generator()
