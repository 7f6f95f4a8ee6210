"""Elements put on a device ahead of their consumer, for whatever framework: what counts is what was delivered.

No thread is involved. Transfers run beside the host in every framework, so it is enough to begin the one of
element k + size when element k is asked for; `prefetch` computes the elements themselves ahead.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Iterator as IteratorABC
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, SupportsIndex, TypeVar

import numpy as np

from playhead.dataset import Dataset
from playhead.errors import OutOfReach, PipelineError, WrongDoor
from playhead.iterator import HISTORY, Iterator, OnChange, _refuse_inside_a_graph, _State
from playhead.plan.block import Element, leaves, map_nest
from playhead.plan.lock import Lock
from playhead.position import Position

MOST_AHEAD = 1000

Begun = TypeVar("Begun")


class Transfer(Protocol[Begun]):
    """How elements get to a device: `begin` does not wait for the copy that it starts."""

    def begin(self, element: Element) -> Begun: ...

    def finish(self, begun: Begun) -> Element: ...


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Begun]):
    """An element on its way, and where a consumer stands who has taken it."""

    begun: Begun
    state: _State


@dataclass(frozen=True, slots=True)
class _Pulled:
    """An element that is still on the host."""

    element: Element
    state: _State


@dataclass(frozen=True, slots=True)
class _Ended:
    """An epoch has ended; `state` is the beginning of the next."""

    state: _State


class DeviceIterator(IteratorABC[Element], Generic[Begun]):
    """The elements of a `playhead.Iterator`, `size` of them on the device ahead of the consumer.

    Made by `prefetch_to_device` of `playhead.jax`, `playhead.tensorflow` and `playhead.torch`. Position,
    saving, restoring and epochs are those of the iterator below, after what was handed out here. From the
    first element on that iterator belongs to this one, which raises `WrongDoor` where something else has
    moved it.
    """

    def __init__(self, iterator: Iterator, transfer: Transfer[Begun], size: SupportsIndex) -> None:
        if not isinstance(iterator, Iterator):
            raise _not_an_iterator(iterator)
        self._size = operator.index(size)
        if not 1 <= self._size <= MOST_AHEAD:
            raise PipelineError(f"prefetch_to_device(size={size!r}): from 1 to {MOST_AHEAD}")
        self._inner = iterator
        self._transfer = transfer
        self._lock = Lock()
        self._closed = False
        self._delivered = 0
        self._at: _State | None = (
            None  # None: nothing was pulled yet, and the inner one may still be moved
        )
        self._forget(None)

    def _forget(self, inner: _State | None) -> None:
        """Nothing waits, and the inner iterator stands at `inner`."""
        self._inner_at = inner
        self._waiting: deque[_Waiting[Begun] | _Ended] = deque()
        self._pulled: _Pulled | None = None
        self._rest: IteratorABC[Element] | None = None
        self._failure: Exception | None = None
        self._over = False
        self._astray = False

    # --- moving -----------------------------------------------------------------------------------------

    def __next__(self) -> Element:
        found = self._hand_over(None)
        if isinstance(found, _Ended):
            raise StopIteration
        return found

    def epochs(self) -> IteratorABC[IteratorABC[Element]]:
        """The epochs that are left, each an iterator over its elements; a half-done epoch is finished first.

        Nothing of the next epoch is read before its turn.
        """
        while True:
            with self._lock:
                if self._closed or not self._begin_epoch():
                    return
                epoch = self._standing().epoch
            yield self._rest_of(epoch)

    def _begin_epoch(self) -> bool:
        """Whether an epoch is left, if only its end."""
        self._open()
        if not self._waiting:
            self._require_untouched()
            self._rest = self._rest or next(self._inner.epochs(), None)
            return self._rest is not None
        return True

    def _rest_of(self, epoch: int) -> IteratorABC[Element]:
        while not isinstance(found := self._hand_over(epoch), _Ended):
            yield found

    def _hand_over(self, within: int | None) -> Element | _Ended:
        """The next element. An interrupt on its way to the consumer leaves it undelivered."""
        _refuse_inside_a_graph()
        with self._lock:
            if self._closed:
                return _Ended(self._standing())
            before, delivered = self._open(), self._delivered
        try:
            with self._lock:
                return self._take(within)
        except Exception:
            raise
        except BaseException:
            with self._lock:
                self._at, self._astray, self._delivered = before, True, delivered
            raise

    def _take(self, within: int | None) -> Element | _Ended:
        at = self._standing()
        if within is not None and at.epoch != within:
            return _Ended(at)
        self._fill(within)
        for ends, entry in enumerate(self._waiting):
            if isinstance(entry, _Ended) and within is None:
                continue
            found = entry if isinstance(entry, _Ended) else self._transfer.finish(entry.begun)
            for _ in range(ends + 1):
                self._waiting.popleft()
            self._stand(entry.state)
            self._delivered += isinstance(entry, _Waiting)
            return found
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return _Ended(at)

    def _fill(self, within: int | None) -> None:
        """Begin transfers until `size` elements wait beside the next one; an error waits for its turn."""
        ahead = sum(isinstance(entry, _Waiting) for entry in self._waiting)
        while ahead <= self._size and self._failure is None:
            if within is not None and any(isinstance(entry, _Ended) for entry in self._waiting):
                return
            try:
                pulled = self._pull()
                if pulled is None:
                    return
                if isinstance(pulled, _Pulled):
                    begun = self._begin(pulled)
                    self._waiting.append(_Waiting(begun, pulled.state))
                    ahead += 1
                else:
                    self._waiting.append(pulled)
                self._pulled = None
            except WrongDoor:
                raise
            except Exception as error:
                self._failure = error

    def _pull(self) -> _Pulled | _Ended | None:
        """The next element or epoch's end; None where all has ended. What could not be put comes again."""
        if self._pulled is not None or self._over:
            return self._pulled
        self._require_untouched()
        self._rest = self._rest or next(self._inner.epochs(), None)
        if self._rest is None:
            self._over = True
            return None
        try:
            element = next(self._rest)
        except StopIteration:
            self._rest, self._inner_at = None, self._inner._state
            return _Ended(self._inner_at)
        except BaseException:
            self._rest = None  # a generator that has raised is spent
            raise
        self._inner_at = self._inner._state
        self._pulled = _Pulled(element, self._inner_at)
        return self._pulled

    def _begin(self, pulled: _Pulled) -> Begun:
        try:
            return self._transfer.begin(pulled.element)
        except Exception as error:
            error.add_note(f"playhead: while putting step {pulled.state.step} on the device")
            raise

    def _open(self) -> _State:
        """Where the consumer stands. The first time, this is where the inner iterator is found."""
        if self._at is None:
            self._begin_at(self._inner._state)
        elif self._astray:
            self._inner.load_state_dict(self._inner._position(self._at))
            self._begin_at(self._inner._state)
        return self._standing()

    def _begin_at(self, state: _State) -> None:
        self._forget(state)
        self._past: deque[_State] = deque(maxlen=HISTORY)
        self._stand(state)

    def _stand(self, state: _State) -> None:
        self._at = state
        if not self.dataset.seekable:
            self._past.append(state)

    def _require_untouched(self) -> None:
        if self._inner._state is not self._inner_at:
            raise WrongDoor(
                "the iterator under prefetch_to_device was moved by something else",
                help="take elements, seek and restore through what prefetch_to_device returned",
            )

    def close(self) -> None:
        """Drop what waits and close the iterator below; next raises StopIteration. The position stays."""
        with self._lock:
            self._closed = True
            self._inner.close()
            self._forget(self._inner._state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- where it stands --------------------------------------------------------------------------------

    def _standing(self) -> _State:
        return self._inner._state if self._at is None else self._at

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read: with adopted seeds, where it was restored."""
        return self._inner.dataset

    @property
    def step(self) -> int:
        """Elements delivered since the beginning of the run."""
        return self._standing().step

    @property
    def position(self) -> Position:
        """After what was delivered; what waits on the device does not count."""
        with self._lock:
            return self._inner._position(self._standing())

    def position_at(self, step: SupportsIndex) -> Position:
        """After the first `step` elements; see `playhead.Iterator.position_at`."""
        step = operator.index(step)
        with self._lock:
            at = self._standing()
            if step == at.step:
                return self._inner._position(at)
            seekable = self.dataset.seekable
            known = (entry.state for entry in self._waiting) if seekable else reversed(self._past)
            for state in known if self._at is not None else ():
                if state.step == step:
                    return self._inner._position(state)
            if seekable or self._at is None:
                return self._inner.position_at(step)
            raise OutOfReach(
                f"step {step} is not among the last {len(self._past)} that this stream delivered",
                help=f"a stream keeps its last {HISTORY} cursors; ask sooner",
                step=step,
            )

    def stats(self) -> dict[str, float]:
        """`playhead.Iterator.stats`, where `delivered` are the elements handed out here.

        `on_device` are those that wait there. A consumer that waits for a transfer is not in `waited`.
        """
        with self._lock:
            waiting = sum(isinstance(entry, _Waiting) for entry in self._waiting)
            return self._inner.stats() | {"delivered": self._delivered, "on_device": waiting}

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
        """Drop what waits and go on where `state` was saved; see `playhead.Iterator.load_state_dict`."""
        with self._lock:
            self._inner.load_state_dict(state, on_change=on_change, override=override)
            self._closed = False
            self._begin_at(self._inner._state)

    def seek(self, step: SupportsIndex) -> None:
        """Drop what waits and go to where `step` elements were delivered. Raises `NotSeekable` for a stream."""
        with self._lock:
            self._inner.seek(step)
            self._begin_at(self._inner._state)

    def __repr__(self) -> str:
        at = self._standing()
        return f"<playhead.DeviceIterator at step {at.step}, epoch {at.epoch}, {at.inner} in it>"


def is_array(leaf: Any) -> bool:
    """Whether a leaf is numbers or booleans: what a device can hold. Text, dates and objects are not."""
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm"


def put_arrays(
    element: Element, moves: Callable[[Any], bool], put: Callable[[list[Any]], list[Any]]
) -> Element:
    """`element` with the leaves that `moves` names replaced by what `put` makes of all of them at once."""
    chosen = iter(put([leaf for leaf in leaves(element) if moves(leaf)]))
    return map_nest(lambda leaf: next(chosen) if moves(leaf) else leaf, element)


def _not_an_iterator(given: Any) -> TypeError:
    if isinstance(given, Dataset):
        return TypeError(
            "prefetch_to_device takes an iterator, which knows where it stands, not a Dataset: "
            "prefetch_to_device(ds.iterator(epochs=...))"
        )
    return TypeError(
        f"prefetch_to_device takes a playhead.Iterator, not {type(given).__name__}: "
        "make one with ds.iterator(epochs=...)"
    )
