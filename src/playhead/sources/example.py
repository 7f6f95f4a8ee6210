"""`tf.train.Example` records as arrays, without TensorFlow and without protobuf.

An Example is a map from names to features; on the wire

    Example   { 1: Features }
    Features  { 1: entry, repeated }
    entry     { 1: name, 2: Feature }
    Feature   { 1: BytesList | 2: FloatList | 3: Int64List }
    each list { 1: value, repeated }

where numbers may be packed into one run. Whatever `tf.io.parse_single_example` reads is read to the
same values here: of entries with one name the last that holds a list counts, an empty feature
counts as missing. There is one exception. Where a feature holds several lists, or a list several
packed runs, or a run cut short, tf.io silently keeps the first part; here that is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import PipelineError
from playhead.kernels import Records
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, object_array
from playhead.reference import Checksums, Integers
from playhead.sources import wire
from playhead.sources.wire import BYTES, DTYPES, FLOAT, INT64, NAMES, Array, Field, Kind


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the values of `shape` in every record, or `default_value` where it is missing.

    `dtype` is float32, int64 or bytes (str means bytes). A default of fewer values is broadcast to
    `shape`.
    """

    shape: Sequence[int] | int
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values: a 1-D array, empty where the record lacks it."""

    dtype: Any


Feature: TypeAlias = FixedLenFeature | VarLenFeature


def parse(records: Sequence[bytes], features: Mapping[str, Feature | Any]) -> Block:
    """Serialized Examples as a block; see `Parser.parse`."""
    return Parser(features).parse(records)


class Parser:
    """Parses Examples into the features named by a dict.

    Takes `FixedLenFeature` and `VarLenFeature` of this module or of `tf.io`; raises `PipelineError`
    for others, for dtypes that an Example cannot hold, and for defaults that do not fit.

    >>> Parser({"label": FixedLenFeature((), np.int64, 7)}).parse([b"", b""]).nest
    {'label': array([7, 7])}
    """

    def __init__(self, features: Mapping[str, Feature | Any]) -> None:
        self.fields = tuple(_field(name, feature) for name, feature in features.items())
        self._names = tuple(f.name.encode() for f in self.fields)
        self._kinds = bytes(f.kind for f in self.fields)
        counts = [-1 if f.shape is None else f.count for f in self.fields]
        self._counts = np.array(counts, np.int64)
        self._defaults = tuple(_as_values(f) for f in self.fields)

    @property
    def digest(self) -> str:
        """Names, dtypes, shapes and defaults in 16 hex digits, in whatever order the names are."""
        said = sorted(repr((f.name, f.kind, f.shape, f.default)) for f in self.fields)
        return hashlib.blake2b("\n".join(said).encode(), digest_size=8).hexdigest()

    def spec(self) -> Nest:
        """The `ArraySpec` of each feature."""
        return {
            f.name: ArraySpec(
                (None,) if f.shape is None else f.shape,
                bytes if f.kind == BYTES else DTYPES[f.kind],
            )
            for f in self.fields
        }

    def parse(self, records: Sequence[bytes]) -> Block:
        """n records as a block of dicts.

        With only fixed features: `Columns`, each an array (n, *shape) of float32, int64, or bytes
        as objects. With any other: `Rows` of dicts of arrays (scalars where the shape is ()).
        Raises `UnparsableRecord` with `position` (in `records`), `key` (None where the record is no
        Example) and `reason`.
        """
        if kernels.NATIVE:
            count = len(records)
            stops = np.fromiter(map(len, records), np.int64, count)
            whole = Records(
                records, np.arange(count, dtype=np.int64), np.zeros(count, np.int64), stops
            )
            block = self.parse_parts(whole)
            if block is not None:
                return block
        return self._block(wire.parse(self.fields, records), len(records))

    def parse_parts(self, records: Records, crcs: Checksums | None = None) -> Block | None:
        """What `parse` returns, for records as parts of buffers, by the C kernels: only with
        `kernels.NATIVE`.

        With `crcs` (uint32[n]) the frames around the records are checked too. None where a record
        is damaged or wrong: to read them and `parse` them says what it is.
        """
        size = len(records.which)
        outs = tuple(
            None
            if f.kind == BYTES or f.shape is None
            else aligned_empty((size, *f.shape), DTYPES[f.kind])
            for f in self.fields
        )
        spans = np.empty((len(self.fields), 3, size), np.int64)
        fixed = self._names, self._kinds, self._counts, outs, self._defaults
        if kernels.examples(records, crcs, *fixed, spans) >= 0:
            return None
        made: dict[str, Array | list[Array]] = {}
        for field, out, (begins, ends, counts) in zip(self.fields, outs, spans, strict=True):
            if out is None:
                lists = Records(records.buffers, records.which, begins, ends)
                read = _varying if field.shape is None else _fixed_bytes
                found = read(field, lists, counts)
                if found is None:
                    return None
                made[field.name] = found
            else:
                made[field.name] = out
        return self._block(made, size)

    def _block(self, made: dict[str, Array | list[Array]], size: int) -> Block:
        if all(f.shape is not None for f in self.fields):
            return Columns(made, size)
        return Rows([{name: made[name][k] for name in made} for k in range(size)])


def _fixed_bytes(field: Field, lists: Records, counts: Integers) -> Array | None:
    """The column (n, *shape) of bytes; None where the lists changed since they were found."""
    column = np.empty((len(counts), field.count), object)
    there: Any = slice(None) if field.default is None else counts >= 0
    items = kernels.slices(lists) if field.count == 1 else _all_bytes(lists, counts)
    if items is None:
        return None
    if field.count == 1:
        column[:, 0] = items
    else:
        filled = np.empty(len(items), object)
        filled[:] = items
        column[there] = filled.reshape(column[there].shape)
    if field.default is not None:
        column[~there] = field.default
    return column.reshape(len(counts), *(field.shape or ()))


def _varying(field: Field, lists: Records, counts: Integers) -> list[Array] | None:
    """One array of each record's values; None where the lists changed since they were found."""
    stops = np.cumsum(counts)
    bounds = zip((stops - counts).tolist(), stops.tolist(), strict=True)
    if field.kind == BYTES:
        items = _all_bytes(lists, counts)
        return None if items is None else [object_array(items[a:b]) for a, b in bounds]
    values = np.empty(int(counts.sum()), DTYPES[field.kind])
    if not kernels.values(field.kind, lists, counts, values):
        return None
    return [values[a:b].copy() for a, b in bounds]


