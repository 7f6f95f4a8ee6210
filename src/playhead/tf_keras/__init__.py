"""tf_keras (Keras 2) training runs that go on where they were killed, on one machine and on several workers.

`fit` is `model.fit` with a checkpoint directory. The name loads on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playhead.tf_keras.training import fit as fit

__all__ = ["fit"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.training"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
