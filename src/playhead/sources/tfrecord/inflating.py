"""How TFRecord files are compressed, as tf.data has it: GZIP or ZLIB, told outright or by their first bytes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from playhead.errors import PipelineError
from playhead.sources.files.unpacking import Packing
from playhead.sources.tfrecord.framing import is_frame

Compression: TypeAlias = Literal["", "GZIP", "ZLIB"]

PACKINGS: dict[Compression, Packing | None] = {"": None, "GZIP": "gzip", "ZLIB": "zlib"}


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
