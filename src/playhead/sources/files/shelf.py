"""Where the indexes of a set's files are kept, whatever is indexed and wherever the files lie.

An index is looked for in these places, and written into the first of them that can be written:

    the directory or URL that the caller names (`index=`)
    beside the data, where the data are local
    the directories of the runs that are under way (`kept_in`), the newest first
    beside the data, where the data are remote
    the local cache of this machine

Beside `data/train.txt` that is `data/playhead-index/train.txt.SUFFIX`; elsewhere the name also carries a digest
of the data's absolute path or URL. A machine that comes after this one has neither its disk nor its cache: what
only the cache holds is copied to where `index=` says, or into the directory of the run that begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

from playhead.errors import SourceError
from playhead.sources.files import keeping
from playhead.sources.files.flight import in_order
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import IN_FLIGHT, Remote
from playhead.sources.files.telling import Advance, told

WORKERS = min(4, os.cpu_count() or 1)

HEAD = 128  # bytes, in which each kind of index says of which file, as it was when, it is the index

_homes: list[str] = []
_without_options = Remote()


@dataclass(frozen=True)
class Far:
    """A file on a store, and what reads and writes it there."""

    url: str
    remote: Remote


Place: TypeAlias = Path | Far


@dataclass(frozen=True)
class Mark:
    """What tells one index file from another, and from one of the same data file as it once was."""

    size: int
    head: bytes

    @classmethod
    def of(cls, blob: bytes) -> Mark:
        return cls(len(blob), blob[:HEAD])


class Kept(Protocol):
    """The index of one file."""

    @property
    def seen(self) -> Seen:
        """The file as it was when it was indexed."""
        ...


K = TypeVar("K", bound=Kept)


class Kind(Protocol[K]):
    """What an index says, how it is made, and when it is believed."""

    @property
    def suffix(self) -> str:
        """What the names of index files end in."""
        ...

    @property
    def what(self) -> str:
        """What is indexed, for people: "TFRecords"."""
        ...

    def build(self, seen: Seen, opening: Opening, advance: Advance) -> K:
        """Scan a file; `advance` hears of every stretch of bytes that is done."""
        ...

    def encode(self, index: K) -> bytes:
        """The bytes of an index file."""
        ...

    def decode(self, blob: bytes, path: str) -> K | None:
        """The index of `path` from an index file's bytes; None for bytes that are not a sound one."""
        ...

    def fits(self, index: K, opening: Opening) -> bool:
        """Whether it says enough, and its file, of the size and time that it says, holds what it says."""
        ...


@contextlib.contextmanager
def kept_in(where: str) -> Iterator[None]:
    """While it lasts, indexes that this process needs are looked for and kept in `where`, too.

    `where` is a directory or a URL. It holds for all threads: those that read ahead may meet files that were
    not known before.
    """
    home = absolute(where)
    _homes.insert(0, home)
    try:
        yield
    finally:
        _homes.remove(home)


def absolute(directory: str | os.PathLike[str]) -> str:
    """What `index=` names, whatever the working directory becomes: a path, or a URL."""
    where = os.fspath(directory)
    return where if is_remote(where) else os.path.abspath(where)


