"""Files on object stores and web servers, read in ranges through fsspec."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from playhead.errors import MissingSource, SourceChanged, SourceError
from playhead.plan.lock import Lock
from playhead.reference import Integers
from playhead.sources.files.keeping import DIRECTORY, changed
from playhead.sources.files.maps import Seen

# Neighbours that lie no further apart are read in one request: what a request costs, in bytes.
GAP = 128 << 10
MOST = 16 << 20
IN_FLIGHT = 16
BLOCK = 8 << 20

_ATTEMPTS = 5
_FIRST_WAIT = 0.1
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_VERSIONS = (
    ("ETag", "etag", "content_md5", "Content-MD5", "md5Hash", "generation", "version_id"),
    ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created"),
)

Span: TypeAlias = tuple[int, int]
T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Remote:
    """The files of stores that fsspec knows, with its `options` for them. Thread-safe; it can be pickled.

    At most `IN_FLIGHT` requests are under way at once. What fails for a moment is asked for again.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    _room: _Room = field(default_factory=lambda: _Room(IN_FLIGHT), init=False, repr=False)

    def __reduce__(self) -> tuple[type[Remote], tuple[Mapping[str, Any]]]:
        return Remote, (self.options,)

    def expand(self, url: str) -> list[str]:
        """The URLs that a pattern matches, sorted; itself where it is none. Raises `MissingSource`."""
        pattern = url.partition("?")[0] if url.startswith("http") else url
        if not glob.has_magic(pattern):
            return [url]
        system, path = self._system(url)
        matches = self._insisted(lambda: system.glob(path, detail=True), url)
        found = sorted(
            system.unstrip_protocol(name)
            for name, info in matches.items()
            if info.get("type") != "directory" and DIRECTORY not in name.split("/")
        )
        if not found:
            raise MissingSource(
                f"no file matches {url!r}",
                help="check the pattern, and that this machine may list what lies there",
                pattern=url,
            )
        return found

    def look(self, url: str) -> Seen:
        """A file's size, and a number that stands for its version (0 where the store tells none).

        Raises `MissingSource`, and `SourceError` where the store does not tell the size.
        """
        system, path = self._system(url)

        def ask() -> dict[str, Any]:
            system.invalidate_cache()
            with self._room:
                return dict(system.info(path))

        info = self._insisted(ask, url)
        if info.get("type") == "directory":
            raise MissingSource(
                f"{url} is a directory, not a file", help="name the files in it", file=url
            )
        size = info.get("size")
        if size is None:
            raise SourceError(
                f"{url}: the server does not say how long it is, so parts of it cannot be read",
                help="copy it to a local disk",
                file=url,
            )
        return Seen(url, int(size), _version(info))

    def look_all(self, urls: Sequence[str]) -> list[Seen]:
        """`look` at several."""
        return list(_mapped(self.look, urls, IN_FLIGHT))

    def read(self, seen: Seen, start: int, stop: int) -> bytes:
        """Some bytes of a file. Raises `SourceChanged` where it is not as it was when it was seen."""
        if start == stop:
            return b""
        system, path = self._system(seen.path)

        def ask() -> bytes:
            with self._room:
                data = bytes(system.cat_file(path, start=start, end=stop))
            if len(data) > stop - start:
                raise SourceError(
                    f"{seen.path}: the server sends all of it where a part was asked for",
                    help="copy it to a local disk, or serve it where ranges are understood",
                    file=seen.path,
                )
            if len(data) < stop - start:
                self.require_same(seen)
                raise _Short(f"{len(data)} bytes came of {stop - start}")
            return data

        try:
            return self._insisted(ask, seen.path)
        except (MissingSource, SourceChanged):
            raise
        except SourceError:
            self.require_same(seen)  # which says so, where that is why
            raise

    def read_all(self, wanted: Sequence[tuple[Seen, int, int]]) -> list[bytes]:
        """Several parts of files, at once."""
        if len(wanted) == 1:
            return [self.read(*wanted[0])]
        return list(_mapped(lambda part: self.read(*part), wanted, IN_FLIGHT))

    def require_same(self, seen: Seen, when: str = "while it was in use") -> None:
        """Raise `SourceChanged` where a file is not as it was when it was seen."""
        if self.look(seen.path) != seen:
            raise changed(seen.path, when)

    def blocks(self, seen: Seen) -> Iterator[bytes]:
        """All bytes of a file, in order, a few blocks ahead."""
        spans = [(seen, at, min(at + BLOCK, seen.size)) for at in range(0, seen.size, BLOCK)]
        yield from _mapped(lambda part: self.read(*part), spans, 4)

    def get(self, url: str) -> bytes | None:
        """A small file, whole; None where it is not there, or cannot be read."""
        try:
            system, path = self._system(url)
            with self._room:
                return bytes(system.cat_file(path))
        except Exception:
            return None

    def put(self, url: str, data: bytes) -> None:
        """Write a small file, at once where the store is one that does so. Raises OSError."""
        try:
            system, path = self._system(url)
            with contextlib.suppress(NotImplementedError, FileExistsError):
                system.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._room:
                system.pipe_file(path, data)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{url} cannot be written: {error}") from error

    def _system(self, url: str) -> tuple[Any, str]:
        if importlib.util.find_spec("fsspec") is None:
            raise _lacking(url, "fsspec is not installed", "pip install 'playhead[remote]'")
        import fsspec

        try:
            return fsspec.core.url_to_fs(url, **self.options)  # type: ignore[no-any-return]
        except ImportError as error:
            raise _lacking(url, str(error), "install what it names") from error
        except ValueError as error:
            raise _lacking(url, str(error), "check the protocol, and storage_options") from error

    def _insisted(self, ask: Callable[[], T], url: str) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return ask()
            except SourceError:
                raise
            except Exception as error:
                if not _passing(error) or attempt == _ATTEMPTS - 1:
                    raise _failed(error, url) from error
            time.sleep(_FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError


class _Short(ConnectionError):
    """Fewer bytes than were asked for, of a file that still has them."""


class _Room:
    """Room for so many at once; a child made by fork finds all of it free."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self._owner = -1
        self._seats = threading.BoundedSemaphore(size)

    def __enter__(self) -> None:
        with self._lock:
            if self._owner != os.getpid():
                self._owner, self._seats = os.getpid(), threading.BoundedSemaphore(self.size)
            seats = self._seats
        seats.acquire()

    def __exit__(self, *error: object) -> None:
        self._seats.release()


def coalesced(starts: Integers, stops: Integers) -> tuple[list[Span], Integers]:
    """The ranges to ask for, and in which of them each part lies.

    Parts with no more than `GAP` bytes between them share a range of at most `MOST` bytes, or of one
    part where that is longer.
    """
    spans: list[Span] = []
    which = np.empty(len(starts), np.int64)
    begin = end = -1
    for k in np.argsort(starts, kind="stable").tolist():
        start, stop = int(starts[k]), int(stops[k])
        if not spans or start - end > GAP or max(end, stop) - begin > MOST:
            spans.append((start, stop))
            begin, end = start, stop
        else:
            end = max(end, stop)
            spans[-1] = (begin, end)
        which[k] = len(spans) - 1
    return spans, which


def _mapped(function: Callable[[S], T], items: Sequence[S], ahead: int) -> Iterator[T]:
    """`function` of each item, in order, by threads that are gone at the end."""
    if len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(min(ahead, len(items)), "playhead-remote") as pool:
        waiting: list[Future[T]] = []
        try:
            for item in items:
                if len(waiting) == ahead:
                    yield waiting.pop(0).result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def _version(info: Mapping[str, Any]) -> int:
    for names in _VERSIONS:
        said = {name: str(info[name]) for name in names if info.get(name) is not None}
        if said:
            text = json.dumps(said, sort_keys=True).encode()
            return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
    return 0


def _passing(error: BaseException) -> bool:
    """Whether asking again may help."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status in _PASSING
    if isinstance(error, FileNotFoundError):  # also what some stores make of any trouble
        return error.__cause__ is not None and _passing(error.__cause__)
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "aiohttp"


def _failed(error: Exception, url: str) -> Exception:
    if isinstance(error, FileNotFoundError) and not _passing(error):
        return MissingSource(
            f"no file {url}",
            help="check the spelling, and that this machine may read it",
            file=url,
        )
    return SourceError(
        f"{url} cannot be read: {type(error).__name__}: {error}",
        help="check that this machine reaches it and may read it",
        file=url,
    )


def _lacking(url: str, why: str, help: str) -> SourceError:
    return SourceError(f"{url} is read through fsspec: {why}", help=help, file=url)
