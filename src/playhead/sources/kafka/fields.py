"""What is told of a message: which fields there are, and messages as elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from playhead.plan.block import (
    ArraySpec,
    Block,
    Columns,
    Element,
    Nest,
    Rows,
    map_nest,
    object_array,
)
from playhead.sources.alike import dicts
from playhead.sources.kafka.client import library
from playhead.sources.kafka.turns import Turn

Column = np.ndarray[Any, Any]

EVERY = {
    "key": ArraySpec((), bytes),
    "value": ArraySpec((), bytes),
    "timestamp": ArraySpec((), np.dtype(np.int64)),
    "topic": ArraySpec((), str),
    "partition": ArraySpec((), np.dtype(np.int32)),
    "offset": ArraySpec((), np.dtype(np.int64)),
    "timestamp_type": ArraySpec((), np.dtype(np.int32)),
    "headers": ArraySpec((None, 2), object),
}


def spec_of(fields: Sequence[str]) -> Nest:
    return {name: EVERY[name] for name in fields}


def block_of(fields: Sequence[str], turn: Turn, messages: list[Any]) -> Block:
    """The messages as dicts of `fields`, in order. A key or a value that is not there is None.

    Headers are (n, 2) object arrays of names (str) and values (bytes or None), in the order they were sent.
    """
    made = {name: _COLUMNS[name](turn, messages) for name in fields}
    columns = Scalars(made, len(messages))
    return Rows(columns.rows()) if "headers" in made else columns


class Scalars(Columns):
    """Columns of what nobody can write to: a consumer's rows need no copies."""

    __slots__ = ()

    def rows(self) -> list[Element]:
        parts = {
            name: column.tolist() if column.dtype.hasobject else list(column)
            for name, column in self.nest.items()
        }
        return dicts(parts, len(self))

    def own_rows(self) -> list[Element]:
        return self.rows()

    def slice(self, start: int, stop: int) -> Scalars:
        return Scalars(map_nest(lambda column: column[start:stop], self.nest), stop - start)


def _keys(turn: Turn, messages: list[Any]) -> Column:
    return _objects(map(library().Message.key, messages), len(messages))


def _values(turn: Turn, messages: list[Any]) -> Column:
    return _objects(map(library().Message.value, messages), len(messages))


def _objects(items: Iterable[bytes | None], count: int) -> Column:
    column = np.empty(count, object)
    column[:] = list(items)
    return column


def _topics(turn: Turn, messages: list[Any]) -> Column:
    return object_array([lane[0] for lane in turn.lanes])[turn.numbers]


def _partitions(turn: Turn, messages: list[Any]) -> Column:
    return np.array([lane[1] for lane in turn.lanes], np.int32)[turn.numbers]


def _types(turn: Turn, messages: list[Any]) -> Column:
    found = (kind for kind, _ in map(library().Message.timestamp, messages))
    return np.fromiter(found, np.int32, len(messages))


def _headers(turn: Turn, messages: list[Any]) -> Column:
    return object_array([_pairs(message.headers() or ()) for message in messages])


def _pairs(headers: Sequence[tuple[str, bytes | None]]) -> Column:
    pairs = np.empty((len(headers), 2), object)
    for row, (name, value) in zip(pairs, headers, strict=True):
        row[0], row[1] = name, value
    return pairs


# The cursors' own offsets and times are not for anybody to write to.
_COLUMNS: dict[str, Callable[[Turn, list[Any]], Column]] = {
    "key": _keys,
    "value": _values,
    "timestamp": lambda turn, _: turn.times.copy(),
    "topic": _topics,
    "partition": _partitions,
    "offset": lambda turn, _: turn.offsets.copy(),
    "timestamp_type": _types,
    "headers": _headers,
}
