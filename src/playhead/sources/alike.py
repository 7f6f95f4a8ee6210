"""Elements that are alike, kept by columns: a batch of them is made without making each element."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import ElementError
from playhead.plan.aligned import aligned_copy
from playhead.plan.block import Element, Rows, leaves, map_nest, stack

# Dicts and tuples whose leaves hold a value for each element: an array of numbers, or a list of anything.
Kept: TypeAlias = Any


class Alike(Rows):
    """n elements of one structure: dicts have the same keys in one order.

    Elements are made when they are asked for, each with arrays of its own. Unlike those of `Columns`, other
    blocks of the node may be built otherwise.
    """

    __slots__ = ("_kept", "_length", "_made")

    _kept: Kept
    _length: int
    _made: list[list[Element]]

    def __init__(self, kept: Kept, length: int) -> None:
        object.__setattr__(self, "_kept", kept)
        object.__setattr__(self, "_length", length)
        object.__setattr__(self, "_made", [])

    def __reduce__(self) -> tuple[type[Alike], tuple[Kept, int]]:
        return Alike, (self._kept, self._length)

    def __len__(self) -> int:
        return self._length

    @property
    def elements(self) -> list[Element]:
        if not self._made:
            self._made.append(elements(self._kept))
        return self._made[0]

    def slice(self, start: int, stop: int) -> Rows:
        return Alike(map_nest(lambda values: values[start:stop], self._kept), stop - start)

    def select(self, chosen: np.ndarray[Any, Any]) -> Rows:
        at = chosen.tolist()

        def of(values: Any) -> Any:
            return values[chosen] if isinstance(values, np.ndarray) else [values[k] for k in at]

        return Alike(map_nest(of, self._kept), len(at))

    def stack(self) -> Element:
        try:
            return map_nest(_stacked, self._kept)
        except ElementError:
            return stack(self.elements)  # which says where they differ


def _stacked(values: Any) -> Element:
    return aligned_copy(values) if isinstance(values, np.ndarray) else stack(values)


def elements(kept: Kept) -> list[Element]:
    """The elements, one by one."""
    if isinstance(kept, dict):
        parts = {key: elements(part) for key, part in kept.items()}
        return dicts(parts, len(next(iter(parts.values()))))
    if isinstance(kept, tuple):
        return list(zip(*map(elements, kept), strict=True))
    if isinstance(kept, np.ndarray):
        return list(kept) if kept.ndim == 1 else [row.copy() for row in kept]
    made: list[Element] = kept
    return made


def dicts(parts: dict[Any, list[Any]], count: int) -> list[Element]:
    """Dicts of a value of each part. A copy is made sooner than a dict of keys and values."""
    empty = dict.fromkeys(parts)
    made: list[Element] = [empty.copy() for _ in range(count)]
    for key, values in parts.items():
        for element, value in zip(made, values, strict=True):
            element[key] = value
    return made


def block(parts: Sequence[Kept]) -> Rows:
    """Several parts as one block."""
    kept = parts[0] if len(parts) == 1 else _joined(parts)
    if not isinstance(kept, dict | tuple):
        return Rows(elements(kept))
    return Alike(kept, len(next(leaves(kept))))


def _joined(parts: Sequence[Kept]) -> Kept:
    first = parts[0]
    if isinstance(first, dict):
        if all(isinstance(part, dict) and list(part) == list(first) for part in parts):
            return {key: _joined([part[key] for part in parts]) for key in first}
    elif isinstance(first, np.ndarray):
        kind = first.dtype, first.shape[1:]
        if all(
            isinstance(part, np.ndarray) and (part.dtype, part.shape[1:]) == kind for part in parts
        ):
            return np.concatenate(parts)
    return list(itertools.chain.from_iterable(map(elements, parts)))
