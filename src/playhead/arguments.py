"""What the methods of `Dataset` are given, checked and brought into one form."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from playhead.errors import PipelineError
from playhead.plan import randomness
from playhead.readers.reader import Reader


def positive(op: str, argument: str, value: int) -> int:
    """`value` as an int. Raises `PipelineError` for anything but a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise PipelineError(f"{op}({argument}={value!r}): a whole number, at least 1")
    return int(value)


def limit(op: str, value: int) -> int | None:
    """None for a negative number, which means all of them, or endless."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise PipelineError(f"{op}(count={value!r}): a whole number, or -1 for no limit")
    return None if value < 0 else int(value)


def seed_of(seed: int | None) -> tuple[int, bool]:
    """The seed, or one that is drawn now, and whether it was drawn."""
    return (randomness.draw_seed(), True) if seed is None else (operator.index(seed), False)


def weights_of(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """A weight for each of `count` datasets. Raises `PipelineError` for what is none."""
    if isinstance(weights, Reader):
        raise PipelineError(
            "sample_from_datasets(weights=...) takes a list of numbers, not a dataset"
        )
    given = [1.0] * count if weights is None else [float(w) for w in np.asarray(weights).tolist()]
    fits = len(given) == count and all(w >= 0 and np.isfinite(w) for w in given) and any(given)
    if not fits:
        raise PipelineError(
            f"sample_from_datasets: weights {given} for {count} datasets",
            help="one for each, finite, not negative and not all zero",
        )
    return tuple(given)


def distribution_of(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """`values` as shares that sum to 1. Raises `PipelineError` where they cannot."""
    found = tuple(float(v) for v in np.asarray(values).tolist())
    if not found or any(v < 0 or not np.isfinite(v) for v in found) or not sum(found):
        raise PipelineError(
            f"rejection_resample({name}={list(found)}): shares, not negative, not all 0"
        )
    return tuple(v / sum(found) for v in found)


def shapes_of(nest: Any) -> Any:
    """Padded shapes with a list at each leaf."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return {key: shapes_of(value) for key, value in nest.items()}
    if isinstance(nest, tuple) and any(not isinstance(d, int | np.integer | None) for d in nest):
        return tuple(shapes_of(value) for value in nest)
    if isinstance(nest, int | np.integer):
        return [int(nest)]
    return [None if d is None else int(d) for d in nest]
