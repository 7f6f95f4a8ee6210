"""A remote file read here and there, for the headers in it."""

from __future__ import annotations

from playhead.sources.files.maps import Seen
from playhead.sources.files.remote import Remote

FIRST = 64 << 10
# A window as large as this comes in pieces that are under way together.
MOST = 16 << 20
PIECE = 4 << 20
# Who passes over no more than this reads on: a request costs as much as so many bytes.
NEAR = 2 << 20


class Windows:
    """A remote file, of which a window of bytes is there; it moves to where reading goes.

    Where that goes on nearby, windows grow from `FIRST` to `MOST` bytes: a file of many small members is
    streamed. Where it leaps, they are small again: of a large member only its ends are asked for.
    """

    def __init__(self, seen: Seen, remote: Remote) -> None:
        self._seen, self._remote = seen, remote
        self._at = self._start = 0
        self._length = FIRST
        self._data = b""

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        data = self.part(self._at, self._seen.size if size < 0 else self._at + size)
        self._at += len(data)
        return data

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, or to the end. Raises what `Remote.read` raises."""
        stop = min(stop, self._seen.size)
        if stop <= start:
            return b""
        if not self._start <= start or stop > self._start + len(self._data):
            self._move(start, stop)
        return self._data[start - self._start : stop - self._start]

    def _move(self, start: int, stop: int) -> None:
        end = self._start + len(self._data)
        near = self._start <= start <= end + NEAR
        self._length = min(MOST, 4 * self._length) if near and end else FIRST
        last = min(self._seen.size, max(stop, start + self._length))
        self._data = b""  # before there are two of them
        pieces = [(self._seen, at, min(at + PIECE, last)) for at in range(start, last, PIECE)]
        self._data = b"".join(self._remote.read_all(pieces))
        self._start = start
