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
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from playhead import kernels
from playhead.kernels import Records
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, object_array
from playhead.reference import Checksums, Integers
from playhead.sources.tfrecord import wire
from playhead.sources.tfrecord.features import Feature as Feature
from playhead.sources.tfrecord.features import FixedLenFeature as FixedLenFeature
from playhead.sources.tfrecord.features import FixedLenSequenceFeature as FixedLenSequenceFeature
from playhead.sources.tfrecord.features import VarLenFeature as VarLenFeature
from playhead.sources.tfrecord.features import field_of
from playhead.sources.tfrecord.wire import BYTES, DTYPES, FLOAT, Array, Field


def parse(records: Sequence[bytes], features: Mapping[str, Feature | Any]) -> Block:
    """Serialized Examples as a block; see `Parser.parse`."""
    return Parser(features).parse(records)


class Parser:
    """Parses Examples into the features named by a dict.

    Takes `FixedLenFeature`, `VarLenFeature` and `FixedLenSequenceFeature` of this module or of
    `tf.io`; raises `PipelineError` for others, for dtypes that an Example cannot hold, and for
    defaults that do not fit.

    >>> Parser({"label": FixedLenFeature((), np.int64, 7)}).parse([b"", b""]).nest
    {'label': array([7, 7])}
    """

    def __init__(self, features: Mapping[str, Feature | Any]) -> None:
        self.fields = tuple(field_of(name, feature) for name, feature in features.items())
        self._names = tuple(f.name.encode() for f in self.fields)
        self._kinds = bytes(f.kind for f in self.fields)
        counts = [-1 if f.shape is None else f.count for f in self.fields]
        self._counts = np.array(counts, np.int64)
        self._defaults = tuple(_as_values(f) for f in self.fields)
        self._columns = tuple(map(_column_of, self.fields))
        self._others = self._columns.count(None)
        self._even = all(f.shape is not None for f in self.fields)

    @property
    def digest(self) -> str:
        """Names, dtypes, shapes and defaults in 16 hex digits, in whatever order the names are."""
        said = sorted(
            repr((f.name, f.kind, f.shape, f.default, *([f.inner] if f.inner else [])))
            for f in self.fields
        )
        return hashlib.blake2b("\n".join(said).encode(), digest_size=8).hexdigest()

    def spec(self) -> Nest:
        """The `ArraySpec` of each feature."""
        return {
            f.name: ArraySpec(
                (None, *f.inner) if f.shape is None else f.shape,
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
            blocks = self.parse_apart(whole, [count])
            if blocks is not None:
                return blocks[0]
        return self._block(wire.parse(self.fields, records), len(records))

    def parse_apart(
        self, records: Records, ends: list[int], crcs: Checksums | None = None
    ) -> list[Block] | None:
        """What `parse` returns, for records as parts of buffers, by the C kernels in one call: only
        with `kernels.NATIVE`.

        A block for each part of the records, part k ending before record `ends[k]`, in memory of its
        own. With `crcs` (uint32[n]) the frames around the records are checked too. None where a record
        is damaged or wrong: to read them and `parse` them says what it is.
        """
        size = len(records.which)
        bounds = list(pairwise([0, *ends]))
        outs = [self._outs(stop - start) for start, stop in bounds]
        spans = np.empty((self._others, 3, size), np.int64)
        every = tuple(out for part in outs for out in part)
        fixed = self._names, self._kinds, self._counts, np.array(ends, np.int64), every
        if kernels.examples(records, crcs, *fixed, self._defaults, spans) >= 0:
            return None
        blocks = []
        for (start, stop), part in zip(bounds, outs, strict=True):
            made: dict[str, Array | list[Array]] = {}
            others = iter(spans[:, :, start:stop])
            for field, out in zip(self.fields, part, strict=True):
                if out is not None:
                    made[field.name] = out
                    continue
                begins, closes, counts = next(others)
                lists = Records(records.buffers, records.which[start:stop], begins, closes)
                read = _varying if field.shape is None else _fixed_bytes
                found = read(field, lists, counts)
                if found is None:
                    return None
                made[field.name] = found
            blocks.append(self._block(made, stop - start))
        return blocks

    def _outs(self, size: int) -> list[Array | None]:
        """Where the values of `size` records go, for each field; None: a field of other lists."""
        return [
            None if column is None else aligned_empty((size, *column[0]), column[1])
            for column in self._columns
        ]

    def _block(self, made: dict[str, Array | list[Array]], size: int) -> Block:
        if self._even:
            return Columns(made, size)
        for field in self.fields:
            if field.inner:
                made[field.name] = [
                    _in_parts(field, values, k) for k, values in enumerate(made[field.name])
                ]
        return Rows([{name: made[name][k] for name in made} for k in range(size)])


def _column_of(field: Field) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """A row's shape and the dtype of the column that the C kernels fill; None where they only find lists."""
    if field.shape is None or (field.kind == BYTES and field.count != 1):
        return None
    return field.shape, np.dtype(object if field.kind == BYTES else DTYPES[field.kind])


def _in_parts(field: Field, values: Array, position: int) -> Array:
    """A record's values as parts of `field.inner`."""
    each = math.prod(field.inner)
    if len(values) % each:
        raise wire.unparsable(
            position,
            field.name,
            f"feature {field.name!r} holds {len(values)} values, and parts of shape {field.inner} take "
            f"{each} each",
        )
    return values.reshape(-1, *field.inner)


def _fixed_bytes(field: Field, lists: Records, counts: Integers) -> Array | None:
    """The column (n, *shape) of bytes; None where the lists changed since they were found."""
    count = field.count
    column = np.empty((len(counts), count), object)
    there: Any = slice(None) if field.default is None else counts >= 0
    items = _all_bytes(lists, counts)
    if items is None:
        return None
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


def _as_values(field: Field) -> Any:
    """A default as the C kernels take it: numbers as an array, one value of bytes as it is."""
    if field.default is None or field.shape is None:
        return None
    if field.kind == BYTES and field.count == 1:
        return field.default[0]
    if field.kind == FLOAT:
        return np.frombuffer(field.default, "<f4").astype(np.float32)
    return b"" if field.kind == BYTES else kernels.varints(field.default)[0]
