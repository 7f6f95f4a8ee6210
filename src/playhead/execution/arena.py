"""One piece of shared memory, cut into regions that live as long as the arrays over them.

The process that makes the arena alone says which region is whose; others map it and write where they were
told to. A region is free again when the last array over it is gone, so no array is ever written over.
"""

from __future__ import annotations

import bisect
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from playhead.execution.memory import Memory, aligned
from playhead.plan.living import Living
from playhead.plan.lock import Lock

PAGE = mmap.PAGESIZE
LARGE = 1 << 16  # from here on, regions begin at a page
WORTH_RETURNING = 1 << 20
IDLE = 64 << 20  # freed bytes that keep their pages, at least: the next results need no new ones

Region = tuple[int, int]


class Arena:
    """`size` bytes, of which those that were ever used take memory."""

    def __init__(self, size: int) -> None:
        self.size = size - size % PAGE or PAGE
        self.memory = Memory(self.size)
        self._map: mmap.mmap | None = self.memory.map()
        self._process = os.getpid()
        self._address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        self._free = FreeList(self.size)
        self._lock = Lock()
        # An array may die anywhere, also below while the lock is held. Its weak reference only comes in here,
        # and nothing in Python runs then: an interrupt that fell into that would be lost.
        self._dropped: deque[weakref.ref[Any]] = deque()
        self._arrays: dict[int, tuple[weakref.ref[Any], Region]] = {}  # by the reference's id
        self._idle = 0
        # A child made by fork has the arrays of that moment, too: what they show may never change.
        self._inherited: set[int] = set()
        _arenas.add(self)

    @property
    def given(self) -> int:
        """Bytes over which there are arrays."""
        with self._lock:
            self._sweep()
            return sum(nbytes for _, (_, nbytes) in self._arrays.values())

    @property
    def taken(self) -> int:
        """Bytes over which there are arrays, or that wait for them."""
        with self._lock:
            self._sweep()
            return self.size - self._free.total

    def reserve(self, nbytes: int) -> int | None:
        """Where `nbytes` are free, at a multiple of 64 bytes; None where there is no room."""
        size = aligned(max(1, nbytes))
        with self._lock:
            if self._map is None:
                return None
            self._sweep()
            at = self._free.take(size, PAGE if size >= LARGE else 1)
            if at is not None:
                self._idle = max(0, self._idle - size)
            return at

    def release(self, at: int, nbytes: int) -> None:
        """Give back what was reserved, or the end of it."""
        if nbytes > 0:
            with self._lock:
                self._put(at, aligned(nbytes))

    def array(self, at: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Reserved bytes as an array. They are free when it and all its views are gone."""
        assert self._map is not None
        array = np.frombuffer(self._map, np.uint8, nbytes, at)
        region = at, aligned(max(1, nbytes))
        with self._lock:
            reference = weakref.ref(array, self._dropped.append)
            self._arrays[id(reference)] = reference, region
        return array

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """An uninitialised array; None where there is no room."""
        nbytes = math.prod(shape) * dtype.itemsize
        at = self.reserve(nbytes)
        return None if at is None else self.array(at, nbytes).view(dtype).reshape(shape)

    def place(self, array: np.ndarray[Any, Any]) -> int | None:
        """Where in the arena an array begins; None if it lies elsewhere."""
        at = array.__array_interface__["data"][0] - self._address
        return at if array.size and 0 <= at < self.size else None

    def view(self, at: int, nbytes: int) -> memoryview:
        """Reserved bytes, to be written or read at once."""
        assert self._map is not None
        return memoryview(self._map)[at : at + nbytes]

    def close(self) -> None:
        """Let go of it: no room any more. It is gone when the last array over it is."""
        with self._lock:
            self._sweep()
            self._return_pages(self._free.gaps())
            self._map = None
        self.memory.close()

    def _sweep(self) -> None:
        while self._dropped:
            noted = self._arrays.pop(id(self._dropped.popleft()), None)
            if noted is None:
                continue  # an interrupt came between the two lines of `array`
            at, nbytes = noted[1]
            if at in self._inherited:
                self._inherited.discard(at)  # never free again, not even for other arrays
            else:
                self._put(at, nbytes)

    def fork(self) -> None:
        """A child is about to be made by fork: the arrays that there are keep their memory for ever."""
        with self._lock:
            self._sweep()
            self._inherited.update(at for _, (at, _) in self._arrays.values())

    def _put(self, at: int, nbytes: int) -> None:
        self._free.put(at, nbytes)
        self._idle += nbytes
        if self._idle > max(IDLE, self.size - self._free.total):
            self._idle = 0
            self._return_pages(self._free.gaps())

    def _return_pages(self, gaps: Iterable[Region]) -> None:
        if self._map is None or not hasattr(mmap, "MADV_REMOVE"):
            return
        if self._process != os.getpid():
            return  # a forked child knows only what was free at the fork
        for at, nbytes in gaps:
            begin, end = -(-at // PAGE) * PAGE, (at + nbytes) // PAGE * PAGE
            if end - begin >= WORTH_RETURNING:
                try:
                    self._map.madvise(mmap.MADV_REMOVE, begin, end - begin)
                except OSError:
                    return  # not every file system can


_arenas: Living[Arena] = Living()


def _fork() -> None:
    for arena in _arenas:
        arena.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fork)


class FreeList:
    """The gaps between regions in their order; neighbours are one gap. First fit.

    The list changes in one statement: an interrupt may lose a region, but never breaks it.
    """

    def __init__(self, size: int) -> None:
        self._gaps = [(0, size)]

    @property
    def total(self) -> int:
        return sum(size for _, size in self._gaps)

    def gaps(self) -> list[Region]:
        return list(self._gaps)

    def take(self, nbytes: int, alignment: int) -> int | None:
        """Where the first gap has `nbytes` at a multiple of `alignment`; they are no gap any more."""
        for k, (start, size) in enumerate(self._gaps):
            at = -(-start // alignment) * alignment
            if at + nbytes > start + size:
                continue
            pieces = [(start, at - start), (at + nbytes, start + size - at - nbytes)]
            self._gaps[k : k + 1] = [piece for piece in pieces if piece[1]]
            return at
        return None

    def put(self, at: int, nbytes: int) -> None:
        """Bytes that were taken are free again."""
        k = bisect.bisect(self._gaps, (at, 0))
        start, end, first, last = at, at + nbytes, k, k
        if k and sum(self._gaps[k - 1]) == at:
            start, first = self._gaps[k - 1][0], k - 1
        if k < len(self._gaps) and self._gaps[k][0] == end:
            end, last = sum(self._gaps[k]), k + 1
        self._gaps[first:last] = [(start, end - start)]


def affordable(most: int) -> int:
    """`most` bytes, or half of the memory that is free in this machine or container if that is less."""
    free = free_memory()
    return most if free is None else min(most, max(1 << 24, free // 2))


def free_memory() -> int | None:
    """Bytes that this machine or container has left; None where it does not say."""
    return min((n for n in (_available(), _container()) if n is not None), default=None)


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _container() -> int | None:
    for root, most, now in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit = Path(root, most).read_text().strip()
            used = int(Path(root, now).read_text())
            return None if limit == "max" else max(0, int(limit) - used)
        except (OSError, ValueError):
            continue
    return None
