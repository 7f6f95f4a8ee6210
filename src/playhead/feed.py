"""What an iterator draws from: chunks of elements, epoch after epoch, from a place or a cursor on."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from playhead.execution.ahead import Ahead
from playhead.execution.autotune import Tuner
from playhead.execution.ordered import BUDGET, Alone, Ordered
from playhead.execution.pool import Lasting, Pool, cores
from playhead.execution.threads import ThreadPool
from playhead.plan.compute import Chunk, Compute, nbytes
from playhead.plan.functions import FORMS, function_of
from playhead.plan.node import Node, Serial, as_chunk
from playhead.plan.places import Cursor
from playhead.plan.prefetch import AUTOTUNE, Prefetch, outermost
from playhead.plan.shared import each_once
from playhead.sources.saved.stored import prepare

# (epoch, some of its elements); None: the epoch has ended
Event: TypeAlias = tuple[int, Chunk | None]


@dataclass(slots=True)
class Feed:
    """Events, and how to stop whatever computes them."""

    events: Iterator[Event]
    ahead: Ahead[Event] | None = None
    walk: Generator[Event, None, None] | None = None
    compute: Ordered | None = None
    worker: Alone | Ordered | None = None

    def close(self, wait: bool = True) -> None:
        """What runs ends, and `wait` waits for it, unless it hangs."""
        compute = self.compute
        hangs = (compute is not None and compute.hangs) or (
            self.ahead is not None and self.ahead.hangs
        )
        wait = wait and not hangs
        if self.worker is not None:
            self.worker.closed = True  # the walk may be waiting for what never comes
        if compute is not None:
            compute.pool.close(wait=False)  # the walk may be waiting for what runs there
        if self.ahead is not None:
            self.ahead.close(wait)
        elif self.walk is not None:
            self.walk.close()
        if compute is not None:
            compute.pool.close(wait)

    def let_go(self, wait: bool = True) -> None:
        """`close`, but processes wait for the next iterator over the same pipeline."""
        compute = self.compute
        if self.ahead is None or compute is None or not isinstance(compute.pool, Lasting):
            self.close(wait)
            return
        compute.closed = True
        compute.pool.hand_on()
        self.ahead.close(wait and not self.ahead.hangs)

    def abandon(self) -> None:
        """Forget the threads and processes, which a forked child does not have."""
        if self.ahead is not None:
            self.ahead.abandon()
        if self.compute is not None:
            self.compute.pool.abandon()

    def stats(self) -> dict[str, float]:
        """How many work at once, and how many records are ahead of the consumer in the pool."""
        compute = self.compute
        if compute is None:
            return {"workers": 0 if self.ahead is None else 1}
        return {"workers": compute.pool.workers, "records_ahead": compute.ahead}


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
    pool = _pool(prefetch, node)
    compute = None if pool is None else _ordered(pool, prefetch, node, records)
    worker = compute or Alone(records)
    walk = _walk(node, epoch, index, cursor, epochs, worker)
    if compute is not None and isinstance(pool, Lasting):
        walk = _handing_on(walk, compute, pool)
    if node.seekable and prefetch.on == "threads" and not eager:
        return Feed(walk, walk=walk, compute=compute)
    limits = (4 * cores() if size == AUTOTUNE else size, BUDGET)
    # A task that takes too long is named by who waits for it; this only notices a source that hangs.
    patience = None if prefetch.timeout is None else 1.5 * prefetch.timeout + 0.1
    ahead: Ahead[Event] = Ahead(walk, _sizes, limits, patience, lambda: worker.alive)
    return Feed(ahead, ahead=ahead, compute=compute, worker=worker)


def _pool(prefetch: Prefetch, node: Node) -> Pool | None:
    """None: the walk's own thread computes."""
    if prefetch.on == "processes" and needs_processes():
        from playhead.execution.processes import ProcessPool

        return ProcessPool(node, prefetch.workers)
    if prefetch.on == "ray":
        from playhead.execution.cluster import RayPool

        return RayPool(node, prefetch.workers)
    if prefetch.workers == 1 and not node.seekable:
        return None  # one call of a user's function at a time, the generator's included
    return ThreadPool(prefetch.workers)


def needs_processes() -> bool:
    """Whether threads take turns to run Python: not where it was built without that lock."""
    has_lock = getattr(sys, "_is_gil_enabled", None)
    return has_lock is None or has_lock()


def _ordered(pool: Pool, prefetch: Prefetch, node: Node, records: int | None) -> Ordered:
    tuner, help = None, None
    unlocked = node.seekable and node.unlocked and prefetch.timeout is None
    if isinstance(pool, ThreadPool) and unlocked:
        help = pool.help
        if prefetch.workers == AUTOTUNE:
            pool.resize(cores() - 1)  # and the consumer
    if prefetch.workers == AUTOTUNE and pool.most > pool.workers:
        tuner = Tuner(pool, prefetch.found)
        if node.seekable and node.light and needs_processes():
            # Each more hands Python's lock to and fro, in more time than it may gain.
            tuner.begin_with(1)
        elif _calls_a_framework(node):
            # Its own threads compute, and ours wait for them meanwhile.
            tuner.begin_with(cores() + 1)
    return Ordered(
        pool, records, timeout=prefetch.timeout, tuner=tuner, found=prefetch.found, help=help
    )


def _calls_a_framework(node: Node) -> bool:
    """Whether a function is known to run as operations of a framework."""
    functions = map(function_of, each_once(node))
    return any(function is not None and function.decided in FORMS for function in functions)


def _walk(
    node: Node, epoch: int, index: int, cursor: Cursor, epochs: int | None, compute: Compute
) -> Generator[Event, None, None]:
    return _prepared(
        node,
        compute,
        _seekable(node, epoch, index, epochs, compute)
        if node.seekable
        else _stream(node, epoch, cursor, epochs, compute),
    )


def _prepared(
    node: Node, compute: Compute, walk: Generator[Event, None, None]
) -> Generator[Event, None, None]:
    """The walk, after caches in files were written with all workers."""
    prepare(node, compute)
    yield from walk


def _handing_on(
    walk: Generator[Event, None, None], compute: Ordered, pool: Lasting
) -> Generator[Event, None, None]:
    """The walk. At its end the workers are there for the next iterator, but not after an error."""
    try:
        yield from walk
    except Exception as error:
        if compute.closed:  # nobody wants it, as this error may say
            error.__traceback__ = None  # whose frames hold the pipeline
            return
        pool.close(wait=False)
        raise
    pool.hand_on()


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
    elements = compute.read(node, spans())
    while epochs is None or at < epochs:
        end = node.length_at(at)
        if end is not None and done >= end:
            yield at, None
            at, done = at + 1, 0
            if epochs is None and node.length == 0:
                return
            continue
        piece, block = next(elements)
        # How many records lie before a place is known without counting those of each element.
        yield at, as_chunk(node, piece, block, counted=False)
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
