"""What a generator function yields: walked, and resumed by walking again or by its own `start=`."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError, SlowResume, SourceChanged, warn
from playhead.plan.block import Columns, Nest, Rows, taken
from playhead.plan.compute import Chunk, Compute
from playhead.plan.functions import function_name
from playhead.plan.node import UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_place


@dataclass(frozen=True, eq=False)
class Generated(Source):
    """The elements of `function(*args)`, called anew in every epoch. The cursor is how many were taken."""

    op: ClassVar[str] = "generator"
    runs_user_code: ClassVar[bool] = True

    function: Callable[..., Any]
    args: tuple[Any, ...]
    count: int | None
    version: str | None
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return UNKNOWN if self.count is None else self.count

    @cached_property
    def seekable(self) -> bool:
        return False

    @cached_property
    def takes_start(self) -> bool:
        try:
            return "start" in inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return False

    def gather(self, index: Index) -> Columns:
        raise PipelineError("a generator has no items to jump to")

    def static_spec(self) -> Nest | None:
        return None

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "fn": function_name(self.function)}
        if self.count is not None:
            said["records"] = self.count
        if self.version is not None:
            said["version"] = self.version
        said["kind"] = "declared"
        return said

    def start_stream(self, epoch: int) -> Cursor:
        return [epoch, 0]

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        return is_place(cursor) and cursor[0] == epoch

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, index = cursor
        items = self._open(index)
        closing: Any = contextlib.closing(items) if hasattr(items, "close") else None
        pace = compute.pace(self)
        rows: list[Any] = []
        with closing or contextlib.nullcontext():
            try:
                began = time.perf_counter()
                for item in items:
                    rows.append(taken(item))
                    seconds = time.perf_counter() - began
                    if len(rows) >= pace.size or seconds > pace.seconds:
                        pace.report(len(rows), seconds)
                        yield self._chunk(epoch, index, rows)
                        index, rows, began = index + len(rows), [], time.perf_counter()
            except Exception as error:
                if rows:
                    yield self._chunk(epoch, index, rows)
                error.add_note(
                    f"playhead: in from_generator({function_name(self.function)}), "
                    f"item {index + len(rows)}"
                )
                raise
            if rows:
                yield self._chunk(epoch, index, rows)

    def _open(self, index: int) -> Any:
        if not index:
            return iter(self.function(*self.args))
        if self.takes_start:
            return iter(self.function(*self.args, start=index))
        warn(
            f"resuming from_generator({function_name(self.function)}) replays {index} elements; "
            "a function that takes start= resumes at once",
            SlowResume,
        )
        items = iter(self.function(*self.args))
        for number in range(index):
            if next(items, items) is items:
                raise SourceChanged(
                    f"from_generator({function_name(self.function)}) ended after {number} elements, "
                    f"and the position stands at {index}",
                    help="restore what it yields, or start anew",
                )
        return items

    def _chunk(self, epoch: int, index: int, rows: list[Any]) -> Chunk:
        return Chunk(
            Rows(rows),
            Places(epoch, np.arange(index, index + len(rows), dtype=np.int64)),
            partial(_after, epoch, index),
            lambda j: [self.record(epoch, index + j)],
        )

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or function_name(self.function), epoch, index)


def _after(epoch: int, index: int, j: int) -> Cursor:
    return [epoch, index + j]


def generated(
    function: Any, args: tuple[Any, ...], length: int | None, version: str | None
) -> Generated:
    """Raises TypeError for what is not a function that gives an iterable."""
    if not callable(function):
        raise TypeError(
            f"from_generator needs a function that returns an iterable, not {type(function).__name__}"
        )
    return Generated(function, args, length, version)
