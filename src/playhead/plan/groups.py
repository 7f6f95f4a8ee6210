"""Elements gathered by a key until there are enough of them: group_by_window and bucket_by_sequence_length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError, UnreadablePosition
from playhead.plan.batches import Batch, Padding
from playhead.plan.block import Block, Element, Nest, Rows, map_nest
from playhead.plan.compute import Chunk, Compute, attempt
from playhead.plan.elements import Calling, note
from playhead.plan.functions import UserFunction
from playhead.plan.nested import made_by, open_inside
from playhead.plan.node import UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_count
from playhead.plan.waiting import Step, Waiter, Waiting, fits_waiting, start_waiting
from playhead.plan.walking import Item, Walked, as_rows


@dataclass(frozen=True, eq=False)
class Gathered(Source):
    """The elements of one window."""

    op: ClassVar[str] = "window"

    elements: tuple[Element, ...]
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return len(self.elements)

    def gather(self, index: Index) -> Block:
        return Rows([self.elements[k] for k in index.tolist()])

    def static_spec(self) -> Nest | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "records": len(self.elements)}


@dataclass(frozen=True, eq=False)
class Grouping(Walked):
    """Elements wait by the key that `function` gives them; as many as `size(key)` become a dataset.

    What `reduce(key, elements)` makes of it follows at once. At the end come the windows that are not full,
    by ascending keys. The cursor names the elements that wait.
    """

    op: ClassVar[str] = "group_by_window"
    runs_user_code: ClassVar[bool] = True
    uneven = True

    function: UserFunction

    @property
    def cardinality(self) -> int:
        return 0 if self.parent.cardinality == 0 else UNKNOWN

    def size(self, key: int) -> int:
        raise NotImplementedError

    def reduced(self, key: int, window: Gathered, number: tuple[int, int]) -> Node:
        """What becomes of a window; `number` is the key of its last element."""
        raise NotImplementedError

    def key_of(self, value: Any) -> int:
        return int(value)

    def describe(self) -> dict[str, Any]:
        return self.function.said(self.op)

    def start_stream(self, epoch: int) -> Cursor:
        start = {"epoch": epoch, "given": 0, "inner": None}
        return start | start_waiting(self.parent, epoch)

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        return (
            fits_waiting(self.parent, cursor, epoch)
            and cursor.get("epoch") == epoch
            and "inner" in cursor
            and is_count(cursor.get("given"))
        )

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, given, inner = cursor["epoch"], cursor["given"], cursor["inner"]
        waiting, output = Waiting(self.parent, cursor), 0
        windows: dict[int, list[Waiter]] = {}
        sizes: dict[int, int] = {}
        for item, number, is_new, key in self._keyed(waiting.walk(compute), compute):
            window = windows.setdefault(key, [])
            if key not in sizes:
                sizes[key] = self._sized(key)
            window.append(waiting.add(item, number, is_new))
            if len(window) < sizes[key]:
                continue
            del windows[key], sizes[key]
            output += 1
            for chunk in self._emit(waiting, window, key, epoch, given, inner, output, compute):
                yield chunk
                given += len(chunk)
            inner = None
        for key in sorted(windows):
            output += 1
            window = windows[key]
            for chunk in self._emit(waiting, window, key, epoch, given, inner, output, compute):
                yield chunk
                given += len(chunk)
            inner = None

    def _sized(self, key: int) -> int:
        size = self.size(key)
        if size < 1:
            raise PipelineError(
                f"{self.op}: the window of key {key} has size {size}, not at least 1"
            )
        return size

    def _keyed(
        self, steps: Iterator[Step], compute: Compute
    ) -> Iterator[tuple[Item, int, bool, int]]:
        told: list[Step] = []

        def chunks() -> Iterator[Chunk]:
            for step in steps:
                told.append(step)
                yield step.chunk

        j = 0
        for chunk, keys in attempt(
            compute, Calling(self), chunks(), weight=self.weight, after=True
        ):
            for row, key in zip(chunk.block.own_rows(), keys.rows(), strict=False):
                while j == len(told[0].chunk):
                    told.pop(0)
                    j = 0
                step = told[0]
                number = self._as_key(key, step.chunk, j)
                yield step.item(row, j), step.number + j, step.is_new, number
                j += 1

    def _as_key(self, value: Any, chunk: Chunk, j: int) -> int:
        try:
            if np.ndim(value) or np.asarray(value).dtype.kind not in "iub":
                raise PipelineError(
                    f"{self.op}({self.function.name}) must return an int, not {value!r}"
                )
            return self.key_of(value)
        except PipelineError as error:
            note(error, self, chunk.keys.at(j), chunk.trace(j))
            raise

    def _emit(
        self,
        waiting: Waiting,
        window: list[Waiter],
        key: int,
        epoch: int,
        given: int,
        inner: Cursor,
        output: int,
        compute: Compute,
    ) -> Iterator[Chunk]:
        """The elements of a window's dataset. While they come, its own elements wait still."""
        rows = tuple(waiter.row for waiter in window)
        items = [waiter.item for waiter in window]
        try:
            node = self.reduced(key, Gathered(rows), items[-1].key)
        except Exception as error:
            note(error, self, items[-1].key, [r for item in items for r in item.trace()])
            raise
        during = waiting.moment(output - 1)
        waiting.leave(window, output)
        after = waiting.moment(output)
        start = node.start(epoch) if inner is None else inner
        if not node.fits(start, epoch):
            raise UnreadablePosition(
                f"the position stands inside a window that {self.op} does not make"
            )
        last = node.length if node.seekable else None
        begin, total = start[1] if last else 0, sum(item.records for item in items)
        for chunk in open_inside(node, start, compute):
            at = chunk.cursor

            def cursor(j: int, given: int = given, at: Callable[[int], Cursor] = at) -> Cursor:
                place = at(j)
                over = last is not None and place == [epoch, last]
                said = {"epoch": epoch, "given": given + j, "inner": None if over else place}
                return said | (after if over else during).cursor()

            made = _records_of(items, chunk)
            bounds = np.arange(begin, begin + len(chunk) + 1) * total // last if last else None
            yield Chunk(
                as_rows(chunk.block),
                Places(epoch, np.arange(given, given + len(chunk), dtype=np.int64)),
                cursor,
                made,
                None if bounds is None else np.diff(bounds).astype(np.int64),
            )
            given, begin = given + len(chunk), begin + len(chunk)


