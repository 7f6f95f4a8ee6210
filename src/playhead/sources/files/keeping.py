"""Files that keep what was found out about other files; local files mapped, and what is said of them.

A file that is kept is written whole or not at all, and its reader asks it whether it fits: two processes may
write the same one at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
from pathlib import Path
from typing import TypeAlias

from playhead.errors import MissingSource, SourceChanged

# Beside the data a directory of its own: a pattern that names the data (`train-*`) never names an index.
DIRECTORY = "playhead-index"

Mapped: TypeAlias = bytes | mmap.mmap


def write(place: Path, blob: bytes) -> bool:
    """Keep an index in a file, whole or not at all; whether that could be done."""
    with contextlib.suppress(OSError):
        _write(place, blob)
        return True
    return False


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
            f"{path} is a directory, and no {kind}",
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
