"""The states of callbacks in a checkpoint, of whatever Keras: JSON, and arrays that it names by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Own:
    """The callbacks of a Keras by their classes, with the attributes that are their states.

    as_array: what is an array there, as one of numpy, and None for anything else.
    """

    package: str
    attributes: Mapping[str, tuple[str, ...]]
    as_array: Callable[[Any], Array | None]

    def known(self, callback: Any) -> tuple[str, ...] | None:
        """The attributes of a callback of such a class, or of one derived from it; None of any other."""
        for kind in type(callback).__mro__:
            home = kind.__module__.split(".")[0]
            if kind.__name__ in self.attributes and home == self.package:
                return tuple(k for k in self.attributes[kind.__name__] if hasattr(callback, k))
        return None

    def entry(self, callback: Any, arrays: list[tuple[str, Array]]) -> dict[str, Any]:
        """The class of a callback, and its state, if it has one; what is an array goes to `arrays`."""
        known, name = self.known(callback), type(callback).__name__
        entry: dict[str, Any] = {"class": name}
        if known is not None:
            state = {key: getattr(callback, key) for key in known}
            entry["state"] = encoded(state, name, arrays, self.as_array)
        if joins(callback):
            entry["own"] = encoded(callback.get_state(), name, arrays, self.as_array)
        return entry

    def restore(
        self,
        callbacks: Sequence[Any],
        entries: Sequence[Any],
        arrays: Named,
        *,
        anew: bool = False,
    ) -> None:
        """Puts the states back into the callbacks of the same classes, in their order.

        A callback that was not there is left as it is, a state whose callback is gone is not used. `anew` is
        for a run that one of them had stopped and that is to go on: patience begins again.
        """
        for callback, entry in matched(callbacks, entries):
            known = self.known(callback)
            if known is not None and "state" in entry:
                state = decoded(entry["state"], arrays)
                for key in known:
                    if key in state:
                        setattr(callback, key, state[key])
                if anew and "stopped_epoch" in known:
                    callback.wait = callback.stopped_epoch = 0
            if joins(callback) and "own" in entry:
                callback.set_state(decoded(entry["own"], arrays))


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
