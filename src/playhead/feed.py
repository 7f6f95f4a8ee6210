"""What an iterator draws from: chunks of elements, epoch after epoch, from a place or a cursor on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from playhead.execution.ahead import Ahead
from playhead.execution.threads import BUDGET, Alone, Threads, cores, nbytes
from playhead.plan.compute import Chunk, Compute, Serial
from playhead.plan.node import Node, as_chunk, walk_places
from playhead.plan.places import Cursor
from playhead.plan.prefetch import AUTOTUNE, outermost

# (epoch, some of its elements); None: the epoch has ended
Event: TypeAlias = tuple[int, Chunk | None]


@dataclass(slots=True)
class Feed:
    """Events, and how to stop whatever computes them."""

    events: Iterator[Event]
    ahead: Ahead[Event] | None = None
    walk: Generator[Event, None, None] | None = None
    pool: Threads | None = None

    def close(self, wait: bool = True) -> None:
        if self.ahead is not None:
            self.ahead.close(wait)
        elif self.walk is not None:
            self.walk.close()
        if self.pool is not None:
            self.pool.close(wait=wait)


def open_feed(
    node: Node, epoch: int, index: int, cursor: Cursor, epochs: int | None, *, eager: bool = False
) -> Feed:
    """The elements of `node` from a place (seekable) or a cursor (stream) to the end of pass `epochs` - 1.

    A stream with read-ahead is walked in a thread of its own; a seekable pipeline only where `eager`.
    """
    prefetch = outermost(node)
    if prefetch is None or prefetch.buffer_size == 0:
        walk = _walk(node, epoch, index, cursor, epochs, Serial())
        return Feed(walk, walk=walk)
    size = prefetch.buffer_size
    records = None if size == AUTOTUNE else size * node.weight
    # One worker means one call of a user's function at a time: then the walk's own thread computes.
    pool = (
        None if prefetch.workers == 1 and not node.seekable else Threads(prefetch.workers, records)
    )
    walk = _walk(node, epoch, index, cursor, epochs, pool or Alone(records))
    if node.seekable and not eager:
        return Feed(walk, walk=walk, pool=pool)
    ahead: Ahead[Event] = Ahead(walk, _sizes, (4 * cores() if size == AUTOTUNE else size, BUDGET))
    return Feed(ahead, ahead=ahead, pool=pool)


def _walk(
    node: Node, epoch: int, index: int, cursor: Cursor, epochs: int | None, compute: Compute
) -> Generator[Event, None, None]:
    if node.seekable:
        return _seekable(node, epoch, index, epochs, compute)
    return _stream(node, epoch, cursor, epochs, compute)


def _sizes(event: Event) -> tuple[int, int]:
    """Elements and bytes."""
    chunk = event[1]
    return (0, 0) if chunk is None else (len(chunk), nbytes(chunk.block))


def _seekable(
    node: Node, epoch: int, index: int, epochs: int | None, compute: Compute
) -> Generator[Event, None, None]:
    def spans() -> Iterator[tuple[int, int, int | None]]:
        number, start = epoch, index
        while epochs is None or number < epochs:
            yield number, start, node.length_at(number)
            if epochs is None and node.length == 0:
                return
            number, start = number + 1, 0

    # An epoch's end is said before the next one's first element is computed: nobody has asked for it yet.
    at, done = epoch, index
    elements = walk_places(node, spans(), compute, compute.pace(node))
    while epochs is None or at < epochs:
        end = node.length_at(at)
        if end is not None and done >= end:
            yield at, None
            at, done = at + 1, 0
            if epochs is None and node.length == 0:
                return
            continue
        piece, block = next(elements)
        yield at, as_chunk(node, piece, block)
        done += len(piece)


def _stream(
    node: Node, epoch: int, cursor: Cursor, epochs: int | None, compute: Compute
) -> Generator[Event, None, None]:
    while epochs is None or epoch < epochs:
        given, whole = 0, cursor == node.start(epoch)
        for chunk in node.open(cursor, compute):
            given += len(chunk)
            if len(chunk):
                yield epoch, chunk
        yield epoch, None
        if epochs is None and whole and not given:
            return
        epoch += 1
        cursor = node.start(epoch)
