"""What of `compile` and `fit` decides what is learned, laid out flat so that two runs can be compared."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from playhead.errors import TrainingChanged
from playhead.keras import state

# How a step is executed, not what it computes.
_EXECUTION = ("run_eagerly", "jit_compile", "steps_per_execution")
_ROOTS = (
    "model",
    "optimizer",
    "optimizers",
    "loss",
    "loss_weights",
    "metrics",
    "weighted_metrics",
    "fit",
)
_WRAPPED = (
    ".inner_optimizer"  # of a LossScaleOptimizer, also where a policy has Keras put it around
)
_NUMBER = re.compile(r"_\d+$")


def of(model: Any, **fit_arguments: Any) -> dict[str, Any]:
    """The settings as dotted names with JSON values, as in `{"optimizer": "Adam", "optimizer.beta_1": 0.9}`.

    Functions are told apart by name only; their code is not compared.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*being serialized includes a `lambda`")
        config = dict(model.get_compile_config() or {})
    for name, held in state.optimizers(model).items():
        key = name if name == "optimizer" else f"optimizers.{name}"
        config.setdefault(key, {"class_name": type(held).__name__, "config": held.get_config()})
    parts = {name: value for name, value in config.items() if name not in _EXECUTION}
    flat: dict[str, Any] = {}
    for name, value in [*parts.items(), ("fit", fit_arguments)]:
        flat.update(_flatten(name, value))
    return flat


def is_setting(name: str) -> bool:
    """Whether `name` in `override=` means a training setting (else it is an operation of the pipeline)."""
    return name.split(".")[0].split("[")[0] in _ROOTS


def overridden(name: str, override: Sequence[str]) -> bool:
    """Whether `name` is, or is a part of, something in `override`."""
    return any(
        n == o or n.startswith((f"{o}.", f"{o}["))
        for n in (name, name.replace(_WRAPPED, ""))
        for o in override
    )


def require_known(override: Sequence[str], names: Iterable[str], positions: Iterable[Any]) -> None:
    """Raises ValueError for a name in `override` that is no setting, no part of one and no operation.

    names: of the settings. positions: as JSON, of the pipelines whose operations are known.
    """
    settings = {*names, "model", "optimizer"}
    found = {n for name in settings for n in (name, name.replace(_WRAPPED, ""))}
    operations = _operations(list(positions))
    unknown = [
        o for o in override if o not in operations and not any(overridden(n, [o]) for n in found)
    ]
    if unknown:
        known = sorted(found | operations | {n.split(".")[0].split("[")[0] for n in found})
        meant = [f"{n!r}" for o in unknown for n in sorted(found) if n.endswith(f".{o}")]
        raise ValueError(
            f"override= names {', '.join(map(repr, unknown))}, which is nothing that could differ"
            + (f" (meant: {', '.join(meant)}?)" if meant else "")
            + f"; known are {', '.join(known)}"
        )


def require_same(
    saved: Mapping[str, Any], now: Mapping[str, Any], override: Sequence[str], *, rate: float | None
) -> None:
    """Raises `TrainingChanged`, listing saved against now, where settings differ that are not overridden.

    `rate` is the learning rate at the time of the save: a model that has been trained in this process
    carries it in place of the one it was compiled with.
    """
    lines = []
    for name in sorted({*saved, *now}):
        before, after = saved.get(name, "(not there)"), now.get(name, "(not there)")
        if before == after or overridden(name, override):
            continue
        plain = name.replace(_WRAPPED, "")
        if plain == "optimizer.learning_rate" and rate is not None and after == rate:
            continue
        lines.append(f"{name}  saved {before}   ->   now {after}")
    if lines:
        first = lines[0].split("  ")[0]
        raise TrainingChanged(
            "the checkpoint was trained with other settings\n    " + "\n    ".join(lines),
            help=f'go back to the saved values, or override=["{first}"] to go on with those of now',
            differences=lines,
        )


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and "class_name" in value:
        kind, config = value["class_name"], value.get("config")
        if not isinstance(config, Mapping):
            yield name, config if isinstance(config, str) else kind
        elif kind == "__lambda__":
            yield name, "a lambda"
        else:
            yield name, kind
            for key, part in config.items():
                if key == "name":
                    # A process numbers the names it makes up; optimizers and schedules show theirs nowhere.
                    if name.startswith(("metrics", "weighted_metrics")):
                        yield f"{name}.name", _NUMBER.sub("", str(part))
                else:
                    yield from _flatten(f"{name}.{key}", part)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flatten(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _flatten(f"{name}[{position}]", part)
    elif value is None or isinstance(value, str | bool | int | float):
        yield name, value
    else:
        yield name, _scalar(value)


def _scalar(value: Any) -> Any:
    try:
        return value.item()
    except (AttributeError, ValueError):
        return f"{type(value).__name__}"


def _operations(position: Any) -> set[str]:
    """The names of a pipeline's operations, at any depth."""
    if isinstance(position, Mapping):
        own = {position["op"]} if isinstance(position.get("op"), str) else set()
        return own.union(*(_operations(part) for part in position.values()))
    if isinstance(position, list | tuple):
        return set().union(*(_operations(part) for part in position))
    return set()
