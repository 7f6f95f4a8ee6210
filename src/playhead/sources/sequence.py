"""Anything with a length and items: torch and Hugging Face datasets, Grain sources, memory maps, lists."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import Block, Nest, Rows, taken
from playhead.plan.global_states import WATCHED, GlobalStates
from playhead.plan.lock import Lock
from playhead.plan.node import Node, Source
from playhead.plan.places import Index

T = TypeVar("T")


class Guarded:
    """A sequence read by one thread at a time, unless it is said to be thread-safe."""

    def __init__(self, items: Any, thread_safe: bool) -> None:
        self.items = items
        self.thread_safe = thread_safe
        self.many = reads_many(items)
        self._lock = Lock()
        self._to_watch = WATCHED

    def read(self, index: Index) -> list[Any]:
        """Copies of the items: what a sequence hands out may be its own memory."""
        numbers = index.tolist()
        with nullcontext() if self.thread_safe else self._lock:
            if self.many and len(numbers) > 1:
                return self._watched(lambda: self._items(numbers))
            watched = [self._watched(partial(self._item, k)) for k in numbers[: self._to_watch]]
            return watched + [self._item(k) for k in numbers[len(watched) :]]

    def _watched(self, read: Callable[[], T]) -> T:
        """What `read` gives, with a warning where a first one of the items draws random numbers."""
        if self._to_watch <= 0:
            return read()
        states = GlobalStates(first=self._to_watch == WATCHED)
        found = read()
        who = f"from_sequence: an item of {type(self.items).__name__}"
        instead = "leave that out of the items and do it in map(fn, rng=True)"
        self._to_watch = 0 if states.warn(who, instead) else self._to_watch - 1
        return found

    def _item(self, k: int) -> Any:
        try:
            return taken(with_pictures(self.items[k]))
        except Exception as error:
            error.add_note(f"playhead: in from_sequence, item {k}")
            raise

    def _items(self, numbers: list[int]) -> list[Any]:
        try:
            found = self.items.__getitems__(numbers)
            if len(found) == len(numbers):
                return [taken(with_pictures(item)) for item in found]
        except Exception as error:
            error.add_note(f"playhead: in from_sequence, items {_spoken(numbers)}")
            raise
        raise PipelineError(
            f"{type(self.items).__name__}.__getitems__ gave {len(found)} items for {len(numbers)} numbers"
        )


def _spoken(numbers: list[int]) -> str:
    some = ", ".join(map(str, numbers[:8]))
    return some if len(numbers) <= 8 else f"{some} and {len(numbers) - 8} more"


def reads_many(items: Any) -> bool:
    """Whether `__getitems__` gives for several numbers what `__getitem__` gives for each of them.

    That is what it is for in torch. A Hugging Face dataset in a format of arrays stacks its items first, and
    a column with a null then has another dtype than the items have alone.
    """
    if not callable(getattr(items, "__getitems__", None)):
        return False
    inner = items
    while inner is not None:
        format = getattr(inner, "format", None)
        if isinstance(format, dict) and format.get("type") is not None:
            return False
        inner = getattr(inner, "dataset", None)  # as torch's Subset names it
    return True


def with_pictures(item: Any) -> Any:
    """An item with arrays in place of what only numpy's array interface tells of, as pictures of Pillow."""
    if isinstance(item, dict):
        return {key: with_pictures(part) for key, part in item.items()}
    if type(item) is tuple:
        return tuple(map(with_pictures, item))
    if hasattr(type(item), "__array_interface__") and not isinstance(item, np.ndarray | np.generic):
        return np.asarray(item)
    return item


@dataclass(frozen=True, eq=False)
class SequenceItems(Source):
    """Element k is items[k]. Its content is never read for a hash: `version` says which it is."""

    op: ClassVar[str] = "sequence"
    runs_user_code: ClassVar[bool] = True

    guarded: Guarded
    count: int
    version: str | None
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.count

    def gather(self, index: Index) -> Block:
        return Rows(self.guarded.read(index))

    def static_spec(self) -> Nest | None:
        return None

    def describe(self) -> dict[str, Any]:
        said = {"op": self.op, "records": self.count, "type": type(self.guarded.items).__name__}
        if self.version is not None:
            said["version"] = self.version
        said["kind"] = "declared"
        return said


def sequence(items: Any, version: str | None, thread_safe: bool) -> SequenceItems:
    """Element k is items[k]; many are read at once where the sequence can.

    Without a `version`, that of a Hugging Face dataset is its fingerprint. Raises `PipelineError` for what has
    no length or no items.
    """
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
        raise PipelineError(
            f"from_sequence needs __len__ and __getitem__, and {type(items).__name__} lacks one",
            help="from_generator walks anything that can be iterated",
        )
    if isinstance(items, dict | set):
        raise PipelineError(
            f"from_sequence reads items[0], items[1], ...; not a {type(items).__name__}"
        )
    if version is None and isinstance(getattr(items, "_fingerprint", None), str):
        version = items._fingerprint
    return SequenceItems(Guarded(items, thread_safe), len(items), version)
