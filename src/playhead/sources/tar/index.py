"""Where each member of a tar file lies, kept in a file so that it is found out once.

The index of `data/train-000.tar` is `data/playhead-index/train-000.tar.members`; `keeping` says where else it
may lie. Only members that belong to a sample are in it.

Layout, all integers little-endian, m members in n samples, their names b bytes long together:

    offset               size      what
    0                    8         magic, the ASCII letters PLAYHTAR
    8                    4         uint32  version of this layout, 1
    12                   4         nothing, 0
    16                   8         uint64  size of the tar file in bytes
    24                   8         int64   its modification time in nanoseconds
    32                   8         uint64  m
    40                   8         uint64  n
    48                   8         uint64  b
    56                   16        content: blake2b over each member's name, size, first and last 512 bytes
    72                   16        blake2b of 64 bytes at each of 64 places spread over the file
    88                   8m        int64   where each member's data begin
    88+8m                8m        int64   their sizes
    88+16m               8(m+1)    int64   where each name ends in the names, after a 0
    96+24m               8(n+1)    int64   the number of each sample's first member, then m
    104+24m+8n           b         the names, UTF-8
    104+24m+8n+b         4         uint32  CRC-32C of everything before it

An index is believed only if its own CRC holds, its offsets are those of a possible file, and size,
modification time and the sampled bytes are the file's. Anything else is built anew.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import CorruptRecord
from playhead.sources.files import keeping
from playhead.sources.files.keeping import Mapped, changed, mapped
from playhead.sources.files.maps import Seen
from playhead.sources.tar.members import BLOCK, Member, members, split
from playhead.sources.text.offsets import sample_of

MAGIC = b"PLAYHTAR"
VERSION = 1
SUFFIX = "members"

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_HEADER = struct.Struct("<8sIIQqQQQ16s16s")


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The index of one tar file, of m members in n samples.

    `offsets` and `sizes` (int64[m]) of members' data, `ends` (int64[m+1]) of their names in `names`, `firsts`
    (int64[n+1]) members of samples.
    """

    seen: Seen
    offsets: Integers
    sizes: Integers
    ends: Integers
    names: bytes
    firsts: Integers
    content: bytes
    sample: bytes

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

    def group(self, sample: int) -> tuple[str, frozenset[str]]:
        """A sample's key and its extensions."""
        parts = [part for member in self.of(sample) if (part := split(member.name))]
        return parts[0][0], frozenset(extension for _, extension in parts)


@dataclass(frozen=True, eq=False)
class Shards:
    """The index of several tar files read one after the other."""

    shards: tuple[Shard, ...]

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

    def locate(self, index: int) -> tuple[int, int]:
        """The file of a sample, and its number there. Raises `IndexError`."""
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, index - int(self.starts[file])


def load_or_build(paths: Sequence[str], where: str | None = None) -> Shards:
    """The indexes of local tar files. Those that fit are read, the others built and kept.

    Raises `CorruptRecord` for what is no whole tar file and for samples that are torn apart, `MissingSource`
    for what cannot be read, `SourceChanged` for a file that is written meanwhile.
    """
    found = {path: _load(path, where) for path in dict.fromkeys(paths)}
    missing = [path for path, shard in found.items() if shard is None]
    total = sum(os.path.getsize(path) for path in missing)
    with keeping.progress("indexing tar files", total) as advance:
        for path in missing:
            found[path] = shard = build(path, advance)
            keeping.store(keeping.places(path, where, SUFFIX), encode(shard))
    shards = tuple(shard for shard in (found[path] for path in paths) if shard is not None)
    filled = [shard for shard in shards if len(shard)]
    for one, other in itertools.pairwise(filled):
        require_whole(one.group(len(one) - 1), other.group(0), one.seen.path, other.seen.path)
    return Shards(shards)


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


def build(path: str, advance: Callable[[int], None] = lambda count: None) -> Shard:
    """Look at every header of a tar file, and at the ends of what lies between."""
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        buffer = mapped(file.fileno(), before.st_size)
        found: list[Member] = []
        at = 0
        for member in members(file, path, before.st_size):
            if split(member.name) is not None:
                found.append(member)
            if member.offset - at > 16 << 20:
                advance(member.offset - at)
                at = member.offset
        advance(before.st_size - at)
        firsts = _firsts(found, path)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path, "while it was indexed")
    names = [member.name.encode("utf-8", "surrogateescape") for member in found]
    return Shard(
        seen=Seen(path, before.st_size, before.st_mtime_ns),
        offsets=np.array([member.offset for member in found], np.int64),
        sizes=np.array([member.size for member in found], np.int64),
        ends=np.cumsum([0, *map(len, names)]),
        names=b"".join(names),
        firsts=firsts,
        content=content_of(buffer, found, names),
        sample=sample_of(buffer),
    )


def _firsts(found: list[Member], path: str) -> Integers:
    firsts: list[int] = []
    seen: dict[str, frozenset[str]] = {}
    key, extensions = "", frozenset[str]()
    for number, member in enumerate(found):
        named = split(member.name)
        assert named is not None
        if not firsts or named[0] != key:
            key, extensions = named[0], frozenset()
            firsts.append(number)
            if key in seen:
                require_whole((key, seen[key]), (key, frozenset({named[1]})), path, path)
        extensions |= {named[1]}
        seen[key] = extensions
    return np.array([*firsts, len(found)], np.int64)


def content_of(buffer: Mapped, found: list[Member], names: list[bytes]) -> bytes:
    """The digest that names the samples: of names, sizes, and what lies in reach of the headers."""
    digest = hashlib.blake2b(digest_size=16)
    for member, name in zip(found, names, strict=True):
        stop = member.offset + member.size
        digest.update(struct.pack("<IQ", len(name), member.size))
        digest.update(name)
        digest.update(buffer[member.offset : min(member.offset + BLOCK, stop)])
        digest.update(buffer[max(member.offset, stop - BLOCK) : stop])
    return digest.digest()


def encode(shard: Shard) -> bytes:
    """The index as the bytes of an index file."""
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
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
    magic, version, _, size, mtime, count, samples, named, content, sample = _HEADER.unpack_from(
        blob
    )
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
    if ends[0] != 0 or ends[-1] != named or (np.diff(ends) <= 0).any():
        return None
    if firsts[0] != 0 or firsts[-1] != count or (np.diff(firsts) <= 0).any():
        return None
    seen = Seen(path, size, mtime)
    return Shard(seen, offsets, sizes, ends, names, firsts, content, sample)


def _load(path: str, where: str | None) -> Shard | None:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            buffer = mapped(file.fileno(), status.st_size)
    except OSError as error:
        raise keeping.unreadable(path, error) from error
    for place in keeping.places(path, where, SUFFIX):
        try:
            shard = decode(place.read_bytes(), path)
        except OSError:
            continue
        if (
            shard is not None
            and (shard.seen.size, shard.seen.mtime_ns) == (status.st_size, status.st_mtime_ns)
            and shard.sample == sample_of(buffer)
        ):
            return shard
    return None
