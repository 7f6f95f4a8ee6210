"""What of `compile` and `fit` decides what is learned, laid out flat so that two runs can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from playhead.errors import TrainingChanged

RATE = "optimizer.learning_rate"
# How a step is executed, not what it computes.
_EXECUTION = ("jit_compile", "is_legacy_optimizer", "name")


def of(model: Any, **fit_arguments: Any) -> dict[str, Any]:
    """The settings as dotted names with JSON values: the optimizer's, the loss by its name, those of fit."""
    optimizer = model.optimizer
    config = {**optimizer.get_config(), "class": type(optimizer).__name__}
    parts = {name: value for name, value in config.items() if name not in _EXECUTION}
    flat = {"optimizer": parts, "loss": model.loss, "fit": fit_arguments}
    return dict(_flatten("", flat))


def require_same(saved: Mapping[str, Any], now: Mapping[str, Any], *, rate: float | None) -> None:
    """Raises `TrainingChanged`, listing saved against now, where settings differ.

    rate: the learning rate at the time of the save. A model that was trained in this process has it in place
    of the one it was compiled with.
    """
    lines = []
    for name in sorted({*saved, *now}):
        before, after = saved.get(name, "(not there)"), now.get(name, "(not there)")
        if before != after and not (name == RATE and after == rate):
            lines.append(f"{name}  saved {before}   ->   now {after}")
    if lines:
        raise TrainingChanged(
            "the checkpoint was trained with other settings\n    " + "\n    ".join(lines),
            help="go back to the saved values, or start a run of its own in another directory",
            differences=lines,
        )


def learning_rate(model: Any) -> float | None:
    """The optimizer's learning rate as its settings have it now; None for a schedule."""
    rate = of(model).get(RATE)
    return rate if isinstance(rate, float) else None


def plain(value: Any) -> Any:
    """A value as JSON can hold it; functions and objects by their names."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        return value.tolist()
    return getattr(value, "__name__", type(value).__name__)


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    value = plain(value)
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flatten(f"{name}.{key}" if name else key, part)
    else:
        yield name, json.loads(json.dumps(value))
