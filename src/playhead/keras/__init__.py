"""Keras 3 training runs that go on where they were killed.

`fit` is `model.fit` with a checkpoint directory. The names load on first use, so that
`playhead.keras.checkpoint` reads checkpoints without Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from playhead.errors import PreemptedError

if TYPE_CHECKING:
    from playhead.keras.preemption import Preempted as Preempted
    from playhead.keras.reading import Reading as Reading
    from playhead.keras.tensorboard import TensorBoard as TensorBoard
    from playhead.keras.training import fit as fit

__all__ = ["Preempted", "PreemptedError", "Reading", "TensorBoard", "fit"]

_HOMES = {
    "Preempted": "preemption",
    "Reading": "reading",
    "TensorBoard": "tensorboard",
    "fit": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
