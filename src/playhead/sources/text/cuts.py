"""How the bytes of text files fall into records, told as they go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_NONE: Integers = np.empty(0, np.int64)


class Cut(Protocol):
    """What decides where records begin."""

    @property
    def name(self) -> str:
        """What decides where it cuts."""
        ...

    @property
    def kind(self) -> str:
        """What the records are: the suffix of index files."""
        ...

    def begin(self, path: str) -> Cutting:
        """Begins to cut a file, which errors name `path`."""
        ...


class Cutting(Protocol):
    """A file that is being cut, block after block."""

    def feed(self, block: bytes) -> None:
        """Takes the next bytes of the file, however many. Raises `CorruptRecord`."""
        ...

    def found(self) -> tuple[Integers, Integers]:
        """Where records begin so far, and the numbers of those among them that hold nothing.

        (int64, ascending.) The last record may not be whole, and is not among the second.
        """
        ...

    def finish(self) -> tuple[Integers, Integers]:
        """Where records begin, then the file's size; the numbers of those that hold nothing.

        Raises `CorruptRecord`.
        """
        ...


@dataclass(frozen=True)
class Lines:
    """A record is a line with its line end; the last may have none."""

    name: str = "lines"
    kind: str = "lines"

    def begin(self, path: str) -> Cutting:
        return _LineCutting()


class _LineCutting:
    def __init__(self) -> None:
        self._size = 0
        self._begins: list[Integers] = []
        self._blank: list[int] = []
        self._number = 0  # of the line that is not ended,
        self._hollow = True  # which holds only white space so far

    def feed(self, block: bytes) -> None:
        if not self._size and block:
            self._begins.append(np.zeros(1, np.int64))
        text = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(text == ord("\n"))
        last = 0
        if len(ends):
            if self._hollow and not block[: int(ends[0])].strip():
                self._blank.append(self._number)
            starts = ends[:-1] + 1
            candidates = np.flatnonzero(text[starts] <= ord(" "))
            for k in candidates.tolist():
                if not block[starts[k] : ends[k + 1]].strip():
                    self._blank.append(self._number + 1 + k)
            self._begins.append((ends + (self._size + 1)).astype(np.int64, copy=False))
            self._number += len(ends)
            last = int(ends[-1]) + 1
            self._hollow = True
        self._hollow = self._hollow and not block[last:].strip()
        self._size += len(block)

    def found(self) -> tuple[Integers, Integers]:
        return np.concatenate([_NONE, *self._begins]), np.array(self._blank, np.int64)

    def finish(self) -> tuple[Integers, Integers]:
        edges, blank = self.found()
        if len(edges) and edges[-1] == self._size:
            return edges, blank
        if self._size and self._hollow:
            blank = np.append(blank, np.int64(self._number))
        return np.append(edges, np.int64(self._size)), blank
