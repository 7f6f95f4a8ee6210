"""The inner loops over bytes, buffers in and buffers out: the C kernels, or their reference.

`NATIVE` says which. The C kernels stand in `_kernels.c`; where they could not be built, or with
PLAYHEAD_KERNELS=reference in the environment, everything runs on `playhead.reference`, which gives
the same results and says what each function means.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from playhead import reference
from playhead.errors import PlayheadWarning, warn
from playhead.reference import (
    ALIGNMENT,
    FOOTER,
    FRAME,
    HEADER,
    Array,
    Buffer,
    Checksums,
    Damage,
    Integers,
    Reason,
    Records,
    Scan,
)

__all__ = [
    "ALIGNMENT",
    "FOOTER",
    "FRAME",
    "HEADER",
    "NATIVE",
    "Buffer",
    "Damage",
    "Reason",
    "Records",
    "Scan",
    "check",
    "crc32c",
    "examples",
    "feistel",
    "frames",
    "gather",
    "header",
    "join",
    "masked_crc32c",
    "memory",
    "scan",
    "slices",
    "trim",
    "values",
    "varints",
]


def _native() -> Any:
    """The module of C kernels, or None."""
    if os.environ.get("PLAYHEAD_KERNELS") == "reference":
        return None
    try:
        module = importlib.import_module("playhead._kernels")
    except ImportError:
        return None
    if getattr(module, "VERSION", None) == VERSION:
        return module
    warn(
        "playhead's C kernels were built from other sources than these, so the slow reference stands in; "
        "build them again: pip install --editable .",
        PlayheadWarning,
    )
    return None


VERSION = 5  # of what the two call each other by; the same number stands in _kernels.c

_c = _native()

NATIVE: bool = _c is not None
"""Whether the C kernels are at work."""

crc32c: Callable[[Buffer], int] = _c.crc32c if NATIVE else reference.crc32c
"""The CRC-32C of a contiguous buffer."""

masked_crc32c: Callable[[Buffer], int] = _c.masked_crc32c if NATIVE else reference.masked_crc32c
"""The CRC-32C of a contiguous buffer as TFRecord stores it: rotated right by 15 bits, plus a constant."""

memory: Callable[[int], Buffer] = _c.memory if NATIVE else reference.memory
"""That many writable bytes, uninitialised, the first of them at a multiple of ALIGNMENT.

In C, pieces between 64 KiB and 64 MiB are used again once every array over them is gone; up to 64 MiB wait.
"""

trim: Callable[[int], int] = _c.trim if NATIVE else reference.trim
"""Give back memory that waits to be used again, all but so many bytes; returns how many wait then."""

_FRAMES_AT_ONCE = 1 << 16
_REASONS: tuple[Reason | None, ...] = (None, "truncated", "length", "data")
_LENGTH = struct.Struct("<Q")


def header(length: int) -> bytes:
    """The 12 bytes that stand before `length` bytes of data."""
    return HEADER.pack(length, masked_crc32c(_LENGTH.pack(length)))


def scan(buffer: Buffer, start: int = 0, check: bool = True, stop: int | None = None) -> Scan:
    """Walk the frames that begin in `buffer[start:stop]`; a frame may reach beyond `stop`.

    The CRC of every length is checked, since the walk stands on it; that of the data only with
    `check`. Nothing is raised for bytes that are not TFRecord frames, whatever they are: the scan
    stops in front of them and says so in `damage`. `end` is where the next frame would begin.
    """
    if not NATIVE:
        return reference.scan(buffer, start, check, stop)
    size = len(buffer)
    stop = size if stop is None else min(stop, size)
    parts: list[tuple[Integers, Integers, Checksums]] = []
    position, count, reason = start, _FRAMES_AT_ONCE, 0
    while count == _FRAMES_AT_ONCE and not reason:
        room = _FRAMES_AT_ONCE
        part = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint32)
        count, position, reason = _c.scan(buffer, position, stop, check, *part)
        parts.append((part[0][:count], part[1][:count], part[2][:count]))
    offsets, lengths, crcs = (np.concatenate(column) for column in zip(*parts, strict=True))
    why = _REASONS[reason]
    damage = None if why is None else Damage(position, len(offsets), why)
    return Scan(offsets, lengths, crcs, position, damage)


def varints(packed: bytes) -> tuple[Integers, Integers]:
    """The base-128 numbers that follow each other in `packed`: values (int64), and where each ends
    (int64).

    Bits beyond the 64th are dropped, and so is a number that `packed` cuts short.
    """
    if not NATIVE:
        return reference.varints(packed)
    count = _c.count_varints(packed)
    values, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    _c.varints(packed, values, ends)
    return values, ends


def check(records: Records, crcs: Checksums) -> int:
    """The first record whose frame is not as `crcs` (uint32[n]) and its own length say; -1: none.

    Raises ValueError where a frame does not lie inside its buffer.
    """
    return int(_c.check(*records, crcs)) if NATIVE else reference.check(records, crcs)


def slices(records: Records) -> list[bytes]:
    """The records' bytes. Raises ValueError where one does not lie inside its buffer."""
    found: list[bytes] = _c.slices(*records) if NATIVE else reference.slices(records)
    return found