def _records_of(items: list[Item], chunk: Chunk) -> Callable[[int], list[Record]]:
    """The records of an element: those of the window's elements that it is made of, as far as that is known."""

    def trace(j: int) -> list[Record]:
        inside = [r for r in chunk.trace(j) if r.source == Gathered.op]
        chosen = [items[r.index] for r in inside if r.index < len(items)] or items
        return [record for item in chosen for record in item.trace()]

    return trace


@dataclass(frozen=True, eq=False)
class GroupByWindow(Grouping):
    """tf.data's group_by_window. `wrap` makes a dataset of a plan, for the user's function."""

    reduce_func: UserFunction
    window_size: int | None
    window_size_func: UserFunction | None
    wrap: Callable[[Node], Any]

    def describe(self) -> dict[str, Any]:
        said = super().describe()
        functions = {"reduce_code": self.reduce_func, "size_code": self.window_size_func}
        for name, function in functions.items():
            if function is not None and function.identity is not None:
                said[name] = function.identity
        if self.window_size is not None:
            said["size"] = self.window_size
        return said

    def size(self, key: int) -> int:
        if self.window_size_func is None:
            assert self.window_size is not None
            return self.window_size
        return int(self.window_size_func.fn(np.int64(key)))

    def reduced(self, key: int, window: Gathered, number: tuple[int, int]) -> Node:
        return made_by(self, self.reduce_func.fn(np.int64(key), self.wrap(window)), number)


@dataclass(frozen=True, eq=False)
class Buckets(Grouping):
    """Batches of elements of like lengths: `function` tells the length, `boundaries` part the buckets."""

    op: ClassVar[str] = "bucket_by_sequence_length"

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    padding: Padding | None
    to_boundary: bool
    drop_remainder: bool

    def describe(self) -> dict[str, Any]:
        said = super().describe() | {"boundaries": list(self.boundaries), "sizes": list(self.sizes)}
        if self.padding is not None and self.padding.shapes is not None:
            said["shapes"] = repr(self.padding.shapes)
        if self.padding is not None and self.padding.values is not None:
            said["values"] = repr(self.padding.values)
        for name in ("to_boundary", "drop_remainder"):
            if getattr(self, name):
                said[name] = True
        return said

    def key_of(self, value: Any) -> int:
        bucket = int(np.searchsorted(self.boundaries, int(value), side="right"))
        if self.to_boundary and bucket == len(self.boundaries):
            raise PipelineError(
                f"{self.op}(pad_to_bucket_boundary=True): an element of length {int(value)} is in no bucket "
                f"below {self.boundaries[-1]}",
                help="filter such elements out, or add a boundary",
            )
        return bucket

    def size(self, key: int) -> int:
        return self.sizes[key]

    def reduced(self, key: int, window: Gathered, number: tuple[int, int]) -> Node:
        padding = self.padding
        if padding is not None and self.to_boundary:
            padding = Padding(self._to_boundary(window.elements[0], key), padding.values)
        return Batch((window,), self.sizes[key], self.drop_remainder, padding)

    def _to_boundary(self, element: Element, key: int) -> Nest:
        """Padded shapes in which every axis that would be padded has the bucket's longest length."""
        assert self.padding is not None
        longest = self.boundaries[key] - 1
        shapes = self.padding.shapes
        if shapes is None:
            shapes = map_nest(lambda leaf: [None] * np.ndim(leaf), element)
        return map_nest(
            lambda _, shape: [longest if d in (None, -1) else d for d in shape], element, shapes
        )