def _all_bytes(lists: Records, counts: Integers) -> list[bytes] | None:
    present = np.maximum(counts, 0)
    spans = np.empty((2, int(present.sum())), np.int64)
    if not kernels.values(BYTES, lists, counts, spans):
        return None
    return kernels.slices(Records(lists.buffers, np.repeat(lists.which, present), *spans))


def _field(name: str, feature: Any) -> Field:
    kind = _kind(name, getattr(feature, "dtype", None))
    match type(feature).__name__:
        case "VarLenFeature":
            return Field(name, kind, None, [] if kind == BYTES else b"")
        case "FixedLenFeature":
            shape = _shape(name, feature.shape)
            return Field(name, kind, shape, _default(name, kind, shape, feature.default_value))
    raise PipelineError(
        f"feature {name!r} is {feature!r}",
        help="FixedLenFeature and VarLenFeature are read in this version",
    )


def _kind(name: str, dtype: Any) -> Kind:
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if dtype in (bytes, str, object):
        return BYTES
    try:
        return {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}[np.dtype(dtype)]
    except (TypeError, KeyError):
        raise PipelineError(
            f"feature {name!r} has dtype {dtype!r}; an Example holds float32, int64 and bytes",
            help="parse as one of these, and cast in a map",
        ) from None


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    sizes = [shape] if isinstance(shape, int | np.integer) else list(shape)
    if any(not isinstance(size, int | np.integer) or size < 0 for size in sizes):
        raise PipelineError(
            f"feature {name!r} has shape {shape!r}, whose sizes are not all known",
            help="use VarLenFeature where the number of values varies",
        )
    return tuple(int(size) for size in sizes)


def _default(name: str, kind: Kind, shape: tuple[int, ...], value: Any) -> Any:
    """A default in the form that `_values` gives; None where there is none."""
    if value is None:
        return None
    try:
        given = np.asarray(value, object) if kind == BYTES else np.asarray(value)
        whole = given.size == np.prod(shape, dtype=np.int64)
        filled = given.reshape(shape) if whole else np.broadcast_to(given, shape)
        if kind == BYTES:
            return [v.encode() if isinstance(v, str) else b"" + v for v in filled.ravel()]
        if given.size and given.dtype.kind not in ("iu" if kind == INT64 else "iuf"):
            raise TypeError
        if kind == FLOAT:
            return filled.astype("<f4").tobytes()
        return b"".join(_as_varint(int(v)) for v in filled.ravel())
    except (TypeError, ValueError):
        raise PipelineError(
            f"feature {name!r}: default_value {value!r} does not fit {NAMES[kind]}{list(shape)}"
        ) from None


def _as_varint(value: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        raise ValueError
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _as_values(field: Field) -> Any:
    """A default as the C kernels take it: numbers as an array."""
    if field.default is None or field.shape is None:
        return None
    if field.kind == FLOAT:
        return np.frombuffer(field.default, "<f4").astype(np.float32)
    return b"" if field.kind == BYTES else kernels.varints(field.default)[0]
