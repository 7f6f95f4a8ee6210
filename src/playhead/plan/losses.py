"""Walking a stream past those of its elements that cannot be had."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from playhead import errors
from playhead.plan.chains import kept
from playhead.plan.compute import Chunk, Compute, Outcome
from playhead.plan.elements import Applying, Filter, Map, OnChunks, Testing
from playhead.plan.node import Node, Serial, Source
from playhead.plan.places import Cursor, Record

_SERIOUS = (
    errors.ReadAheadError,
    errors.PipelineError,
    errors.PositionError,
    errors.SourceError,
)
_OF_RECORDS = (errors.CorruptRecord, errors.UnparsableRecord)


def serious(error: BaseException) -> bool:
    """Whether an error is not about one element: to leave that out would hide that nothing can go on.

    So is a store that cannot be reached: the elements that it holds are lost only for now.
    """
    if isinstance(error, _OF_RECORDS):
        return False
    return isinstance(error, _SERIOUS) or not isinstance(error, Exception)


@dataclass(frozen=True, slots=True)
class Lost:
    """An element that cannot be had: why, where the stream goes on behind it, what it was to be made of."""

    error: Exception
    behind: Cursor
    records: list[Record]


Part: TypeAlias = Chunk | Lost


class Enduring(Source):
    """A source that is walked, and goes on behind what cannot be had without beginning again."""

    @cached_property
    def seekable(self) -> bool:
        return False

    @abstractmethod
    def endure(self, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
        """The walk from `cursor` on, with what cannot be had in its place. Raises what is `serious`.

        What comes before damage is a function of the files' bytes, wherever the walk began.
        """

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        with contextlib.closing(self.endure(cursor, compute)) as parts:
            for part in parts:
                if isinstance(part, Lost):
                    raise part.error
                yield part

    def behind(self, cursor: Cursor) -> Cursor | None:
        """Past the next record, whatever it holds; None at the end."""
        with contextlib.closing(self.endure(cursor, Serial())) as parts:
            for part in parts:
                if isinstance(part, Lost):
                    return part.behind
                if len(part):
                    return part.cursor(1)
        return None


def enduring(node: Node, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
    """The stream from `cursor` on, with what cannot be computed of it in its place.

    Raises what is `serious`, and an error behind which the stream cannot go on, with a note.
    """
    if isinstance(node, Enduring):
        return node.endure(cursor, compute)
    if isinstance(node, Map | Filter) and node.base is None and not (node.seekable or node.stops):
        return _applied(node, cursor, compute)
    return _reopened(node, cursor, compute)


def _reopened(node: Node, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
    """Any stream, opened again behind each element that fails."""
    at = cursor
    while True:
        try:
            for chunk in node.open(at, compute):
                at = chunk.cursor(len(chunk))
                yield chunk
            return
        except Exception as error:
            if serious(error):
                raise
            behind = node.behind(at)
            if behind is None:
                error.add_note(
                    f"playhead: ignore_errors cannot go on behind it in {node.op}; "
                    "put ignore_errors right after the map that fails"
                )
                raise
            at = behind
            lost = Lost(error, behind, [])
        yield lost


class _UntilLost:
    """Chunks up to the next element that is lost: `lost`, None at the end."""

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts
        self.lost: Lost | None = None

    def __iter__(self) -> Iterator[Chunk]:
        for part in self._parts:
            if isinstance(part, Lost):
                self.lost = part
                return
            yield part


def _applied(node: Map | Filter, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
    """A map or a filter over a walked stream, which is walked once."""
    job: OnChunks[Any] = Testing(node) if isinstance(node, Filter) else Applying(node)
    with contextlib.closing(enduring(node.parent, cursor, compute)) as parts:
        while True:
            run = _UntilLost(parts)
            for chunk, outcome in compute.ordered(job, run, weight=node.weight, after=True):
                yield from _made(job, chunk, outcome, compute)
            if run.lost is None:
                return
            yield run.lost


def _made(
    job: OnChunks[Any], chunk: Chunk, outcome: Outcome[Any], compute: Compute
) -> Iterator[Part]:
    """What became of a chunk; behind an element that fails the rest of it is computed."""
    weight = job.node.weight
    while outcome.error is not None:
        error = job.explained(outcome.error, chunk)
        if not isinstance(error, Exception) or serious(error):
            raise error
        done = 0
        if outcome.result is not None:
            done = len(outcome.result)
            yield _result(job.node, chunk.slice(0, done), outcome.result)
        elif len(chunk) > 1:
            for single in chunk.singles():
                for _, again in compute.ordered(job, [single], weight=weight):
                    yield from _made(job, single, again, compute)
            return
        yield Lost(error, chunk.cursor(done + 1), chunk.trace(done))
        chunk = chunk.slice(done + 1, len(chunk))
        if not len(chunk):
            return
        ((_, outcome),) = compute.ordered(job, [chunk], weight=weight)
    yield _result(job.node, chunk, outcome.result)


def _result(node: Node, chunk: Chunk, result: Any) -> Chunk:
    if isinstance(node, Filter):
        whole = len(result) == len(chunk)
        return kept(chunk, result, chunk.block if whole else chunk.block.select(result))
    return chunk.with_block(result)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an element was left out, in words, and the place of the record to blame. It can be pickled."""

    error: str
    file: str | None = None
    record: int | None = None
    offset: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Reason:
        """What an error says, without what could be done about it."""
        what, facts = (
            (error.what, error.facts) if isinstance(error, errors.PlayheadError) else (error, {})
        )
        file, record, offset = (facts.get(name) for name in ("file", "record", "offset"))
        return cls(
            f"{type(error).__name__}: {what}",
            file if isinstance(file, str) else None,
            record if isinstance(record, int) else None,
            offset if isinstance(offset, int) else None,
        )
