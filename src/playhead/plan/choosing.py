"""Chosen elements of a seekable dataset: select and resample. And numbers out of nothing: random."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan import randomness
from playhead.plan.block import ArraySpec, Block, Columns, Nest
from playhead.plan.node import INFINITE, Node, Source, ordinal
from playhead.plan.places import Index, Leaf, Located, Places


def require_seekable(node: Node, op: str) -> None:
    """Raises `PipelineError` for a stream, and for what never ends."""
    if not node.seekable:
        raise PipelineError(
            f"{op} needs a seekable dataset, and this one is a stream (it must be walked)",
            help=f"put {op} before filter and the like, on the source's records",
        )
    if node.length is None:
        raise PipelineError(f"{op} over an endless dataset", help=f"put {op} before repeat")


class Chosen(Node):
    """Single elements of the parent, in any order."""

    def spec(self) -> Nest:
        return self.parent.spec()

    @property
    def countable(self) -> bool:
        return self.parent.weight == 1

    def count_records(self, index: int) -> int:
        return index


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, eq=False)
class Select(Chosen):
    """The parent's elements at `indices`, in that order; any may come several times."""

    op: ClassVar[str] = "select"

    indices: Index

    def __post_init__(self) -> None:
        require_seekable(self.parent, self.op)
        length = self.parent.length or 0
        outside = np.flatnonzero((self.indices < 0) | (self.indices >= length))
        if len(outside):
            raise PipelineError(
                f"select: index {self.indices[outside[0]]} of a dataset of {length} elements"
            )

    @property
    def cardinality(self) -> int:
        return len(self.indices)

    def locate(self, places: Places) -> Located:
        return self.parent.locate(Places(places.epoch, self.indices[places.index]))

    @cached_property
    def content(self) -> str:
        return _digest(self.indices.astype("<i8"))

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "count": len(self.indices), "content": self.content}


def indices_of(indices: Any, length: int | None) -> Index:
    """int64[n] for indices, negative ones from the end, or a mask. Raises `PipelineError`."""
    array = np.asarray(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise PipelineError(
            f"select needs a list of whole numbers, or a mask, not {array.dtype}{list(array.shape)}"
        )
    if array.dtype == bool:
        if len(array) != length:
            raise PipelineError(
                f"select: a mask of {len(array)} for a dataset of {length} elements"
            )
        return np.flatnonzero(array)
    chosen = array.astype(np.int64)
    return np.where(chosen < 0, chosen + length, chosen) if length is not None else chosen


@dataclass(frozen=True, eq=False)
class Resample(Chosen):
    """`count` elements of the parent, each drawn with a probability in proportion to its weight.

    Draw i of epoch e is a function of (seed, e, i): the first element at which the running sum of the weights
    exceeds a uniform number, as in inverse transform sampling.
    """

    op: ClassVar[str] = "resample"
    random: ClassVar[str | None] = "resample"

    weights: np.ndarray[Any, np.dtype[np.float64]]
    seed: int
    drawn: bool
    count: int

    def __post_init__(self) -> None:
        require_seekable(self.parent, self.op)
        weights, length = self.weights, self.parent.length
        if weights.shape != (length,):
            raise PipelineError(
                f"resample: {weights.size} weights of shape {weights.shape} for {length} elements"
            )
        if not np.isfinite(weights).all() or (weights < 0).any() or (length and not weights.any()):
            raise PipelineError("resample: weights are finite, not negative, and not all zero")
        if self.count and not length:
            raise PipelineError("resample of a dataset without elements")

    @property
    def cardinality(self) -> int:
        return self.count

    @cached_property
    def _running(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.cumsum(self.weights)

    @cached_property
    def _wide(self) -> int:
        return randomness.wide_key(self.seed, self.op, ordinal(self))

    def locate(self, places: Places) -> Located:
        drawn = randomness.uniform(self._wide, places.epochs(), places.index)
        running = self._running
        chosen = np.searchsorted(running, drawn * running[-1], side="right") if len(drawn) else []
        last = int(np.flatnonzero(self.weights)[-1]) if len(running) else 0  # where rounding ends
        index = np.minimum(np.asarray(chosen, np.int64), last)
        return self.parent.locate(Places(places.epoch, index))

    @cached_property
    def content(self) -> str:
        return _digest(self.weights.astype("<f8"))

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "count": self.count, "seed": self.seed}
        if self.drawn:
            said["drawn"] = True
        return said | {"content": self.content}


@dataclass(frozen=True, eq=False)
class Random(Source):
    """Whole numbers, each of 0 to 2**32 - 1 equally likely, without end: int64."""

    op: ClassVar[str] = "random"
    random: ClassVar[str | None] = "random"

    seed: int
    drawn: bool
    rerandomize: bool
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return INFINITE

    @cached_property
    def _wide(self) -> int:
        return randomness.wide_key(self.seed, self.op, 0)

    def read(self, located: Located) -> Block:
        assert isinstance(located, Leaf)
        places = located.places
        epochs = places.epochs() if self.rerandomize else np.zeros(len(places), np.int64)
        drawn = randomness.words(self._wide, epochs, places.index) & np.uint64(2**32 - 1)
        return Columns(drawn.astype(np.int64), len(places))

    def static_spec(self) -> Nest:
        return ArraySpec((), np.dtype(np.int64))

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "seed": self.seed}
        if self.drawn:
            said["drawn"] = True
        if self.rerandomize:
            said["rerandomize_each_iteration"] = True
        return said
