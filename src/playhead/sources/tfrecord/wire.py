"""Reading `tf.train.Example` in Python: for every record and every error, and what the C kernels
are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import UnparsableRecord
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import object_array

Array: TypeAlias = np.ndarray[Any, Any]
Kind: TypeAlias = int

BYTES, FLOAT, INT64 = 0x0A, 0x12, 0x1A
NAMES = {BYTES: "bytes", FLOAT: "float32", INT64: "int64"}
DTYPES: dict[Kind, Any] = {
    BYTES: np.dtype(object),
    FLOAT: np.dtype(np.float32),
    INT64: np.dtype(np.int64),
}
# The wire tag of one value that stands alone in its list.
_ALONE = {BYTES: 0x0A, FLOAT: 0x0D, INT64: 0x08}


@dataclass(frozen=True, slots=True)
class Field:
    """One feature, ready to parse; `shape` is None where the number of values varies.

    These may come in parts of shape `inner`.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...] | None
    default: Any
    inner: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return math.prod(self.shape or ())


def parse(fields: Sequence[Field], records: Sequence[bytes]) -> dict[str, Array | list[Array]]:
    """What the records hold of each field: a fixed one as an array (n, *shape), any other as a list
    of arrays.

    Raises `UnparsableRecord` with `position` (in `records`), `key` (None where the record is no
    Example) and `reason`.
    """
    reading = _Reading(fields)
    columns: list[list[Any]] = [[] for _ in fields]
    for position, data in enumerate(records):
        try:
            reading.split(data, columns)
        except Malformed as error:
            raise unparsable(position, error.key, error.reason) from None
    return {
        f.name: fixed(f, column) if f.shape is not None else varying(f, column)
        for f, column in zip(fields, columns, strict=True)
    }


class _Reading:
    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields
        self._slots = {f.name.encode(): slot for slot, f in enumerate(fields)}

    def split(self, data: bytes, columns: list[list[Any]]) -> None:
        """Append what one record holds of each field to its column, as its list's packed bytes."""
        spans: list[tuple[int, int] | None] = [None] * len(self.fields)
        try:
            simple = self._spans(data, spans)
        except IndexError:
            simple = False
        if not simple:
            spans = self._spans_of_any(data)
        for field, span, column in zip(self.fields, spans, columns, strict=True):
            if span is not None:
                try:
                    value = values(data, *span, field.kind)
                except Malformed as error:
                    reason = f"feature {field.name!r}: {error.reason}"
                    raise Malformed(reason, field.name) from None
            elif field.default is not None:
                value = field.default
            else:
                there = ", ".join(map(repr, _names(data))) or "none"
                reason = f"feature {field.name!r} is missing, and has no default_value; there are {there}"
                raise Malformed(reason, field.name)
            column.append(value)

    def _spans(self, data: bytes, spans: list[tuple[int, int] | None]) -> bool:
        """Where each field's Feature lies, in a record written the usual way; False if it was not.

        May look at bytes behind the part it reads, but answers only if every part ends where it
        should.
        """
        slots, size = self._slots, len(data)
        if not size:
            return True
        if data[0] != 0x0A:
            return False
        end, position = _varint(data, 1, size)
        if position + end != size:
            return False
        while position < size:
            if data[position] != 0x0A:
                return False
            length = data[position + 1]
            position += 2
            if length > 127:
                length, position = _varint(data, position - 1, size)
            stop = position + length
            name_end = position + 2 + data[position + 1]
            if data[position] != 0x0A or data[position + 1] > 127 or data[name_end] != 0x12:
                return False
            length = data[name_end + 1]
            value = name_end + 2
            if length > 127:
                length, value = _varint(data, value - 1, size)
            if value + length != stop or stop > size:
                return False
            if length:
                slot = slots.get(data[position + 2 : name_end])
                if slot is not None:
                    spans[slot] = (value, stop)
            position = stop
        return True

    def _spans_of_any(self, data: bytes) -> list[tuple[int, int] | None]:
        """Where each field's Feature lies, in any record; raises `Malformed`."""
        spans: list[tuple[int, int] | None] = [None] * len(self.fields)
        odd = "an entry of the Example does not have one name and one feature"
        for name, span in entries_of(data, 0x0A, odd):
            slot = self._slots.get(name)
            if slot is not None and span[0] < span[1]:
                spans[slot] = span
        return spans


