"""pack: rows of a fixed number of tokens, made of documents of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from playhead.errors import ElementError, PipelineError, UnreadablePosition
from playhead.plan.block import ArraySpec, Element, Nest
from playhead.plan.compute import Chunk, Compute
from playhead.plan.documents import ADDED, Tokens, is_numeric, require_free, row_of, tokens_of
from playhead.plan.elements import note
from playhead.plan.lanes import Concat, Document, FirstFit, Lane, Part
from playhead.plan.node import INFINITE, UNKNOWN
from playhead.plan.places import Cursor, Record, has_counts, is_count
from playhead.plan.waiting import Moment, Step, Waiting, fits_waiting, start_waiting
from playhead.plan.walking import Item, Walked, one

METHODS = ("concat", "first_fit")


@dataclass(frozen=True, eq=False)
class Pack(Walked):
    """Rows of `size` tokens: {"tokens", "segment_ids", "positions"}, or a document's own names and these two.

    Document k of an epoch goes to lane k % `lanes`, and row r is the next one of lane r % `lanes`. A lane
    without documents gives rows of padding, until all are done. A row counts the documents that end in it.
    """

    op: ClassVar[str] = "pack"

    size: int
    method: str
    bins: int
    lanes: int

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise PipelineError(f'pack(method={self.method!r}): it is "concat" or "first_fit"')
        for name, value in (("length", self.size), ("bins", self.bins), ("lanes", self.lanes)):
            if value < 1:
                raise PipelineError(f"pack: {name} is at least 1, not {value}")
        spec = self.parent.static_spec()
        if isinstance(spec, dict):
            require_free(spec)

    @property
    def cardinality(self) -> int:
        count = self.parent.cardinality
        return count if count in (0, INFINITE) else UNKNOWN

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "length": self.size, "method": self.method}
        if self.method == "first_fit":
            said["bins"] = self.bins
        return said | {"lanes": self.lanes} if self.lanes > 1 else said

    def static_spec(self) -> Nest | None:
        known = self.parent.static_spec()
        return None if known is None else self._packed(known)

    def spec(self) -> Nest:
        packed = self._packed(self.parent.spec())
        return super().spec() if packed is None else packed

    def _packed(self, spec: Nest) -> Nest | None:
        """What rows are like where documents are like `spec`; None where these are no documents."""
        named = {"tokens": spec} if isinstance(spec, ArraySpec) else spec
        if not isinstance(named, dict) or not named:
            return None
        for leaf in named.values():
            if (
                not isinstance(leaf, ArraySpec)
                or len(leaf.shape) != 1
                or not is_numeric(leaf.dtype)
            ):
                return None
        said = {name: ArraySpec((self.size,), leaf.dtype) for name, leaf in named.items()}
        return said | {name: ArraySpec((self.size,), np.dtype(np.int32)) for name in ADDED}

    # --- documents ------------------------------------------------------------------------------------

    def tokens(
        self, document: Element, key: tuple[int, int], trace: Callable[[], list[Record]]
    ) -> Tokens:
        """A document's arrays by their names. Raises `ElementError` where it is none, and names it."""
        try:
            return tokens_of(document)
        except (ElementError, PipelineError) as error:
            note(error, self, key, trace())
            raise

    # --- walking ----------------------------------------------------------------------------------------

    def lane(self, state: int) -> Lane:
        if self.method == "concat":
            return Concat(self.size, state)
        return FirstFit(self.size, self.bins, state)

    def start_stream(self, epoch: int) -> Cursor:
        start: dict[str, Any] = {"epoch": epoch, "given": 0, "lanes": [0] * self.lanes}
        if self.lanes > 1:
            start |= {"next": 0, "dealt": []}
        return start | start_waiting(self.parent, epoch)

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if not fits_waiting(self.parent, cursor, epoch) or not has_counts(cursor, ("given",)):
            return False
        states = cursor.get("lanes")
        whole = isinstance(states, list) and len(states) == self.lanes
        if cursor.get("epoch") != epoch or not whole or not all(map(is_count, states)):
            return False
        waiting = cursor["waiting"]
        if isinstance(waiting, dict):
            offsets = waiting["offsets"]
            inside = offsets == sorted(set(offsets)) and offsets[:1] == [0]
            if not inside or offsets[-1] >= waiting["read"]:
                return False
        elif not all(waiting):
            return False
        if self.lanes == 1:
            return True
        dealt = cursor.get("dealt")
        return (
            isinstance(dealt, list)
            and len(dealt) == _count(waiting)
            and all(is_count(lane) and lane < self.lanes for lane in [*dealt, cursor.get("next")])
        )

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        return _Walk(self, cursor).rows(compute)


