"""Datasets inside datasets: what a function makes of each element; flat_map reads one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError, UnreadablePosition, UnrepeatableFunction
from playhead.plan.compute import Chunk, Compute
from playhead.plan.description import unseeded, with_changes
from playhead.plan.elements import note
from playhead.plan.functions import UserFunction
from playhead.plan.node import UNKNOWN, Node, Serial
from playhead.plan.permutation import GOLDEN, mix
from playhead.plan.places import Cursor, Places
from playhead.plan.randomness import key as mixed_seed
from playhead.plan.shared import each_once
from playhead.plan.walking import Item, Walked, as_rows, walked

SMALL = 1024  # elements of an inner dataset that are not worth a worker


class Nesting(Walked):
    """A stream of the elements of inner datasets."""

    runs_user_code: ClassVar[bool] = True
    uneven = True

    function: UserFunction

    @property
    def cardinality(self) -> int:
        return 0 if self.parent.cardinality == 0 else UNKNOWN

    def describe(self) -> dict[str, Any]:
        return self.function.said(self.op)

    def inside(self, item: Item) -> Node:
        """The dataset that the function makes of an element."""
        try:
            return made_by(self, self.function.on_one(item.row), item.key)
        except Exception as error:
            note(error, self, item.key, item.trace())
            raise


def made_by(node: Node, result: Any, key: tuple[int, ...]) -> Node:
    """The plan of a dataset that a function returned. Raises where it is none, or cannot be repeated."""
    inner = getattr(result, "node", None)
    name = getattr(node, "function", None) and node.function.name  # type: ignore[attr-defined]
    if not isinstance(inner, Node):
        raise PipelineError(
            f"{node.op}({name}) must return a playhead.Dataset, not {type(result).__name__}",
            help=_instead_of(result),
        )
    random = unseeded(inner)
    if random is not None:
        raise UnrepeatableFunction(
            f"{node.op}({name}) returns a dataset with a {random.op} that has no seed: each call draws another",
            help="give it seed=; the datasets of other elements get other numbers from the same seed",
        )
    return reseeded(inner, *key)


def _instead_of(result: Any) -> str:
    if type(result).__module__.startswith("tensorflow."):
        return (
            "open the file with playhead, as in Dataset.from_tfrecords(file) or Dataset.from_lines(file); "
            "Dataset.from_tf(ds) wraps another tf.data.Dataset"
        )
    return "Dataset.from_tensor_slices(x) makes one of an array's rows"


def reseeded(node: Node, *parts: int) -> Node:
    """The plan with other seeds, made of its own and `parts`: those of the element it was made of."""
    changes: dict[int, dict[str, Any]] = {}

    for at in each_once(node):
        seed = getattr(at, "seed", None)
        if at.random is not None and isinstance(seed, int):
            changes[id(at)] = {"seed": mixed_seed(seed, "inside", 0, *parts)}
    return with_changes(node, changes) if changes else node


def open_inside(node: Node, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
    """Walk an inner dataset: with the workers where that is worth it."""
    small = 0 <= node.cardinality <= SMALL and not node.user_code
    return node.open(cursor, Serial() if small else compute.inside())


def inner_keys(key: tuple[int, int], first: int, count: int) -> Places:
    """The keys of elements `first` to `first + count` of the dataset made of the element `key`."""
    numbers = np.arange(first, first + count, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        base = mix(np.array([key[1] + 1], np.uint64) * np.uint64(GOLDEN))
        mixed = mix(base + numbers * np.uint64(GOLDEN)) >> np.uint64(2)
    return Places(key[0], mixed.astype(np.int64))


@dataclass(frozen=True, eq=False)
class FlatMap(Nesting):
    """The elements of the dataset that `function` makes of each element, one dataset after the other."""

    op: ClassVar[str] = "flat_map"
    counters: ClassVar[tuple[str, ...]] = ("epoch", "given")

    function: UserFunction

    def start_stream(self, epoch: int) -> Cursor:
        return {"epoch": epoch, "given": 0, "at": self.parent.start(epoch), "inner": None}

    def fits_parent(self, cursor: Cursor, epoch: int) -> bool:
        return "inner" in cursor and super().fits_parent(cursor, epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, given, inner = cursor["epoch"], cursor["given"], cursor["inner"]
        for item in walked(self.parent, cursor["at"], compute):
            node = self.inside(item)
            at = entered(node, inner, epoch)
            for chunk in open_inside(node, at, compute):
                yield _inside(item, epoch, given, chunk)
                given += len(chunk)
            given, inner = 0, None


def entered(node: Node, inner: Cursor, epoch: int) -> Cursor:
    """Where an inner dataset goes on: at `inner`, where there is one."""
    if inner is None:
        return node.start(epoch)
    if not node.fits(inner, epoch):
        raise UnreadablePosition(
            "the position stands inside a dataset that the function does not make any more",
            help="the function, or what it reads, has changed since",
        )
    return inner


def _inside(item: Item, epoch: int, given: int, chunk: Chunk) -> Chunk:
    inner, trace, before, outer = chunk.cursor, chunk.trace, item.before, item.trace

    def cursor(j: int) -> Cursor:
        return {"epoch": epoch, "given": given + j, "at": before(), "inner": inner(j)}

    return Chunk(
        as_rows(chunk.block),
        inner_keys(item.key, given, len(chunk)),
        cursor,
        lambda j: [*outer(), *trace(j)],
    )
