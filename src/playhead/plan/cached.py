"""cache: the elements of pass 0, in every pass, computed once and kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from playhead.plan.block import Block, Columns, Element, Nest, Rows, leaves, own, stack
from playhead.plan.chains import open_needed
from playhead.plan.compute import Chunk, Compute
from playhead.plan.node import Node
from playhead.plan.order import Shuffle
from playhead.plan.places import Cursor, Index, Located, Places, Record
from playhead.plan.shared import each_once

AT_ONCE = 64  # elements of a stream computed for a cache at a time


def varies(node: Node) -> bool:
    """Whether a node's passes may differ."""
    return any(map(_differs, each_once(node)))


def _differs(node: Node) -> bool:
    fixed = isinstance(node, Shuffle) and not node.reshuffle
    return (node.random is not None and not fixed) or (not node.parents and not node.seekable)


class Memory:
    """Elements by their number, and the chunks of a whole walk. Empty again in another process."""

    def __init__(self) -> None:
        self.elements: dict[int, Element] = {}
        self.walked: list[tuple[Chunk, list[Element]]] | None = None

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()


@dataclass(frozen=True, slots=True)
class Frozen:
    """Elements of pass 0 by their numbers; `inner` is what was located of the parent."""

    index: Index
    inner: Located

    def __len__(self) -> int:
        return len(self.index)

    def slice(self, start: int, stop: int) -> Frozen:
        return Frozen(self.index[start:stop], self.inner.slice(start, stop))

    def records(self) -> Iterator[Record]:
        return self.inner.records()


@dataclass(frozen=True, eq=False)
class Cache(Node):
    """Place (e, i) is the parent's place (0, i)."""

    op: ClassVar[str] = "cache"
    counters: ClassVar[tuple[str, ...]] = ("epoch", "given")

    memory: Memory = field(default_factory=Memory, kw_only=True)

    @property
    def batches(self) -> Node | None:
        return None

    @property
    def narrows(self) -> bool:
        return not self.seekable and self.parent.narrows

    def spec(self) -> Nest:
        return self.parent.spec()

    def describe(self) -> dict[str, Any] | None:
        # Over a stream its cursor is another one than the stream's: a position must tell them apart.
        said = not self.parent.seekable or varies(self.parent)
        return {"op": self.op} if said else None

    def locate(self, places: Places) -> Located:
        return Frozen(places.index, self.parent.locate(Places(0, places.index)))

    def read(self, located: Located) -> Block:
        assert isinstance(located, Frozen)
        known, numbers = self.memory.elements, located.index.tolist()
        missing = np.flatnonzero([number not in known for number in numbers])
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
            if len(run):
                low, high = int(run[0]), int(run[-1]) + 1
                rows = self.parent.read(located.inner.slice(low, high)).own_rows()
                known.update(zip(numbers[low:high], rows, strict=True))
        rows = [known[number] for number in numbers]
        spec = self.static_spec()
        if rows and spec is not None and all(None not in leaf.shape for leaf in leaves(spec)):
            return Columns(stack(rows), len(rows))
        return Rows([own(row) for row in rows])

    # --- over a stream ----------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return {"epoch": epoch, "given": 0, "at": self.parent.start(0)}

    def fits_parent(self, cursor: Cursor, epoch: int) -> bool:
        return bool(cursor["epoch"] == epoch) and self.parent.fits(cursor.get("at"), 0)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, given = cursor["epoch"], cursor["given"]
        if self.memory.walked is not None:
            yield from self._from_memory(self.memory.walked, epoch, given)
            return
        whole: list[tuple[Chunk, list[Element]]] | None = None if given else []
        for chunk in self._computed(cursor["at"], compute):
            rows = chunk.block.own_rows()
            if whole is not None:
                whole.append((chunk.without_block(), rows))
            yield _placed(chunk, rows, epoch, given)
            given += len(chunk)
        if whole is not None:
            self.memory.walked = whole

    def _computed(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        if self.parent.user_code:  # which may take long: nothing ahead of what is asked for
            return self.parent.open(cursor, compute)
        return open_needed(self.parent, cursor, compute, lambda: AT_ONCE)

    def _from_memory(
        self, walked: list[tuple[Chunk, list[Element]]], epoch: int, given: int
    ) -> Iterator[Chunk]:
        at = 0
        for chunk, rows in walked:
            skip = max(0, given - at)
            if skip < len(rows):
                placed = _placed(chunk, rows, epoch, at)
                yield placed.slice(skip, len(rows)) if skip else placed
            at += len(rows)


def _placed(chunk: Chunk, rows: list[Element], epoch: int, given: int) -> Chunk:
    inner = chunk.cursor
    return Chunk(
        Rows([own(row) for row in rows]),
        Places(epoch, np.arange(given, given + len(rows), dtype=np.int64)),
        lambda j: {"epoch": epoch, "given": given + j, "at": inner(j)},
        chunk.trace,
        chunk.records,
    )
