"""Places, and what was found at them: the arguments and results of locating."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from playhead.plan.block import Block
    from playhead.plan.node import Source

Cursor: TypeAlias = Any
Index: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Places:
    """n places: `epoch` (one int for all, or int64[n]) and `index` (int64[n])."""

    epoch: int | Index
    index: Index

    def __len__(self) -> int:
        return len(self.index)

    def slice(self, start: int, stop: int) -> Places:
        epoch = self.epoch if isinstance(self.epoch, int) else self.epoch[start:stop]
        return Places(epoch, self.index[start:stop])

    def select(self, chosen: Index) -> Places:
        epoch = self.epoch if isinstance(self.epoch, int) else self.epoch[chosen]
        return Places(epoch, self.index[chosen])

    def epochs(self) -> Index:
        """The epoch of each place, int64[n]."""
        if isinstance(self.epoch, int):
            return np.full(len(self.index), self.epoch, np.int64)
        return self.epoch

    def at(self, k: int) -> tuple[int, int]:
        epoch = self.epoch if isinstance(self.epoch, int) else int(self.epoch[k])
        return epoch, int(self.index[k])


@dataclass(frozen=True, slots=True)
class Record:
    """Where an element came from: the source, the pass over it, and the record's index there.

    `file` and `record` (its number in the file) are given by sources that read files; `file` alone by those
    whose records are files.
    """

    source: str
    epoch: int
    index: int
    file: str | None = None
    record: int | None = None

    def __str__(self) -> str:
        if self.file is not None and self.record is None:
            return self.file
        if self.file is not None:
            return f"{self.file}, record {self.record}"
        return f"{self.source}[{self.index}]"


class Located(Protocol):
    """n elements of a node, found but not read."""

    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> Located: ...
    def records(self) -> Iterator[Record]: ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """Records of a source."""

    source: Source
    places: Places

    def __len__(self) -> int:
        return len(self.places)

    def slice(self, start: int, stop: int) -> Leaf:
        return Leaf(self.source, self.places.slice(start, stop))

    def records(self) -> Iterator[Record]:
        for k in range(len(self.places)):
            epoch, index = self.places.at(k)
            yield self.source.record(epoch, index)


@dataclass(frozen=True, slots=True)
class Keyed:
    """Elements whose own places matter to the function that reads them."""

    places: Places
    inner: Located

    def __len__(self) -> int:
        return len(self.places)

    def slice(self, start: int, stop: int) -> Keyed:
        return Keyed(self.places.slice(start, stop), self.inner.slice(start, stop))

    def records(self) -> Iterator[Record]:
        return self.inner.records()


@dataclass(frozen=True, slots=True)
class Ready:
    """Located elements that have been read already: `block` holds them."""

    inner: Located
    block: Block

    def __len__(self) -> int:
        return len(self.block)

    def slice(self, start: int, stop: int) -> Ready:
        return Ready(self.inner.slice(start, stop), self.block.slice(start, stop))

    def records(self) -> Iterator[Record]:
        return self.inner.records()


def is_count(value: Any) -> bool:
    """Whether a JSON value is a whole number that places can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def is_place(cursor: Cursor) -> bool:
    """Whether a cursor is [epoch, index]."""
    return isinstance(cursor, list) and len(cursor) == 2 and all(is_count(n) for n in cursor)


def has_counts(cursor: Cursor, names: tuple[str, ...]) -> bool:
    """Whether a cursor is an object in which each of `names` is a whole number."""
    return isinstance(cursor, dict) and all(is_count(cursor.get(name)) for name in names)
