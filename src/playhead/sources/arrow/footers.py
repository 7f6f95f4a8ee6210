"""Footers of Parquet files: which rows lie where, and whether a file is still the same."""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playhead.errors import CorruptRecord
from playhead.plan.lock import Lock
from playhead.sources.files.keeping import changed, require_file, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import Remote

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"PAR1"
_TAIL = 8  # a footer's length and the magic
_ENDS = 64 << 10  # what is read of a file's end before its footer's length is known
_KEPT = 16 << 20  # bytes of footers, as they lie in files, that are kept decoded


@dataclass(frozen=True, slots=True)
class Footer:
    """A file, a digest of its footer, and the rows of each of its row groups."""

    seen: Seen
    content: bytes
    rows: tuple[int, ...]


class Footers:
    """The footers of files, those used last kept decoded. Thread-safe; a copy made by pickle reads anew."""

    def __init__(self, files: Iterable[Footer], remote: Remote) -> None:
        self.files, self.remote = {file.seen.path: file for file in files}, remote
        self._seen: dict[str, Seen] = {}  # files as they were found to be the same
        self._kept: OrderedDict[str, tuple[Any, Seen, int]] = OrderedDict()
        self._asking: dict[str, Lock] = {}
        self._asked: dict[str, float] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Footers], tuple[tuple[Footer, ...], Remote]]:
        return Footers, (tuple(self.files.values()), self.remote)

    def get(self, path: str) -> Any:
        """The metadata of a file that is the one whose footer was read: of a local one, now.

        Raises `SourceChanged`.
        """
        if not is_remote(path):
            return self._get(path, _look(path))
        with self._alone(path):
            return self._get(path, self._seen.get(path, self.files[path].seen))

    def add(self, footer: Footer, metadata: Any, size: int) -> None:
        """One more file, and what its footer, so many bytes long, says."""
        self.files[footer.seen.path] = footer
        self._keep(metadata, footer.seen, size)

    def _keep(self, metadata: Any, seen: Seen, size: int) -> None:
        with self._lock:
            self._kept[seen.path] = metadata, seen, size
            held = sum(size for _, _, size in self._kept.values())
            while held > _KEPT and len(self._kept) > 1:
                held -= self._kept.popitem(last=False)[1][2]

    def require_same(self, path: str) -> None:
        """Raise `SourceChanged` where a file that was read is not the one whose footer was read before.

        Threads that have read parts of one remote file ask its store together.
        """
        read = time.monotonic()
        if not is_remote(path):
            seen = _look(path)
            if seen != self.files[path].seen:
                self._get(path, seen)
            return
        with self._alone(path):
            if self._asked.get(path, read) > read:
                return
            began = time.monotonic()
            known = seen = self._seen.get(path, self.files[path].seen)
            # A store that tells no version need not be asked: the footer is all that is known.
            if known.mtime_ns:
                seen = self.remote.look(path)
            if seen != known or not known.mtime_ns:
                self._unchanged(seen)
                self._seen[path] = seen
            self._asked[path] = began

    def _alone(self, path: str) -> Lock:
        with self._lock:
            return self._asking.setdefault(path, Lock())

    def _get(self, path: str, seen: Seen) -> Any:
        with self._lock:
            found = self._kept.get(path)
            if found is not None and found[1] == seen:
                self._kept.move_to_end(path)
                return found[0]
        end = self._unchanged(seen)
        metadata = decoded(end, path)
        self._keep(metadata, seen, len(end))
        return metadata

    def _unchanged(self, seen: Seen) -> bytes:
        """A file's end, with a footer that is as it was. Raises `SourceChanged`."""
        known = self.files[seen.path]
        if seen.size == known.seen.size:
            try:
                (end,) = ends([seen], self.remote)
            except CorruptRecord:
                end = b""
            if digest(seen, end) == known.content:
                return end
        raise changed(seen.path, "after its footer was read")


def read_footers(files: Sequence[Seen], remote: Remote) -> tuple[Footers, list[pa.Schema]]:
    """The footers of files, and the columns of each. Raises `CorruptRecord`."""
    found, columns = Footers((), remote), []
    for seen, end in zip(files, ends(files, remote), strict=True):
        metadata = decoded(end, seen.path)
        rows = tuple(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups))
        found.add(Footer(seen, digest(seen, end), rows), metadata, len(end))
        columns.append(metadata.schema.to_arrow_schema())
    return found, columns


def _look(path: str) -> Seen:
    require_file(path, "Parquet file", "*.parquet")
    status = os.stat(path)
    return Seen(path, status.st_size, status.st_mtime_ns)


def digest(seen: Seen, end: bytes) -> bytes:
    """A digest of a file's size and footer, which tells where everything lies and how large it is."""
    return hashlib.blake2b(f"{seen.size};".encode() + end[:-_TAIL], digest_size=16).digest()


def decoded(end: bytes, path: str) -> Any:
    """What a footer says, as pyarrow's `FileMetaData`. Raises `CorruptRecord`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(pa.BufferReader(end))
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(path, str(error)) from None


def ends(files: Sequence[Seen], remote: Remote) -> list[bytes]:
    """Each file's footer and the bytes behind it; of remote ones in two requests each at most."""
    far = {seen: min(_ENDS, seen.size) for seen in files if is_remote(seen.path)}
    first = [(seen, seen.size - size, seen.size) for seen, size in far.items()]
    found = dict(zip(far, remote.read_all(first), strict=True))
    lengths = {seen: _length(seen, end[-_TAIL:]) for seen, end in found.items()}
    more = [
        (seen, seen.size - lengths[seen], seen.size - size)
        for seen, size in far.items()
        if lengths[seen] > size
    ]
    for (seen, _, _), data in zip(more, remote.read_all(more), strict=True):
        found[seen] = data + found[seen]
    return [found[seen][-lengths[seen] :] if seen in found else _local(seen) for seen in files]


def _local(seen: Seen) -> bytes:
    try:
        with open(seen.path, "rb") as file:
            file.seek(max(0, seen.size - _TAIL))
            length = _length(seen, file.read(_TAIL))
            file.seek(seen.size - length)
            return file.read(length)
    except OSError as error:
        raise unreadable(seen.path, error) from error


def _length(seen: Seen, tail: bytes) -> int:
    """How long a footer and what lies behind it are."""
    length = int.from_bytes(tail[:4], "little") + _TAIL
    if seen.size < 12 or tail[4:] != _MAGIC or length > seen.size - 4:
        raise _no_parquet(seen.path, "it does not end as a Parquet file does")
    return length


def _no_parquet(path: str, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}: {what}",
        help="it is no Parquet file, or was cut short: compare it with its original",
        file=path,
    )
