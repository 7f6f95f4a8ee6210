"""Files mapped into memory when first read, and known to be those that were looked at before."""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playhead.plan.lock import Lock
from playhead.sources.files.keeping import Mapped, changed, mapped, require_file, unreadable

if sys.platform != "win32":
    import resource


def _most_open_files() -> int:
    """How many files may stay mapped: a mapping takes a file descriptor before Python 3.13."""
    if sys.version_info >= (3, 13) or sys.platform == "win32":
        return 8192
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8192 if soft == resource.RLIM_INFINITY else min(8192, max(16, soft // 4))


_OPEN_FILES = _most_open_files()
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was when it was looked at."""

    path: str
    size: int
    mtime_ns: int


class Maps:
    """The bytes of several files. Thread-safe; a copy made by pickle maps them anew.

    `same(number, buffer)` tells whether a file that was touched still holds what it held.
    """

    def __init__(self, files: tuple[Seen, ...], same: Callable[[int, Mapped], bool]) -> None:
        self.files = files
        self._same = same
        self._open: OrderedDict[int, tuple[Mapped, os.stat_result]] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Maps], tuple[tuple[Seen, ...], Callable[..., bool]]]:
        return type(self), (self.files, self._same)

    def get(self, number: int) -> Mapped:
        """The bytes of a file. Raises `SourceChanged` where they are not what they were.

        A file replaced under its name while it is mapped does not matter: the old one is read on.
        """
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
        if found is None:
            return self._opened(number)
        buffer, known = found
        try:
            status = os.stat(self.files[number].path)
        except OSError:
            return buffer
        if status.st_ino == known.st_ino and _differs(status, known):
            self._admit(number, buffer, status, known.st_size, "while it was in use")
        return buffer

    def several(self, numbers: Sequence[int]) -> list[Mapped]:
        """The bytes of some files. Raises what `get` raises."""
        return [self.get(number) for number in numbers]

    def _opened(self, number: int) -> Mapped:
        seen = self.files[number]
        require_file(seen.path, "file", "*")
        try:
            with open(seen.path, "rb") as file:
                status = os.fstat(file.fileno())
                buffer = mapped(file.fileno(), status.st_size)
        except OSError as error:
            raise unreadable(seen.path, error) from error
        if (status.st_size, status.st_mtime_ns) == (seen.size, seen.mtime_ns):
            self._keep(number, buffer, status)
        else:
            self._admit(number, buffer, status, seen.size, "after it was indexed")
        return buffer

    def _admit(
        self, number: int, buffer: Mapped, status: os.stat_result, size: int, when: str
    ) -> None:
        if status.st_size != size or not self._same(number, buffer):
            raise changed(self.files[number].path, when)
        self._keep(number, buffer, status)

    def _keep(self, number: int, buffer: Mapped, status: os.stat_result) -> None:
        with self._lock:
            self._open[number] = buffer, status
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)


class Glances(Maps):
    """The same, looking whether a file was written at most once in `_PATIENCE` seconds.

    A batch may touch hundreds of files, and asking for a file's time costs more than reading a record.
    """

    def __init__(self, files: tuple[Seen, ...], same: Callable[[int, Mapped], bool]) -> None:
        super().__init__(files, same)
        self._looked: dict[int, float] = {}

    def several(self, numbers: Sequence[int]) -> list[Mapped]:
        now = time.monotonic()
        due = now - _PATIENCE
        found: list[Mapped] = []
        stale: list[int] = []
        with self._lock:
            for position, number in enumerate(numbers):
                known = self._open.get(number)
                if known is None or self._looked.get(number, due) <= due:
                    stale.append(position)
                    found.append(b"")
                else:
                    self._open.move_to_end(number)
                    found.append(known[0])
        for position in stale:
            found[position] = self.get(numbers[position])
            self._looked[numbers[position]] = now
        return found


def _differs(a: os.stat_result, b: os.stat_result) -> bool:
    return (a.st_size, a.st_mtime_ns) != (b.st_size, b.st_mtime_ns)
