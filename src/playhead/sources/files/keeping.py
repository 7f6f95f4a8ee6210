"""Where what was found out about a file is kept, so that it is found out once.

The index of `data/train.txt` is `data/playhead-index/train.txt.SUFFIX`: in a directory of its own, so
that a pattern that names the data (`train-*`) never names an index. Where that cannot be written, or
where the caller names a directory, the name also carries a digest of the data's absolute path. An
index is written whole or not at all, and a reader asks it whether it fits: two processes may build
the same one at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import mmap
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from playhead.errors import MissingSource, SourceChanged

DIRECTORY = "playhead-index"

Mapped: TypeAlias = bytes | mmap.mmap

_LONG = 256 << 20


def places(path: str, where: str | None, suffix: str = "index") -> list[Path]:
    """The files that may hold the index of `path`, the preferred one first."""
    directory, name = os.path.split(path)
    key = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=8).hexdigest()
    elsewhere = f"{name}-{key}.{suffix}"
    named = [] if where is None else [Path(where) / elsewhere]
    return [*named, Path(directory, DIRECTORY, f"{name}.{suffix}"), _cache() / elsewhere]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    if sys.platform == "darwin":
        root = "~/Library/Caches"
    elif sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    return Path(os.path.expanduser(root), "playhead", "index")


def store(candidates: list[Path], blob: bytes) -> Path | None:
    """Keep an index in the first place that can be written, and say which; nowhere where none can."""
    for place in candidates:
        with contextlib.suppress(OSError):
            _write(place, blob)
            return place
    return None


def cached(path: str, suffix: str = "index") -> Path:
    """The file in the local cache that may hold the index of `path`, a URL."""
    return _cache() / named_for(path, suffix)


def named_for(path: str, suffix: str = "index") -> str:
    """The name of the index of `path` away from its data: a path with its links resolved, or a URL."""
    key = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    return f"{path.rpartition('/')[2].partition('?')[0]}-{key}.{suffix}"


def _write(place: Path, blob: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f"{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def mapped(descriptor: int, size: int) -> Mapped:
    """The file's bytes, mapped read-only; nothing for an empty file, which cannot be mapped."""
    if not size:
        return b""
    if sys.version_info >= (3, 13) and sys.platform != "win32":
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


def require_file(path: str, kind: str, example: str) -> None:
    """Raise `MissingSource` where `path` is no file: not there, or a directory (of `example`s)."""
    if os.path.isdir(path):
        raise MissingSource(
            f"{path} is a directory, not a {kind}",
            help=f"name the files in it, as in {os.path.join(path, example)!r}",
            file=path,
        )
    if not os.path.exists(path):
        raise MissingSource(
            f"no file {path} (the working directory is {os.getcwd()})",
            help="check the spelling, and that the data is mounted on this machine",
            file=path,
        )


def unreadable(path: str, error: OSError) -> MissingSource:
    """The error for a file that is there and cannot be read."""
    return MissingSource(
        f"{path} cannot be read: {error.strerror or error}",
        help="check its permissions, and that the disk it lies on is mounted and well",
        file=path,
    )


def changed(path: str, when: str) -> SourceChanged:
    """The error for a file that is not the one that was indexed."""
    return SourceChanged(
        f"{path} was written or replaced {when}",
        help="build the dataset again once the file is complete; write new data under a new name",
        file=path,
    )


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives what to tell of every stretch of bytes that is done; a bar where long and watched."""
    watched = sys.stderr is not None and sys.stderr.isatty()
    if total < _LONG or not watched or importlib.util.find_spec("rich") is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