def join(records: Records, *outs: Array) -> None:
    """Copy the records' bytes, one after the other, to `outs`: contiguous, and together of as many bytes.

    Raises ValueError where they are not, or a record does not lie inside its buffer.
    """
    if NATIVE:
        _c.join(*records, outs)
    else:
        reference.join(records, *outs)


def frames(
    index: Integers, firsts: Integers, edges: Integers, crcs: Checksums
) -> tuple[Integers, Integers, Integers, Integers, Checksums]:
    """Where the data of the records at `index` (int64[n]) lie: which files they are in (int64, each once),
    and for each record which of those, its first byte, the byte behind it (int64[n] each) and its CRC
    (uint32[n]).

    The frame of record r in file f lies between edges[r + f] and edges[r + f + 1], and crcs[r] is its CRC;
    firsts[f] is the number of f's first record. Raises IndexError for a record that does not exist.
    """
    if not NATIVE:
        return reference.frames(index, firsts, edges, crcs)
    size = len(index)
    names, which, starts, stops = (np.empty(size, np.int64) for _ in range(4))
    found = np.empty(size, np.uint32)
    count = _c.frames(index, firsts, edges, crcs, which, starts, stops, found, names)
    return names[:count], which, starts, stops, found


def gather(column: Array, index: Integers, *outs: Array) -> None:
    """Copy the rows of `column` at `index` (int64) to `outs`, one after the other, contiguous and of their
    dtype and shape.

    The dtype holds no objects. Raises IndexError, before anything is written, where an index is
    outside range(len(column)).
    """
    index = np.ascontiguousarray(index, np.int64)
    if not NATIVE or not _c.gather(column, index, outs):
        reference.gather(column, index, *outs)


def examples(
    records: Records,
    crcs: Checksums | None,
    names: tuple[bytes, ...],
    kinds: bytes,
    counts: Integers,
    ends: Integers,
    outs: tuple[Array | None, ...],
    defaults: tuple[Buffer | Array | None, ...],
    spans: Integers,
) -> int:
    """Parse `tf.train.Example` records; only where `NATIVE`.

    Fields are named by `names`; `kinds` are the wire tags of their lists, `counts` how many values
    each record has of them, -1 for any number. The records are cut into parts, part p ending before record
    `ends[p]`. Numbers of a fixed count, and bytes with a count of 1, are written to `outs`: for the
    first part an array (its records, count) for each such field, of objects for bytes, and None for
    each other one; then those of the next part. Of the other fields `spans` (int64, (others, 3, n)) gets,
    for each record, where the list begins and ends in its buffer, and how many values it has, or -1
    for a fixed feature that is missing. `defaults` are arrays of numbers, bytes for bytes with a
    count of 1, anything for other bytes; a fixed feature without one must be in every record. With
    `crcs` every frame is checked first, as by `check`.

    Returns -1, or the first record that is damaged or is not understood: the parser in Python is to
    be asked about it.
    """
    found = _c.examples(*records, crcs, names, kinds, counts, ends, outs, defaults, spans)
    return int(found)


def values(kind: int, lists: Records, counts: Integers, out: Array) -> bool:
    """All values of lists that `examples` found, one after the other; only where `NATIVE`.

    `out` is float32 or int64, one for each value; or for bytes int64 (2, n): where each begins and
    ends. Returns False where a list does not hold what it did.
    """
    return bool(_c.values(kind, *lists, counts, out))


def feistel(index: Integers, length: int, key: int | Array) -> Integers:
    """`playhead.plan.permutation`'s "feistel-1"; only where `NATIVE`.

    `key` is one 64-bit int, or uint64[n]. Raises IndexError for a place outside range(length).
    """
    keys = key if isinstance(key, np.ndarray) else np.array([key & (1 << 64) - 1], np.uint64)
    index = np.ascontiguousarray(index, np.int64)
    out = np.empty(index.shape, np.int64)
    _c.feistel(index, length, np.ascontiguousarray(keys, np.uint64), out)
    return out
