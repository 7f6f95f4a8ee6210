"""ignore_errors: elements that cannot be computed are left out, and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from playhead.errors import IgnoredError, warn
from playhead.plan.block import Block, Nest, join
from playhead.plan.compute import Chunk, Compute, Job, attempt
from playhead.plan.losses import Lost, Reason, enduring, serious
from playhead.plan.node import UNKNOWN, Node, Piece, Serial, as_chunk, pieces
from playhead.plan.places import Cursor, Index, Record, is_count, is_place
from playhead.plan.walking import Walked

Tell: TypeAlias = Callable[[Reason, list[Record]], None]

FEW = 3  # reasons that are said where nothing is left


@dataclass(frozen=True, eq=False)
class IgnoreErrors(Walked):
    """The elements that can be computed. The cursor counts those that cannot, since the epoch began."""

    op: ClassVar[str] = "ignore_errors"
    keeps_keys: ClassVar[bool] = True
    counters: ClassVar[tuple[str, ...]] = ("ignored",)

    log_warning: bool

    @property
    def cardinality(self) -> int:
        return 0 if self.parent.cardinality == 0 else UNKNOWN

    def spec(self) -> Nest:
        return self.parent.spec()

    @property
    def narrows(self) -> bool:
        return self.parent.seekable

    def describe(self) -> dict[str, Any]:
        return {"op": self.op}

    def start_stream(self, epoch: int) -> Cursor:
        return {"ignored": 0, "at": self.parent.start(epoch)}

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        first: list[IgnoredError] = []
        ignored, empty = 0, cursor == self._begin_of_pass(cursor)

        def tell(reason: Reason, records: list[Record]) -> None:
            nonlocal ignored
            ignored += 1
            among_first = empty and len(first) < FEW
            if not (self.log_warning or among_first):
                return
            said = self._said(reason, records)
            if among_first:
                first.append(said)
            if self.log_warning:
                warn(said, IgnoredError)

        with contextlib.closing(self._kept(cursor, compute, tell)) as chunks:
            for chunk in chunks:
                empty = empty and not len(chunk)
                yield chunk
        if empty and ignored:
            warn(self._nothing_left(ignored, first), IgnoredError)

    def _begin_of_pass(self, cursor: Cursor) -> Cursor | None:
        """Where the pass begins that a cursor lies in; None where that is not in it."""
        at = cursor
        while isinstance(at, dict) and "epoch" not in at:
            at = at.get("at")
        epoch = at["epoch"] if isinstance(at, dict) else at[0] if is_place(at) else None
        return self.start_stream(epoch) if isinstance(epoch, int) else None

    def losses(self, epoch: int) -> Iterator[IgnoredError]:
        """What it leaves out in a pass of its own, in order. The pass is walked."""
        found: list[IgnoredError] = []

        def tell(reason: Reason, records: list[Record]) -> None:
            found.append(self._said(reason, records))

        for _ in self._kept(self.start(epoch), Serial(), tell):
            yield from found
            found.clear()
        yield from found

    def _kept(self, cursor: Cursor, compute: Compute, tell: Tell) -> Generator[Chunk, None, None]:
        at, ignored = cursor["at"], cursor["ignored"]
        if self.parent.seekable:
            yield from self._over_places(at, ignored, compute, tell)
            return
        for part in enduring(self.parent, at, compute):
            if isinstance(part, Lost):
                ignored += 1
                tell(Reason.of(part.error), part.records)
            else:
                count = len(part)
                yield _counted(part, np.arange(count), part.cursor, [ignored] * (count + 1))

    def _over_places(
        self, at: Cursor, ignored: int, compute: Compute, tell: Tell
    ) -> Generator[Chunk, None, None]:
        epoch, index = at
        pace = compute.pace(self)
        found = pieces(
            self.parent, [(epoch, index, self.parent.length_at(epoch))], lambda: pace.size
        )
        for piece, (block, chosen, failed) in attempt(
            compute, ReadingWhatCanBe(self), found, pace, weight=self.weight
        ):
            for position, reason in failed:
                tell(reason, list(piece.located.slice(position, position + 1).records()))
            whole = as_chunk(self.parent, piece, block)
            gone = (
                ignored
                + np.arange(len(piece) + 1)
                - np.searchsorted(chosen, np.arange(len(piece) + 1))
            )
            yield _counted(whole, chosen, whole.cursor, gone.tolist())
            ignored = int(gone[-1])

    def _said(self, reason: Reason, records: list[Record]) -> IgnoredError:
        made = ""
        if records and reason.file is None:  # else the error names it
            made = f", made from {'; '.join(map(str, records[:3]))}"
        file, record = reason.file, reason.record
        if len(records) == 1 and records[0].file is not None:
            file, record = records[0].file, records[0].record
        return IgnoredError(
            f"{self._named} left out an element{made}: {reason.error}",
            error=reason.error,
            file=file,
            record=record,
            offset=reason.offset,
        )

    def _nothing_left(self, count: int, first: list[IgnoredError]) -> IgnoredError:
        reasons = "; ".join(str(said.error) for said in first)
        more = " ..." if count > len(first) else ""
        said = first[0]
        return IgnoredError(
            f'{self._named} (as on_error="skip" is) left out every element of a pass, {count} in all: '
            f"{reasons}{more}",
            error=said.error,
            file=said.file,
            record=said.record,
            offset=said.offset,
        )

    @property
    def _named(self) -> str:
        return f"{self.op} [{self.info.name}]" if self.info.name else self.op


def losses(node: Node, epoch: int) -> Iterator[IgnoredError]:
    """What each `IgnoreErrors` of a plan leaves out in that pass of its own, one node after the other."""
    seen: set[int] = set()

    def of(node: Node) -> Iterator[IgnoredError]:
        if id(node) not in seen:
            seen.add(id(node))
            for parent in node.parents:
                yield from of(parent)
            if isinstance(node, IgnoreErrors):
                yield from node.losses(epoch)

    return of(node)


def counted_in(cursor: Cursor) -> int:
    """How many elements a pipeline's cursor says were left out since the pass of each began."""
    if isinstance(cursor, list):
        return sum(map(counted_in, cursor))
    if not isinstance(cursor, dict):
        return 0
    own = cursor.get("ignored", 0)
    return (own if is_count(own) else 0) + counted_in(cursor.get("at"))


