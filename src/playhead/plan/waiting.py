"""Elements that wait in an operation: remembered by where they can be read again, never by what they hold.

Over a parent whose elements can be fetched, that is their keys. Over any other stream it is the cursor before
the oldest of them, and which of the elements since then wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from playhead.plan.block import Block, Element
from playhead.plan.compute import Chunk, Compute, Job, attempt
from playhead.plan.node import Node
from playhead.plan.places import Cursor, Places, Record, is_count
from playhead.plan.walking import Item, fixed

AT_ONCE = 64  # elements fetched in a task


@dataclass(frozen=True, slots=True)
class Step:
    """A chunk of a walk: the number of its first element, whether its elements are new, where it begins."""

    chunk: Chunk
    number: int
    is_new: bool
    begin: Callable[[], Cursor]

    def item(self, row: Element, j: int) -> Item:
        before = partial(self.chunk.cursor, j) if j else self.begin
        return Item(row, self.chunk, j, before)


@dataclass(eq=False, slots=True)
class Waiter:
    """An element that waits, or did until output number `left`. `number` counts the stream's elements."""

    row: Element
    item: Item
    number: int
    left: int | None = None


class Waiting:
    """All that wait, in the order in which they came. Those that left are kept while they are few."""

    def __init__(self, parent: Node, cursor: Cursor) -> None:
        self._parent, self._start = parent, cursor
        self._log: list[Waiter] = []
        self._here = 0
        saved = cursor["waiting"]
        self._next: int = saved["read"] if isinstance(saved, dict) else 0
        self._at: Callable[[], Cursor] = partial(fixed, cursor["at"])

    def walk(self, compute: Compute) -> Iterator[Step]:
        """The elements that waited at the cursor, then the stream from there on."""
        parent, saved = self._parent, self._start["waiting"]
        if isinstance(saved, dict):
            yield from self._replayed(compute, saved)
            return
        keys = _keys(saved)
        parts = [keys.slice(k, k + AT_ONCE) for k in range(0, len(keys), AT_ONCE)]
        number = -len(keys)
        for part, block in attempt(compute, Fetching(parent), map(_Keys, parts)):
            yield Step(_again(parent, part.keys, block), number, False, partial(fixed, None))
            number += len(part)
        begin: Callable[[], Cursor] = partial(fixed, self._start["at"])
        for chunk in parent.open(self._start["at"], compute):
            yield Step(chunk, number, True, begin)
            if len(chunk):  # else it says how the stream was cut
                number, begin = number + len(chunk), partial(chunk.cursor, len(chunk))

    def _replayed(self, compute: Compute, saved: dict[str, Any]) -> Iterator[Step]:
        wait, read, number = set(saved["offsets"]), saved["read"], 0
        end: Callable[[], Cursor] = partial(fixed, saved["at"])
        for chunk in self._parent.open(saved["at"], compute):
            old = max(0, min(len(chunk), read - number))
            for j in range(old):
                begin = partial(chunk.cursor, j) if j else end
                if number + j in wait:
                    yield Step(chunk.slice(j, j + 1), number + j, False, begin)
            if old < len(chunk):
                begin = partial(chunk.cursor, old) if old else end
                yield Step(chunk.slice(old, len(chunk)), number + old, True, begin)
            if len(chunk):
                number, end = number + len(chunk), partial(chunk.cursor, len(chunk))

    def add(self, item: Item, number: int, is_new: bool) -> Waiter:
        """Let an element of `walk` wait."""
        kept = Item(None, item.chunk.without_block(), item.j, item.before)
        waiter = Waiter(item.row, kept, number)
        self._log.append(waiter)
        self._here += 1
        self.passed(item, number, is_new)
        return waiter

    def passed(self, item: Item, number: int, is_new: bool) -> None:
        """Take note of an element of `walk` that has been looked at."""
        self._next = max(self._next, number + 1)
        if is_new:
            self._at = partial(item.chunk.cursor, item.j + 1)

    def leave(self, waiters: list[Waiter], output: int) -> None:
        """They wait no more from that output on."""
        for waiter in waiters:
            waiter.left, waiter.row = output, None
        self._here -= len(waiters)
        if len(self._log) > 2 * self._here + 64:
            self._log = [waiter for waiter in self._log if waiter.left is None]

    def moment(self, output: int) -> Moment:
        """Who waits at that output, which may be told later."""
        return Moment(self._parent, self._log, len(self._log), output, self._at, self._next)


@dataclass(frozen=True, slots=True)
class Moment:
    """Who waited at an output, told only when somebody asks."""

    parent: Node
    log: list[Waiter]
    size: int
    output: int
    at: Callable[[], Cursor]
    next: int

    def cursor(self) -> dict[str, Any]:
        here = [w for w in self.log[: self.size] if w.left is None or w.left > self.output]
        return {"at": self.at(), "waiting": self._told(here)}

    def _told(self, here: list[Waiter]) -> Any:
        if self.parent.fetchable:
            keys = [waiter.item.key for waiter in here]
            return [[e, *(k for _, k in same)] for e, same in groupby(keys, lambda key: key[0])]
        if not here:
            return []
        first = here[0]
        return {
            "at": first.item.before(),
            "offsets": [waiter.number - first.number for waiter in here],
            "read": self.next - first.number,
        }


def start_waiting(parent: Node, epoch: int) -> dict[str, Any]:
    """The cursor where nothing waits."""
    return {"at": parent.start(epoch), "waiting": []}


def fits_waiting(parent: Node, cursor: Cursor, epoch: int) -> bool:
    """Whether what `Moment.cursor` says is in that cursor."""
    if not isinstance(cursor, dict) or not parent.fits(cursor.get("at"), epoch):
        return False
    saved = cursor.get("waiting")
    if isinstance(saved, list):
        return not saved or (parent.fetchable and all(_fits_run(parent, run) for run in saved))
    return (
        isinstance(saved, dict)
        and parent.fits(saved.get("at"), epoch)
        and is_count(saved.get("read"))
        and isinstance(saved.get("offsets"), list)
        and all(map(is_count, saved["offsets"]))
    )


def _fits_run(parent: Node, run: Any) -> bool:
    numbers = isinstance(run, list) and len(run) > 1 and all(map(is_count, run))
    return numbers and all(parent.fits_key(run[0], index) for index in run[1:])


@dataclass(frozen=True, slots=True)
class _Keys:
    """Work: elements to be fetched."""

    keys: Places

    def __len__(self) -> int:
        return len(self.keys)

    def singles(self) -> list[_Keys]:
        many = len(self) > 1
        return [_Keys(self.keys.slice(k, k + 1)) for k in range(len(self))] if many else []


class Fetching(Job[_Keys, Block]):
    """Elements of a node by their keys."""

    def sent(self, item: _Keys) -> Places:
        return item.keys

    def __call__(self, sent: Places) -> Block:
        return self.node.fetch(sent)

    def records(self, item: _Keys) -> Iterator[Record]:
        return self.node.fetched_records(item.keys)


def _again(parent: Node, keys: Places, block: Block) -> Chunk:
    return Chunk(
        block,
        keys,
        lambda j: None,
        lambda j: list(parent.fetched_records(keys.slice(j, j + 1))),
        parent.fetched_counts(keys),
    )


def _keys(runs: list[list[int]]) -> Places:
    epochs = [np.full(len(run) - 1, run[0], np.int64) for run in runs]
    index = [np.array(run[1:], np.int64) for run in runs]
    if not runs:
        return Places(0, np.empty(0, np.int64))
    return Places(np.concatenate(epochs), np.concatenate(index))
