"""Files on object stores and web servers, read in ranges through fsspec."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from playhead.errors import MissingSource, PipelineError, SourceChanged, SourceError
from playhead.plan.lock import Lock
from playhead.reference import Integers
from playhead.sources.files import silence
from playhead.sources.files.calling import call
from playhead.sources.files.flight import Room, in_order
from playhead.sources.files.keeping import DIRECTORY, changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.silence import Silence
from playhead.sources.files.stores import asking, bounded, is_web, once
from playhead.sources.files.troubles import lacking, passing

# Neighbours that lie no further apart are read in one request: what a request costs, in bytes.
GAP = 128 << 10
MOST = 16 << 20
IN_FLIGHT = 16
BLOCK = 8 << 20

_VERSIONS = (
    (
        "ETag",
        "etag",
        "content_md5",
        "Content-MD5",
        "md5Hash",
        "generation",
        "version_id",
        "blob_id",
    ),
    ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created"),
)

Span: TypeAlias = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Remote:
    """The files of stores that fsspec knows, with its `options` for them. Thread-safe; it can be pickled.

    At most `IN_FLIGHT` requests are under way at once. What fails for a moment is asked for again, until a
    store has not answered for `patience` seconds.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    patience: float = field(default_factory=lambda: silence.PATIENCE)
    _silences: dict[str, Silence] = field(default_factory=dict, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)
    _room: Room = field(default_factory=lambda: Room(IN_FLIGHT), init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise PipelineError(
                f"storage_options is a dict of what fsspec is given, not {self.options!r}"
            )

    def __reduce__(self) -> tuple[type[Remote], tuple[Mapping[str, Any], float]]:
        return Remote, (self.options, self.patience)

    def expand(self, url: str) -> list[str]:
        """The URLs that a pattern matches, sorted; itself where it is none. Raises `MissingSource`."""
        pattern = url.partition("?")[0] if url.startswith("http") else url
        if not glob.has_magic(pattern):
            return [url]
        system, path = self._system(url)
        with self._silence(url).told():
            matches = self._insisted(lambda: system.glob(path, detail=True), url)
        found = sorted(
            system.unstrip_protocol(name)
            for name, info in matches.items()
            if info.get("type") != "directory" and DIRECTORY not in name.split("/")
        )
        if not found:
            help = "check the pattern, and that this machine may list what lies there"
            if is_web(url):
                help = "web servers show no list, or a page of links: name files as train-{000..146}.tar"
            raise MissingSource(f"no file matches {url!r}", help=help, pattern=url)
        return found

    def look(self, url: str) -> Seen:
        """A file's size, and a number that stands for its version (0 where the store tells none).

        Raises `MissingSource`, and `SourceError` where the store does not tell the size.
        """
        with self._silence(url).told():
            self._system(url)[0].invalidate_cache()
            return self._look(url)

    def _look(self, url: str) -> Seen:
        system, path = self._system(url)

        def ask() -> dict[str, Any]:
            with self._room:
                return dict(call(system, "info", path))

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
        # Where a store lists a directory to tell of one file in it, it then knows of the others.
        first = {id(self._system(url)[0]): url for url in urls}
        found = {url: self.look(url) for url in first.values()}
        rest = [url for url in dict.fromkeys(urls) if url not in found]
        found.update(zip(rest, in_order(self._look, rest, IN_FLIGHT), strict=True))
        return [found[url] for url in urls]

    def read(self, seen: Seen, start: int, stop: int) -> bytes:
        """Some bytes of a file. Raises `SourceChanged` where it is not as it was when it was seen."""
        if start == stop:
            return b""
        system, path = self._system(seen.path)

        def ask() -> bytes:
            with self._room:
                said = asking(seen.path, self.options)
                data = bytes(call(system, "cat_file", path, start=start, end=stop, **said))
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
        except SourceError as error:
            if error.__cause__ is None or not passing(error.__cause__):
                self.require_same(seen)  # which says so, where that is why
            raise

    def read_all(self, wanted: Sequence[tuple[Seen, int, int]]) -> list[bytes]:
        """Several parts of files, at once."""
        if len(wanted) == 1:
            return [self.read(*wanted[0])]
        return list(in_order(lambda part: self.read(*part), wanted, IN_FLIGHT))

    def require_same(self, seen: Seen, when: str = "while it was in use") -> None:
        """Raise `SourceChanged` where a file is not as it was when it was seen."""
        if self.look(seen.path) != seen:
            raise changed(seen.path, when)

    def blocks(self, seen: Seen, start: int = 0) -> Iterator[bytes]:
        """All bytes of a file from `start` on, in order, a few blocks ahead.

        Raises `SourceChanged` behind the last where the file was replaced meanwhile.
        """
        spans = [(seen, at, min(at + BLOCK, seen.size)) for at in range(start, seen.size, BLOCK)]
        yield from in_order(lambda part: self.read(*part), spans, 4)
        self.require_same(seen, "while it was read")

    def get(self, url: str) -> bytes | None:
        """A small file, whole; None where it is not there, or cannot be read."""

        def ask() -> bytes:
            with self._room:
                return bytes(call(system, "cat_file", path))

        try:
            system, path = self._system(url)
            return self._insisted(ask, url)
        except Exception:
            return None

    def whole(self, seen: Seen) -> bytes:
        """A small file, in one request. Raises `SourceChanged` where it has another size than it had."""
        system, path = self._system(seen.path)

        def ask() -> bytes:
            with self._room:
                data = bytes(call(system, "cat_file", path))
            if len(data) != seen.size:
                if self.look(seen.path).size != seen.size:
                    raise changed(seen.path, "after it was found")
                raise _Short(f"{len(data)} bytes came of {seen.size}")
            return data

        return self._insisted(ask, seen.path)

    def whole_all(self, files: Sequence[Seen]) -> list[bytes]:
        """`whole` of several, at once."""
        return list(in_order(self.whole, files, IN_FLIGHT))

    def below(self, url: str, endings: tuple[str, ...]) -> tuple[list[str], dict[str, Seen]]:
        """The directories anywhere below a URL, and the files whose names have an ending, in lower case.

        Both by their paths from there, and neither sorted. Raises `MissingSource` where nothing lies there.
        """
        system, path = self._system(url)

        def ask() -> dict[str, dict[str, Any]]:
            system.invalidate_cache()
            return dict(system.find(path, withdirs=True, detail=True))

        with self._silence(url).told():
            found = self._insisted(ask, url)
        root = path.rstrip("/") + "/"
        inside = {name[len(root) :]: info for name, info in found.items() if name.startswith(root)}
        directories = [
            name.rstrip("/") for name, info in inside.items() if info.get("type") == "directory"
        ]
        files = {
            name: info
            for name, info in inside.items()
            if info.get("type") != "directory" and name.lower().endswith(endings)
        }
        urls = {name: system.unstrip_protocol(root + name) for name in files}
        unknown = [name for name, info in files.items() if info.get("size") is None]
        if not inside:
            raise MissingSource(
                f"nothing lies in {url}",
                help="check the spelling, and that this machine may list what lies there",
                file=url,
            )
        looked = self.look_all([urls[name] for name in unknown])
        told = dict(zip(unknown, looked, strict=True))
        return directories, {
            name: told[name]
            if name in told
            else Seen(urls[name], int(info["size"]), _version(info))
            for name, info in files.items()
        }

    def put(self, url: str, data: bytes) -> None:
        """Write a small file, at once where the store is one that does so. Raises OSError."""

        def send() -> None:
            with self._room:
                call(system, "pipe_file", path, data)

        try:
            system, path = self._system(url)
            with contextlib.suppress(NotImplementedError, FileExistsError):
                system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._insisted(send, url)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{url} cannot be written: {error}") from error

    def _system(self, url: str) -> tuple[Any, str]:
        if importlib.util.find_spec("fsspec") is None:
            raise lacking(url, "fsspec is not installed", "pip install 'playhead[remote]'")
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(url, **bounded(url, self.options))
        except ImportError as error:
            raise lacking(url, str(error), "install what it names") from error
        except ValueError as error:
            raise lacking(url, str(error), "check the protocol, and storage_options") from error
        once(system, url, self.options)
        return system, path

    def _insisted(self, ask: Callable[[], T], url: str) -> T:
        return self._silence(url).insisted(ask, url)

    def _silence(self, url: str) -> Silence:
        store = "/".join(url.split("/", 3)[:3])
        with self._lock:
            if store not in self._silences:
                self._silences[store] = Silence(store, self.patience)
            return self._silences[store]


class _Short(ConnectionError):
    """Fewer bytes than were asked for, of a file that still has them."""


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


def _version(info: Mapping[str, Any]) -> int:
    for names in _VERSIONS:
        said = {name: str(info[name]) for name in names if info.get(name) is not None}
        if said:
            text = json.dumps(said, sort_keys=True).encode()
            return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
    return 0
