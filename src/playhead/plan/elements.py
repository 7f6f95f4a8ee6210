"""Element -> element(s): map, filter, enumerate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from playhead.errors import WorkerLost
from playhead.plan import randomness
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows
from playhead.plan.chains import Link, Trace, kept
from playhead.plan.compute import Chunk, Compute, Given, Job, Result, attempt
from playhead.plan.functions import Randomness, UserFunction
from playhead.plan.node import UNKNOWN, Node, Serial, ordinal
from playhead.plan.places import Cursor, Index, Keyed, Located, Places, Record
from playhead.plan.walking import first_item, walked


@dataclass(frozen=True, eq=False)
class Map(Link):
    """`function` on every element; with `seed`, random numbers chosen by the element's place come along."""

    op: ClassVar[str] = "map"
    runs_user_code: ClassVar[bool] = True
    keeps_keys: ClassVar[bool] = True

    function: UserFunction

    def static_spec(self) -> Nest | None:
        return self.function.spec

    def length_at(self, epoch: int) -> int | None:
        return self.parent.length_at(epoch)

    def locate(self, places: Places) -> Located:
        return Keyed(places, self.parent.locate(places))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Keyed)
        block = self.parent.read(located.inner)
        return self.apply(block, located.places, lambda k: list(located.slice(k, k + 1).records()))

    def apply(self, block: Block, places: Places, trace: Trace) -> Block:
        """The function on a block; an error gets a note that names the element and its records."""
        try:
            return self.function(block, self.keys(places))
        except Exception as error:
            error.__dict__.pop("playhead_done", None)
            explain(error, self, len(block), places, trace)
            raise

    def refetched(self, block: Block, keys: Places) -> Block:
        return self.apply(
            block, keys, lambda k: list(self.parent.fetched_records(keys.slice(k, k + 1)))
        )

    def behind(self, cursor: Cursor) -> Cursor | None:
        if self.seekable:
            return super().behind(cursor)
        try:
            item = first_item(self.parent, cursor, Serial())
        except Exception:
            return self.parent.behind(cursor)
        return None if item is None else item.after()

    def keys(self, places: Places) -> Randomness | None:
        return None

    def describe(self) -> dict[str, Any]:
        said = self.function.said(self.op)
        if self.function.decided is not None:
            said["form"] = self.function.decided
        return said

    def do(self, block: Block, keys: Places, trace: Trace) -> tuple[Block, None, bool]:
        return self.apply(block, keys, trace), None, False

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        if self.base is not None:
            yield from self.walk_links(cursor, compute)
            return
        chunks = self.parent.open(cursor, compute)
        for chunk, block in attempt(
            compute, Applying(self), chunks, weight=self.weight, after=True
        ):
            done = chunk if len(block) == len(chunk) else chunk.slice(0, len(block))
            yield done.with_block(block)


class OnChunks(Job[Chunk, Result]):
    """Calls a node's function on the elements of a stream."""

    node: Node

    def sent(self, item: Chunk) -> Given:
        return Given(item.block, item.keys)

    def explained(self, error: BaseException, item: Chunk) -> BaseException:
        if isinstance(
            error, WorkerLost
        ):  # which could not know: chunks leave their sources at home
            made = "; ".join(str(record) for record in islice(self.records(item), 3))
            error.add_note(f"playhead: it worked on {len(item)} element(s) made from {made}")
        return explain(error, self.node, len(item), item.keys, item.trace)

    def records(self, item: Chunk) -> Iterator[Record]:
        for k in range(len(item)):
            yield from item.trace(k)


class Calling(OnChunks[Block]):
    """What a node's function makes of elements.

    Nothing is called again to get those before an element it failed on: a function may have changed its
    argument in place. A block form that failed as a whole has none.
    """

    def __call__(self, sent: Given) -> Block:
        function: UserFunction = self.node.function  # type: ignore[attr-defined]
        return function(sent.block)

    def partial(self, error: Exception) -> Block | None:
        done: list[Any] | None = error.__dict__.pop("playhead_done", None)
        return None if done is None else Rows(done)


class Applying(Calling):
    """A map's results."""

    node: Map

    def __call__(self, sent: Given) -> Block:
        return self.node.function(sent.block, self.node.keys(sent.keys))


@dataclass(frozen=True, eq=False)
class RandomMap(Map):
    """A map whose function is given random numbers: Philox, keyed by seed, ordinal and place."""

    random: ClassVar[str | None] = "map"

    seed: int
    drawn: bool

    @cached_property
    def wide(self) -> int:
        return randomness.wide_key(self.seed, "map", ordinal(self))

    def keys(self, places: Places) -> Randomness | None:
        return Randomness(places, self.wide)

    def describe(self) -> dict[str, Any]:
        said = super().describe() | {"rng": "philox-1", "seed": self.seed}
        if self.drawn:
            said["drawn"] = True
        said["numpy"] = ".".join(np.__version__.split(".")[:2])
        return said


def explain(
    error: BaseException,
    node: Node,
    size: int,
    places: Places,
    trace: Trace,
) -> BaseException:
    """The error of a block of `size` elements, with a note on which of them it came from."""
    position = error.__dict__.pop("playhead_element", 0 if size == 1 else None)
    if position is not None:
        note(error, node, places.at(position), trace(position))
    return error


LARGEST_NUMBER = 1 << 53


