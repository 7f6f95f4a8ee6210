"""playhead's way through a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.cases.sources._reader import Reader


def ours(dataset: Callable[[], Any], *, exact: bool = True, anew: bool = False) -> Reader:
    """The batches of `dataset()`, and a position that goes through JSON.

    anew: for a source that keeps in memory what it has read, which a pass shall not find there.
    """
    made = dataset()

    def batches() -> Iterable[Any]:
        found: Iterable[Any] = (dataset() if anew else made).epoch(0)
        return found

    def saved(count: int) -> tuple[str, Any]:
        with made.iterator(epochs=1) as iterator:
            for _ in range(count):
                next(iterator)
            return iterator.position.to_json(), next(iterator)

    def first(position: str) -> tuple[Any, Callable[[], object]]:
        iterator = dataset().iterator(epochs=1)
        iterator.load_state_dict(position)
        return next(iterator), iterator.close

    return Reader(batches, saved, first, exact)
