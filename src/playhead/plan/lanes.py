"""Documents laid out in rows of one length, lane by lane: which tokens stand where, not what they are.

A lane is told the documents in their order and gives rows. Its state is what it was told of the documents
that are not all given out yet, and one number: a lane that is told these again, from that number, goes on
with the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

from playhead.errors import UnreadablePosition
from playhead.plan.documents import Tokens
from playhead.plan.waiting import Waiter


@dataclass(frozen=True, slots=True)
class Document:
    """`size` tokens. It waits until its last token is given out."""

    waiter: Waiter
    tokens: Tokens
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `low` to `high` of a document. An empty document has one part, without tokens."""

    document: Document
    low: int
    high: int

    @property
    def size(self) -> int:
        return self.high - self.low

    @property
    def is_last(self) -> bool:
        return self.high == self.document.size


@dataclass(eq=False, slots=True)
class Row:
    """A row so far."""

    parts: list[Part] = field(default_factory=list)
    size: int = 0

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.size += part.size


class Lane(ABC):
    """Rows of `length` tokens. Those in `done` are complete, and wait to be given out."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.done: deque[Row] = deque()

    @property
    @abstractmethod
    def state(self) -> int:
        """The number to start again from, with the documents that wait now."""

    @abstractmethod
    def put(self, document: Document) -> None:
        """The next document of the lane."""

    @abstractmethod
    def restored(self) -> None:
        """All that waited has been put. Raises `UnreadablePosition` where the number does not fit."""

    @abstractmethod
    def rest(self) -> Row | None:
        """The row that comes next where no document follows; None where none is left."""

    def take(self) -> Row:
        """Give out the next row: complete, or of what is left, or without tokens."""
        return self.done.popleft() if self.done else self.took_rest()

    @abstractmethod
    def took_rest(self) -> Row: ...


class Concat(Lane):
    """One document after the other, cut into rows. The number: tokens given out of the first that waits."""

    def __init__(self, length: int, state: int) -> None:
        super().__init__(length)
        self._open = Row()
        self._used = self._skip = state

    @property
    def state(self) -> int:
        return self._used

    def put(self, document: Document) -> None:
        low, self._skip = self._skip, 0
        if low and low >= document.size:
            raise _shorter()
        if not document.size:
            self._open.add(Part(document, 0, 0))
        while low < document.size:
            high = min(document.size, low + self.length - self._open.size)
            self._open.add(Part(document, low, high))
            low = high
            if self._open.size == self.length:
                self.done.append(self._open)
                self._open = Row()

    def restored(self) -> None:
        if self._skip:
            raise _shorter()

    def rest(self) -> Row | None:
        if self.done:
            return self.done[0]
        return self._open if self._open.size else None

    def take(self) -> Row:
        row = super().take()
        cut = row.parts and not row.parts[-1].is_last
        self._used = row.parts[-1].high if cut else 0
        return row

    def took_rest(self) -> Row:
        row, self._open = self._open, Row()
        return row


class FirstFit(Lane):
    """Each document in the first of at most `bins` open rows that has room.

    What is longer than a row is cut into rows and a rest first. Documents that wait are put again from their
    beginnings: they fall into the same rows as before, since rows are given out in the order in which they
    were completed. The number: how many of these rows are complete and not given out, the last ones.
    """

    def __init__(self, length: int, bins: int, state: int) -> None:
        super().__init__(length)
        self._bins = bins
        self._open: list[Row] = []
        self._empty = Row()  # documents without tokens that came while no row was open
        self._ready = state

    @property
    def state(self) -> int:
        return len(self.done)

    def put(self, document: Document) -> None:
        if not document.size:
            (self._open[0] if self._open else self._empty).add(Part(document, 0, 0))
        for low in range(0, document.size, self.length):
            self._place(Part(document, low, min(document.size, low + self.length)))

    def _place(self, part: Part) -> None:
        room = self.length - part.size
        row = next((row for row in self._open if row.size <= room), None)
        if row is None:
            if len(self._open) == self._bins:
                self.done.append(self._open.pop(0))
            row, self._empty = self._empty, Row()
            self._open.append(row)
        row.add(part)
        if row.size == self.length:
            self._open.remove(row)
            self.done.append(row)

    def restored(self) -> None:
        if len(self.done) < self._ready:
            raise _shorter()
        while len(self.done) > self._ready:
            self.done.popleft()

    def rest(self) -> Row | None:
        if self.done:
            return self.done[0]
        return self._open[0] if self._open else None

    def took_rest(self) -> Row:
        if self._open:
            return self._open.pop(0)
        row, self._empty = self._empty, Row()
        return row


def _shorter() -> UnreadablePosition:
    return UnreadablePosition(
        "the position stands inside documents that are shorter now",
        help="restore what the documents were made of, or start anew",
    )
