"""ignore_errors: elements that cannot be computed are left out, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from playhead import errors
from playhead.plan.block import Block, Nest, join
from playhead.plan.compute import Chunk, Compute, Job, attempt
from playhead.plan.node import UNKNOWN, Piece, as_chunk, pieces
from playhead.plan.places import Cursor, Index, Record
from playhead.plan.walking import Walked

# Not about one element: to leave it out would hide that nothing can go on.
SERIOUS = (
    errors.ReadAheadError,
    errors.PipelineError,
    errors.PositionError,
    errors.SourceChanged,
    errors.MissingSource,
    errors.MessagesGone,
)


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
        at, ignored = cursor["at"], cursor["ignored"]
        if self.parent.seekable:
            yield from self._over_places(at, ignored, compute)
            return
        while True:
            try:
                for chunk in self.parent.open(at, compute):
                    at = chunk.cursor(len(chunk))
                    inner = chunk.cursor
                    yield _counted(
                        chunk, np.arange(len(chunk)), inner, [ignored] * (len(chunk) + 1)
                    )
                return
            except SERIOUS:
                raise
            except Exception as error:
                behind = self.parent.behind(at)
                if behind is None:
                    error.add_note(
                        f"playhead: ignore_errors cannot go on behind it in {self.parent.op}; "
                        "put ignore_errors right after the map that fails"
                    )
                    raise
                at, ignored = behind, ignored + 1
                self._say(str(error), [])

    def _over_places(self, at: Cursor, ignored: int, compute: Compute) -> Iterator[Chunk]:
        epoch, index = at
        pace = compute.pace(self)
        found = pieces(
            self.parent, [(epoch, index, self.parent.length_at(epoch))], lambda: pace.size
        )
        for piece, (block, chosen, said) in attempt(
            compute, ReadingWhatCanBe(self), found, pace, weight=self.weight
        ):
            for position, text in said:
                self._say(text, list(piece.located.slice(position, position + 1).records()))
            whole = as_chunk(self.parent, piece, block)
            gone = (
                ignored
                + np.arange(len(piece) + 1)
                - np.searchsorted(chosen, np.arange(len(piece) + 1))
            )
            yield _counted(whole, chosen, whole.cursor, gone.tolist())
            ignored = int(gone[-1])

    def _say(self, text: str, records: list[Record]) -> None:
        if self.log_warning:
            made = f", made from {'; '.join(map(str, records[:3]))}" if records else ""
            name = f" [{self.info.name}]" if self.info.name else ""
            errors.warn(
                f"ignore_errors{name} left out an element{made}: {text}", errors.IgnoredError
            )


class ReadingWhatCanBe(Job[Piece, tuple[Block, Index, list[tuple[int, str]]]]):
    """The elements that can be read, their positions, and the errors of the others."""

    node: IgnoreErrors

    def __call__(self, sent: Piece) -> tuple[Block, Index, list[tuple[int, str]]]:
        parent = self.node.parent
        try:
            return parent.read(sent.located), np.arange(len(sent), dtype=np.int64), []
        except SERIOUS:
            raise
        except Exception:
            pass
        blocks: list[Block] = []
        chosen: list[int] = []
        said: list[tuple[int, str]] = []
        for k in range(len(sent)):
            try:
                blocks.append(parent.read(sent.located.slice(k, k + 1)))
                chosen.append(k)
            except SERIOUS:
                raise
            except Exception as error:
                said.append((k, f"{type(error).__name__}: {error}"))
        if not blocks:
            blocks.append(parent.read(sent.located.slice(0, 0)))
        return join(blocks), np.array(chosen, np.int64), said

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
