"""Several parents walked element by element, each when it is asked for."""

from __future__ import annotations

from typing import Any

from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import Node
from playhead.plan.places import Cursor, is_count
from playhead.plan.walking import Item, one, walked


class Streams:
    """Several parents, walked element by element in any order."""

    def __init__(self, node: Node, cursors: list[Cursor], compute: Compute) -> None:
        opened = zip(node.parents, cursors, strict=True)
        self._items = [walked(parent, at, compute) for parent, at in opened]
        self._at = [_Fixed(at) for at in cursors]

    def next(self, d: int) -> Item | None:
        return next(self._items[d], None)

    def passed(self, item: Item, d: int) -> None:
        """An element of parent `d` is not there any more."""
        self._at = [*self._at[:d], _Fixed(item.after), *self._at[d + 1 :]]

    def chunk(
        self,
        item: Item,
        d: int,
        key: tuple[int, int],
        before: Cursor,
        after: Cursor,
        choice: Item | None = None,
    ) -> Chunk:
        """The element as a chunk; the cursors get where each parent stands as "at".

        `choice`: an element of parent 0 that is used up with it.
        """
        here = list(self._at)
        there = list(here)
        there[d] = _Fixed(item.after)
        if choice is not None:
            there[0] = _Fixed(choice.after)
        self._at = there
        return one(
            item.row,
            key,
            lambda: before | {"at": [at() for at in here]},
            lambda: after | {"at": [at() for at in there]},
            item.trace,
            item.records,
        )


class _Fixed:
    """A parent's cursor, or what tells it."""

    __slots__ = ("_at",)

    def __init__(self, at: Any) -> None:
        self._at = at

    def __call__(self) -> Cursor:
        return self._at() if callable(self._at) else self._at


def are_numbers(values: Any, count: int) -> bool:
    """Whether `values` is a list of numbers of parents, of which there are `count`."""
    return isinstance(values, list) and all(is_count(value) and value < count for value in values)


def fits_each(node: Node, cursors: Any, epoch: int) -> bool:
    """Whether there is a fitting cursor for each parent."""
    return (
        isinstance(cursors, list)
        and len(cursors) == len(node.parents)
        and all(p.fits(at, epoch) for p, at in zip(node.parents, cursors, strict=True))
    )
