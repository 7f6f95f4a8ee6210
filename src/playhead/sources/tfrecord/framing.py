"""TFRecord frames in bytes that come one block after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead import kernels
from playhead.kernels import FRAME, HEADER, Damage, Records
from playhead.reference import Checksums, Integers


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole frames in `buffer`, whose first byte is byte `base` of the file and begins a frame.

    `offsets` and `lengths` (int64) are those of frames and of their data, `crcs` (uint32) are stored;
    `damage` says why the walk ends behind them, where the file does not.
    """

    buffer: bytes
    base: int
    offsets: Integers
    lengths: Integers
    crcs: Checksums
    damage: Damage | None

    def __len__(self) -> int:
        return len(self.offsets)

    def records(self, start: int, stop: int) -> Records:
        """The data of some of its frames."""
        begins = self.offsets[start:stop] + HEADER.size
        which = np.zeros(stop - start, np.int64)
        return Records([self.buffer], which, begins, begins + self.lengths[start:stop])


def stretches(blocks: Iterable[bytes], check: bool) -> Iterator[Stretch]:
    """Every frame of a file given in blocks of any size; a stretch with damage is the last.

    Lengths are checked against their CRCs, with `check` data too. Memory is held for one block, or one
    record where that is longer.
    """
    parts: list[bytes] = []
    held, wanted, base = 0, FRAME, 0
    for block in blocks:
        parts.append(block)
        held += len(block)
        if held < wanted:
            continue
        buffer = b"".join(parts)
        scan = kernels.scan(buffer, 0, check)
        cut = scan.damage is not None and scan.damage.reason == "truncated"
        damage = None if cut else scan.damage
        if len(scan.offsets) or damage is not None:
            yield Stretch(buffer, base, scan.offsets, scan.lengths, scan.crcs, damage)
        if damage is not None:
            return
        rest = buffer[scan.end :]
        parts, held, base = [rest], len(rest), base + scan.end
        wanted = FRAME
        if held >= HEADER.size:
            wanted += HEADER.unpack_from(rest)[0]
    if held:
        none: Any = np.empty(0, np.int64)
        crcs = np.empty(0, np.uint32)
        yield Stretch(b"".join(parts), base, none, none, crcs, Damage(0, 0, "truncated"))


def is_frame(start: bytes) -> bool:
    """Whether a file that begins with these bytes begins with a frame."""
    if len(start) < HEADER.size:
        return False
    length = HEADER.unpack_from(start)[0]
    return kernels.header(length) == start[: HEADER.size]
