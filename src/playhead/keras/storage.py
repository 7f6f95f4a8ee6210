"""Where the saves of a run lie: a directory of this machine, or, in `remote`, a place on an object store.

`checkpoint` says what a save is; a `Storage` knows how one comes to be there at once or not at all. Names in
it are those of a directory in it (a save; "" for the storage itself) and of a file in that.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

from playhead.errors import CheckpointError
from playhead.keras.lock import LOCK, held

if TYPE_CHECKING:
    from playhead.keras.remote import RemoteDirectory

Place: TypeAlias = "Path | RemoteDirectory"
Fill: TypeAlias = Callable[[BinaryIO], None]

# The file that is written last, where nothing can be renamed: without it a save is not there.
MANIFEST = "manifest.json"
# Seconds after which what another machine began to write is taken for given up.
ABANDONED = 6 * 3600.0

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:/")
_TEMPORARY = re.compile(r"\.(?:writing|removing)-(?:(\d+)@(.+)-)?[0-9a-z]+")


class Draft(Protocol):
    """A save that is being written and is not there yet."""

    def write(self, file: str, fill: Fill) -> None:
        """Has `fill` write the file, from its beginning. It may be called again where that failed."""

    def finish(self) -> Place:
        """Makes it a save. `MANIFEST` has been written last."""

    def abandon(self) -> None:
        """Removes what has been written, as far as that can be done."""


class Storage(Protocol):
    """A place for saves. `str()` of it is what the user called it."""

    def begun(self) -> bool:
        """Whether a run has held the place before, as far as that can be told; asked before `hold`."""

    def hold(self) -> contextlib.AbstractContextManager[bool]:
        """Holds the place for one run; whether no other run of this machine can be writing in it.

        Raises `CheckpointError` where it is known that one is.
        """

    def beat(self) -> None:
        """Called each minute, and after each save, as long as a run holds the place."""

    def require_writable(self) -> None:
        """Makes the place. Raises `CheckpointError` where that, or writing into it, cannot be done."""

    def sweep(self, *, alone: bool = False) -> None:
        """Removes what a killed process left half written or half removed, and nobody can be writing.

        `alone`: no other process of this machine is at it.
        """

    def directories(self) -> list[str]:
        """The names of the directories in it, finished saves or not; none where there is no such place."""

    def has(self, directory: str, file: str) -> bool:
        """Whether there is such a file."""

    def finished(self, directory: str) -> bool:
        """Whether what was written there had come to its end."""

    def open(self, directory: str, file: str) -> BinaryIO:
        """For reading and seeking. Raises OSError where the save is damaged, not where the way to it is."""

    def files(self, directory: str) -> list[tuple[str, int, float]]:
        """Name, bytes and time of writing of each file. Raises FileNotFoundError where there are none."""

    def begin(self, directory: str) -> Draft:
        """A save that will have this name."""

    def remove(self, directory: str) -> None:
        """Removes a save; a kill meanwhile leaves nothing that looks like one."""

    def place(self, directory: str) -> Place:
        """The directory as users see it."""


def at(where: str | os.PathLike[str] | RemoteDirectory | Storage) -> Storage:
    """The storage of that name: a path, or a URL that fsspec knows ("s3://bucket/run", "memory://run").

    Raises `CheckpointError` where fsspec, or what it needs for this kind of URL, is not installed.
    """
    if not isinstance(where, str | os.PathLike):
        from playhead.keras.remote import RemoteDirectory

        return where.storage() if isinstance(where, RemoteDirectory) else where
    text = os.fspath(where)
    if not is_url(text):
        return Local(Path(text))
    if re.match(r"[^:]+:/(?!/)", text):
        raise CheckpointError(
            f"{text!r} was a URL before it became a path, which made one slash of two",
            help="give the URL as a string",
            path=text,
        )
    if text.startswith("file://"):
        return Local(Path(text.removeprefix("file://")))
    from playhead.keras.remote import Remote

    return Remote(text)


def is_url(text: str) -> bool:
    """Whether this is the name of something that is not a path of this machine."""
    return _URL.match(text) is not None


@dataclass(frozen=True)
class Local:
    """A directory of this machine. A save is written into a hidden directory, flushed, and renamed."""

    path: Path

    def __str__(self) -> str:
        return os.fspath(self.path)

    def begun(self) -> bool:
        """Its lock stays."""
        return (self.path / LOCK).exists()

    def hold(self) -> contextlib.AbstractContextManager[bool]:
        """The kernel's lock; see `lock`."""
        return held(self.path)

    def beat(self) -> None:
        """The kernel knows that this process lives."""

    def require_writable(self) -> None:
        """Makes the directory and, for a moment, one in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self._temporary("writing")
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            what = "is a file" if self.path.is_file() else f"cannot be written ({error.strerror})"
            raise CheckpointError(
                f"checkpoint={str(self)!r} {what}, where fit needs a directory to save in",
                help="name a directory that can be made and written",
                path=str(self),
            ) from None

    def sweep(self, *, alone: bool = False) -> None:
        """What a process of this machine left that is no more (or `alone`), and what is hours old."""
        if not self.path.is_dir():
            return
        for path in self.path.iterdir():
            found = _TEMPORARY.fullmatch(path.name)
            if found is None:
                continue
            pid, host = found.groups()
            here = host == this_machine()
            if (here and (alone or not is_alive(int(pid)))) or _untouched(path) > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)

    def directories(self) -> list[str]:
        """Of a missing directory: none."""
        if not self.path.is_dir():
            return []
        return [path.name for path in self.path.iterdir() if path.is_dir()]

    def has(self, directory: str, file: str) -> bool:
        """Links are followed."""
        return (self.path / directory / file).is_file()

    def finished(self, directory: str) -> bool:
        """It was renamed, so it was. Where it lacks a file now, it is damaged."""
        return True

    def open(self, directory: str, file: str) -> BinaryIO:
        """The file itself."""
        return open(self.path / directory / file, "rb")

    def files(self, directory: str) -> list[tuple[str, int, float]]:
        """Of its files, not of its directories."""
        found = [path for path in (self.path / directory).iterdir() if path.is_file()]
        facts = [(path.name, path.stat()) for path in found]
        return [(name, fact.st_size, fact.st_mtime) for name, fact in facts]

    def begin(self, directory: str) -> Draft:
        """In a hidden directory, whose name says which process is at it."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary("writing")
        temporary.mkdir()
        return _LocalDraft(temporary, self.path / directory)

    def remove(self, directory: str) -> None:
        """Renamed first."""
        doomed = self._temporary("removing")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path / directory, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def place(self, directory: str) -> Path:
        """Its path."""
        return self.path / directory

    def _temporary(self, kind: str) -> Path:
        return self.path / f".{kind}-{os.getpid()}@{this_machine()}-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class _LocalDraft:
    temporary: Path
    becomes: Path

    def write(self, file: str, fill: Fill) -> None:
        with open(self.temporary / file, "wb") as opened:
            fill(opened)
            opened.flush()
            os.fsync(opened.fileno())

    def finish(self) -> Path:
        _flush_directory(self.temporary)
        os.rename(self.temporary, self.becomes)
        _flush_directory(self.becomes.parent)
        return self.becomes

    def abandon(self) -> None:
        shutil.rmtree(self.temporary, ignore_errors=True)


def this_machine() -> str:
    """This machine, and where processes are numbered anew in it (containers), which of them."""
    host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    with contextlib.suppress(OSError):
        host += f".{os.stat('/proc/self/ns/pid').st_ino}"
    return host


def is_alive(pid: int) -> bool:
    """Whether this machine has such a process; True where that cannot be told."""
    if os.name != "posix":
        return True  # signal 0 would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _untouched(path: Path) -> float:
    """Seconds since the directory or a file in it was last written."""
    times = [0.0]
    for part in (path, *path.glob("*")):
        with contextlib.suppress(OSError):
            times.append(part.stat().st_mtime)
    return time.time() - max(times)


def _flush_directory(directory: Path) -> None:
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
