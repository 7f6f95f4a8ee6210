"""Memory for batches: aligned to 64 bytes, and used again once every array over it is gone.

Fresh pages can cost as much as filling them. A loop that drops one batch for the next gets the same few
pieces of memory again and again.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from playhead import kernels
from playhead.plan.lock import Lock

ALIGNMENT = 64
WORTH_KEEPING = 1 << 16  # bytes; below, the allocator is as quick
IDLE = 64 << 20  # bytes that wait for another array, at most
UNCOUNTED = 8  # pieces of up to a MiB besides

Raw: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised C-contiguous array whose data starts at a multiple of 64 bytes."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < WORTH_KEEPING:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        return np.ndarray(shape, dtype, raw, kernels.misalignment(raw, ALIGNMENT))
    piece = _stock.take(nbytes)
    lease = _Lease(_aligned(nbytes) if piece is None else piece)
    return np.asarray(lease).view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy whose data starts at a multiple of 64 bytes, and that nothing else shares."""
    out = aligned_empty(array.shape, array.dtype)
    out[...] = array
    return out


def _aligned(nbytes: int) -> Raw:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = kernels.misalignment(raw, ALIGNMENT)
    return raw[offset : offset + nbytes]


class _Stock:
    """Pieces of memory that nothing uses, by their size. Of too many bytes, the sizes unused longest go."""

    def __init__(self) -> None:
        # An array may die anywhere, also below while the lock is held: its piece only comes in here.
        self._left: deque[Raw] = deque()
        self._pieces: dict[int, list[Raw]] = {}
        self._sweeping = False
        self._lock = Lock()
        self.nbytes = 0

    def take(self, nbytes: int) -> Raw | None:
        with self._lock:
            self._sweep()
            pieces = self._pieces.get(nbytes)
            if not pieces:
                return None
            self.nbytes -= nbytes
            return pieces.pop()

    def leave(self, piece: Raw) -> None:
        if len(piece) > IDLE:
            return
        self._left.append(piece)
        if len(self._left) > UNCOUNTED or len(piece) > IDLE >> 6:
            with self._lock:
                self._sweep()

    def _sweep(self) -> None:
        if self._sweeping:
            return  # an array died in there
        self._sweeping = True
        try:
            self._count()
        finally:
            self._sweeping = False

    def _count(self) -> None:
        while self._left:
            piece = self._left.popleft()
            same = self._pieces.pop(len(piece), [])
            self._pieces[len(piece)] = [*same, piece]  # the size used last comes last
            self.nbytes += len(piece)
        while self.nbytes > IDLE and self._pieces:
            size = next(iter(self._pieces))
            self.nbytes -= size * len(self._pieces.pop(size))
        if not self._pieces:
            self.nbytes = 0  # also where an interrupt came between a piece and its bytes


_stock = _Stock()


class _Lease:
    """What the arrays over a piece have as their base: when the last of them is gone, so is this."""

    __slots__ = ("__array_interface__", "_leave", "_piece")

    def __init__(self, piece: Raw) -> None:
        self.__array_interface__ = piece.__array_interface__
        self._piece, self._leave = piece, _stock.leave

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end this module's names are gone; the function above is not.
        if not finalizing():
            self._leave(self._piece)
