"""Values on their way between processes: a pickle, and the memory of its arrays beside it.

The memory goes into the arena where there is room, else along with the pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.execution.arena import Arena
from playhead.execution.memory import aligned
from playhead.plan.aligned import aligned_empty

INSIDE = 1024  # an array below this is part of the pickle
SMALL = 4096  # memory below this goes along with the pickle
LONG = 1 << 16  # a pickle above this counts as memory


@dataclass(frozen=True, slots=True)
class Parcel:
    """`head` is the pickle; None where it is the last of the buffers.

    The buffers have `sizes` and begin at multiples of 64 bytes, from `at` on in the arena; or they are
    `beside`.
    """

    head: bytes | None
    sizes: tuple[int, ...]
    at: int | None
    beside: tuple[bytes, ...] = ()


class Packing:
    """A value that was pickled: its parts, and how much room they need in the arena."""

    def __init__(self, dump: Callable[[Callable[[pickle.PickleBuffer], bool]], bytes]) -> None:
        self._buffers: list[memoryview] = []
        self._head: bytes | None = dump(self._beside)
        if len(self._head) >= LONG:
            self._buffers.append(memoryview(self._head))
            self._head = None
        size = sum(aligned(buffer.nbytes) for buffer in self._buffers)
        self.size = size if size >= SMALL else 0

    def _beside(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer is to be written into the pickle."""
        memory = buffer.raw()
        if memory.nbytes < INSIDE:
            return True
        self._buffers.append(memory)
        return False

    def packed(self, at: int | None, write: Callable[[int, memoryview], None]) -> Parcel:
        """The parcel, its memory written to `at` on, where there are `size` bytes of room."""
        sizes = tuple(buffer.nbytes for buffer in self._buffers)
        if at is None:
            return Parcel(self._head, sizes, None, tuple(map(bytes, self._buffers)))
        to = at
        for buffer in self._buffers:
            write(to, buffer)
            to += aligned(buffer.nbytes)
        return Parcel(self._head, sizes, at)


Load = Callable[[Any, Sequence[Any]], Any]


def unpacked(parcel: Parcel, load: Load, view: Callable[[int, int], memoryview]) -> Any:
    """The value, its arrays in memory of their own; the parcel's memory is not needed any more."""
    if parcel.at is None:
        parts: list[Any] = list(parcel.beside)
    else:
        parts, at = [], parcel.at
        for size in parcel.sizes:
            parts.append(view(at, size))
            at += aligned(size)
    head = parts.pop() if parcel.head is None else parcel.head
    return load(head, [_own(part) for part in parts])


def adopted(parcel: Parcel, load: Load, arena: Arena, room: int) -> Any:
    """The value, its arrays in the arena, where `room` bytes were reserved; what they do not need is free."""
    assert parcel.at is not None
    kept = parcel.sizes if parcel.head is not None else parcel.sizes[:-1]
    used = sum(aligned(size) for size in kept)
    parts, at = [], 0
    try:
        if used:
            region = arena.array(parcel.at, used)
            for size in kept:
                parts.append(region[at : at + size])
                at += aligned(size)
        head = parcel.head
        return load(arena.view(parcel.at + at, parcel.sizes[-1]) if head is None else head, parts)
    finally:
        arena.release(parcel.at + used, room - used)


def _own(part: Any) -> np.ndarray[Any, Any]:
    own = aligned_empty((len(part),), np.dtype(np.uint8))
    own[:] = np.frombuffer(part, np.uint8)
    return own
