"""Iterators that know their own place: what they say of it, as JSON inside a position.

What holds a state has `state_dict` and `load_state_dict` (torchdata's loaders), or `get_state` and `set_state`
(Grain's iterators). It is the iterable itself, which then takes a state before it is iterated, or its iterator.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from playhead.errors import PipelineError, UnreadablePosition
from playhead.plan.places import Cursor, is_count, is_place

LIMIT = 1 << 20  # about how many bytes a state may take
SPARSE = 4 << 10  # of a state, for each element that may have to be walked again

_PROTOCOLS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
_TAG = "$"


def protocol(holder: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """What saves the state of an object, and what loads it; None where it holds none."""
    for save, load in _PROTOCOLS:
        found = getattr(holder, save, None), getattr(holder, load, None)
        if callable(found[0]) and callable(found[1]):
            return found[0], found[1]
    return None


@dataclass(frozen=True, slots=True)
class Saved:
    """A state after `taken` elements of an epoch, as JSON."""

    taken: int
    state: Any

    @classmethod
    def of(cls, cursor: Cursor) -> Saved | None:
        """The one in a cursor."""
        return cls(cursor["taken"], cursor["state"]) if isinstance(cursor, dict) else None

    def cursor(self, at: list[int]) -> Cursor:
        return {"at": at, "taken": self.taken, "state": self.state}


def is_saved(cursor: dict[str, Any]) -> bool:
    """Whether a cursor is what `Saved.cursor` gives."""
    if not is_place(cursor.get("at")) or not is_count(cursor.get("taken")):
        return False
    return 0 < cursor["taken"] <= cursor["at"][1] and "state" in cursor


@dataclass(slots=True)
class Walk:
    """An iterator that stands behind `index` elements, and how to save where it stands, if it can be told.

    `saved`: the states since the last chunk, the newest before it first.
    """

    items: Iterator[Any]
    save: Callable[[], Any] | None
    every: int
    saved: list[Saved] = field(default_factory=list)

    def look(self, taken: int) -> None:
        """Save the state behind `taken` elements, where it is time to. Raises `PipelineError`."""
        if self.save is None:
            return
        last = self.saved[-1] if self.saved else None
        if last is not None and taken < last.taken + max(self.every, weight(last.state) // SPARSE):
            return
        if last is None and taken < self.every:
            return
        state = to_json(self.save())
        if weight(state) > LIMIT:
            raise PipelineError(
                f"the state of the iterator takes {weight(state)} bytes; a position holds {LIMIT} at most",
                help="keep what is large outside its state; a function that takes start= needs no state",
            )
        self.saved.append(Saved(taken, state))

    def cut(self) -> tuple[Saved, ...]:
        """The states so far, of which only the newest matters from here on."""
        found = tuple(self.saved)
        del self.saved[:-1]
        return found


def opened(made: Any, saved: Saved | None, every: int) -> tuple[Walk, bool]:
    """The iterator of what was made, at the place that was saved, and whether it stands there.

    Raises `UnreadablePosition` for a state that it does not take.
    """
    holds = protocol(made)
    if holds is not None and saved is not None:
        _load(holds[1], saved)
    items = iter(made)
    if holds is None:
        holds = protocol(items)
        if holds is not None and saved is not None:
            _load(holds[1], saved)
    stands = holds is not None and saved is not None
    save = None if holds is None else holds[0]
    return Walk(items, save, every, [saved] if saved is not None and stands else []), stands


def _load(load: Callable[[Any], Any], saved: Saved) -> None:
    state = from_json(saved.state)
    try:
        load(state)
    except Exception as error:
        raise UnreadablePosition(
            f"the state of the iterator in the position cannot be restored: {type(error).__name__}: {error}",
            help="restore what the generator gives, or start anew",
        ) from error


def weight(state: Any) -> int:
    """About how many bytes a state takes as JSON."""
    if isinstance(state, str):
        return len(state) + 2
    if isinstance(state, dict):
        return 2 + sum(len(key) + 4 + weight(value) for key, value in state.items())
    if isinstance(state, list):
        return 2 + sum(1 + weight(value) for value in state)
    return 8


def to_json(state: Any) -> Any:
    """A copy of a state as JSON that `from_json` makes the same of. Raises `PipelineError` for what cannot be.

    Dicts, lists, tuples, numbers, str, bytes, None, numpy's arrays and numbers, torch's tensors.
    """
    kind = type(state)
    if state is None or kind in (bool, int, str):
        return state
    if kind is float:
        return state if math.isfinite(state) else {_TAG: "float", "of": repr(state)}
    if kind is list:
        return [to_json(part) for part in state]
    if kind is tuple:
        return {_TAG: "tuple", "of": [to_json(part) for part in state]}
    if kind in (dict, OrderedDict):
        if all(type(key) is str for key in state) and _TAG not in state:
            return {key: to_json(value) for key, value in state.items()}
        return {_TAG: "dict", "of": [[to_json(k), to_json(v)] for k, v in state.items()]}
    if kind is bytes:
        return {_TAG: "bytes", "of": base64.b64encode(state).decode()}
    if isinstance(state, np.ndarray | np.generic) and not state.dtype.hasobject:
        return _array("array", state)
    if kind.__module__ == "torch" and kind.__name__ == "Tensor":
        return _array("tensor", state.detach().cpu().numpy())
    raise PipelineError(
        f"the state of the iterator holds {kind.__module__}.{kind.__qualname__}, which a position cannot hold",
        help="a state is made of dicts, lists, tuples, numbers, str, bytes, arrays and tensors",
    )


def _array(tag: str, value: Any) -> Any:
    array = np.ascontiguousarray(value)
    raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    said = {_TAG: tag, "dtype": array.dtype.name, "shape": list(np.shape(value))}
    return {**said, "of": base64.b64encode(raw).decode()}


def from_json(saved: Any) -> Any:
    """What `to_json` was given. Raises `UnreadablePosition`."""
    try:
        return _made(saved)
    except (TypeError, ValueError, KeyError, binascii.Error):
        raise UnreadablePosition("the position's state of an iterator is damaged") from None


def _made(saved: Any) -> Any:
    if isinstance(saved, list):
        return [_made(part) for part in saved]
    if not isinstance(saved, dict):
        return saved
    if _TAG not in saved:
        return {key: _made(value) for key, value in saved.items()}
    tag, of = saved[_TAG], saved["of"]
    if tag == "float":
        return float(of)
    if tag == "tuple":
        return tuple(_made(part) for part in of)
    if tag == "dict":
        return {_made(key): _made(value) for key, value in of}
    raw = base64.b64decode(of, validate=True)
    if tag == "bytes":
        return raw
    dtype = np.dtype(saved["dtype"])
    array = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(saved["shape"])
    if tag == "array":
        return array if array.ndim else array[()]
    if tag == "tensor":
        return sys.modules["torch"].from_numpy(array)
    raise ValueError(tag)
