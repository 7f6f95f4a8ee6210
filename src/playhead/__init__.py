"""playhead keeps the exact place of a training run in its data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from playhead import errors
from playhead.dataset import Dataset
from playhead.epoch import Epoch
from playhead.errors import PlayheadError, PlayheadWarning
from playhead.iterator import Iterator
from playhead.lineage import trace
from playhead.plan.block import ArraySpec
from playhead.plan.node import INFINITE, UNKNOWN
from playhead.plan.places import Record
from playhead.plan.prefetch import AUTOTUNE
from playhead.plan.randomness import seed_pair
from playhead.position import Position
from playhead.sources.tfrecord.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)
from playhead.sources.tfrecord.writing import write_tfrecords

if TYPE_CHECKING:
    from playhead import jax, keras, tensorflow, testing, torch

__version__ = "0.1.0"

_ON_FIRST_USE = ("jax", "keras", "tensorflow", "testing", "torch")


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"playhead.{name}")
    raise AttributeError(f"module 'playhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AUTOTUNE",
    "INFINITE",
    "UNKNOWN",
    "ArraySpec",
    "Dataset",
    "Epoch",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Iterator",
    "PlayheadError",
    "PlayheadWarning",
    "Position",
    "Record",
    "VarLenFeature",
    "errors",
    "jax",
    "keras",
    "seed_pair",
    "tensorflow",
    "testing",
    "torch",
    "trace",
    "write_tfrecords",
]
