"""The only object that moves: it delivers elements and knows, exactly, how many it has delivered."""

from __future__ import annotations

import operator
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Iterator as IteratorABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np

from playhead.errors import (
    NotSeekable,
    OutOfReach,
    WrongDoor,
)
from playhead.feed import Feed, open_feed
from playhead.plan.block import Element
from playhead.plan.description import (
    fingerprint,
    operations,
)
from playhead.plan.lock import Lock
from playhead.plan.node import Node
from playhead.plan.origin import Place
from playhead.plan.places import Places, Record
from playhead.position import Origin, Position
from playhead.restore import Entry, enter, grid, records_before
from playhead.restore import OnChange as OnChange

if TYPE_CHECKING:
    from playhead.dataset import Dataset

HISTORY = 1024


@dataclass(frozen=True, slots=True)
class _State:
    """After `step` elements. `cursor` makes a stream's cursor when asked; None for a seekable pipeline."""

    step: int
    epoch: int
    inner: int
    records: int
    cursor: Callable[[], Any] | None


class _End:
    """The epoch, or everything, has ended."""


_END = _End()
_NO_ROWS: deque[Any] = deque(maxlen=0)  # of all iterators: nothing is ever put into it


class Iterator(IteratorABC[Element]):
    """Elements in order, from the beginning or from where it is restored to.

    Made by `Dataset.iterator`. `position` is exact after every element, whatever runs ahead of it.

    >>> import playhead as ph
    >>> it = ph.Dataset.range(10).shuffle(seed=1).batch(4).iterator()
    >>> first = next(it)
    >>> it.position.step
    1
    """

    _finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, dataset: Dataset, *, epochs: int | None = 1, epoch: int = 0) -> None:
        epochs = None if epochs is None else operator.index(epochs)
        if epochs is not None and epochs < 0:
            raise ValueError(f"epochs must be at least 0 or None, not {epochs}")
        self._given = dataset
        self._epochs = epochs
        self._lock = Lock()
        self._feed: Feed | None = None
        self._last: dict[str, float] = {}  # what is left to say of the last feed
        self._pid = os.getpid()
        self._closed = False
        self._rows: deque[Element] = deque()
        self._chunk_cursor: Callable[[int], Any]
        self._chunk_trace: Callable[[int], list[Record]] | None
        self._chunk_records: Any
        self._set_pipeline(dataset, dataset.node, None, (), epoch)
        self._state = self._start_of(epoch)
        self._forget()
        self._began = time.monotonic()
        self._waited = 0.0
        self._delivered = 0

    # --- moving -----------------------------------------------------------------------------------------

    def __next__(self) -> Element:
        _refuse_inside_a_graph()
        element = self._hand_over(None)
        if isinstance(element, _End):
            raise StopIteration
        return element

    def epochs(self) -> IteratorABC[IteratorABC[Element]]:
        """The epochs that are left, each an iterator over its elements; a half-done epoch is finished first."""
        while True:
            with self._lock:
                epoch = self._state.epoch
                if self._closed or self._nothing_from(epoch):
                    return
            yield self._rest_of(epoch)

    def _nothing_from(self, epoch: int) -> bool:
        """Whether no epoch is left, or no element in endless ones."""
        if self._epochs is None:
            return self._exhausted or self._node.cardinality == 0
        return epoch >= self._epochs

    def _rest_of(self, epoch: int) -> IteratorABC[Element]:
        while True:
            _refuse_inside_a_graph()
            element = self._hand_over(epoch)
            if isinstance(element, _End):
                with self._lock:
                    if self._state.epoch == epoch and not self._closed:
                        self._state = self._after_epoch(self._state)
                        self._ended = False
                        self._remember()
                return
            yield element

    def _hand_over(self, within: int | None) -> Element | _End:
        """The next element. An interrupt on its way to the consumer leaves it undelivered."""
        before: _State | None = None
        try:
            with self._lock:
                before = self._state
                try:
                    return self._take(within)
                except BaseException:
                    self._go_back(before)
                    before = None  # from here on another thread may take the next one
                    raise
        except BaseException:
            if before is not None:
                with self._lock:
                    self._go_back(before)
            raise

    def _go_back(self, before: _State) -> None:
        if self._state is not before:
            # One statement, with no call in it: a second interrupt comes before or after it.
            feed, self._feed, self._rows, self._state = self._feed, None, _NO_ROWS, before
            self._taken = 0
            if not self._node.seekable:
                self._history.pop()
            self._end_feed(feed)

    def _take(self, within: int | None) -> Element | _End:
        """The next element; where `within` names an epoch, only of that one."""
        if within is not None and self._state.epoch != within:
            return _END
        began = time.perf_counter()
        try:
            return self._pull(within)
        except BaseException as error:
            # First, and with no call in it: what was interrupted is over, whatever interrupts this.
            feed, self._feed, self._rows = self._feed, None, _NO_ROWS
            self._end_feed(feed, wait=isinstance(error, Exception))
            said = f"playhead: while computing step {self._state.step + 1} of the run"
            if isinstance(error, Exception) and said not in getattr(error, "__notes__", ()):
                error.add_note(said)
            raise
        finally:
            self._waited += time.perf_counter() - began

    def _pull(self, within: int | None) -> Element | _End:
        if self._closed:
            return _END
        feed = self._open()
        while not self._rows:
            if self._ended and within is not None:
                return _END
            event = next(feed.events, None)
            if event is None:
                self._ended = self._exhausted = True
                return _END
            epoch, chunk = event
            if chunk is None:
                if epoch == self._state.epoch:
                    self._ended = True
                continue
            self._rows = deque(chunk.block.own_rows())
            self._chunk_epoch, self._chunk_cursor = epoch, chunk.cursor
            self._chunk_trace, self._chunk_records = chunk.trace, chunk.records
            self._taken = 0
        if within is not None and self._chunk_epoch != within:
            return _END
        element = self._rows.popleft()
        self._deliver()
        return element

    def _deliver(self) -> None:
        state, j = self._state, self._taken
        self._taken += 1
        epoch = self._chunk_epoch
        inner = 1 if epoch != state.epoch else state.inner + 1
        counts, cursor = self._chunk_records, self._chunk_cursor
        self._ended = False
        self._state = _State(
            state.step + 1,
            epoch,
            inner,
            state.records + (1 if counts is None else int(counts[j])),
            None if self._node.seekable else lambda: cursor(j + 1),
        )
        self._delivered += 1
        self._remember()

    def _after_epoch(self, state: _State) -> _State:
        epoch, node = state.epoch + 1, self._node
        cursor = None if node.seekable else lambda: node.start(epoch)
        return _State(state.step, epoch, 0, state.records, cursor)

    def _start_of(self, epoch: int) -> _State:
        node = self._node
        if node.seekable:
            return self._state_at(epoch * (node.length or 0), (epoch, 0))
        return _State(0, epoch, 0, 0, lambda: node.start(epoch))

    def _remember(self) -> None:
        if not self._node.seekable:
            self._history.append(self._state)

    def _forget(self) -> None:
        """Nothing is taken from the feed yet, and no earlier cursor is known."""
        self._rows = deque()
        self._ended = self._exhausted = False
        self._taken = 0
        self._chunk_epoch = self._state.epoch
        self._chunk_cursor = lambda j: None
        self._chunk_trace = None
        self._chunk_records = None
        self._history: deque[_State] = deque(maxlen=HISTORY)
        self._remember()

    def _open(self, eager: bool = False) -> Feed:
        if self._feed is not None and self._pid != os.getpid():
            self._feed.abandon()
            self._feed = None  # a forked child has none of its parent's threads
            self._rows = deque()
            self._ended = False
        if self._feed is None:
            self._pid = os.getpid()
            state = self._state
            cursor = None if state.cursor is None else state.cursor()
            self._feed = open_feed(
                self._node, state.epoch, state.inner, cursor, self._epochs, eager=eager
            )
        return self._feed

    def _drop_feed(self, wait: bool = False, lasting: bool = False) -> None:
        feed, self._feed, self._rows = self._feed, None, _NO_ROWS
        self._end_feed(feed, wait, lasting)

    def _end_feed(self, feed: Feed | None, wait: bool = False, lasting: bool = False) -> None:
        self._ended = False
        if feed is not None and self._pid == os.getpid():
            self._last = {"workers": feed.stats()["workers"]}
            if lasting:
                feed.let_go(wait)
            else:
                feed.close(wait)

    def start(self) -> Self:
        """Begin to read ahead now, before the first element is asked for; without prefetch, nothing to do."""
        with self._lock:
            if not self._closed and self._feed is None:
                self._open(eager=True)
        return self

    def close(self) -> None:
        """End read-ahead and free its threads. The position stays readable; next raises StopIteration."""
        self._end()

    def release(self) -> None:
        """`close`, but worker processes wait a minute for the next iterator over this dataset.

        So they do where an iterator comes to its end, is garbage, or seeks. Nothing but processes outlives it.

        >>> import playhead as ph
        >>> it = ph.Dataset.range(10).batch(4).prefetch().iterator()
        >>> next(it).tolist()
        [0, 1, 2, 3]
        >>> it.release()
        """
        self._end(lasting=True)

    def _end(self, lasting: bool = False) -> None:
        if self._finalizing():
            return  # a generator that was left open; the threads are gone, and so are this module's names
        with self._lock:
            self._closed = True
            self._drop_feed(wait=True, lasting=lasting)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        feed = getattr(self, "_feed", None)
        # At the interpreter's end this module's names are gone; the function above is not.
        if feed is not None and not finalizing() and self._pid == os.getpid():
            feed.let_go(wait=False)

    # --- where it stands --------------------------------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """The dataset this iterator walks: with adopted seeds, where it was restored."""
        return self._dataset

    @property
    def position(self) -> Position:
        """After what was delivered."""
        with self._lock:
            return self._position(self._state)

    def position_at(self, step: SupportsIndex) -> Position:
        """After the first `step` elements: for a consumer that pulled more than it has used.

        Exact for any step of a seekable pipeline. A stream keeps its last 1024 cursors; beyond, and for a
        step before the one it was restored to, raises `OutOfReach`.
        """
        step = operator.index(step)
        with self._lock:
            if step == self._state.step:
                return self._position(self._state)
            if self._node.seekable:
                return self._position(self._seek_state(step))
            for state in reversed(self._history):
                if state.step == step:
                    return self._position(state)
            raise OutOfReach(
                f"step {step} is not among the last {len(self._history)} of this stream",
                help=f"a stream keeps its last {HISTORY} cursors; ask sooner",
                step=step,
            )

    def seek(self, step: SupportsIndex) -> None:
        """Go to where the first `step` elements have been delivered. Raises `NotSeekable` for a stream."""
        with self._lock:
            if not self._node.seekable:
                raise NotSeekable(
                    "this pipeline is a stream: it can be restored, not moved",
                    help="load_state_dict(position) goes to a saved position",
                )
            state = self._seek_state(operator.index(step))
            self._drop_feed(wait=True, lasting=True)
            self._state = state
            self._forget()

    def _seek_state(self, step: int) -> _State:
        begin = self._origin.step if self._origin else 0
        if step < 0:
            raise OutOfReach(f"steps count from 0, and {step} is none", step=step)
        if step < begin:
            raise OutOfReach(
                f"step {step} lies before step {begin}, where this pipeline took over",
                help="the position's lineage names the pipeline of earlier steps",
                step=step,
            )
        if step == begin:
            return self._state_at(step, self._grid.origin[1:])
        epoch, inner = self._grid.split_one(step)
        if inner == 0:
            epoch, inner = epoch - 1, self._node.length_at(epoch - 1) or 0
        limit = self._epochs
        if self._node.length == 0:
            raise OutOfReach(f"step {step} of an empty dataset", step=step)
        if limit is not None and epoch >= limit:
            raise OutOfReach(
                f"step {step} lies behind the end of epoch {limit - 1}",
                help="iterator(epochs=...) says how many there are",
                step=step,
            )
        return self._state_at(step, (epoch, inner))

    def _state_at(self, step: int, place: Place) -> _State:
        return _State(step, *place, self._records_at(place) or 0, None)

    def _records_at(self, place: Place) -> int | None:
        return records_before(self._node, self._origin, place)

    def _position(self, state: _State) -> Position:
        seekable = self._node.seekable
        said = operations(self._node)
        return Position(
            step=state.step,
            epoch=state.epoch,
            step_in_epoch=state.inner,
            records=self._records_at((state.epoch, state.inner)) if seekable else state.records,
            cursor=None if state.cursor is None else state.cursor(),
            pipeline={"fingerprint": fingerprint(said), "operations": said},
            epoch_length=self._node.length_at(state.epoch) if seekable else None,
            origin=self._origin,
            lineage=self._lineage,
        )

    def trace(self, step: SupportsIndex | None = None) -> list[Record]:
        """The records of the last element, or of the `step`th (seekable pipelines), in order."""
        step = None if step is None else operator.index(step)
        with self._lock:
            if step is None or (step == self._state.step and self._chunk_trace is not None):
                if self._chunk_trace is not None and self._taken:
                    return self._chunk_trace(self._taken - 1)
                step = self._state.step
            if step < 1:
                raise OutOfReach("nothing was delivered yet; steps count from 1", step=step)
            if not self._node.seekable:
                raise NotSeekable("a stream traces its last element only")
            begin = self._origin.step if self._origin else 0
            if step <= begin:
                raise OutOfReach(
                    f"step {step} came from another pipeline, before step {begin}", step=step
                )
            epoch, inner = self._grid.split_one(step - 1)
            places = Places(epoch, np.array([inner], np.int64))
            return list(self._node.locate(places).records())

    def stats(self) -> dict[str, float]:
        """How it goes, and what AUTOTUNE chose.

        `delivered` elements by this object, `seconds` since it was made, `waited` seconds in next; from the
        first element on `workers` at work at once, and while it reads ahead `records_ahead` of the consumer.
        """
        with self._lock:
            return {
                "delivered": self._delivered,
                "seconds": time.monotonic() - self._began,
                "waited": self._waited,
                **(self._last if self._feed is None else self._feed.stats()),
            }

    # --- saving and restoring ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON values (torch's name)."""
        return self.position.to_dict()

    def get_state(self) -> dict[str, Any]:
        """The position as JSON values (Grain's name)."""
        return self.position.to_dict()

    def set_state(self, state: Position | dict[str, Any] | str | bytes) -> None:
        """`load_state_dict` with its defaults (Grain's name)."""
        self.load_state_dict(state)

    def load_state_dict(
        self,
        state: Position | dict[str, Any] | str | bytes,
        *,
        on_change: OnChange = "error",
        override: Iterable[str] = (),
    ) -> None:
        """Go on where `state` (a position, its dict or its JSON) was saved.

        `on_change`: "error" raises `PipelineChanged` where places moved; "by_record" also takes another
        batch size and goes on at the same record; "from_here" begins the new pipeline at its beginning while
        the step runs on. `override` names operations whose differences are accepted as they are. Raises
        `UnreadablePosition`, `NewerFormat`.
        """
        if on_change not in ("error", "by_record", "from_here"):
            raise ValueError(f'on_change is "error", "by_record" or "from_here", not {on_change!r}')
        position = _as_position(state)
        with self._lock:
            entry = enter(
                self._given.node,
                position,
                on_change=on_change,
                override=override,
                epochs=self._epochs,
            )
            self._enter(entry)

    def _enter(self, entry: Entry) -> None:
        at, node = entry.cursor, entry.node
        cursor = None if node.seekable else lambda: at
        self._drop_feed(wait=True)
        self._set_pipeline(
            self._given.with_node(node), entry.cut, entry.origin, entry.lineage, entry.epoch
        )
        self._state = _State(entry.step, entry.epoch, entry.inner, entry.records, cursor)
        self._closed = False
        self._forget()

    def _set_pipeline(
        self,
        dataset: Dataset,
        node: Node,
        origin: Origin | None,
        lineage: tuple[dict[str, Any], ...],
        epoch: int,
    ) -> None:
        self._dataset, self._node = dataset, node
        self._origin, self._lineage = origin, lineage
        self._grid = grid(node, origin, epoch)

    def __repr__(self) -> str:
        state = self._state
        return f"<playhead.Iterator at step {state.step}, epoch {state.epoch}, {state.inner} in it>"


def _as_position(state: Position | dict[str, Any] | str | bytes) -> Position:
    if isinstance(state, Position):
        return Position.from_dict(state.to_dict())
    if isinstance(state, str | bytes):
        return Position.from_json(state)
    return Position.from_dict(state)


def _refuse_inside_a_graph() -> None:
    """TensorFlow would run next once, while tracing, and bake that element into the graph."""
    tensorflow = sys.modules.get("tensorflow")
    inside = getattr(tensorflow, "inside_function", None)
    if inside is not None and inside():
        raise WrongDoor(
            "a playhead iterator was used inside a tf.function, where its first element would be "
            "built into the graph",
            help="pass playhead.tensorflow.iterator(ds) to the tf.function as an argument",
        )