@dataclass(frozen=True)
class Shelf(Generic[K]):
    """The places for one kind of index; `where` (a directory or a URL) is the one that the caller names."""

    kind: Kind[K]
    opening: Opening = field(default_factory=Opening)
    where: str | os.PathLike[str] | None = None
    _homeless: list[K] = field(default_factory=list, init=False, repr=False, compare=False)
    _marks: dict[Seen, Mark] = field(default_factory=dict, init=False, repr=False, compare=False)

    def load_or_build(self, files: Sequence[Seen]) -> list[K]:
        """The index of each file. Those that fit are read, the others built, with a bar, and kept.

        Raises what `Kind.build` raises.
        """
        found = self.load(files)
        missing = [seen for seen in dict.fromkeys(files) if seen.path not in found]
        with told(self.kind.what, [seen.size for seen in missing]) as advance:
            found |= {index.seen.path: index for index in self.built(missing, advance)}
        return [found[seen.path] for seen in files]

    def load(self, files: Sequence[Seen]) -> dict[str, K]:
        """The indexes that are kept and fit, by path."""
        several = list(dict.fromkeys(files))
        far = {seen for seen in several if self._asks_far(seen.path)}
        found = [self._load(seen) for seen in several if seen not in far]
        if far:
            found += in_order(self._load, list(far), IN_FLIGHT)
        return {index.seen.path: index for index in found if index is not None}

    def built(self, files: Sequence[Seen], advance: Advance, workers: int = WORKERS) -> Iterator[K]:
        """Build the index of each file, several at once, and keep each as soon as it is there."""

        left = threading.Event()

        def going_on(count: int) -> None:
            if left.is_set():
                raise InterruptedError("nobody waits for this index any more")
            advance(count)

        try:
            yield from in_order(lambda seen: self.add(seen, going_on), files, len(files), workers)
        finally:
            left.set()

    def add(self, seen: Seen, advance: Advance) -> K:
        """Build the index of a file, and keep it."""
        index = self.kind.build(seen, self.opening, advance)
        self.keep(index)
        return index

    def keep(self, index: K) -> None:
        """Keep an index in the first place that can be written; where none can, in memory."""
        blob = self.kind.encode(index)
        self._marks[index.seen] = Mark.of(blob)
        if not any(_write(place, blob) for place in self._places(index.seen.path)):
            self._homeless.append(index)

    def spread(self, files: Sequence[Seen]) -> None:
        """Copy indexes that only this machine, or this process, has into the run's directory."""
        there = list(in_order(self._outlives, files, IN_FLIGHT))
        lonely = {seen: None for seen, is_there in zip(files, there, strict=True) if not is_there}
        self.load(list(lonely))
        for index in [index for index in self._homeless if index.seen in lonely]:
            self._homeless.remove(index)
            self.keep(index)

    def _outlives(self, seen: Seen) -> bool:
        """Whether the index that was read or written lies anywhere but in this machine's cache."""
        mark = self._marks.get(seen)
        return mark is not None and any(_has(it, mark) for it in self._places(seen.path)[:-1])

    def _places(self, path: str) -> list[Place]:
        """The preferred one first, the local cache last."""
        far, of_data = is_remote(path), self.opening.remote
        parent, _, name = (path.partition("?")[0] if far else Path(path).as_posix()).rpartition("/")
        identity = os.fsencode(path if far else os.path.realpath(path))
        key = hashlib.blake2b(identity, digest_size=8).hexdigest()
        elsewhere = f"{name}-{key}.{self.kind.suffix}"
        beside = _inside(f"{parent}/{keeping.DIRECTORY}", f"{name}.{self.kind.suffix}", of_data)
        homes = [_inside(home, elsewhere, _without_options) for home in _homes]
        around = [*homes, beside] if far else [beside, *homes]
        if self.where is not None:
            # Options are for the kind of store that the data lie in.
            where = absolute(self.where)
            same = not far or where.split("://")[0] == path.split("://")[0]
            named = _inside(where, elsewhere, of_data if same else _without_options)
            around.insert(0, named)
        return [*around, _cache() / elsewhere]

    def _asks_far(self, path: str) -> bool:
        return any(isinstance(place, Far) for place in self._places(path))

    def _load(self, seen: Seen) -> K | None:
        places = self._places(seen.path)
        # What lies near is asked first: whichever fits is as good.
        for place in sorted(places, key=lambda place: isinstance(place, Far)):
            blob = _read(place)
            if blob is None:
                continue
            index = self.kind.decode(blob, seen.path)
            if index is None or index.seen != seen or not self.kind.fits(index, self.opening):
                continue
            self._marks[seen] = Mark.of(blob)
            asked = bool(_homes) or self.where is not None
            if asked and place == places[-1] and not self._outlives(seen):
                any(_write(place, blob) for place in places[:-1])
            return index
        return None


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    if sys.platform == "darwin":
        root = "~/Library/Caches"
    elif sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    return Path(os.path.expanduser(root), "playhead", "index")


def _inside(directory: str, name: str, remote: Remote) -> Place:
    if is_remote(directory):
        return Far(f"{directory.rstrip('/')}/{name}", remote)
    return Path(directory, name)


def _read(place: Place) -> bytes | None:
    if isinstance(place, Far):
        return place.remote.get(place.url)
    try:
        return place.read_bytes()
    except OSError:
        return None


def _write(place: Place, blob: bytes) -> bool:
    if isinstance(place, Path):
        return keeping.write(place, blob)
    try:
        place.remote.put(place.url, blob)
    except (OSError, SourceError):
        return False
    return True


def _has(place: Place, mark: Mark) -> bool:
    try:
        if isinstance(place, Path):
            with place.open("rb") as file:
                return Mark(os.fstat(file.fileno()).st_size, file.read(HEAD)) == mark
        seen = place.remote.look(place.url)
        return seen.size == mark.size and place.remote.read(seen, 0, len(mark.head)) == mark.head
    except (OSError, SourceError):
        return False
