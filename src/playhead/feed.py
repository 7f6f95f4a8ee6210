"""What an iterator draws from: chunks of elements, epoch after epoch, from a place or a cursor on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from playhead.execution.ahead import Ahead
from playhead.execution.threads import Threads
from playhead.plan.node import Chunk, Compute, Cursor, Node, Serial, as_chunk, walk_places
from playhead.plan.prefetch import AUTOTUNE, Prefetch, outermost

Event: TypeAlias = tuple[
    int, Chunk | None
]  # (epoch, some of its elements); None: the epoch has ended


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
    pool = _pool(prefetch)
    compute: Compute = pool if pool is not None else Serial()
    if node.seekable:
        walk = _seekable(node, epoch, index, epochs, compute)
    else:
        walk = _stream(node, epoch, cursor, epochs, compute)
    if pool is None or prefetch is None or (node.seekable and not eager):
        return Feed(walk, walk=walk, pool=pool)
    limit = 4 * pool.workers if prefetch.buffer_size == AUTOTUNE else prefetch.buffer_size
    ahead: Ahead[Event] = Ahead(walk, _units, limit)
    return Feed(ahead, ahead=ahead, pool=pool)


def _pool(prefetch: Prefetch | None) -> Threads | None:
    if prefetch is None or prefetch.buffer_size == 0:
        return None
    return Threads(prefetch.workers, prefetch.buffer_size)


def _units(event: Event) -> int:
    chunk = event[1]
    return 0 if chunk is None else len(chunk)


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
