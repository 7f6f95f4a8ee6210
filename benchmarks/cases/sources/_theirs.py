"""How the frameworks that several cases hold keep their places, each as its documentation says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases.sources._reader import Reader

WINDOW = 10_000  # the buffer of tf.data's shuffle, as in its guides


def buffer(quick: bool) -> int:
    """The buffer of datasets' shuffle: its default, where more records than that are left at 90 % of a pass."""
    return 100 if quick else 1_000


def tf_data(dataset: Callable[[], Any], data: Path) -> Reader:
    """`tf.train.Checkpoint(iterator)`, as "tf.data: Build TensorFlow input pipelines" saves one."""
    import tensorflow as tf

    folder = tempfile.mkdtemp(dir=data)

    def numpy(batch: Any) -> Any:
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), batch)

    def saved(count: int) -> tuple[str, Any]:
        iterator = iter(dataset())
        for _ in range(count):
            next(iterator)
        return tf.train.Checkpoint(iterator=iterator).write(f"{folder}/place"), numpy(
            next(iterator)
        )

    def first(place: str) -> tuple[Any, Callable[[], object]]:
        iterator = iter(dataset())
        tf.train.Checkpoint(iterator=iterator).read(place).assert_consumed()
        return numpy(next(iterator)), lambda: iterator

    made = dataset()
    return Reader(made.as_numpy_iterator, saved, first)


def tf_data_skip(dataset: Callable[[], Any]) -> Reader:
    """`skip`, for what cannot be saved: it makes the elements and drops them."""

    def first(count: int) -> tuple[Any, Callable[[], object]]:
        iterator = dataset().skip(count).as_numpy_iterator()
        return next(iterator), lambda: iterator

    made = dataset()
    return Reader(made.as_numpy_iterator, lambda count: (count, first(count)[0]), first)


def hugging_face(
    dataset: Callable[[], Any], batch: Callable[[Any], Any], exact: bool = True
) -> Reader:
    """`IterableDataset.state_dict`, as its page in the reference of datasets shows it.

    `batch` makes the arrays of what an element of `dataset()` is. After a shuffle the state names the place
    behind the buffer, so that what was in it does not come again: not exact.
    """

    def saved(count: int) -> tuple[Any, Any]:
        made = dataset()
        iterator = iter(made)
        for _ in range(count):
            next(iterator)
        return made.state_dict(), batch(next(iterator))

    def first(state: Any) -> tuple[Any, Callable[[], object]]:
        made = dataset()
        made.load_state_dict(state)
        iterator = iter(made)
        return batch(next(iterator)), lambda: iterator

    made = dataset()
    return Reader(lambda: map(batch, made), saved, first, exact)


def grain(dataset: Callable[[], Any]) -> Reader:
    """`get_state` and `set_state` of its iterator, as "Dataset basics" in Grain's documentation shows them."""

    def saved(count: int) -> tuple[Any, Any]:
        iterator = iter(dataset())
        for _ in range(count):
            next(iterator)
        return iterator.get_state(), next(iterator)

    def first(state: Any) -> tuple[Any, Callable[[], object]]:
        iterator = iter(dataset())
        iterator.set_state(state)
        return next(iterator), getattr(iterator, "close", lambda: iterator)

    return Reader(dataset, saved, first)


def stateful_loader(loader: Callable[[], Any], batch: Callable[[Any], Any]) -> Reader:
    """`StatefulDataLoader.state_dict`, as torchdata's "Stateful DataLoader Tutorial" shows it."""

    def saved(count: int) -> tuple[Any, Any]:
        made = loader()
        iterator = iter(made)
        for _ in range(count):
            next(iterator)
        return made.state_dict(), batch(next(iterator))

    def first(state: Any) -> tuple[Any, Callable[[], object]]:
        made = loader()
        made.load_state_dict(state)
        iterator: Iterator[Any] = iter(made)
        return batch(next(iterator)), lambda: iterator

    made = loader()
    return Reader(lambda: map(batch, made), saved, first)
