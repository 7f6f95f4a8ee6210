"""Where each member of a tar file lies, kept in a file so that it is found out once.

The index of `data/train-000.tar` is `data/playhead-index/train-000.tar.members`; `shelf` says where else it
may lie. Only members that belong to a sample are in it.

Layout, all integers little-endian, m members in n samples, their names b bytes long together:

    offset               size      what
    0                    8         magic, the ASCII letters PLAYHTAR
    8                    4         uint32  version of this layout, 2
    12                   4         uint32  flags; bit 0: the last sample is what is left of a file that is
                                           damaged or was cut short, with those of its members that were found
    16                   8         uint64  size of the tar file in bytes
    24                   8         int64   its modification time in nanoseconds
    32                   8         uint64  m
    40                   8         uint64  n
    48                   8         uint64  b
    56                   16        content: blake2b over each member's name, size, first and last 512 bytes,
                                   then for a file that is damaged over the letters "rest"
    72                   16        blake2b of 64 bytes at each of 64 places spread over the file
    88                   8m        int64   where each member's data begin
    88+8m                8m        int64   their sizes
    88+16m               8(m+1)    int64   where each name ends in the names, after a 0
    96+24m               8(n+1)    int64   the number of each sample's first member, then m
    104+24m+8n           b         the names, UTF-8
    104+24m+8n+b         4         uint32  CRC-32C of everything before it

Of a remote file the time is a number for its version, 0 where its store tells none; where it does, the
sample is 0.

An index is believed only if its own CRC holds, its offsets are those of a possible file, and size,
modification time and the sampled bytes are the file's. Anything else is built anew.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import CorruptRecord
from playhead.sources.files.maps import Seen
from playhead.sources.tar.members import BLOCK, Member, split

MAGIC = b"PLAYHTAR"
VERSION = 2
SUFFIX = "members"

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_HEADER = struct.Struct("<8sIIQqQQQ16s16s")
_BROKEN = 1


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The index of one tar file, of m members in n samples.

    `offsets` and `sizes` (int64[m]) of members' data, `ends` (int64[m+1]) of their names in `names`, `firsts`
    (int64[n+1]) members of samples. `broken`: the last sample is the rest of a file in which no other can be
    found.
    """

    seen: Seen
    offsets: Integers
    sizes: Integers
    ends: Integers
    names: bytes
    firsts: Integers
    content: bytes
    sample: bytes
    broken: bool = False

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def name(self, member: int) -> str:
        return self.names[self.ends[member] : self.ends[member + 1]].decode(
            "utf-8", "surrogateescape"
        )

    def of(self, sample: int) -> Iterator[Member]:
        """The members of a sample."""
        for k in range(int(self.firsts[sample]), int(self.firsts[sample + 1])):
            yield Member(self.name(k), int(self.offsets[k]), int(self.sizes[k]))

    def require_sample(self, sample: int) -> None:
        """Raises `CorruptRecord` for what is no sample, but the rest of a file that is damaged."""
        if not self.broken or sample < len(self) - 1:
            return
        first = int(self.firsts[sample])
        end = int(self.offsets[first - 1] + self.sizes[first - 1]) if first else 0
        begin = min(-(-end // BLOCK) * BLOCK, self.seen.size)
        size = self.seen.size - begin
        raise CorruptRecord(
            f"{self.seen.path}, sample {sample} at byte {begin}: the archive is damaged or was cut short (or "
            f"is no tar file); no whole sample can be found in the {size} bytes from there on",
            help="compare it with its original, and copy or write it again",
            file=self.seen.path,
            record=sample,
            offset=begin,
            size=size,
        )

    def group(self, sample: int) -> tuple[str, frozenset[str]]:
        """A sample's key and its extensions."""
        parts = [part for member in self.of(sample) if (part := split(member.name))]
        return parts[0][0], frozenset(extension for _, extension in parts)


@dataclass(frozen=True, eq=False)
class Shards:
    """The index of several tar files read one after the other."""

    shards: tuple[Shard, ...]

    @staticmethod
    def of(shards: Sequence[Shard]) -> Shards:
        """Raises `CorruptRecord` where a sample is torn over two files."""
        filled = [shard for shard in shards if len(shard)]
        for one, other in itertools.pairwise(filled):
            if one.broken or (other.broken and len(other) == 1):
                continue  # its last sample, or the other's first, is no whole one
            require_whole(one.group(len(one) - 1), other.group(0), one.seen.path, other.seen.path)
        return Shards(tuple(shards))

    @cached_property
    def starts(self) -> Integers:
        """The number of each file's first sample, then how many all hold."""
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @property
    def samples(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def content(self) -> str:
        """A digest (hex) of the contents of the files that hold any sample, in order."""
        held = [shard.content for shard in self.shards if len(shard)]
        return hashlib.blake2b(b"".join(held), digest_size=16).hexdigest()

    def locate(self, index: Integers) -> tuple[Integers, Integers]:
        """The files of samples (int64[n]), and their numbers there. Raises `IndexError`."""
        outside = np.flatnonzero((index < 0) | (index >= self.samples))
        if len(outside):
            raise IndexError(f"sample {index[outside[0]]} of {self.samples}")
        files = np.searchsorted(self.starts, index, side="right") - 1
        return files, index - self.starts[files]


def require_whole(
    one: tuple[str, frozenset[str]], other: tuple[str, frozenset[str]], path: str, beyond: str
) -> None:
    """Raises `CorruptRecord` where two groups are parts of one sample."""
    if one[0] == other[0] and not one[1] & other[1]:
        place = f"in {beyond}" if beyond != path else "further on in it"
        raise CorruptRecord(
            f"{path}: sample {one[0]!r} has {_spoken(one[1])} here and {_spoken(other[1])} {place}",
            help="the members of a sample lie next to each other in one file: write the archives again, "
            "as with tar --sort=name",
            file=path,
            member=one[0],
        )


def _spoken(extensions: frozenset[str]) -> str:
    return ", ".join(f".{extension}" for extension in sorted(extensions))


def encode(shard: Shard) -> bytes:
    """The index as the bytes of an index file."""
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        _BROKEN if shard.broken else 0,
        shard.seen.size,
        shard.seen.mtime_ns,
        len(shard.offsets),
        len(shard),
        len(shard.names),
        shard.content,
        shard.sample,
    )
    arrays = (shard.offsets, shard.sizes, shard.ends, shard.firsts)
    body = b"".join([head, *(a.astype("<i8").tobytes() for a in arrays), shard.names])
    return body + struct.pack("<I", kernels.crc32c(body))


def decode(blob: bytes, path: str) -> Shard | None:
    """The index of `path` from an index file's bytes; None for bytes that are not a sound one."""
    if len(blob) < _HEADER.size + 20:
        return None
    magic, version, flags, size, mtime, count, samples, named, content, sample = (
        _HEADER.unpack_from(blob)
    )
    broken = bool(flags & _BROKEN)
    numbers = (count, count, count + 1, samples + 1)
    if magic != MAGIC or version != VERSION:
        return None
    if len(blob) != _HEADER.size + 8 * sum(numbers) + named + 4:
        return None
    if kernels.crc32c(blob[:-4]) != int.from_bytes(blob[-4:], "little"):
        return None
    place = _HEADER.size
    arrays: list[Integers] = []
    for number in numbers:
        arrays.append(np.frombuffer(blob, "<i8", number, place).astype(np.int64, copy=False))
        place += 8 * number
    offsets, sizes, ends, firsts = arrays
    names = blob[place : place + named]
    if count and (
        offsets.min() < 0 or sizes.min() < 0 or (offsets > size).any() or (sizes > size).any()
    ):
        return None
    if (offsets + sizes > size).any() or (np.diff(offsets) <= 0).any():
        return None
    # Of numbers that are not negative, no difference overflows.
    if ends.min() < 0 or firsts.min() < 0:
        return None
    if ends[0] != 0 or ends[-1] != named or (np.diff(ends) <= 0).any():
        return None
    if firsts[0] != 0 or firsts[-1] != count or (np.diff(firsts) < 0).any():
        return None
    if (np.diff(firsts)[: samples - broken] == 0).any() or (broken and not samples):
        return None
    seen = Seen(path, size, mtime)
    return Shard(seen, offsets, sizes, ends, names, firsts, content, sample, broken)
