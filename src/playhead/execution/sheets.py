"""A batch that is filled part by part, in any order, by several workers.

A worker writes its elements straight into the batch that the consumer will get. Where one does not fit (it
has another shape, say), its part comes back as it is, and the whole batch is put together afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import UnequalElements
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import (
    ArraySpec,
    Block,
    Columns,
    Nest,
    Rows,
    all_like,
    leaves,
    map_nest,
    spec_of,
    stack,
    write_leaves,
)
from playhead.plan.compute import nbytes

Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], "np.ndarray[Any, Any] | None"]


@dataclass(frozen=True, slots=True)
class Written:
    """A part's elements are in the sheet, but for those in `left`; `nbytes` is how much memory they take."""

    left: Block | None
    nbytes: int


class Sheet:
    """Room for `length` elements. `spec` are their `ArraySpec`s where they can be foretold.

    `empty` gives memory that workers can write into; where it gives none, or `spec` is not known yet and the
    workers are in other processes, they send their parts back.
    """

    def __init__(self, length: int, spec: Nest | None, empty: Empty) -> None:
        self.length = length
        self._empty: Empty | None = empty
        self._lock = threading.Lock()
        self._spec = self._nest = None
        self._is_shared = True
        self._parts: dict[int, tuple[int, Block | None]] = {}
        if spec is not None:
            self._take_memory(spec, empty)

    def __reduce__(self) -> tuple[Any, ...]:
        spec, nest = (self._spec, self._nest) if self._is_shared else (None, None)
        return _elsewhere, (self.length, spec, nest)

    def _take_memory(self, spec: Nest, empty: Empty) -> None:
        refused = False

        def memory(leaf: ArraySpec) -> Any:
            nonlocal refused
            kind = leaf.dtype if isinstance(leaf.dtype, np.dtype) else np.dtype(object)
            array = empty((self.length, *leaf.shape), kind)  # type: ignore[arg-type]
            refused = refused or array is None
            return array

        nest = map_nest(memory, spec)
        if not refused:
            self._spec, self._nest = spec, nest

    def write(self, low: int, block: Block) -> Written:
        """Write elements from number `low` on. Elements that do not fit come back."""
        size = nbytes(block)
        with self._lock:
            if self._spec is None and self._empty is not None and len(block):
                self._take_memory(spec_of(block.slice(0, 1).rows()[0]), self._empty)
        if self._spec is not None and self._fill(low, block):
            return Written(None, size)
        return Written(block if self._empty is not None else _compact(block), size)

    def _fill(self, low: int, block: Block) -> bool:
        high = low + len(block)
        if isinstance(block, Columns):
            return _fill_columns(self._spec, self._nest, low, high, block.nest)
        return _fill_rows(self._spec, self._nest, low, block.rows())

    def keep(self, low: int, count: int, written: Written) -> None:
        """Take note of a part of `count` elements that a worker has done, and take what did not fit."""
        left = written.left
        if left is not None:
            left = self.write(low, left).left
        if left is not None and self._spec is None and len(left):
            self._is_shared = False  # memory of our own: workers go on sending their parts back
            self._take_memory(spec_of(left.slice(0, 1).rows()[0]), aligned_empty)
            left = self.write(low, left).left
        self._parts[low] = (count, left)

    @property
    def spec(self) -> Nest | None:
        """What its elements are like, where all fitted; else None."""
        fitted = all(left is None for _, left in self._parts.values())
        return self._spec if fitted else None

    def elements(self) -> Block:
        """All of them, once every part was kept."""
        if self.spec is not None:
            return Columns(self._nest, self.length)
        rows: list[Any] = []
        for low in sorted(self._parts):
            count, left = self._parts[low]
            part = (
                Columns(self._nest, self.length).slice(low, low + count) if left is None else left
            )
            rows += part.rows()
        return Rows(rows)


def _elsewhere(length: int, spec: Nest | None, nest: Nest | None) -> Sheet:
    """A sheet as a worker in another process sees it: it has the memory it was sent with, or none."""
    sheet = Sheet(length, None, lambda shape, dtype: None)
    sheet._empty, sheet._spec, sheet._nest = None, spec, nest
    return sheet


def _compact(block: Block) -> Block:
    """Rows as columns where they are alike: they travel as a few arrays."""
    if isinstance(block, Columns) or not len(block):
        return block
    try:
        columns = stack(block.rows())
    except UnequalElements:
        return block
    numbers = all(column.dtype != object for column in leaves(columns))
    return Columns(columns, len(block)) if numbers else block


def _fill_columns(spec: Nest, out: Nest, low: int, high: int, columns: Nest) -> bool:
    if isinstance(spec, dict):
        return (
            isinstance(columns, dict)
            and list(columns) == list(spec)
            and all(_fill_columns(spec[k], out[k], low, high, columns[k]) for k in spec)
        )
    if isinstance(spec, tuple):
        return (
            type(columns) is type(spec)
            and len(columns) == len(spec)
            and all(
                _fill_columns(s, o, low, high, c)
                for s, o, c in zip(spec, out, columns, strict=True)
            )
        )
    if columns.shape[1:] != spec.shape or columns.dtype != out.dtype:
        return False
    out[low:high] = columns
    return True


def _fill_rows(spec: Nest, out: Nest, low: int, rows: Sequence[Any]) -> bool:
    if isinstance(spec, dict):
        names = list(spec)
        if not all(isinstance(row, dict) and list(row) == names for row in rows):
            return False
        return all(_fill_rows(spec[k], out[k], low, [row[k] for row in rows]) for k in names)
    if isinstance(spec, tuple):
        if not all(type(row) is type(spec) and len(row) == len(spec) for row in rows):
            return False
        return all(
            _fill_rows(spec[k], out[k], low, [row[k] for row in rows]) for k in range(len(spec))
        )
    if isinstance(spec.dtype, np.dtype) or spec.shape:
        if not all_like(rows, spec.shape, out.dtype):
            return False
        write_leaves(rows, out[low : low + len(rows)])
        return True
    kind = spec.dtype
    if kind is not object and any(type(row) is not kind for row in rows):
        return False
    if kind is object and any(isinstance(row, _NEVER_AN_OBJECT) for row in rows):
        return False
    for k, row in enumerate(rows, low):
        out[k] = row
    return True


_NEVER_AN_OBJECT = (np.ndarray, np.generic, dict, tuple, str, bytes)
