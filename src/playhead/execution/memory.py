"""Memory that processes share, and that leaves no trace however any of them ends.

On Linux it is a file that never had a name (memfd), elsewhere a temporary file whose name is gone, on Windows
a mapping of the paging file. The system frees it when the last process that maps it is gone. Pages take room
once they are written to.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import uuid
from multiprocessing import reduction
from typing import Any

import numpy as np

from playhead.kernels import ALIGNMENT


def aligned(nbytes: int) -> int:
    """`nbytes`, up to the next multiple of 64."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Memory:
    """`size` bytes. It is pickled only as an argument of a process that is being started."""

    def __init__(self, size: int, *, _handle: int | str | None = None) -> None:
        self.size = max(1, size)
        self._handle: int | str = _make(self.size) if _handle is None else _handle
        # Windows forgets the memory unless somebody maps it
        self._kept = self.map() if isinstance(self._handle, str) else None

    def map(self, *, private: bool = False) -> mmap.mmap:
        """The memory in this process's reach. `private`: what is written there stays in this process."""
        if sys.platform == "win32":
            access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
            return mmap.mmap(-1, self.size, tagname=str(self._handle), access=access)
        assert isinstance(self._handle, int)
        if private:
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            return mmap.mmap(self._handle, self.size, flags=flags)
        return mmap.mmap(self._handle, self.size, flags=mmap.MAP_SHARED)

    def close(self) -> None:
        """Let go of it. What is mapped stays until the last array over it is gone."""
        if isinstance(self._handle, int) and self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._kept = None

    def __reduce__(self) -> tuple[Any, ...]:
        if sys.platform == "win32":
            return _arrived_by_name, (self.size, self._handle)
        assert isinstance(self._handle, int)
        return _arrived, (self.size, reduction.DupFd(self._handle))


def _arrived(size: int, duplicate: Any) -> Memory:
    return Memory(size, _handle=duplicate.detach())


def _arrived_by_name(size: int, name: str) -> Memory:
    return Memory(size, _handle=name)


def _make(size: int) -> int | str:
    if sys.platform == "win32":
        return f"playhead-{uuid.uuid4().hex}"
    descriptor = _unnamed()
    try:
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("playhead")
        except OSError:
            pass  # a sandbox may forbid it
    descriptor, name = tempfile.mkstemp(prefix="playhead-")
    os.unlink(name)
    return descriptor


class Shelf:
    """Bytes that are written once and read by any number of processes: one copy of them all together."""

    def __init__(self, head: bytes, buffers: list[memoryview]) -> None:
        self.head = len(head)
        self.parts = [(part.nbytes, part.readonly) for part in buffers]
        at = aligned(len(head))
        self.memory = Memory(at + sum(aligned(n) for n, _ in self.parts))
        try:
            view = np.frombuffer(self.memory.map(), np.uint8)
            view[: len(head)] = np.frombuffer(head, np.uint8)
            for part in buffers:
                view[at : at + part.nbytes] = np.frombuffer(part, np.uint8)
                at += aligned(part.nbytes)
        except BaseException:
            self.memory.close()
            raise

    def read(self) -> tuple[memoryview, list[memoryview]]:
        """The head and the buffers. What is written into them stays in this process."""
        view = memoryview(self.memory.map(private=True))
        self.memory.close()
        buffers, at = [], aligned(self.head)
        for nbytes, readonly in self.parts:
            part = view[at : at + nbytes]
            buffers.append(part.toreadonly() if readonly else part)
            at += aligned(nbytes)
        return view[: self.head], buffers

    def close(self) -> None:
        self.memory.close()