class _Walk:
    """Deals the documents of one walk to the lanes, and gives out their rows in turn."""

    def __init__(self, node: Pack, cursor: Cursor) -> None:
        self._node = node
        self._epoch: int = cursor["epoch"]
        self._given: int = cursor["given"]
        self._lanes = [node.lane(state) for state in cursor["lanes"]]
        self._waiting, self._saved = Waiting(node.parent, cursor), cursor["waiting"]
        self._deal = _Deal.of(node.lanes, cursor)
        self._output = 0

    def rows(self, compute: Compute) -> Iterator[Chunk]:
        documents = self._documents(self._waiting.walk(compute))
        self._put_again(documents)
        yield from self._complete()
        for item, number, is_new in documents:
            self._put(item, number, is_new)
            yield from self._complete()
        while any(lane.rest() is not None for lane in self._lanes):
            yield self._give()

    def _documents(self, steps: Iterator[Step]) -> Iterator[tuple[Item, int, bool]]:
        for step in steps:
            for j, row in enumerate(step.chunk.block.own_rows()):
                yield step.item(row, j), step.number + j, step.is_new

    def _put_again(self, documents: Iterator[tuple[Item, int, bool]]) -> None:
        """The documents that waited, and not one more: the next may not come for long, or fail."""
        again = list(islice(documents, _count(self._saved)))
        if len(again) < _count(self._saved) or any(is_new for *_, is_new in again):
            raise UnreadablePosition(
                "the position waits for documents that are not there any more",
                help="restore what the documents were made of, or start anew",
            )
        for item, number, is_new in again:
            self._put(item, number, is_new)
        for lane in self._lanes:
            lane.restored()

    def _put(self, item: Item, number: int, is_new: bool) -> None:
        tokens = self._node.tokens(item.row, item.key, item.trace)
        waiter = self._waiting.add(item, number, is_new)
        size = len(next(iter(tokens.values())))
        self._lanes[self._deal.lane(number)].put(Document(waiter, tokens, size))

    def _complete(self) -> Iterator[Chunk]:
        while self._lanes[self._given % len(self._lanes)].done:
            yield self._give()

    def _give(self) -> Chunk:
        """The next row of the lane whose turn it is."""
        key, before = (self._epoch, self._given), self._moment()
        row = self._lanes[self._given % len(self._lanes)].take()
        parts = [part for part in row.parts if part.size]
        made_of = [part.document.waiter.item for part in parts]

        def explain(k: int, error: Exception) -> None:
            note(error, self._node, made_of[k].key, made_of[k].trace())

        like = parts[0] if parts else self._next_part()
        element = row_of(
            self._node.size,
            like.document.tokens,
            [(part.document.tokens, part.low, part.high) for part in parts],
            explain,
        )
        done = [part.document.waiter for part in row.parts if part.is_last]
        self._given, self._output = self._given + 1, self._output + 1
        self._waiting.leave(done, self._output)
        return one(
            element,
            key,
            before.cursor,
            self._moment().cursor,
            lambda: [record for item in made_of for record in item.trace()],
            len(done),
        )

    def _next_part(self) -> Part:
        """The first tokens that come after a row without any: padding is like them."""
        for turn in range(1, len(self._lanes)):
            row = self._lanes[(self._given + turn) % len(self._lanes)].rest()
            if row is not None:
                return next(part for part in row.parts if part.size)
        raise AssertionError("a row of padding is given only where another lane has tokens")

    def _moment(self) -> _Moment:
        states = [lane.state for lane in self._lanes]
        return _Moment(
            self._waiting.moment(self._output), self._epoch, self._given, states, self._deal
        )


@dataclass(frozen=True, slots=True)
class _Deal:
    """Which lane a document goes to, by the number that the walk gives it: those that waited come first."""

    lanes: int
    waited: list[int]
    first: int

    @classmethod
    def of(cls, lanes: int, cursor: Cursor) -> _Deal:
        if lanes == 1:
            return cls(1, [], 0)
        waited = list(cursor["dealt"])
        if isinstance(cursor["waiting"], dict):  # numbers count from the first that waited
            return cls(lanes, [], waited[0])
        return cls(lanes, waited, cursor["next"])

    def lane(self, number: int) -> int:
        if number < 0:
            return self.waited[number] if self.lanes > 1 else 0
        return (self.first + number) % self.lanes


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where a walk stands between two rows, told only when somebody asks."""

    waiting: Moment
    epoch: int
    given: int
    states: list[int]
    deal: _Deal

    def cursor(self) -> Cursor:
        said: dict[str, Any] = {"epoch": self.epoch, "given": self.given, "lanes": self.states[:]}
        if len(self.states) > 1:
            log, output = self.waiting.log[: self.waiting.size], self.waiting.output
            here = [w for w in log if w.left is None or w.left > output]
            said["next"] = self.deal.lane(self.waiting.next)
            said["dealt"] = [self.deal.lane(waiter.number) for waiter in here]
        return said | self.waiting.cursor()


def _count(waiting: Any) -> int:
    """How many wait, by what a cursor says of them."""
    if isinstance(waiting, dict):
        return len(waiting["offsets"])
    return sum(len(run) - 1 for run in waiting)
