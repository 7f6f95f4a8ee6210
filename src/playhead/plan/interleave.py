"""interleave: the datasets that a function makes of elements, several at once, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from playhead.errors import UnreadablePosition
from playhead.plan.block import Rows
from playhead.plan.compute import Chunk, Compute
from playhead.plan.functions import UserFunction
from playhead.plan.nested import Nesting, entered, inner_keys, open_inside
from playhead.plan.node import Serial
from playhead.plan.places import Cursor, Places, Record, has_counts, is_count
from playhead.plan.walking import Item, as_rows, first_item, fixed, walked

FAR = 16  # elements for each slot that are walked over to find those under way again


@dataclass(eq=False, slots=True)
class _Open:
    """An inner dataset under way: what it is made of, how many elements it gave, and where it stands.

    `number` counts the epoch's inner datasets.
    """

    item: Item
    number: int
    chunks: Iterator[Chunk]
    given: int
    at: Callable[[], Cursor]
    rest: Chunk | None = None

    def next(self, most: int) -> Chunk | None:
        """At most so many of its elements; None at its end."""
        while self.rest is None or not len(self.rest):
            self.rest = next(self.chunks, None)
            if self.rest is None:
                return None
        size = min(most, len(self.rest))
        taken, self.rest = self.rest.slice(0, size), self.rest.slice(size, len(self.rest))
        return taken

    @property
    def ready(self) -> int:
        """How many of its elements are there already."""
        return 0 if self.rest is None else len(self.rest)

    def took(self, chunk: Chunk) -> None:
        self.given += len(chunk)
        self.at = partial(chunk.cursor, len(chunk))


def _rest(epoch: int, at: Callable[[], Cursor], opened: int) -> dict[str, Any]:
    return {"epoch": epoch, "at": at(), "opened": opened}


@dataclass(frozen=True, slots=True)
class Turns:
    """`count` turns of the datasets `parts`, which stand in the slots `order`."""

    node: Interleave
    order: list[int]
    parts: list[_Open]
    count: int

    def chunk(self, slot: int, rest: Callable[[], dict[str, Any]]) -> Chunk:
        """All of these turns' elements; the stream stood at `slot` before them."""
        block, cycle = self.node.block_length, self.node.cycle_length
        size = self.count * block
        taken = []
        for part in self.parts:
            chunk = part.next(size)
            assert chunk is not None
            taken.append(chunk)
        shape = (len(taken), self.count, block)
        rows = [as_rows(chunk.block).elements for chunk in taken]
        keys = [
            inner_keys(part.item.key, part.given, size).index.reshape(self.count, block)
            for part in self.parts
        ]
        epochs = np.array([part.item.key[0] for part in self.parts], np.int64)
        spread = np.broadcast_to(epochs[:, None, None], shape)
        before = [(part.number, part.item.before, part.given, part.at) for part in self.parts]
        traces = [
            (part.item.trace, chunk.trace) for part, chunk in zip(self.parts, taken, strict=True)
        ]
        order, width = self.order, len(taken) * block
        inside = [chunk.cursor for chunk in taken]

        def cursor(j: int) -> Cursor:
            whole, more = divmod(j, width)
            turn, extra = divmod(more, block)
            told: list[Cursor] = [None] * cycle
            for i, (number, element, given, start) in enumerate(before):
                n = whole * block + (block if i < turn else extra if i == turn else 0)
                place = inside[i](n) if n else start()
                told[order[i]] = [number, element(), given + n, place]
            while told and told[-1] is None:
                told.pop()
            now = slot if not j else order[turn] if extra else (order[turn - 1] + 1) % cycle
            return rest() | {"open": told, "slot": now, "block": extra}

        def trace(j: int) -> list[Record]:
            whole, more = divmod(j, width)
            turn, extra = divmod(more, block)
            outer, inner = traces[turn]
            return [*outer(), *inner(whole * block + extra)]

        for part, chunk in zip(self.parts, taken, strict=True):
            part.took(chunk)
        every = range(self.count)
        return Chunk(
            Rows(
                [row for k in every for part in rows for row in part[k * block : (k + 1) * block]]
            ),
            Places(
                np.ascontiguousarray(spread.transpose(1, 0, 2)).ravel(),
                np.stack(keys, 1).ravel(),
            ),
            cursor,
            trace,
        )


