"""The bytes of a row group's columns, fetched from a remote file before they are decoded."""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from playhead.sources.files.maps import Seen
from playhead.sources.files.remote import Remote, coalesced

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE = 8 << 20  # a longer range is asked for in several, which come at once


class Fetched(io.RawIOBase):
    """A remote file of which some ranges are there; the rest is asked for where it is wanted after all."""

    def __init__(self, seen: Seen, remote: Remote, spans: Sequence[tuple[int, int]]) -> None:
        self._seen, self._remote, self._at = seen, remote, 0
        wanted = [
            (seen, at, min(at + _PIECE, stop))
            for start, stop in spans
            for at in range(start, stop, _PIECE)
        ]
        pieces = iter(zip(wanted, remote.read_all(wanted), strict=True))
        self._starts = [start for start, _ in spans]
        self._data = [b"".join(_until(pieces, stop)) for _, stop in spans]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._seen.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._seen.size if size < 0 else min(self._at + size, self._seen.size)
        start, self._at = self._at, max(self._at, stop)
        held = bisect.bisect_right(self._starts, start) - 1
        if held >= 0 and stop <= self._starts[held] + len(self._data[held]):
            begin = self._starts[held]
            return self._data[held][start - begin : stop - begin]
        return self._remote.read(self._seen, start, max(start, stop))


def _until(pieces: Iterator[tuple[tuple[Seen, int, int], bytes]], stop: int) -> Iterator[bytes]:
    for (_, _, end), data in pieces:
        yield data
        if end == stop:
            return


def fetched(
    seen: Seen, remote: Remote, metadata: Any, group: int, columns: Sequence[str]
) -> pa.PythonFile:
    """A remote Parquet file with the `columns` of a row group there. Raises what `Remote.read` raises."""
    import pyarrow as pa

    spans, _ = coalesced(*_chunks(metadata.row_group(group), columns))
    return pa.PythonFile(Fetched(seen, remote, spans), mode="r")


def _chunks(group: Any, columns: Sequence[str]) -> tuple[Any, Any]:
    """Where the chunks of columns begin and end."""
    wanted = tuple(f"{name}." for name in columns)
    starts, stops = [], []
    for number in range(group.num_columns):
        chunk = group.column(number)
        if f"{chunk.path_in_schema}.".startswith(wanted):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            starts.append(start)
            stops.append(start + chunk.total_compressed_size)
    return np.array(starts, np.int64), np.array(stops, np.int64)