class ReadingWhatCanBe(Job[Piece, tuple[Block, Index, list[tuple[int, Reason]]]]):
    """The elements that can be read, their positions, and the errors of the others."""

    node: IgnoreErrors

    def __call__(self, sent: Piece) -> tuple[Block, Index, list[tuple[int, Reason]]]:
        parent = self.node.parent
        try:
            return parent.read(sent.located), np.arange(len(sent), dtype=np.int64), []
        except Exception as error:
            if serious(error):
                raise
        blocks: list[Block] = []
        chosen: list[int] = []
        failed: list[tuple[int, Reason]] = []
        for k in range(len(sent)):
            try:
                blocks.append(parent.read(sent.located.slice(k, k + 1)))
                chosen.append(k)
            except Exception as error:
                if serious(error):
                    raise
                failed.append((k, Reason.of(error)))
        if not blocks:
            blocks.append(parent.read(sent.located.slice(0, 0)))
        return join(blocks), np.array(chosen, np.int64), failed

    def records(self, item: Piece) -> Iterator[Record]:
        return item.located.records()


def _counted(chunk: Chunk, chosen: Index, inner: Any, ignored: list[int]) -> Chunk:
    """The chosen elements: `chunk.block` holds only these. `ignored[k]`: how many of the first k failed."""
    trace = chunk.trace

    def cursor(j: int) -> Cursor:
        taken = int(chosen[j - 1]) + 1 if j else 0
        return {"ignored": ignored[taken], "at": inner(taken)}

    return Chunk(
        chunk.block,
        chunk.keys.select(chosen),
        cursor,
        lambda j: trace(int(chosen[j])),
        None if chunk.records is None else chunk.records[chosen],
    )
