"""What a generator function yields: walked, and resumed by walking again or by its own `start=`."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError, SlowResume
from playhead.plan.block import Columns, Nest, Rows, as_element
from playhead.plan.functions import function_name
from playhead.plan.node import UNKNOWN, Chunk, Compute, Cursor, Index, Node, Places, Record, Source


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

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, index = cursor
        items = self._open(index)
        closing: Any = contextlib.closing(items) if hasattr(items, "close") else None
        with closing or contextlib.nullcontext():
            for item in items:
                try:
                    element = as_element(item)
                except Exception as error:
                    error.add_note(
                        f"playhead: in from_generator({function_name(self.function)}), item {index}"
                    )
                    raise
                yield self._chunk(epoch, index, element)
                index += 1

    def _open(self, index: int) -> Any:
        if not index:
            return iter(self.function(*self.args))
        if self.takes_start:
            return iter(self.function(*self.args, start=index))
        warnings.warn(
            f"resuming from_generator({function_name(self.function)}) replays {index} elements; "
            "a function that takes start= resumes at once",
            SlowResume,
            stacklevel=2,
        )
        items = iter(self.function(*self.args))
        for _ in range(index):
            next(items, None)
        return items

    def _chunk(self, epoch: int, index: int, element: Any) -> Chunk:
        return Chunk(
            Rows([element]),
            Places(epoch, np.array([index], np.int64)),
            partial(_after, epoch, index),
            lambda _: [self.record(epoch, index)],
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
