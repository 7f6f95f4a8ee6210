"""Keras tests run on TensorFlow, quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

sys.path.insert(0, str(Path(__file__).parent))  # small_run, which is also run as a program


@pytest.fixture(autouse=True, scope="module")
def _no_leftovers() -> Iterator[None]:
    """Traced graphs of one file's tests would make those of the next slower."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()
