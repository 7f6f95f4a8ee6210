"""Computing in order, for streams: what a walk is handed to compute with, and what it yields.

Work is named, not closed over: a `Job` is a node and what is done with it, an item is places or elements. So
a pool of threads, of processes or of machines can do it, and each needs the plan only once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from playhead.errors import Warned
from playhead.plan.block import Block, Columns, Rows, leaves
from playhead.plan.places import Cursor, Index, Places, Record

if TYPE_CHECKING:
    from playhead.plan.node import Node, Piece, Span


SAMPLES = 8  # items by which the size of many is told


class Work(Protocol):
    """Some elements to be worked on; `len` counts them."""

    def __len__(self) -> int: ...

    def singles(self) -> Sequence[Self]:
        """The same elements one by one; nothing where there is only one, or it cannot be cut."""
        ...


Item = TypeVar("Item", bound=Work)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job(ABC, Generic[Item, Result]):
    """What is done to items: a node, and a function of it. Pure and thread-safe; it can be pickled."""

    node: Node

    def sent(self, item: Item) -> Any:
        """What of an item the work needs: what travels to where it is done."""
        return item

    @abstractmethod
    def __call__(self, sent: Any) -> Result: ...

    def at_once(self, item: Item) -> bool:
        """Whether doing it costs less than handing it to a worker."""
        return False

    def records(self, item: Item) -> Iterator[Record]:
        """Where the item's elements come from, for messages."""
        return iter(())

    def partial(self, error: Exception) -> Result | None:
        """The results of the elements before the one that `error` came from, where nothing may be redone."""
        return None

    def explained(self, error: BaseException, item: Item) -> BaseException:
        """An error that the work on `item` raised, with what only the coordinator knows of it."""
        return error


@dataclass(slots=True)
class Outcome(Generic[Result]):
    """What became of an item: its result, or the error and what was done before it; and what it took.

    `seconds` on the clock; where others may work at the same time, also `cpu` seconds of a processor and
    `nbytes`, about how much memory the result holds.
    `forms` and `warned` come from other processes: which form each of the plan's functions took there, and
    the warnings they gave.
    """

    result: Result | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    cpu: float = 0.0
    nbytes: int = 0
    forms: tuple[str | None, ...] = ()
    warned: tuple[Warned, ...] = ()


def timed(job: Job[Any, Result], sent: Any) -> Outcome[Result]:
    """Do it, here and now. An exception becomes part of the outcome."""
    outcome: Outcome[Result] = Outcome()
    began = time.perf_counter()
    try:
        outcome.result = job(sent)
    except Exception as raised:
        outcome.result, outcome.error = job.partial(raised), raised
    outcome.seconds = time.perf_counter() - began
    return outcome


def perform(job: Job[Any, Result], sent: Any) -> Outcome[Result]:
    """The same, with what a pool wants to know of it."""
    worked = time.thread_time()
    outcome = timed(job, sent)
    outcome.cpu, outcome.nbytes = time.thread_time() - worked, nbytes(outcome.result)
    return outcome


class Pace:
    """How many elements to compute in one call: `size`, enough to fill `seconds`, or NBYTES."""

    SECONDS = 0.03
    SOON = 0.0004  # seconds that the first call may take, where it is known how many elements do
    NBYTES = 2 << 20  # what a core's cache about holds

    def __init__(self, most: int) -> None:
        self.size = 1
        self.most = max(1, most)
        self.seconds = self.SECONDS
        self.each = 0.0  # seconds for an element; 0: nobody knows yet

    def begin_like(self, other: Pace) -> None:
        """Begin with what another walk over the same elements has found out."""
        if other.each:
            soon = min(other.size, self.most, int(self.SOON / other.each))
            self.size = max(self.size, soon)

    def report(self, count: int, seconds: float, nbytes: int = 0) -> None:
        if 2 * count <= self.size:
            return  # a rest: what it took says little
        self.each = max(seconds, 1e-9) / count
        ideal = count * min(self.seconds / max(seconds, 1e-9), self.NBYTES / max(nbytes, 1))
        self.size = int(max(1, min(ideal, 2 * count, self.most)))


class Needed(Pace):
    """As many elements at once as somebody waits for."""

    def __init__(self, need: Callable[[], int]) -> None:
        super().__init__(1)
        self._need = need

    @property
    def size(self) -> int:
        return max(1, self._need())

    @size.setter
    def size(self, size: int) -> None:
        pass


