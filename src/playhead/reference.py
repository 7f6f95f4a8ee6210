"""What the C kernels do, in Python, numpy and google-crc32c.

Correct on every platform and slow; used where the kernels could not be built, and what the tests
compare them with. A TFRecord file is a run of frames, each

    uint64 length | uint32 masked CRC of the length | data | uint32 masked CRC of the data

all little-endian, the CRC being CRC-32C (Castagnoli).
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Checksums: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
Reason: TypeAlias = Literal["truncated", "length", "data"]

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME = HEADER.size + FOOTER.size

ALIGNMENT = 64

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

    offsets: Integers
    lengths: Integers
    crcs: Checksums
    end: int
    damage: Damage | None


class Records(NamedTuple):
    """Records as parts of buffers: record i is `buffers[which[i]][starts[i]:stops[i]]`."""

    buffers: Sequence[Buffer]
    which: Integers
    starts: Integers
    stops: Integers


@functools.cache
def _library() -> tuple[Callable[[bytes], int], Callable[[int, bytes], int]]:
    import google_crc32c

    return google_crc32c.value, google_crc32c.extend


def crc32c(data: Buffer) -> int:
    """The CRC-32C of `data`; what is not `bytes` is copied piece by piece, never whole.

    Raises BufferError where `data` is not contiguous.
    """
    value, extend = _library()
    if isinstance(data, bytes):
        return value(data)
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("a contiguous buffer is needed")
    crc = 0
    if view.nbytes:
        view = view.cast("B")
    for start in range(0, view.nbytes, _PIECE):
        crc = extend(crc, bytes(view[start : start + _PIECE]))
    return crc


def masked_crc32c(data: Buffer) -> int:
    """The CRC-32C of `data` as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


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


def varints(packed: bytes) -> tuple[Integers, Integers]:
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


def check(records: Records, crcs: Checksums) -> int:
    """The first record whose frame is not as `crcs` (uint32[n]) and its own length say; -1: none.

    The header stands in the 12 bytes before each record, the stored CRC in the 4 behind it.
    """
    spans = zip(
        records.which.tolist(), records.starts.tolist(), records.stops.tolist(), strict=True
    )
    for position, ((which, start, stop), crc) in enumerate(zip(spans, crcs.tolist(), strict=True)):
        buffer = records.buffers[which]
        header = HEADER.pack(stop - start, masked_crc32c(_LENGTH.pack(stop - start)))
        if (
            bytes(buffer[start - HEADER.size : start]) != header
            or bytes(buffer[stop : stop + FOOTER.size]) != FOOTER.pack(crc)
            or masked_crc32c(bytes(buffer[start:stop])) != crc
        ):
            return position
    return -1


def slices(records: Records) -> list[bytes]:
    """The records' bytes."""
    spans = zip(
        records.which.tolist(), records.starts.tolist(), records.stops.tolist(), strict=True
    )
    return [bytes(records.buffers[which][start:stop]) for which, start, stop in spans]


def join(records: Records, *outs: Array) -> None:
    """Copy the records' bytes, one after the other, to `outs`, which together have as many."""
    joined = b"".join(slices(records))
    if len(joined) != sum(out.nbytes for out in outs):
        raise ValueError("the records do not fill the arrays they are to go to")
    start = 0
    for out in outs:
        stop = start + out.nbytes
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(joined[start:stop], np.uint8)
        start = stop


def frames(
    index: Integers, firsts: Integers, edges: Integers, crcs: Checksums
) -> tuple[Integers, Integers, Integers, Integers, Checksums]:
    """The files of the records at `index`, and of each record which of them, where its data begin and
    end, and its CRC.

    Raises IndexError for a record that does not exist.
    """
    if index.size and int(index.view(np.uint64).max()) >= len(crcs):
        outside = np.flatnonzero((index < 0) | (index >= len(crcs)))
        raise IndexError(f"record {index[outside[0]]} of {len(crcs)}")
    files = np.searchsorted(firsts, index, side="right") - 1
    names, which = np.unique(files, return_inverse=True)
    which = which.reshape(-1).astype(np.int64, copy=False)
    starts, stops = edges[index + files] + HEADER.size, edges[index + files + 1] - FOOTER.size
    return names, which, starts, stops, crcs[index]


def memory(nbytes: int) -> Buffer:
    """That many writable bytes, uninitialised, the first of them at a multiple of ALIGNMENT."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    address: int = raw.__array_interface__["data"][0]
    offset = -address % ALIGNMENT
    return raw[offset : offset + nbytes].data


def trim(nbytes: int) -> int:
    """Give back memory that waits to be used again, all but `nbytes`; how many bytes wait then. None does."""
    return 0


def gather(column: Array, index: Integers, *outs: Array) -> None:
    """Copy the rows of `column` at `index` to `outs`, which have their dtype and shape together.

    Raises IndexError, before anything is written, where an index is outside range(len(column)).
    """
    if index.size and int(index.view(np.uint64).max()) >= len(column):
        raise IndexError("an index is outside the array")
    start = 0
    for out in outs if len(column) else ():
        np.take(column, index[start : start + len(out)], axis=0, out=out, mode="clip")
        start += len(out)