def note(error: BaseException, node: Node, place: tuple[int, int], records: list[Record]) -> None:
    """Say in which operation and on which element an error arose."""
    function = getattr(node, "function", None)
    name = f"({function.name})" if function is not None else ""
    where = f" at {node.info.where}" if node.info.where else ""
    label = f" [{node.info.name}]" if node.info.name else ""
    sources = "; ".join(str(record) for record in records[:3])
    # The key of an element of a dataset inside a dataset is no number that says anything
    element = f", element {place[1]}" if place[1] < LARGEST_NUMBER else ""
    said = (
        f"playhead: in {node.op}{name}{label}{where}, epoch {place[0]}{element}, "
        f"made from {sources}{' ...' if len(records) > 3 else ''}"
    )
    if said not in getattr(error, "__notes__", ()):
        error.add_note(said)


@dataclass(frozen=True, eq=False)
class Filter(Link):
    """The elements for which `function` is true: a stream whose cursor is the next place to examine."""

    op: ClassVar[str] = "filter"
    runs_user_code: ClassVar[bool] = True
    keeps_keys: ClassVar[bool] = True

    function: UserFunction

    @property
    def cardinality(self) -> int:
        return 0 if self.parent.cardinality == 0 else UNKNOWN

    @cached_property
    def seekable(self) -> bool:
        return False

    def spec(self) -> Nest:
        return self.parent.spec()

    def describe(self) -> dict[str, Any]:
        return self.function.said(self.op)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        if self.base is not None:
            yield from self.walk_links(cursor, compute)
            return
        chunks = self.parent.open(cursor, compute)
        for chunk, chosen in attempt(
            compute, Testing(self), chunks, weight=self.weight, after=True
        ):
            whole = len(chosen) == len(chunk)
            yield kept(chunk, chosen, chunk.block if whole else chunk.block.select(chosen))
            if self.stops and not whole:
                return

    def do(self, block: Block, keys: Places, trace: Trace) -> tuple[Block, Index, bool]:
        try:
            chosen = self.chosen(block)
        except Exception as error:
            explain(error, self, len(block), keys, trace)
            raise
        whole = len(chosen) == len(block)
        return block if whole else block.select(chosen), chosen, self.stops and not whole

    def behind(self, cursor: Cursor) -> Cursor | None:
        at = cursor
        try:
            for item in walked(self.parent, cursor, Serial()):
                at = item.before()
                try:
                    self.chosen(Rows([item.row]))
                except Exception:
                    return item.after()
                at = item.after()
        except Exception:
            return self.parent.behind(at)
        return None

    def chosen(self, block: Block) -> Index:
        """The positions of the elements for which the function is true, ascending."""
        try:
            result = self.function(block)
        except Exception as error:
            error.__dict__.pop("playhead_done", None)
            raise
        if isinstance(result, Columns):
            found = result.nest
            if not isinstance(found, np.ndarray) or found.dtype != bool or found.ndim != 1:
                self._truth(result.slice(0, 1).rows()[0])
            return np.flatnonzero(found)
        return np.array([k for k, row in enumerate(result.rows()) if self._truth(row)], np.int64)

    def _truth(self, row: Any) -> bool:
        if not isinstance(row, bool | np.bool_):
            raise TypeError(
                f"{self.op}({self.function.name}) must return one bool per element, not {row!r}"
            )
        return bool(row)


@dataclass(frozen=True, eq=False)
class TakeWhile(Filter):
    """The elements before the first one for which `function` is false."""

    op: ClassVar[str] = "take_while"
    stops: ClassVar[bool] = True

    def chosen(self, block: Block) -> Index:
        found = super().chosen(block)
        until: Index = found[found == np.arange(len(found))]
        return until


class Testing(OnChunks[Index]):
    """Which elements of a stream a filter keeps."""

    node: Filter

    def __call__(self, sent: Given) -> Index:
        return self.node.chosen(sent.block)


@dataclass(frozen=True, eq=False)
class Enumerate(Node):
    """(number, element), numbers counting from `first_number` in each epoch, int64."""

    op: ClassVar[str] = "enumerate"
    counters: ClassVar[tuple[str, ...]] = ("given",)

    first_number: int

    def static_spec(self) -> Nest | None:
        inner = self.parent.static_spec()
        return None if inner is None else (ArraySpec((), np.dtype(np.int64)), inner)

    def spec(self) -> Nest:
        return ArraySpec((), np.dtype(np.int64)), self.parent.spec()

    def locate(self, places: Places) -> Located:
        return Keyed(places, self.parent.locate(places))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Keyed)
        return self._numbered(self.parent.read(located.inner), located.places.index)

    def _numbered(self, block: Block, index: Index) -> Block:
        numbers = index + self.first_number
        if isinstance(block, Columns):
            return Columns((numbers, block.nest), len(block))
        return Rows(list(zip(numbers, block.rows(), strict=True)))

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "start": self.first_number}

    def start_stream(self, epoch: int) -> Cursor:
        return {"given": 0, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        given = cursor["given"]
        for chunk in self.parent.open(cursor["at"], compute):
            yield self._counted(chunk, given)
            given += len(chunk)

    def _counted(self, chunk: Chunk, given: int) -> Chunk:
        inner = chunk.cursor
        numbers = np.arange(given, given + len(chunk), dtype=np.int64)
        return Chunk(
            self._numbered(chunk.block, numbers),
            chunk.keys,
            lambda j: {"given": given + j, "at": inner(j)},
            chunk.trace,
            chunk.records,
        )
