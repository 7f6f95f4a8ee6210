"""Elements -> batches: batch and padded_batch."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import UnequalElements
from playhead.plan.aligned import aligned_copy, aligned_empty
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, join, map_nest, object_array
from playhead.plan.chains import open_needed
from playhead.plan.compute import Chunk, Compute, nbytes
from playhead.plan.node import INFINITE, UNKNOWN, Node
from playhead.plan.places import Cursor, Index, Keyed, Located, Places, Ready, Record

READ_ALONE = 32  # elements from which a batch may be read by itself, into memory of its own
CHEAP_TO_COPY = 1 << 16  # bytes of a batch; below, a call for each costs more than a copy of each


@dataclass(frozen=True, slots=True)
class Grouped:
    """Batches of located elements: batch k holds elements offsets[k] to offsets[k + 1]."""

    offsets: Index
    inner: Located

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Grouped:
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        offsets = self.offsets[start : stop + 1] - low
        return Grouped(offsets, self.inner.slice(low, high))

    def records(self) -> Iterator[Record]:
        return self.inner.records()


def grouped(located: Located) -> Grouped:
    """The batches among what was located of a node whose elements are made of batches."""
    while isinstance(located, Keyed):
        located = located.inner
    assert isinstance(located, Grouped)
    return located


def with_elements(located: Located, block: Block) -> Located:
    """The same batches, whose elements have been read: `block`."""
    if isinstance(located, Keyed):
        return Keyed(located.places, with_elements(located.inner, block))
    assert isinstance(located, Grouped)
    return Grouped(located.offsets, Ready(located.inner, block))


def read_elements(node: Node, inner: Located) -> Block:
    """Elements of a batch. The error that comes of them is the first one of the first that fails.

    They are read together, so one that fails may hide an earlier one, which fails in a later operation:
    where there is an error, they are read again one by one.
    """
    try:
        return node.read(inner)
    except Exception:
        for k in range(len(inner) if len(inner) > 1 else 0):
            node.read(inner.slice(k, k + 1))
        raise


@dataclass(frozen=True)
class Padding:
    """How unequal arrays become one: to the longest of the batch along each axis, or to `shapes`."""

    shapes: Nest | None = None
    values: Nest | None = None

    def stack(self, rows: list[Any]) -> Any:
        shapes = self.shapes if self.shapes is not None else map_nest(lambda _: None, rows[0])
        values = self.values
        if values is None or not isinstance(values, dict | tuple):
            values = map_nest(lambda _: self.values, rows[0])
        for name, nest in (("padded_shapes", shapes), ("padding_values", values)):
            if not _built_alike(rows[0], nest):
                raise UnequalElements(
                    f"{name} is built as {nest!r}, which the elements are not",
                    help="give it the elements' structure, with a value for each leaf",
                )
        return map_nest(_padded, shapes, values, *rows)


def _built_alike(element: Nest, nest: Nest) -> bool:
    if isinstance(element, dict):
        same = isinstance(nest, dict) and nest.keys() == element.keys()
        return same and all(_built_alike(element[key], nest[key]) for key in element)
    if isinstance(element, tuple):
        same = isinstance(nest, tuple) and len(nest) == len(element)
        return same and all(_built_alike(e, n) for e, n in zip(element, nest, strict=True))
    return not isinstance(nest, dict | tuple)


def _padded(shape: Any, value: Any, *parts: Any) -> Any:
    arrays = [
        p if isinstance(p, np.ndarray | np.generic) else object_array([p])[0:1].reshape(())
        for p in parts
    ]
    first = arrays[0]
    for position, array in enumerate(arrays):
        if array.ndim != first.ndim or array.dtype != first.dtype:
            raise UnequalElements(
                f"cannot pad: element 0 of the batch is {first.dtype}{list(first.shape)}, "
                f"element {position} is {array.dtype}{list(array.shape)}",
                help="padding evens out lengths; ranks and dtypes must be equal already",
            )
    longest = [max(a.shape[d] for a in arrays) for d in range(first.ndim)]
    wanted = [None if d in (None, -1) else int(d) for d in shape] if shape is not None else longest
    if len(wanted) != len(longest):
        raise UnequalElements(
            f"padded_shapes {shape} does not have the elements' rank {first.ndim}"
        )
    full = [n if w is None else w for w, n in zip(wanted, longest, strict=True)]
    for have, want in zip(longest, full, strict=True):
        if have > want:
            raise UnequalElements(
                f"an element has {have} entries where padded_shapes allows {want}"
            )
    out = aligned_empty((len(arrays), *full), first.dtype)
    out[...] = _default(parts[0], first.dtype) if value is None else _fill(value, first.dtype)
    for position, array in enumerate(arrays):
        within: tuple[Any, ...] = (position, *(slice(0, n) for n in array.shape))
        out[within] = array if array.ndim else array.item() if array.dtype.hasobject else array
    return out


def _fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """A padding value, where arrays of `dtype` hold it. Raises `UnequalElements`."""
    text = isinstance(value, str | bytes)
    number = np.asarray(value)
    if (
        number.ndim
        or text != dtype.hasobject
        or not (text or np.array_equal(number.astype(dtype), number))
    ):
        raise UnequalElements(f"padding_values has {value!r} where the elements are {dtype}")
    return value


def _default(sample: Any, dtype: np.dtype[Any]) -> Any:
    if not dtype.hasobject:
        return np.zeros((), dtype)
    flat = [sample] if not isinstance(sample, np.ndarray) else list(sample.flat)
    return "" if flat and isinstance(flat[0], str) else b""


@dataclass(frozen=True, eq=False)
class Batch(Node):
    """`size` consecutive elements stacked; an epoch's last batch may be short unless `drop_remainder`.

    `origin` = (epoch, index, record): in that epoch, batch `index` begins at that element of the parent, and
    the ones after it follow on (another batch size took over there).
    """

    op: ClassVar[str] = "batch"
    counters: ClassVar[tuple[str, ...]] = ("given", "epoch")

    size: int
    drop_remainder: bool
    padding: Padding | None = None
    origin: tuple[int, int, int] | None = field(default=None, kw_only=True)

    @property
    def cardinality(self) -> int:
        length = self.parent.cardinality
        if length in (INFINITE, UNKNOWN):
            return length
        return self._batches(length)

    def _batches(self, elements: int) -> int:
        return elements // self.size if self.drop_remainder else -(-elements // self.size)

    def length_at(self, epoch: int) -> int | None:
        length = self.parent.length_at(epoch)
        if length is None:
            return None
        if self.origin is not None and epoch == self.origin[0]:
            _, index, record = self.origin
            return index + self._batches(length - record)
        return self._batches(length)

    @cached_property
    def uneven(self) -> bool:
        return not self.drop_remainder or self.padding is not None

    @cached_property
    def batches(self) -> Node | None:
        return self if self.seekable else None

    @cached_property
    def weight(self) -> int:
        return self.size * self.parent.weight

    def static_spec(self) -> Nest | None:
        inner = self.parent.static_spec()
        return None if inner is None else self._batched(inner)

    def spec(self) -> Nest:
        return self._batched(self.parent.spec())

    def _batched(self, inner: Nest) -> Nest:
        lead = self.size if self.drop_remainder else None

        def of(shape: Any, leaf: ArraySpec) -> ArraySpec:
            if self.padding is not None:
                axes = shape if shape is not None else (None,) * len(leaf.shape)
                return ArraySpec(
                    (lead, *(None if d in (None, -1) else d for d in axes)), leaf.dtype
                )
            return ArraySpec((lead, *leaf.shape), leaf.dtype)

        shapes = self.padding.shapes if self.padding is not None else None
        if shapes is None:
            shapes = map_nest(lambda _: None, inner)
        return map_nest(lambda leaf, shape: of(shape, leaf), inner, shapes)

    def first_element(self, epoch: int, index: Index) -> Index:
        if self.origin is None or epoch != self.origin[0]:
            return index * self.size
        _, first, record = self.origin
        return record + (index - first) * self.size

    def bounds(self, places: Places) -> tuple[Index, Index]:
        """Where each batch begins and ends among the parent's elements."""
        if isinstance(places.epoch, int):
            starts = self.first_element(places.epoch, places.index)
        else:
            starts = places.index * self.size
            if self.origin is not None:
                here = places.epoch == self.origin[0]
                starts[here] = self.first_element(self.origin[0], places.index[here])
        stops = starts + self.size
        length = self.parent.length
        if length is not None:
            stops = np.minimum(stops, length)
        return starts, stops

    def locate(self, places: Places) -> Located:
        return self.located(places, *self.bounds(places))

    def located(self, places: Places, starts: Index, stops: Index) -> Located:
        """Batches of the parent's elements from `starts` to `stops`."""
        offsets = np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64)
        within = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], np.diff(offsets))
        index = np.repeat(starts, np.diff(offsets)) + within
        epochs: int | Index = places.epoch
        if not isinstance(epochs, int):
            epochs = np.repeat(epochs, np.diff(offsets))
        return Grouped(offsets, self.parent.locate(Places(epochs, index)))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Grouped)
        bounds = list(itertools.pairwise(located.offsets.tolist()))
        if len(bounds) < 2:
            return Rows(self._one_by_one(located.inner, bounds))
        try:
            return Rows(self._several(located.inner, bounds))
        except Exception:
            # Read together, one that fails may hide an earlier one, which fails later.
            self._one_by_one(located.inner, bounds)
            raise

    def _one_by_one(self, inner: Located, bounds: list[tuple[int, int]]) -> list[Any]:
        return [self._stacked(self._elements(inner.slice(low, high))) for low, high in bounds]

    def _several(self, inner: Located, bounds: list[tuple[int, int]]) -> list[Any]:
        """Batches, each in memory of its own, by as few calls as do not cost more than they save."""
        if not isinstance(inner, Ready):
            blocks = self.parent.read_apart(inner, [high for _, high in bounds])
            if blocks is not None:
                return [self._stacked(block) for block in blocks]
        if self.size < READ_ALONE:
            return self._together(inner, bounds)
        first = self._elements(inner.slice(*bounds[0]))
        rest = self._together if nbytes(first) <= CHEAP_TO_COPY else self._one_by_one
        return [self._stacked(first), *rest(inner, bounds[1:])]

    def _together(self, inner: Located, bounds: list[tuple[int, int]]) -> list[Any]:
        """Batches whose elements are read in one call, and copied."""
        start, stop = bounds[0][0], bounds[-1][1]
        rest = inner.slice(start, stop)
        block = rest.block if isinstance(rest, Ready) else self.parent.read(rest)
        within = [(low - start, high - start) for low, high in bounds]
        if isinstance(block, Columns) and self.stacks_columns_as_they_are:
            return _copies(block.nest, within)
        return [self._stacked(block.slice(low, high)) for low, high in within]

    def _elements(self, inner: Located) -> Block:
        return inner.block if isinstance(inner, Ready) else read_elements(self.parent, inner)

    @cached_property
    def unlocked(self) -> bool:
        return self.parent.unlocked and self.stacks_columns_as_they_are

    @property
    def stacks_columns_as_they_are(self) -> bool:
        """Whether elements that lie in columns are a batch already."""
        return self.padding is None or self.padding.shapes is None

    def _stacked(self, block: Block) -> Any:
        if isinstance(block, Columns) and self.stacks_columns_as_they_are:
            return block.stack()
        return block.stack() if self.padding is None else self.padding.stack(block.rows())

    @property
    def countable(self) -> bool:
        return self.parent.countable

    def count_records(self, index: int) -> int:
        length = self.parent.length
        elements = index * self.size
        return self.parent.count_records(elements if length is None else min(elements, length))

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "size": self.size}
        if self.drop_remainder:
            said["drop_remainder"] = True
        if self.padding is not None:
            said["op"] = "padded_batch"
            if self.padding.shapes is not None:
                said["shapes"] = repr(self.padding.shapes)
            if self.padding.values is not None:
                said["values"] = repr(self.padding.values)
        return said

    # --- over a stream ----------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return {"given": 0, "epoch": epoch, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        given, epoch = cursor["given"], cursor["epoch"]
        waiting: list[Chunk] = []
        have = 0

        def missing() -> int:
            return self.size - have

        for chunk in open_needed(self.parent, cursor["at"], compute, missing):
            while have + len(chunk) >= self.size and len(chunk):
                need = self.size - have
                yield self._full([*waiting, chunk.slice(0, need)], given, epoch)
                given += 1
                chunk = chunk.slice(need, len(chunk))
                waiting, have = [], 0
            if len(chunk):
                waiting.append(chunk)
                have += len(chunk)
        if waiting and not self.drop_remainder:
            yield self._full(waiting, given, epoch)

    def _full(self, parts: list[Chunk], given: int, epoch: int) -> Chunk:
        block = join([part.block for part in parts])
        if len(parts) == 1 and isinstance(block, Columns):
            block = block.copied()  # it may be a part of others' memory
        records = sum(len(p) if p.records is None else int(p.records.sum()) for p in parts)
        return Chunk(
            Rows([self._stacked(block)]),
            Places(epoch, np.array([given], np.int64)),
            _batch_cursor(given, epoch, parts[0].cursor, parts[-1].cursor, len(parts[-1])),
            lambda _: [r for part in parts for j in range(len(part)) for r in part.trace(j)],
            np.array([records], np.int64),
        )


def _copies(columns: Nest, bounds: list[tuple[int, int]]) -> list[Nest]:
    """The columns from each low to its high, in aligned memory of their own."""
    cut = map_nest(lambda column: [aligned_copy(column[a:b]) for a, b in bounds], columns)
    return [map_nest(operator.itemgetter(k), cut) for k in range(len(bounds))]


def _batch_cursor(
    given: int,
    epoch: int,
    first: Callable[[int], Cursor],
    last: Callable[[int], Cursor],
    size: int,
) -> Callable[[int], Cursor]:
    def cursor(j: int) -> Cursor:
        at = last(size) if j else first(0)
        return {"given": given + j, "epoch": epoch, "at": at}

    return cursor
