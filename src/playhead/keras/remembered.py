"""The states of callbacks in a checkpoint, of whatever Keras: JSON, and arrays that it names by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from playhead.errors import TrainingError
from playhead.keras.checkpoint import Array, Named


def matched(callbacks: Sequence[Any], entries: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each callback with the entry of its class, the first with the first."""
    waiting = list(entries)
    for callback in callbacks:
        entry = next((e for e in waiting if e["class"] == type(callback).__name__), None)
        if entry is not None:
            waiting.remove(entry)
            yield callback, entry


def joins(callback: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`."""
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def encoded(
    value: Any,
    name: str,
    arrays: list[tuple[str, Array]],
    as_array: Callable[[Any], Array | None],
) -> Any:
    """A state as JSON; what `as_array` takes for an array goes to the end of `arrays`.

    Raises `TrainingError`, with the callback's name, for what a checkpoint cannot hold.
    """
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {k: encoded(part, name, arrays, as_array) for k, part in value.items()}}
    if isinstance(value, list | tuple):
        return [encoded(part, name, arrays, as_array) for part in value]
    array = as_array(value)
    if array is None:
        raise TrainingError(
            f"the state of {name} holds a {type(value).__name__}, which a checkpoint cannot hold",
            help="get_state() returns None, numbers, strings, arrays, and lists and dicts of these",
        )
    arrays.append((f"{name}/{len(arrays)}", array))
    return {"array": len(arrays) - 1}


def decoded(value: Any, arrays: Named) -> Any:
    """The state that `encoded` was given; tuples come back as lists."""
    if isinstance(value, list):
        return [decoded(part, arrays) for part in value]
    if isinstance(value, dict):
        if "array" in value:
            array = arrays[value["array"]][1]
            return array if array.ndim else array[()]
        return {key: decoded(part, arrays) for key, part in value["dict"].items()}
    return value
