"""Footers of Parquet files: which rows lie where, and whether a file is still the same."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playhead.errors import CorruptRecord
from playhead.sources.files.maps import Seen

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Footer:
    """A file, a digest of its footer, and the rows of each of its row groups."""

    seen: Seen
    content: bytes
    rows: tuple[int, ...]


def read_footer(path: str) -> tuple[Footer, pa.Schema]:
    content, status = digest_of_footer(path)
    metadata = read_metadata(path)
    rows = tuple(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups))
    seen = Seen(path, status.st_size, status.st_mtime_ns)
    return Footer(seen, content, rows), metadata.schema.to_arrow_schema()


def digest_of_footer(path: str) -> tuple[bytes, os.stat_result]:
    """A digest of a file's size and footer, which tells where everything lies and how large it is."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        file.seek(max(0, status.st_size - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if status.st_size < 12 or tail[4:] != _MAGIC or length > status.st_size - 12:
            raise _no_parquet(path, "it does not end as a Parquet file does")
        file.seek(status.st_size - 8 - length)
        footer = file.read(length)
    digest = hashlib.blake2b(f"{status.st_size};".encode() + footer, digest_size=16)
    return digest.digest(), status


def read_metadata(path: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise _no_parquet(path, str(error)) from None


def _no_parquet(path: str, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}: {what}",
        help="it is no Parquet file, or was cut short: compare it with its original",
        file=path,
    )
