"""Finding out where each member of a tar file lies: by a look at every header, and at what lies beside them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord
from playhead.sources.files.keeping import changed, mapped, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote
from playhead.sources.files.spots import sampled
from playhead.sources.files.telling import Advance
from playhead.sources.tar.index import SUFFIX, Integers, Shard, decode, encode, require_whole
from playhead.sources.tar.members import BLOCK, Member, Readable, members, split
from playhead.sources.tar.windows import Windows

# The bytes of a file from one place to another.
Part: TypeAlias = Callable[[int, int], bytes]

_STRIDE = 16 << 20


@dataclass(frozen=True)
class Members:
    """The indexes of tar files. `tolerant`: what lies behind damage is one sample, that cannot be read."""

    tolerant: bool = False
    suffix: ClassVar[str] = SUFFIX
    what: ClassVar[str] = "tar files"

    def build(self, seen: Seen, opening: Opening, advance: Advance = lambda count: None) -> Shard:
        """Look at every header of a tar file, and at the ends of what lies between.

        Raises `CorruptRecord` for what is no whole tar file (unless `tolerant`) and for samples torn apart,
        `MissingSource` for what cannot be read, `SourceChanged` for a file that is not what it was.
        """
        with _opened(seen, opening) as (file, part):
            shard = _scanned(file, part, seen, advance, self.tolerant)
        (now,) = opening.look([seen.path], "tar file", "*.tar")
        if now != seen:
            raise changed(seen.path, "while it was indexed")
        return shard if _versioned(seen) else replace(shard, sample=sampled(seen, opening))

    def encode(self, index: Shard) -> bytes:
        """As `encode` does."""
        return encode(index)

    def decode(self, blob: bytes, path: str) -> Shard | None:
        """As `decode` does."""
        return decode(blob, path)

    def fits(self, index: Shard, opening: Opening) -> bool:
        """Whether the sampled bytes are the file's, where nothing else tells its versions apart."""
        if index.broken and not self.tolerant:
            return False
        return _versioned(index.seen) or sampled(index.seen, opening) == index.sample


def _versioned(seen: Seen) -> bool:
    return is_remote(seen.path) and seen.mtime_ns != 0


@contextlib.contextmanager
def _opened(seen: Seen, opening: Opening) -> Iterator[tuple[Readable, Part]]:
    if is_remote(seen.path):
        windows = Windows(seen, opening.remote)
        yield windows, windows.part
        return
    try:
        with open(seen.path, "rb") as file:
            if os.fstat(file.fileno()).st_size != seen.size:
                raise changed(seen.path, "before it was indexed")
            buffer = mapped(file.fileno(), seen.size)
            yield file, lambda start, stop: buffer[start:stop]
    except OSError as error:
        raise unreadable(seen.path, error) from error


def _scanned(file: Readable, part: Part, seen: Seen, advance: Advance, tolerant: bool) -> Shard:
    found: list[Member] = []
    damage: CorruptRecord | None = None

    def kept() -> Iterator[Member]:
        nonlocal damage
        at = 0
        try:
            for member in members(file, seen.path, seen.size):
                if member.offset - at > _STRIDE:
                    advance(member.offset - at)
                    at = member.offset
                if split(member.name) is not None:
                    found.append(member)
                    yield member
        except CorruptRecord as error:
            if not tolerant:
                raise
            damage = error
        advance(seen.size - at)

    content = content_of(kept(), part)
    broken = damage is not None
    firsts = _firsts(found, seen.path)
    if damage is not None and not _is_of_last(damage, found):
        firsts = np.append(firsts, len(found))
    names = [encoded(member) for member in found]
    return Shard(
        seen=seen,
        offsets=np.array([member.offset for member in found], np.int64),
        sizes=np.array([member.size for member in found], np.int64),
        ends=np.cumsum([0, *map(len, names)]),
        names=b"".join(names),
        firsts=firsts,
        content=of_broken(content) if broken else content,
        sample=bytes(16),
        broken=broken,
    )


def _is_of_last(damage: CorruptRecord, found: list[Member]) -> bool:
    """Whether the sample found last may miss members, for all that is known."""
    named = split(damage.facts["member"])
    return bool(found) and (named is None or named[0] == (split(found[-1].name) or ("",))[0])


def of_broken(content: bytes) -> bytes:
    """The content of a file that is damaged behind members of that content."""
    return hashlib.blake2b(content + b"rest", digest_size=16).digest()


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


def content_of(found: Iterable[Member], part: Part) -> bytes:
    """The digest that names the samples: of names, sizes, and what lies in reach of the headers."""
    digest = hashlib.blake2b(digest_size=16)
    for member in found:
        stop, name = member.offset + member.size, encoded(member)
        digest.update(struct.pack("<IQ", len(name), member.size))
        digest.update(name)
        digest.update(part(member.offset, min(member.offset + BLOCK, stop)))
        digest.update(part(max(member.offset, stop - BLOCK), stop))
    return digest.digest()


def encoded(member: Member) -> bytes:
    """A member's name as it lies in the file."""
    return member.name.encode("utf-8", "surrogateescape")
