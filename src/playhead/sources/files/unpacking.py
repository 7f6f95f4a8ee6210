"""Compressed files, local or remote, decompressed from their beginning.

gzip, bz2, xz, zlib and zstd; files in a row (members, streams, frames) are read as one.
"""

from __future__ import annotations

import bz2
import functools
import importlib.util
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from playhead.errors import SourceError
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote

Packing: TypeAlias = Literal["gzip", "bz2", "xz", "zstd", "zlib"]

SUFFIXES: dict[str, Packing] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_UNREAD = (".zip", ".7z", ".lz4", ".br")
_MAGIC: dict[bytes, Packing] = {
    b"\x1f\x8b\x08": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}

_PIECE = 128 << 10
_AT_ONCE = 1 << 20
# zstd makes up to 32768 bytes of one: so many it is given at once at first, and so many at most.
_FEW, _SOME = 64, 4096
# What `zstd --long=31` writes; less is what frames without it ask for.
_WINDOW = 1 << 31


class Broken(Exception):
    """A compressed file that cannot be decompressed to its end."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A file as it was when the dataset was made: `sample` is a digest of its size and its ends."""

    seen: Seen
    packing: Packing | None
    sample: bytes


def packing_of(path: str, start: bytes) -> Packing | None:
    """How a file is compressed, by its name or, where that says nothing, by its first bytes.

    Raises `SourceError` for what is not read, and for zstd where zstandard is not installed.
    """
    suffix = _suffix(path)
    if suffix in _UNREAD:
        raise SourceError(
            f"{path} is compressed in a way that is not read",
            help="decompress it, or compress it with gzip, bz2, xz or zstd",
            file=path,
        )
    found = SUFFIXES.get(suffix)
    if found is None:
        found = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
        if start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F:
            found = "zstd"  # a frame to be skipped, with which parallel compressors begin
    if found == "zstd" and importlib.util.find_spec("zstandard") is None:
        raise SourceError(
            f"{path} is compressed with zstd, and zstandard is not installed",
            help="pip install 'playhead[zstd]'",
            file=path,
        )
    return found


def packings(files: Sequence[Seen], opening: Opening) -> list[Packing | None]:
    """`packing_of` each file; their first bytes are read where names do not tell, all at once."""
    unsaid = [seen for seen in dict.fromkeys(files) if _suffix(seen.path) not in SUFFIXES]
    starts = {seen.path: start for seen, start in opening.starts(unsaid)}
    return [packing_of(seen.path, starts.get(seen.path, b"")) for seen in files]


def packed(
    files: Sequence[Seen], kinds: Sequence[Packing | None], opening: Opening
) -> tuple[Packed, ...]:
    """The files, to be walked."""
    parts = zip(files, kinds, opening.samples(files), strict=True)
    return tuple(Packed(seen, packing, sample) for seen, packing, sample in parts)


def _suffix(path: str) -> str:
    name = path.partition("?")[0] if is_remote(path) else path
    return os.path.splitext(name)[1].lower()


def unpacked(blocks: Iterable[bytes], packing: Packing | None) -> Iterator[bytes]:
    """What compressed blocks hold, about 1 MiB at a time; blocks themselves where nothing is packed.

    Raises `Broken` for bytes that are no such thing, or where the end is missing, once what is before is out.
    """
    if packing is None:
        yield from blocks
        return
    make = _ENGINES[packing]
    engine = make()
    begun = False
    for block in blocks:
        view = memoryview(block)
        for at in range(0, len(view), _PIECE):
            left = bytes(view[at : at + _PIECE])
            while left or engine.pending:
                if engine.eof:
                    left = left.lstrip(b"\0")  # what pads a file on a tape
                    if not left:
                        break
                    engine = make()
                begun = True
                data, left = engine.step(left)
                if data:
                    yield data
    rest = engine.rest()
    if rest:
        yield rest
    if begun and not engine.eof:
        raise Broken("the compressed file ends before its end is marked")


class Unpacked(io.RawIOBase):
    """Blocks of bytes as a file that is read from its beginning; wrap it in `io.BufferedReader`."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = memoryview(block)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        closing = getattr(self._blocks, "close", None)
        if closing is not None:
            closing()
        super().close()


class _Engine(Protocol):
    @property
    def eof(self) -> bool:
        """Whether the end of a member has come."""
        ...

    @property
    def pending(self) -> bool:
        """Whether more comes out without more being put in."""
        ...

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        """What comes out, and what of `data` was not taken. Raises `Broken`."""
        ...

    def rest(self) -> bytes:
        """What comes out at the end of all."""
        ...


class _Zlib:
    """zlib and gzip: what comes before damage is all that the bytes before it hold."""

    pending = False

    def __init__(self, bits: int) -> None:
        self._engine = zlib.decompressobj(bits)
        self._damage: zlib.error | None = None

    @property
    def eof(self) -> bool:
        return self._engine.eof

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        if self._damage is not None:
            raise Broken(str(self._damage)) from self._damage
        before = self._engine.copy()
        try:
            made = self._engine.decompress(data, _AT_ONCE)
        except zlib.error as error:
            self._damage = error
            return _sound(before, data), data
        return made, self._engine.unused_data if self.eof else self._engine.unconsumed_tail

    def rest(self) -> bytes:
        try:
            return self._engine.flush()
        except zlib.error as error:
            raise Broken(str(error)) from error


def _sound(engine: Any, data: bytes) -> bytes:
    """What the longest part of `data` holds that can be decompressed."""
    good, bad = 0, len(data)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            engine.copy().decompress(data[:middle], _AT_ONCE)
            good = middle
        except zlib.error:
            bad = middle
    sound: bytes = engine.decompress(data[:good], _AT_ONCE)
    return sound


class _Streams:
    """bz2 and xz, whose engines keep for themselves what they have not used."""

    def __init__(self, engine: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._engine = engine

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def pending(self) -> bool:
        return not self.eof and not self._engine.needs_input

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            made = self._engine.decompress(data, _AT_ONCE)
        except (OSError, lzma.LZMAError) as error:
            raise Broken(str(error)) from error
        return made, self._engine.unused_data if self.eof else b""

    def rest(self) -> bytes:
        return b""


class _Zstd:
    """zstd, whose engine gives all that it can of what it is given: that is little where much comes out."""

    pending = False

    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._engine = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        self._take = _FEW

    @property
    def eof(self) -> bool:
        return bool(self._engine.eof)

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            made = self._engine.decompress(data[: self._take])
        except self._error as error:
            raise Broken(str(error)) from error
        left = data[self._take :]
        if self.eof:
            return made, self._engine.unused_data + left
        fair = self._take * _AT_ONCE // max(1, len(made))
        self._take = max(_FEW, min(2 * self._take, fair, _SOME))
        return made, left

    def rest(self) -> bytes:
        return b""


_ENGINES: dict[Packing, Callable[[], _Engine]] = {
    "gzip": functools.partial(_Zlib, 31),
    "zlib": functools.partial(_Zlib, 15),
    "bz2": lambda: _Streams(bz2.BZ2Decompressor()),
    "xz": lambda: _Streams(lzma.LZMADecompressor()),
    "zstd": _Zstd,
}