@dataclass(frozen=True, eq=False)
class Interleave(Nesting):
    """Elements of `cycle_length` inner datasets in turn, `block_length` of each.

    The cursor holds, for each dataset under way, the parent's cursor before the element it is made of, and
    its own.
    """

    op: ClassVar[str] = "interleave"

    function: UserFunction
    cycle_length: int
    block_length: int

    def describe(self) -> dict[str, Any]:
        sizes = {"cycle_length": self.cycle_length, "block_length": self.block_length}
        return super().describe() | sizes

    def start_stream(self, epoch: int) -> Cursor:
        at = self.parent.start(epoch)
        return {"epoch": epoch, "at": at, "opened": 0, "open": [], "slot": 0, "block": 0}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counts = ("epoch", "opened", "slot", "block")
        if not has_counts(cursor, counts) or cursor["epoch"] != epoch:
            return False
        opened = cursor.get("open")
        return (
            self.parent.fits(cursor.get("at"), epoch)
            and cursor["slot"] < self.cycle_length
            and cursor["block"] < self.block_length
            and isinstance(opened, list)
            and len(opened) <= self.cycle_length
            and all(s is None or self._fits_slot(s, cursor["opened"], epoch) for s in opened)
        )

    def _fits_slot(self, slot: Any, opened: int, epoch: int) -> bool:
        whole = (
            isinstance(slot, list) and len(slot) == 4 and is_count(slot[0]) and is_count(slot[2])
        )
        return whole and slot[0] < opened and self.parent.fits(slot[1], epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, slot, block = cursor["epoch"], cursor["slot"], cursor["block"]
        opened, at = cursor["opened"], partial(fixed, cursor["at"])
        found, parent = self._found_again(cursor, compute)
        slots = [self._reopened(saved, found, epoch, compute) for saved in cursor["open"]]
        slots += [None] * (self.cycle_length - len(slots))
        rest = partial(_rest, epoch, at, opened)
        ended = False
        while True:
            turns = None if block else self._turns(slots, slot, ended)
            if turns is not None:
                yield turns.chunk(slot, rest)
                slot = (turns.order[-1] + 1) % self.cycle_length
                continue
            here = slots[slot]
            if here is None:
                item = None if ended else next(parent, None)
                if item is not None:
                    slots[slot] = self._opened(item, opened, epoch, compute)
                    opened += 1
                    rest = partial(_rest, epoch, item.after, opened)
                    continue
                ended = True
                if not any(slots):
                    return
                slot, block = (slot + 1) % self.cycle_length, 0
                continue
            chunk = here.next(self.block_length - block)
            if chunk is None:
                slots[slot] = None
                slot, block = (slot + 1) % self.cycle_length, 0
                continue
            yield self._taken(chunk, here, slots, slot, block, rest)
            here.took(chunk)
            block += len(chunk)
            if block == self.block_length:
                slot, block = (slot + 1) % self.cycle_length, 0

    def _turns(self, slots: list[_Open | None], slot: int, ended: bool) -> Turns | None:
        """Whole turns of all datasets under way, from `slot` on, as far as their elements are there."""
        order = [s % self.cycle_length for s in range(slot, slot + self.cycle_length)]
        order = [s for s in order if slots[s] is not None]
        if not order or (len(order) < self.cycle_length and not ended):
            return None
        parts = [part for s in order if (part := slots[s]) is not None]
        count = min(part.ready for part in parts) // self.block_length
        return Turns(self, order, parts, count) if count else None

    def _opened(self, item: Item, number: int, epoch: int, compute: Compute) -> _Open:
        node = self.inside(item)
        start = node.start(epoch)
        return _Open(item, number, open_inside(node, start, compute), 0, partial(fixed, start))

    def _found_again(
        self, cursor: Cursor, compute: Compute
    ) -> tuple[dict[int, Item | None], Iterator[Item]]:
        """The elements that the datasets under way are made of, by their numbers, and those that follow.

        Over a stream one walk finds them all, from the oldest on, unless that would be far.
        """
        saved = [slot for slot in cursor["open"] if slot is not None]
        oldest = min(saved, key=lambda slot: slot[0], default=None)
        far = FAR * self.cycle_length
        if oldest is None or self.parent.seekable or cursor["opened"] - oldest[0] > far:
            found = {slot[0]: first_item(self.parent, slot[1], Serial()) for slot in saved}
            return found, walked(self.parent, cursor["at"], compute)
        stream = walked(self.parent, oldest[1], compute)
        wanted = {slot[0] for slot in saved}
        again: dict[int, Item | None] = {}
        for number in range(oldest[0], cursor["opened"]):
            item = next(stream, None)
            if number in wanted:
                again[number] = item
        return again, stream

    def _reopened(
        self, saved: Any, found: dict[int, Item | None], epoch: int, compute: Compute
    ) -> _Open | None:
        if saved is None:
            return None
        number, _, given, inner = saved
        item = found[number]
        if item is None:
            raise UnreadablePosition("the position stands in a dataset that is not there any more")
        node = self.inside(item)
        at = entered(node, inner, epoch)
        return _Open(item, number, open_inside(node, at, compute), given, partial(fixed, inner))

    def _taken(
        self,
        chunk: Chunk,
        here: _Open,
        slots: list[_Open | None],
        slot: int,
        block: int,
        rest: Callable[[], dict[str, Any]],
    ) -> Chunk:
        """Elements of the dataset in `slot`; the others stand where they stand now."""
        others = [None if s is None else (s.number, s.item.before, s.given, s.at) for s in slots]
        number, before, given, start = here.number, here.item.before, here.given, here.at
        inner, cycle = chunk.cursor, self.cycle_length

        def cursor(j: int) -> Cursor:
            told = [None if o is None else [o[0], o[1](), o[2], o[3]()] for o in others]
            told[slot] = [number, before(), given + j, inner(j) if j else start()]
            while told and told[-1] is None:
                told.pop()
            full = block + j == self.block_length
            return rest() | {
                "open": told,
                "slot": (slot + 1) % cycle if full else slot,
                "block": 0 if full else block + j,
            }

        outer, trace = here.item.trace, chunk.trace
        return Chunk(
            as_rows(chunk.block),
            inner_keys(here.item.key, given, len(chunk)),
            cursor,
            lambda j: [*outer(), *trace(j)],
        )
