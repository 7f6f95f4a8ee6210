"""A few of a file's bytes, for noticing cheaply that it is another."""

from __future__ import annotations

import hashlib
import os

import numpy as np

from playhead.sources.files.keeping import Mapped, mapped, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import coalesced

_SPOTS = 64
_SPOT = 64


def sample_of(buffer: Mapped) -> bytes:
    """A digest (blake2b, 16 bytes) of 64 bytes at each of 64 places spread over a file."""
    spots = Spots(len(buffer))
    for number, place in enumerate(spots.places):
        spots.parts[number] += buffer[place : place + _SPOT]
    return spots.digest()


def sampled(seen: Seen, opening: Opening) -> bytes:
    """`sample_of` a file, wherever it lies. Raises `MissingSource` for one that cannot be read."""
    if not is_remote(seen.path):
        try:
            with open(seen.path, "rb") as file:
                return sample_of(mapped(file.fileno(), os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise unreadable(seen.path, error) from error
    spots = Spots(seen.size)
    begins = np.array(spots.places, np.int64)
    ends = np.minimum(begins + _SPOT, seen.size)
    spans, which = coalesced(begins, ends)
    read = opening.remote.read_all([(seen, *span) for span in spans])
    for number, (begin, end, span) in enumerate(
        zip(begins.tolist(), ends.tolist(), which.tolist(), strict=True)
    ):
        spots.parts[number] += read[span][begin - spans[span][0] : end - spans[span][0]]
    return spots.digest()


class Spots:
    """`sample_of` a file of `size` bytes, which go by in blocks."""

    def __init__(self, size: int) -> None:
        last = max(0, size - _SPOT)
        self.places = [int(place) for place in np.linspace(0, last, _SPOTS).astype(np.int64)]
        self.parts = [bytearray() for _ in self.places]
        self._at = 0

    def feed(self, block: bytes) -> None:
        """Takes the next bytes of the file."""
        at, self._at = self._at, self._at + len(block)
        for place, part in zip(self.places, self.parts, strict=True):
            if place < self._at and place + _SPOT > at:
                part += block[max(0, place - at) : place + _SPOT - at]

    def digest(self) -> bytes:
        """The digest of what went by."""
        return hashlib.blake2b(b"".join(self.parts), digest_size=16).digest()
