"""What a generator function yields: walked, and resumed by its `start=`, its own state, or walking again."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from playhead.errors import ElementError, PipelineError, SlowResume, SourceChanged, warn
from playhead.plan.block import ArraySpec, Columns, Nest, Rows, leaves, map_nest, taken
from playhead.plan.compute import Chunk, Compute
from playhead.plan.functions import function_name
from playhead.plan.node import UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_place
from playhead.sources.states import Saved, Walk, is_saved, opened, protocol


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
    signature: Nest | None = None  # an `Expected` for each leaf
    state_every: int = 1
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
        expected = [] if self.signature is None else list(leaves(self.signature))
        if not expected or any(leaf.shape is None for leaf in expected):
            return None
        return map_nest(lambda leaf: ArraySpec(leaf.shape, leaf.dtype), self.signature)

    def _taken(self, item: Any) -> Any:
        return taken(item) if self.signature is None else fitted(item, self.signature)

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
        rows: list[Any] = []
        with closing or contextlib.nullcontext():
            try:
                began = time.perf_counter()
                for item in items:
                    rows.append(self._taken(item))
                    walk.look(index + len(rows))
                    seconds = time.perf_counter() - began
                    if len(rows) >= pace.size or seconds > pace.seconds:
                        pace.report(len(rows), seconds)
                        yield self._chunk(epoch, index, rows, walk.cut())
                        index, rows, began = index + len(rows), [], time.perf_counter()
            except Exception as error:
                if rows:
                    yield self._chunk(epoch, index, rows, walk.cut())
                error.add_note(
                    f"playhead: in from_generator({function_name(self.function)}), "
                    f"item {index + len(rows)}"
                )
                raise
            if rows:
                yield self._chunk(epoch, index, rows, walk.cut())

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

    def _chunk(self, epoch: int, index: int, rows: list[Any], saved: tuple[Saved, ...]) -> Chunk:
        return Chunk(
            Rows(rows),
            Places(epoch, np.arange(index, index + len(rows), dtype=np.int64)),
            partial(_after, epoch, index, saved),
            lambda j: [self.record(epoch, index + j)],
        )

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or function_name(self.function), epoch, index)


def _after(epoch: int, index: int, saved: tuple[Saved, ...], j: int) -> Cursor:
    at = [epoch, index + j]
    newest = next((state for state in reversed(saved) if state.taken <= index + j), None)
    return at if newest is None else newest.cursor(at)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a leaf of a generator's items is said to be: its dtype, and its shape where that is known."""

    dtype: np.dtype[Any] | type
    shape: tuple[int | None, ...] | None


def signature_of(types: Nest | None, shapes: Nest | None, specs: Nest | None) -> Nest | None:
    """The nest of `Expected` for tf.data's `output_types` and `output_shapes`, or its `output_signature`.

    Raises `PipelineError` for both at once, for shapes alone, and for what is no array.
    """
    if specs is not None:
        if types is not None or shapes is not None:
            raise PipelineError("from_generator takes output_signature, or output_types, not both")
        return map_nest(lambda spec: _expected(getattr(spec, "dtype", None), spec), specs)
    if types is None:
        if shapes is not None:
            raise PipelineError("from_generator(output_shapes=...) needs output_types")
        return None
    if shapes is None:
        return map_nest(lambda dtype: _expected(dtype, None), types)
    return map_nest(_expected, types, shapes)


def _expected(dtype: Any, spec: Any) -> Expected:
    kind = type(spec).__name__
    if kind in ("RaggedTensorSpec", "SparseTensorSpec", "DatasetSpec"):
        raise PipelineError(
            f"from_generator: elements hold arrays, and {kind} is none",
            help="leave it out of the signature: lists of unequal lengths may be leaves of a tuple",
        )
    shape = getattr(spec, "shape", spec)
    rank = getattr(shape, "rank", 0) if not isinstance(shape, list | tuple) else len(shape)
    sizes = None
    if shape is not None and rank is not None:
        sizes = tuple(None if d in (None, -1) else int(d) for d in shape)
    found = getattr(dtype, "as_numpy_dtype", dtype)
    if found in (str, bytes):
        return Expected(found, sizes)
    if found is object:
        return Expected(bytes, sizes)
    try:
        return Expected(np.dtype(found), sizes)
    except TypeError:
        raise PipelineError(f"from_generator: {dtype!r} is no dtype of an array") from None


def fitted(item: Any, signature: Nest) -> Any:
    """An item in the dtypes of the signature. Raises `ElementError` where it does not fit."""
    try:
        return map_nest(_fitted, signature, _as_nest(item, signature))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ElementError):
            raise
        raise ElementError(f"an item does not fit the signature {signature}: {error}") from None


def _as_nest(item: Any, signature: Nest) -> Any:
    """Where the signature has a tuple, a list is one, as in tf.data."""
    if isinstance(signature, tuple) and isinstance(item, list):
        item = tuple(item)
    if isinstance(signature, tuple) and isinstance(item, tuple):
        if len(item) != len(signature):
            raise ElementError(f"an item has {len(item)} parts, and the signature {len(signature)}")
        return tuple(_as_nest(part, at) for part, at in zip(item, signature, strict=True))
    if isinstance(signature, dict):
        return {key: _as_nest(item[key], at) for key, at in signature.items()}
    return item


def _fitted(expected: Expected, value: Any) -> Any:
    if isinstance(expected.dtype, np.dtype):
        array = np.array(value, expected.dtype)
        if array.size and np.asarray(value).dtype.kind in "fc" and expected.dtype.kind in "iub":
            raise ElementError(f"an item has {value!r} where the signature has {expected.dtype}")
        made = array if array.ndim else array[()]
    else:
        made = taken(value)
    shape = np.shape(made) if isinstance(made, np.ndarray) else ()
    wanted = expected.shape
    if wanted is not None and (
        len(shape) != len(wanted)
        or any(w not in (None, n) for n, w in zip(shape, wanted, strict=True))
    ):
        raise ElementError(f"an item has shape {shape} where the signature has {wanted}")
    return made


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