class Compute(Protocol):
    """What a stream is given to compute with: a pool, or the caller's own thread."""

    closed: bool
    """Whether nobody wants any more of it: a walk that waits for news may end."""

    def ordered(
        self, job: Job[Item, Result], items: Iterable[Item], *, weight: int = 1, after: bool = False
    ) -> Iterator[tuple[Item, Outcome[Result]]]:
        """Each item and its outcome, in order. An element weighs `weight` records.

        `after`: the items are themselves computed, so getting one takes time.
        """
        ...

    def read(self, node: Node, spans: Iterable[Span]) -> Iterator[tuple[Piece, Block]]:
        """The elements of `spans` of a seekable node, in order."""
        ...

    def pace(self, node: Node) -> Pace: ...

    def needing(self, need: Callable[[], int]) -> Compute:
        """What to compute a stream with of which `need()` more elements are wanted for sure."""
        ...

    def inside(self) -> Compute:
        """What to compute a dataset with that a function made during the walk."""
        ...


def attempt(
    compute: Compute,
    job: Job[Item, Result],
    items: Iterable[Item],
    pace: Pace | None = None,
    *,
    weight: int = 1,
    after: bool = False,
) -> Iterator[tuple[Item, Result]]:
    """(item, result) in order.

    Where an item fails, its elements come one by one up to the failing one, or, where the job kept them, all
    at once: the result then is shorter than the item.
    """
    for item, outcome in compute.ordered(job, items, weight=weight, after=after):
        if outcome.error is None:
            if pace is not None and pace.most > 1:
                pace.report(len(item), outcome.seconds, outcome.nbytes or nbytes(outcome.result))
            yield item, outcome.result  # type: ignore[misc]
            continue
        if outcome.result is not None:
            yield item, outcome.result
            raise job.explained(outcome.error, item)
        for single in item.singles():
            for _, again in compute.ordered(job, [single], weight=weight):
                if again.error is not None:
                    raise job.explained(again.error, single)
                yield single, again.result  # type: ignore[misc]
        raise job.explained(outcome.error, item)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive elements of a stream: the block, their keys, and what each leaves behind.

    `cursor(j)` is where the stream goes on after the first j elements; `trace(j)` are the records of element
    j; `records` counts each element's records (None: one each).
    """

    block: Block
    keys: Places
    cursor: Callable[[int], Cursor]
    trace: Callable[[int], list[Record]]
    records: Index | None = None

    def __len__(self) -> int:
        return len(self.block)

    def slice(self, start: int, stop: int) -> Chunk:
        return Chunk(
            self.block.slice(start, stop),
            self.keys.slice(start, stop),
            _Behind.of(self.cursor, start),
            _Behind.of(self.trace, start),
            None if self.records is None else self.records[start:stop],
        )

    def singles(self) -> list[Chunk]:
        return [self.slice(k, k + 1) for k in range(len(self))] if len(self) > 1 else []

    def with_block(self, block: Block) -> Chunk:
        return replace(self, block=block)

    def without_block(self) -> Chunk:
        """Where its elements came from, without the memory of what they hold."""
        return replace(self, block=Rows([]))


@dataclass(frozen=True, slots=True)
class _Behind:
    """A function of an element's number, asked for the one `by` behind it. Never one around another."""

    function: Callable[[int], Any]
    by: int

    @classmethod
    def of(cls, function: Callable[[int], Any], by: int) -> _Behind:
        if isinstance(function, _Behind):
            return cls(function.function, function.by + by)
        return cls(function, by)

    def __call__(self, j: int) -> Any:
        return self.function(self.by + j)


@dataclass(frozen=True, slots=True)
class Given:
    """What a function over a stream's elements needs of a chunk."""

    block: Block
    keys: Places


def nbytes(result: Any) -> int:
    """About how many bytes a result holds."""
    if isinstance(result, Columns):
        return sum(_leaf_bytes(leaf) for leaf in leaves(result.nest))
    if isinstance(result, Rows):
        return _estimated(result.elements, lambda row: sum(map(_leaf_bytes, leaves(row))))
    if isinstance(result, tuple):
        return sum(nbytes(part) for part in result)
    return int(getattr(result, "nbytes", 0))


def _estimated(items: Any, size: Callable[[Any], int]) -> int:
    """The sizes of all items together, by a few of them."""
    count = len(items)
    some = items[:: max(1, -(-count // SAMPLES))]
    return sum(map(size, some)) * count // max(1, len(some))


def _leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray):
        if leaf.dtype == object and leaf.size:
            return _estimated(leaf.reshape(-1), lambda item: _leaf_bytes(item) + 50)
        return leaf.nbytes
    return len(leaf) if isinstance(leaf, bytes | str) else 8