class Malformed(Exception):
    def __init__(self, reason: str, key: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key


def _names(data: bytes) -> list[str]:
    """The names of the features of an Example, at most 20."""
    parts = [(0, len(data))]
    for _ in range(3):
        inner = (part for begin, end in parts for part in fields_of(data, begin, end))
        parts = [(begin, end) for tag, begin, end in inner if tag == 0x0A]
    return sorted({data[begin:end].decode(errors="replace") for begin, end in parts})[:20]


def unparsable(position: int, key: str | None, reason: str) -> UnparsableRecord:
    return UnparsableRecord(
        f"record at position {position}: {reason}",
        help="compare `features` with what the writer of these records put into them",
        position=position,
        key=key,
        reason=reason,
    )


def _varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise Malformed("is not a tf.train.Example: a number is cut short or too long")


def entries_of(data: bytes, map_tag: int, odd: str) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Each name in the maps that `map_tag` marks, and where its value lies.

    Raises `Malformed`, with `odd` for an entry that has not one name and one value.
    """
    for tag, start, stop in fields_of(data, 0, len(data)):
        if tag != map_tag:
            continue
        for inner, begin, end in fields_of(data, start, stop):
            if inner != 0x0A:
                continue
            entry = [part for part in fields_of(data, begin, end) if part[0] in (0x0A, 0x12)]
            if sorted(part[0] for part in entry) != [0x0A, 0x12]:
                raise Malformed(odd)
            (_, name, name_end), (_, *span) = sorted(entry)
            yield data[name:name_end], (span[0], span[1])


def fields_of(data: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(tag, start, end) of each field of a message; end is inside the message, or `Malformed` is
    raised.
    """
    while position < stop:
        tag, start = _varint(data, position, stop)
        if start - position > 1 and data[start - 1] == 0:
            raise Malformed("is not a tf.train.Example: a tag has superfluous bytes")
        kind = tag & 7
        if kind == 2:
            length, start = _varint(data, start, stop)
            position = start + length
        elif kind == 0:
            _, position = _varint(data, start, stop)
        elif kind in (1, 5):
            position = start + (8 if kind == 1 else 4)
        else:
            raise Malformed(f"is not a tf.train.Example: wire type {kind}")
        if position > stop:
            raise Malformed("is not a tf.train.Example: a part reaches beyond the end")
        yield tag, start, position


def values(data: bytes, start: int, stop: int, kind: Kind) -> Any:
    """The values of one Feature: packed bytes for numbers, a list of bytes for bytes."""
    try:
        if data[start] == kind:
            length = data[start + 1]
            position = start + 2
            if length > 127:
                length, position = _varint(data, start + 1, stop)
            if length and position + length == stop and data[position] == 0x0A:
                length = data[position + 1]
                begin = position + 2
                if length > 127:
                    length, begin = _varint(data, position + 1, stop)
                if begin + length == stop:
                    return [data[begin:stop]] if kind == BYTES else data[begin:stop]
    except IndexError:
        pass
    return values_of_any(data, start, stop, kind)


def values_of_any(data: bytes, start: int, stop: int, kind: Kind) -> Any:
    lists = [part for part in fields_of(data, start, stop) if part[0] in NAMES]
    if len(lists) != 1:
        raise Malformed("it holds no list" if not lists else "it holds several lists")
    tag, start, stop = lists[0]
    if tag != kind:
        raise Malformed(f"it holds {NAMES[tag]}, and {NAMES[kind]} was asked for")
    alone = _ALONE[kind]
    parts = [part for part in fields_of(data, start, stop) if part[0] in (0x0A, alone)]
    pieces = [data[begin:end] for _, begin, end in parts]
    if kind == BYTES:
        return pieces
    if len(parts) > 1 and any(part[0] == 0x0A for part in parts):
        raise Malformed("a list holds several packed runs, of which tf.io reads only the first")
    return b"".join(pieces)


def fixed(field: Field, column: list[Any]) -> Array:
    """The column (n, *shape) of a field whose records each hold the same number of values."""
    if field.kind == FLOAT:
        counts = _float_counts(field, column)
    elif field.kind == INT64:
        values, counts = _integers(field, column)
    else:
        counts = np.array([len(items) for items in column], np.int64)
    wrong = np.flatnonzero(counts != field.count)
    if len(wrong):
        raise unparsable(
            int(wrong[0]),
            field.name,
            f"feature {field.name!r} holds {counts[wrong[0]]} values, "
            f"and shape {field.shape} takes {field.count}",
        )
    if field.kind == FLOAT:
        values = np.frombuffer(b"".join(column), "<f4")
    elif field.kind == BYTES:
        values = object_array([item for items in column for item in items])
    out = aligned_empty((len(column), *(field.shape or ())), DTYPES[field.kind])
    out[...] = values.reshape(out.shape)
    return out


def varying(field: Field, column: list[Any]) -> list[Array]:
    """One array of each record's values."""
    if field.kind == BYTES:
        return [object_array(items) for items in column]
    if field.kind == FLOAT:
        counts = _float_counts(field, column)
        values = np.frombuffer(b"".join(column), "<f4")
    else:
        values, counts = _integers(field, column)
    stops = np.cumsum(counts)
    bounds = zip((stops - counts).tolist(), stops.tolist(), strict=True)
    return [values[start:stop].astype(DTYPES[field.kind]) for start, stop in bounds]


def _float_counts(field: Field, column: list[bytes]) -> Array:
    sizes = np.array([len(packed) for packed in column], np.int64)
    broken = np.flatnonzero(sizes % 4)
    if len(broken):
        reason = f"feature {field.name!r}: a float is cut short"
        raise unparsable(int(broken[0]), field.name, reason)
    return sizes // 4


def _integers(field: Field, column: list[bytes]) -> tuple[Array, Array]:
    """All varints of a column as int64, and how many each record holds."""
    packed = b"".join(column)
    values, ends = kernels.varints(packed)
    bounds = np.cumsum([0, *(len(part) for part in column)])
    filled = np.flatnonzero(np.diff(bounds))
    cut = filled[np.frombuffer(packed, np.uint8)[bounds[filled + 1] - 1] >= 128]
    long = np.searchsorted(bounds, ends[np.diff(ends, prepend=0) > 10] - 1, side="right") - 1
    if len(cut) or len(long):
        reason = f"feature {field.name!r}: an integer is cut short or too long"
        raise unparsable(int(min([*cut, *long])), field.name, reason)
    return values, np.diff(np.searchsorted(ends, bounds, side="right"))
