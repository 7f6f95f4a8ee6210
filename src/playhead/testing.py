"""Prove that a pipeline resumes exactly: for users' own pipelines, and for playhead's.

>>> import playhead as ph
>>> def pipeline():
...     return ph.Dataset.range(10).shuffle(seed=3).map(lambda x: x / 7).batch(4)
>>> ph.testing.assert_resumes_exactly(pipeline)
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from playhead.dataset import Dataset
from playhead.errors import SlowResume
from playhead.iterator import Iterator as PlayheadIterator
from playhead.plan.block import Element
from playhead.plan.node import INFINITE
from playhead.position import Position

__all__ = ["assert_resumes_exactly", "difference", "equal"]

BUFFERS = (1, 8)


def assert_resumes_exactly(
    make_dataset: Callable[[], Dataset],
    *,
    epochs: int | None = 2,
    steps: int | None = None,
    workers: Sequence[int] = (0, 1, 4),
    every: int = 1,
) -> None:
    """Break a run off after every step, restore it, and compare all that follows with the unbroken run.

    make_dataset: builds the pipeline afresh, as a new process would; random operations without a seed take
    theirs from the position. epochs: how many passes, None for endless. steps: how far to run, needed where
    the run never ends. workers: numbers of threads to restore with; 0 is the caller's own. every: only after
    every so many steps, and after the last.

    Elements are compared bit for bit, positions after each of them. Each position goes through its JSON text;
    it is restored twice in a row, saved again at once, and walked to the end element by element and epoch by
    epoch. A seekable pipeline is also read at each place directly. The beginning is restored with each number
    of workers, every later step without and with one of them, in turn. Raises AssertionError, which says
    where the run was broken off, at which step it differs, and how.

    >>> import playhead as ph
    >>> calls = iter(range(1000))
    >>> assert_resumes_exactly(lambda: ph.Dataset.range(3).map(lambda x: next(calls)))
    Traceback (most recent call last):
    AssertionError: restored at step 0: step 1 differs: int32 0 against 7
    """
    dataset = make_dataset()
    if steps is None and (dataset.cardinality() == INFINITE or epochs is None):
        raise ValueError(
            "this run never ends: assert_resumes_exactly(..., steps=...) says how far to go"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowResume)
        run = _Run.of(dataset, epochs, steps)
        stops = {*range(0, len(run.elements), every), len(run.elements)}
        own, *others = _variants(make_dataset, workers)
        for number, step in enumerate(sorted(stops)):
            turn = [others[number % len(others)]] if number and others else others
            for variant, restored in (own, *turn):
                _Restored(run, step, restored, variant).check()


def equal(a: Element, b: Element) -> bool:
    """Whether two elements are the same bit for bit: structure, dtypes, shapes, values; NaN equals NaN.

    >>> import numpy as np
    >>> equal({"x": np.float32("nan")}, {"x": np.float32("nan")})
    True
    >>> equal(np.int32(1), np.int64(1))
    False
    """
    return difference(a, b) is None


def difference(a: Element, b: Element) -> str | None:
    """Where two elements differ first, in words; None where they are the same bit for bit.

    >>> difference((1, "a"), (1, "b"))
    "[1]: 'a' against 'b'"
    """
    return next(_differences(a, b, ""), None)


def _differences(a: Any, b: Any, path: str) -> Iterator[str]:
    at = f"{path}: " if path else ""
    if type(a) is not type(b):
        yield f"{at}{type(a).__name__} {a!r} against {type(b).__name__} {b!r}"
    elif isinstance(a, dict):
        if a.keys() != b.keys():
            yield f"{at}keys {sorted(a, key=repr)} against {sorted(b, key=repr)}"
        else:
            for key in a:
                yield from _differences(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, tuple | list):
        if len(a) != len(b):
            yield f"{at}{len(a)} parts against {len(b)}"
        else:
            for k, (first, second) in enumerate(zip(a, b, strict=True)):
                yield from _differences(first, second, f"{path}[{k}]")
    elif isinstance(a, np.ndarray | np.generic):
        yield from _array_differences(a, b, path)
    elif not _same(a, b):
        yield f"{at}{a!r} against {b!r}"


def _array_differences(a: Any, b: Any, path: str) -> Iterator[str]:
    at = f"{path}: " if path else ""
    if a.dtype != b.dtype or a.shape != b.shape:
        yield f"{at}{a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
    elif a.dtype.hasobject:
        for place in np.ndindex(a.shape):
            yield from _differences(a[place], b[place], path + "".join(f"[{k}]" for k in place))
    elif a.tobytes() != b.tobytes():
        if not a.shape:
            yield f"{at}{a.dtype} {a} against {b}"
            return
        for place in np.ndindex(a.shape):
            if a[place].tobytes() != b[place].tobytes():
                name = path + "".join(f"[{k}]" for k in place)
                yield f"{name}: {a.dtype} {a[place]} against {b[place]}"


def _same(a: Any, b: Any) -> bool:
    if a is b or (a != a and b != b):
        return True
    compares = "__eq__" in (name for kind in type(a).__mro__[:-1] for name in vars(kind))
    if not compares and hasattr(a, "__dict__"):
        return equal(vars(a), vars(b))
    return bool(a == b)


@dataclass(frozen=True)
class _Run:
    """The unbroken run: `elements`, and the text of the position before and after each."""

    epochs: int | None
    elements: list[Element]
    texts: list[str]
    ended: bool

    @classmethod
    def of(cls, dataset: Dataset, epochs: int | None, steps: int | None) -> _Run:
        elements: list[Element] = []
        with dataset.iterator(epochs=epochs) as iterator:
            texts = [iterator.position.to_json()]
            for element in itertools.islice(iterator, steps):
                elements.append(element)
                texts.append(iterator.position.to_json())
            ended = steps is None or (len(elements) < steps)
        return cls(epochs, elements, texts, ended)

    def position(self, step: int) -> Position:
        return Position.from_json(self.texts[step])


def _variants(
    make_dataset: Callable[[], Dataset], workers: Sequence[int]
) -> Iterator[tuple[str, Callable[[], Dataset]]]:
    """The pipeline as it is, and with other numbers of workers and elements ahead."""

    def ahead(buffer: int, count: int) -> Dataset:
        return make_dataset().prefetch(buffer, workers=max(1, count))

    yield "", make_dataset
    for count in workers:
        for buffer in BUFFERS if count else (0,):
            yield f" with prefetch({buffer}, workers={count})", partial(ahead, buffer, count)


class _Restored:
    """The run broken off after `step` elements, and a fresh pipeline that goes on."""

    def __init__(
        self, run: _Run, step: int, make_dataset: Callable[[], Dataset], variant: str
    ) -> None:
        self.run, self.step, self.make_dataset = run, step, make_dataset
        self.name = f"restored at step {step}{variant}"

    def check(self) -> None:
        with self.make_dataset().iterator(epochs=self.run.epochs) as iterator:
            self.load(iterator)
            self.same_position(iterator, self.step, "saved again at once")
            next(iterator, None)
            self.load(iterator)
            self.walk(iterator)
            if iterator.dataset.seekable:
                self.read_directly(iterator)
            self.load(iterator)
            self.walk_by_epochs(iterator)

    def load(self, iterator: PlayheadIterator) -> None:
        """Restore from a dict that is then destroyed: nothing of it may be kept."""
        state = json.loads(self.run.texts[self.step])
        iterator.load_state_dict(state)
        _wreck(state)

    def walk(self, iterator: PlayheadIterator) -> None:
        step = self.step
        for expected in self.run.elements[self.step :]:
            step += 1
            element = next(iterator, _MISSING)
            self.same_element(element, expected, step)
            self.same_position(iterator, step, f"after step {step}")
        self.is_over(iterator)
        self.same_position(iterator, step, "at the end")

    def is_over(self, iterator: PlayheadIterator) -> None:
        for _ in range(2 if self.run.ended else 0):
            extra = next(iterator, _MISSING)
            if extra is not _MISSING:
                self.fail(
                    f"the run ended after step {len(self.run.elements)}, this one gives {extra!r}"
                )

    def read_directly(self, iterator: PlayheadIterator) -> None:
        if self.step == len(self.run.elements):
            return
        after = self.run.position(self.step + 1)
        element = iterator.dataset.epoch(after.epoch)[after.step_in_epoch - 1]
        self.same_element(element, self.run.elements[self.step], self.step + 1, " read directly")
        iterator.seek(self.step)
        self.same_element(
            next(iterator, _MISSING), self.run.elements[self.step], self.step + 1, " after seek"
        )

    def walk_by_epochs(self, iterator: PlayheadIterator) -> None:
        step, epoch = self.step, iterator.position.epoch
        if step == len(self.run.elements) and not self.run.ended:
            return
        for elements in iterator.epochs():
            for element in elements:
                step += 1
                if step > len(self.run.elements):
                    self.fail(f"epochs() gives {element!r} after the run's end")
                self.same_element(element, self.run.elements[step - 1], step, " by epochs")
                now = iterator.position
                if now.epoch != epoch or now.epoch != self.run.position(step).epoch:
                    self.fail(f"step {step} came in epoch {epoch} and not in {now.epoch}")
                if step == len(self.run.elements) and not self.run.ended:
                    return
            epoch += 1
            between = iterator.position
            if (between.step, between.epoch, between.step_in_epoch) != (step, epoch, 0):
                self.fail(f"after epoch {epoch - 1} the position is {between}")
            self.same_after(between, step)
        if step != len(self.run.elements) or epoch != (self.run.epochs or epoch):
            self.fail(f"epochs() ended after step {step} and epoch {epoch - 1}")

    def same_after(self, between: Position, step: int) -> None:
        """A position saved between two epochs goes on with the next one."""
        with self.make_dataset().iterator(epochs=self.run.epochs) as iterator:
            iterator.load_state_dict(between.to_json())
            expected = self.run.elements[step : step + 1]
            if not expected and not self.run.ended:
                return
            for element in expected:
                self.same_element(
                    next(iterator, _MISSING), element, step + 1, " from between epochs"
                )
            if not expected:
                self.is_over(iterator)

    def same_element(self, element: Any, expected: Any, step: int, how: str = "") -> None:
        if element is _MISSING:
            self.fail(f"it ended before step {step}{how}")
        said = difference(expected, element)
        if said is not None:
            self.fail(f"step {step}{how} differs: {said}")

    def same_position(self, iterator: PlayheadIterator, step: int, when: str) -> None:
        said = difference(_told(self.run.position(step)), _told(iterator.position))
        if said is not None:
            self.fail(f"the position {when} differs: {said}")

    def fail(self, what: str) -> None:
        raise AssertionError(f"{self.name}: {what}")


class _Missing:
    """No element."""


_MISSING = _Missing()


def _told(position: Position) -> dict[str, Any]:
    """What a position says, but for what is known only once the first element was computed."""
    said = position.to_dict()
    said["pipeline"] = said["pipeline"]["fingerprint"]
    return said


def _wreck(state: Any) -> None:
    """Change everything in a JSON value that can be changed."""
    if isinstance(state, dict | list):
        for value in list(state.values() if isinstance(state, dict) else state):
            _wreck(value)
        state.clear()
