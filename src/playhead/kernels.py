"""The inner loops over bytes: buffers in, buffers out.

This is the reference in Python, numpy and google-crc32c: correct on every platform, and what faster
kernels are compared with. A TFRecord file is a run of frames, each

    uint64 length | uint32 masked CRC of the length | data | uint32 masked CRC of the data

all little-endian, the CRC being CRC-32C (Castagnoli).
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

NATIVE = False

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
Reason: TypeAlias = Literal["truncated", "length", "data"]

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME = HEADER.size + FOOTER.size

_MASK = 0xA282EAD8
_PIECE = 1 << 24
_LENGTH = struct.Struct("<Q")


class Damage(NamedTuple):
    """Where a scan had to stop: byte `offset`, the frame's number in the scan, and why."""

    offset: int
    record: int
    reason: Reason


class Scan(NamedTuple):
    """Frames: `offsets` and `lengths` (int64), stored data `crcs` (uint32), and where they end."""

    offsets: np.ndarray[Any, np.dtype[np.int64]]
    lengths: np.ndarray[Any, np.dtype[np.int64]]
    crcs: np.ndarray[Any, np.dtype[np.uint32]]
    end: int
    damage: Damage | None


@functools.cache
def _library() -> tuple[Callable[[bytes], int], Callable[[int, bytes], int]]:
    import google_crc32c

    return google_crc32c.value, google_crc32c.extend


def crc32c(data: Buffer) -> int:
    """The CRC-32C of `data`; what is not `bytes` is copied piece by piece, never whole."""
    value, extend = _library()
    if isinstance(data, bytes):
        return value(data)
    crc = 0
    for start in range(0, len(data), _PIECE):
        crc = extend(crc, bytes(data[start : start + _PIECE]))
    return crc


def masked_crc32c(data: Buffer) -> int:
    """The CRC-32C of `data` as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def header(length: int) -> bytes:
    """The 12 bytes that stand before `length` bytes of data."""
    return HEADER.pack(length, masked_crc32c(_LENGTH.pack(length)))


def scan(buffer: Buffer, start: int = 0, check: bool = True, stop: int | None = None) -> Scan:
    """Walk the frames that begin in `buffer[start:stop]`; a frame may reach beyond `stop`.

    The CRC of every length is checked, since the walk stands on it; that of the data only with
    `check`. Nothing is raised for bytes that are not TFRecord frames, whatever they are: the scan
    stops in front of them and says so in `damage`. `end` is where the next frame would begin.
    """
    size = len(buffer)
    stop = size if stop is None else min(stop, size)
    value = _library()[0]
    unpack_header, unpack_footer = HEADER.unpack_from, FOOTER.unpack_from
    length_crcs: dict[int, int] = {}
    offsets: list[int] = []
    lengths: list[int] = []
    crcs: list[int] = []
    position, reason = start, None
    while position < stop:
        data = position + 12
        if data > size:
            reason = "truncated"
            break
        length, length_crc = unpack_header(buffer, position)
        expected = length_crcs.get(length)
        if expected is None:
            expected = length_crcs[length] = masked_crc32c(_LENGTH.pack(length))
        if length_crc != expected:
            reason = "length"
            break
        end = data + length
        if end + 4 > size:
            reason = "truncated"
            break
        (stored,) = unpack_footer(buffer, end)
        if check:
            if length <= _PIECE:
                crc = value(bytes(buffer[data:end]))
                actual = ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
            else:
                actual = masked_crc32c(memoryview(buffer)[data:end])
            if actual != stored:
                reason = "data"
                break
        offsets.append(position)
        lengths.append(length)
        crcs.append(stored)
        position = end + 4
    return Scan(
        np.array(offsets, np.int64),
        np.array(lengths, np.int64),
        np.array(crcs, np.uint32),
        position,
        None if reason is None else Damage(position, len(offsets), reason),  # type: ignore[arg-type]
    )


def varints(packed: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The base-128 numbers that follow each other in `packed`: values (int64), and where each ends
    (int64).

    Bits beyond the 64th are dropped, and so is a number that `packed` cuts short.
    """
    data = np.frombuffer(packed, np.uint8)
    last = np.flatnonzero(data < 128)
    starts = np.concatenate([np.zeros(1, np.int64), last + 1])[:-1]
    sizes = last + 1 - starts
    values = np.zeros(len(last), np.uint64)
    for k in range(min(10, int(sizes.max(initial=0)))):
        some = sizes > k
        bits = (data[starts[some] + k] & np.uint8(127)).astype(np.uint64)
        values[some] |= bits << np.uint64(7 * k)
    return values.view(np.int64), last + 1
