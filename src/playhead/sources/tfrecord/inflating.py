"""Decompressing as tf.data does it: GZIP and ZLIB, told outright or by a file's first bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from playhead.errors import PipelineError
from playhead.sources.tfrecord.framing import is_frame

Compression: TypeAlias = Literal["", "GZIP", "ZLIB"]

_BITS = {"GZIP": 31, "ZLIB": 15}
_AT_ONCE = 1 << 20


class Broken(Exception):
    """A compressed file that cannot be decompressed to its end."""


def checked(compression_type: str | None, argument: str) -> Compression | None:
    """What an argument says: "", "GZIP" or "ZLIB", or None. Raises `PipelineError` for anything else."""
    match compression_type:
        case None | "" | "GZIP" | "ZLIB":
            return compression_type
    raise PipelineError(
        f'{argument} is "GZIP", "ZLIB", "" or None, not {compression_type!r}',
        compression_type=compression_type,
    )


def compression_of(start: bytes) -> Compression:
    """How a TFRecord file that begins with these bytes is compressed."""
    if is_frame(start):
        return ""
    if start.startswith(b"\x1f\x8b\x08"):
        return "GZIP"
    zlib_header = start[:1] == b"\x78" and int.from_bytes(start[:2], "big") % 31 == 0
    return "ZLIB" if len(start) > 1 and zlib_header else ""


def inflated(blocks: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """What compressed blocks hold, about 1 MiB at a time; files in a row are read as one.

    Raises `Broken` for bytes that are no such thing, or where the end is missing.
    """
    if not compression:
        yield from blocks
        return
    engine = zlib.decompressobj(_BITS[compression])
    begun = False
    try:
        for block in blocks:
            left = block
            while left:
                if engine.eof:
                    left = left.lstrip(b"\0")  # what pads a file on a tape
                    if not left:
                        break
                    engine = zlib.decompressobj(_BITS[compression])
                begun = True
                data = engine.decompress(left, _AT_ONCE)
                left = engine.unused_data if engine.eof else engine.unconsumed_tail
                if data:
                    yield data
        rest = engine.flush()
        if rest:
            yield rest
    except zlib.error as error:
        raise Broken(str(error)) from error
    if begun and not engine.eof:
        raise Broken("the compressed file ends before its end is marked")
