"""Arrays for batches, with their data where vector instructions and other libraries want it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from playhead import kernels


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised C-contiguous array whose data starts at a multiple of kernels.ALIGNMENT bytes."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, kernels.memory(math.prod(shape) * dtype.itemsize))


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy whose data starts at a multiple of kernels.ALIGNMENT bytes, and that nothing else shares."""
    out = aligned_empty(array.shape, array.dtype)
    out[...] = array
    return out
