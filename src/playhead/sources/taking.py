"""Items taken one by one, as a generator gives them: into columns as long as they are built alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.plan.block import Block, Element, Rows
from playhead.sources import alike
from playhead.sources.alike import Kept

LARGE = 1 << 12  # bytes of an array from which on copying it is most of the work anyway
_KINDS = {float: np.float32, bool: np.bool_, str: None, bytes: None}


@dataclass(frozen=True, slots=True)
class Column:
    """One part of each item: what is `held` of them, how to `put` the next one there, and all as an array.

    `put` takes what is like the first one, and says whether it did.
    """

    held: list[Any]
    put: Callable[[Any], bool]
    made: Callable[[], Kept]


def column(first: Any) -> Column | None:
    """A column for what is like the first of it; None for what has to be looked at more closely."""
    kind = type(first)
    if kind is np.ndarray:
        plain = first.ndim and first.dtype.kind in "biufc" and 0 < first.nbytes < LARGE
        return _arrays(first.dtype, first.shape) if plain else None
    if kind is int:
        return integers(np.dtype(np.int32))
    if kind in _KINDS:
        return scalars(kind, _KINDS[kind])
    return scalars(kind) if issubclass(kind, np.number | np.bool_) else None


def _arrays(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    held: list[bytes] = []
    append, array = held.append, np.ndarray

    def put(value: Any) -> bool:
        if type(value) is not array or value.shape != shape or value.dtype != dtype:
            return False
        append(value.tobytes())
        return True

    return Column(
        held, put, lambda: np.frombuffer(b"".join(held), dtype).reshape(len(held), *shape)
    )


def integers(dtype: np.dtype[Any]) -> Column:
    """Python's whole numbers that fit a dtype."""
    held: list[int] = []
    append, least, most = held.append, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def put(value: Any) -> bool:
        if type(value) is not int or not least <= value <= most:
            return False
        append(value)
        return True

    return Column(held, put, lambda: np.array(held, dtype))


def scalars(kind: type, dtype: Any = None) -> Column:
    """Values of a type that nobody can write to, in a dtype where they are Python's numbers."""
    held: list[Any] = []
    append = held.append

    def put(value: Any) -> bool:
        if type(value) is not kind:
            return False
        append(value)
        return True

    return Column(held, put, lambda: held if dtype is None else np.array(held, dtype))


def columns(first: Any) -> list[Column] | None:
    """Columns for tuples, or dicts, of parts that are like those of the first; None where there are none."""
    kind = type(first)
    if kind is not tuple and kind is not dict:
        return None
    return whole(map(column, first.values() if kind is dict else first))


def whole(found: Iterable[Column | None]) -> list[Column] | None:
    """All of them, where none is missing."""
    every = list(found)
    there = [one for one in every if one is not None]
    return there if there and len(there) == len(every) else None


class Taken:
    """Items so far, in `columns` of the first where that has any, as long as they are like it.

    `take` makes an element of one that is not, and of all behind it; without `columns`, of each.
    """

    _kind: Any = None
    _keys: list[Any] | None = None
    _columns: Sequence[Column] = ()
    _puts: Sequence[Callable[[Any], bool]] = ()

    def __init__(
        self,
        take: Callable[[Any], Element],
        columns: Callable[[Any], list[Column] | None] | None,
    ) -> None:
        self._take, self._columns_of = take, columns
        self._rows: list[Element] | None = [] if columns is None else None
        self.count = 0

    def add(self, item: Any) -> None:
        """Takes the next one. Raises what `take` raises, and then has not taken it."""
        if self._rows is None and not self._put(item):
            self._rows = self.block().rows()
        if self._rows is not None:
            self._rows.append(self._take(item))
        self.count += 1

    def _put(self, item: Any) -> bool:
        """Whether the item is like the others; then it is in the columns."""
        if not self.count:
            self._begin(item)
        if type(item) is not self._kind or len(item) != len(self._puts):
            return False
        if self._keys is not None:
            if list(item) != self._keys:
                return False
            item = item.values()
        for put, part in zip(self._puts, item):  # noqa: B905  (they are as many, and strict costs)
            if not put(part):
                break
        else:
            return True
        for column in self._columns:
            del column.held[self.count :]
        return False

    def _begin(self, first: Any) -> None:
        assert self._columns_of is not None
        self._columns = self._columns_of(first) or ()
        if self._columns:
            self._kind, self._puts = type(first), [column.put for column in self._columns]
            self._keys = list(first) if type(first) is dict else None

    def block(self) -> Block:
        """The items."""
        if self._rows is not None:
            return Rows(self._rows)
        if not self.count:
            return Rows([])
        parts = [column.made() for column in self._columns]
        return alike.block(
            [tuple(parts) if self._keys is None else dict(zip(self._keys, parts, strict=True))]
        )
