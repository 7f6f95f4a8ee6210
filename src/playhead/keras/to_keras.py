"""Datasets as what Keras' own `fit`, `evaluate` and `predict` read.

What needs saying to Keras beside is in `reader`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from collections.abc import Iterator as IteratorABC
from typing import Any

from playhead.dataset import Dataset
from playhead.errors import PipelineError
from playhead.iterator import Iterator
from playhead.keras.adapter import Adapter, Pass, as_keras_batch, packed
from playhead.keras.reader import Call, calling, let_end, require_end
from playhead.keras.tracing import differ_in_rows
from playhead.plan.block import Nest
from playhead.plan.prefetch import outermost


def to_keras(ds: Dataset) -> EachPass:
    """`ds` for Keras' own loops: `model.fit(to_keras(ds))`, `model.evaluate(...)`, `model.predict(...)`.

    Each epoch of `fit` reads another pass, as a `for` loop over the dataset does, and a second `fit` goes on
    with the next one. `evaluate`, `predict` and `validation_data=` read the first pass each time, so that two
    results are of the same data. With `steps_per_epoch`, epochs follow each other through the passes without
    a break.

    >>> import playhead as ph
    >>> to_keras(ph.Dataset.range(8).batch(3)).num_batches
    3
    """
    if not isinstance(ds, Dataset):
        raise TypeError(f"to_keras takes a playhead.Dataset, not {type(ds).__name__}")
    return EachPass(ds)


class Batches(Adapter):
    """Batches of a dataset, with the end that its passes have."""

    def __init__(self, ds: Dataset) -> None:
        if ds.cardinality() == 0:
            raise PipelineError("the dataset is empty")
        self.dataset = ds if outermost(ds.node) else ds.prefetch()

    @property
    def spec(self) -> Nest:
        return packed(self.dataset.element_spec)

    def _traced(self) -> Nest | None:
        return self.spec if differ_in_rows(self.spec) else None

    def _first_pass(self) -> IteratorABC[Any]:
        return self._checked(iter(self.dataset.epoch(0)))

    def _checked(self, batches: Iterable[Any]) -> IteratorABC[Any]:
        """`batches` as Keras takes them; looks into the first."""
        number = 0
        for number, batch in enumerate(batches, 1):
            yield as_keras_batch(batch) if number == 1 else packed(batch)
        if not number:
            raise PipelineError(
                "a pass over the dataset gave no element",
                help="look at what a filter keeps",
            )

    # --- as Keras asks ----------------------------------------------------------------------------------

    @property
    def num_batches(self) -> int | None:
        call, count = calling(), self.dataset.cardinality()
        if call is not None:
            require_end(call, count)
        return None if count < 0 else count

    def on_epoch_begin(self) -> None:
        self._begin(calling())

    def on_epoch_end(self) -> None:
        self._end(calling())

    def _begin(self, call: Call | None) -> None:
        unknown = self.dataset.cardinality() == -2
        if call is not None and unknown and call.reader.steps_per_epoch is None:
            let_end(call.reader)

    def _end(self, call: Call | None) -> None:
        pass


class FirstPass(Batches):
    """The first pass each time, to its end."""

    def __init__(self, ds: Dataset) -> None:
        super().__init__(ds)
        self._open: list[Iterator] = []

    def _coming(self, call: Call | None) -> Pass:
        return self._first_pass

    def _first_pass(self) -> IteratorABC[Any]:
        iterator = self.dataset.epoch(0).iterator()
        self._open.append(iterator)
        try:
            yield from self._checked(iterator)
        finally:
            self._open.remove(iterator)
            iterator.release()

    def close(self) -> None:
        """Nothing more is read, also by a pass that was broken off and that somebody still holds."""
        for iterator in list(self._open):
            iterator.close()


class EachPass(Batches):
    """Pass after pass for `fit`, the first pass for everybody else. Made by `to_keras`."""

    def __init__(self, ds: Dataset) -> None:
        super().__init__(ds)
        self._next = 0
        self._training: weakref.WeakKeyDictionary[Any, _Training] = weakref.WeakKeyDictionary()
        self._last: _Training | None = None

    @property
    def num_batches(self) -> int | None:
        call, count = calling(), self.dataset.cardinality()
        if call is None:
            return None if count < 0 else count
        require_end(call, count)
        if call.training:
            self._go_on()
            self._last = self._training[call.reader] = _Training(call.reader, self._next)
        # Where the steps of an epoch are given, passes follow each other without end.
        endless = call.reader in self._training and call.reader.steps_per_epoch is not None
        return None if endless or count < 0 else count

    def _go_on(self) -> None:
        """The next pass to train on is the one after all that were."""
        if self._last is not None:
            self._next, self._last = self._last.after(), None

    def _begin(self, call: Call | None) -> None:
        super()._begin(call)
        training = None if call is None else self._training.get(call.reader)
        if training is not None:
            training.begin()

    def _end(self, call: Call | None) -> None:
        training = None if call is None else self._training.get(call.reader)
        if call is not None and training is not None:
            training.end(trained=call.method != "reset")

    def _coming(self, call: Call | None) -> Pass:
        training = None if call is None else self._training.get(call.reader)
        if training is None:
            return self._first_pass
        return lambda: self._checked(training.batches(self.dataset))

    def __repr__(self) -> str:
        return f"<playhead.Dataset.to_keras() of {self.dataset!r}>"


class _Training:
    """The passes that one `fit` reads, from pass `first` on."""

    def __init__(self, reader: Any, first: int) -> None:
        self._reader = weakref.ref(reader)
        self._steps = reader.steps_per_epoch
        self._now = first
        self._begun = False
        self._taken = 0
        self._ends: list[int] = []  # in batches since `first`

    def begin(self) -> None:
        if self._steps is None and self._begun:  # the epoch before was broken off
            self._now += 1
        self._begun = True
        self._count(1)  # should this one be broken off

    def end(self, *, trained: bool) -> None:
        """A look ahead that Keras took to build the model ends, too, but nothing was `trained` by it."""
        if not trained:
            self._begun, self._taken = False, 0
            return
        if self._steps is None and self._begun:
            self._now, self._begun = self._now + 1, False
        self._count()

    def batches(self, ds: Dataset) -> IteratorABC[Any]:
        if self._steps is None:
            yield from ds.epoch(self._now)
            return
        ends: list[int] = []
        taken, self._ends = 0, ends
        with Iterator(ds, epochs=None, epoch=self._now) as iterator:
            for epoch in iterator.epochs():
                for batch in epoch:
                    yield batch
                    taken += 1
                ends.append(taken)

    def after(self) -> int:
        """The pass after the last one that something was trained on."""
        if self._steps is None:
            return self._now + self._begun
        whole = sum(end < self._taken for end in self._ends)
        return self._now + whole + 1 if self._taken else self._now

    def _count(self, more: int = 0) -> None:
        reader = self._reader()
        if reader is not None:
            self._taken = reader._steps_seen + more
