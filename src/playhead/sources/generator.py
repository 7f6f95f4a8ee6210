"""What a generator function yields: walked, and resumed by its `start=`, its own state, or walking again."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError, SlowResume, SourceChanged, warn
from playhead.plan.block import ArraySpec, Columns, Nest, leaves, map_nest, taken
from playhead.plan.compute import Chunk, Compute, Pace
from playhead.plan.functions import function_name
from playhead.plan.global_states import WATCHED, GlobalStates
from playhead.plan.node import UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_place
from playhead.sources.signature import columns_of, fitted
from playhead.sources.signature import signature_of as signature_of
from playhead.sources.states import Saved, Walk, is_saved, opened, protocol
from playhead.sources.taking import Taken, columns


@dataclass(slots=True)
class _Watch:
    """How many items are still watched for draws from a global random state."""

    left: int = WATCHED


@dataclass(frozen=True, eq=False)
class Generated(Source):
    """The elements of `function(*args)`, called anew in every epoch.

    The cursor is [epoch, elements taken], or where what the function gives knows its own place
    {"at": that, "taken", "state"}: its state behind `taken` elements.
    """

    op: ClassVar[str] = "generator"
    runs_user_code: ClassVar[bool] = True

    function: Callable[..., Any]
    args: tuple[Any, ...]
    count: int | None
    version: str | None
    signature: Nest | None = None  # as `signature_of` gives it
    state_every: int = 1
    parents: tuple[Node, ...] = field(default=(), kw_only=True)
    watch: _Watch = field(default_factory=_Watch, kw_only=True)

    @property
    def cardinality(self) -> int:
        return UNKNOWN if self.count is None else self.count

    @cached_property
    def seekable(self) -> bool:
        return False

    @property
    def narrows(self) -> bool:
        """True: where a batch waits for many, as many are taken, and no more."""
        return True

    @cached_property
    def takes_start(self) -> bool:
        try:
            return "start" in inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return False

    def gather(self, index: Index) -> Columns:
        raise PipelineError("a generator has no items to jump to")

    def static_spec(self) -> Nest | None:
        expected = [] if self.signature is None else list(leaves(self.signature))
        if not expected or any(leaf.shape is None for leaf in expected):
            return None
        return map_nest(lambda leaf: ArraySpec(leaf.shape, leaf.dtype), self.signature)

    def _begin(self, pace: Pace) -> Taken:
        """Nothing taken yet. What is asked for one by one is not put into columns."""
        alone, signature = pace.size == 1, self.signature
        if signature is None:
            return Taken(taken, None if alone else columns)
        return Taken(partial(fitted, signature), None if alone else partial(columns_of, signature))

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
        if isinstance(cursor, dict):
            return is_saved(cursor) and cursor["at"][0] == epoch
        return is_place(cursor) and cursor[0] == epoch

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, index = cursor["at"] if isinstance(cursor, dict) else cursor
        walk = self._open(index, Saved.of(cursor))
        items: Any = walk.items
        closing: Any = contextlib.closing(items) if hasattr(items, "close") else None
        pace = compute.pace(self)
        rows = self._begin(pace)
        with closing or contextlib.nullcontext():
            try:
                began = time.perf_counter()
                for item in items if walk.save is not None else chain(self._first(items), items):
                    rows.add(item)
                    if walk.save is not None:
                        walk.look(index + rows.count)
                    seconds = time.perf_counter() - began
                    if rows.count >= pace.size or seconds > pace.seconds:
                        pace.report(rows.count, seconds)
                        yield self._chunk(epoch, index, rows, walk)
                        index, rows = index + rows.count, self._begin(pace)
                        began = time.perf_counter()
            except Exception as error:
                if rows.count:
                    yield self._chunk(epoch, index, rows, walk)
                error.add_note(
                    f"playhead: in from_generator({function_name(self.function)}), "
                    f"item {index + rows.count}"
                )
                raise
            if rows.count:
                yield self._chunk(epoch, index, rows, walk)

    def _first(self, items: Iterator[Any]) -> Iterator[Any]:
        """The first of the items, with a warning where making one draws random numbers."""
        watch = self.watch
        while watch.left > 0:
            states = GlobalStates(first=watch.left == WATCHED)
            item = next(items, items)
            who = f"from_generator({function_name(self.function)})"
            instead = "give it a generator of its own, as in rng = numpy.random.default_rng(seed)"
            watch.left = 0 if states.warn(who, instead) else watch.left - 1
            if item is items:
                return
            yield item

    def _open(self, index: int, saved: Saved | None) -> Walk:
        if self.takes_start:
            made = self.function(*self.args, start=index) if index else self.function(*self.args)
            return Walk(iter(made), None, self.state_every)
        walk, stands = opened(self.function(*self.args), saved, self.state_every)
        begin = saved.taken if saved is not None and stands else 0
        if index and not stands:
            warn(
                f"resuming from_generator({function_name(self.function)}) replays {index} elements; "
                "a function that takes start=, or gives what has a state, resumes at once",
                SlowResume,
            )
        items = walk.items
        for number in range(begin, index):
            if next(items, items) is items:
                raise SourceChanged(
                    f"from_generator({function_name(self.function)}) ended after {number} elements, "
                    f"and the position stands at {index}",
                    help="restore what it yields, or start anew",
                )
            walk.look(number + 1)
        return walk

    def _chunk(self, epoch: int, index: int, rows: Taken, walk: Walk) -> Chunk:
        saved = () if walk.save is None else walk.cut()
        return Chunk(
            rows.block(),
            Places(epoch, np.arange(index, index + rows.count, dtype=np.int64)),
            partial(_after, epoch, index, saved),
            lambda j: [self.record(epoch, index + j)],
        )

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or function_name(self.function), epoch, index)


def _after(epoch: int, index: int, saved: tuple[Saved, ...], j: int) -> Cursor:
    at = [epoch, index + j]
    newest = next((state for state in reversed(saved) if state.taken <= index + j), None)
    return at if newest is None else newest.cursor(at)


class _Again:
    """A function that gives the same iterable each time."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self.__name__ = self.__qualname__ = type(items).__name__

    def __call__(self) -> Any:
        return self._items


def generated(
    function: Any,
    args: tuple[Any, ...],
    length: int | None,
    version: str | None,
    signature: Nest | None = None,
    state_every: int = 1,
) -> Generated:
    """The elements of what a function gives, or an iterable whose iterators know their own places.

    Raises TypeError for what is neither, and `PipelineError` for `state_every` below 1.
    """
    if state_every < 1:
        raise PipelineError(
            f"from_generator: state_every counts elements, and {state_every} is none"
        )
    if callable(function):
        return Generated(function, args, length, version, signature, state_every)
    kind = type(function).__name__
    if hasattr(function, "__next__") or protocol(function) is not None:
        raise TypeError(
            f"from_generator needs a function that makes a {kind} for each pass, and was given one: what "
            "moves on while it is read cannot be read twice. Give it a function, as in lambda: make_it()"
        )
    if not hasattr(function, "__iter__") or protocol(iter(function)) is None:
        raise TypeError(f"from_generator needs a function that returns an iterable, not {kind}")
    return Generated(_Again(function), args, length, version, signature, state_every)
