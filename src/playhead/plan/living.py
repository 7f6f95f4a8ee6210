"""Objects that are still there, noted without keeping them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Living(Generic[Item]):
    """Those of the objects added that are still there.

    At the end of one only C runs. In a `weakref.WeakSet` it is a function in Python, and an interrupt that
    falls into that is printed and lost.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[Item]] = set()

    def add(self, item: Item) -> None:
        self._references.add(weakref.ref(item, self._references.discard))

    def discard(self, item: Item) -> None:
        self._references.discard(weakref.ref(item))

    def __iter__(self) -> Iterator[Item]:
        found = [reference() for reference in list(self._references)]
        return iter([item for item in found if item is not None])
