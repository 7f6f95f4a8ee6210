"""Saves on an object store, or on anything else that fsspec can write to.

Nothing can be renamed there, so a save's manifest is written last and removed first. There is no lock that
holds on every store either: `run.lock.json` says which process writes, and another one warns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from playhead.errors import CheckpointError, PlayheadWarning, warn
from playhead.keras.storage import ABANDONED, MANIFEST, Draft, Fill, is_alive, this_machine

LOCK = "run.lock.json"
# Seconds before each new try of what failed for a reason that may pass.
PAUSES: tuple[float, ...] = (0.5, 2.0, 8.0)

_LIVE = 180.0  # seconds after its last beat for which another run is taken to be there
_FLAT = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "memory", "hf"}
_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
# Errors that stores' libraries raise as they are, by the end of their names.
_PASSING_NAMES = (
    "ConnectionError",
    "ConnectionClosedError",
    "HTTPClientError",
    "PayloadError",
    "TimeoutError",
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteDirectory:
    """A directory on a store, as users see it: `str()` of it is its URL."""

    _remote: Remote
    name: str

    def __repr__(self) -> str:
        return f"RemoteDirectory({str(self)!r})"

    def __str__(self) -> str:
        return f"{self._remote}/{self.name}" if self.name else str(self._remote)

    def storage(self) -> Remote:
        """The storage that is this directory."""
        return self._remote.inside(self.name) if self.name else self._remote


class Remote:
    """A URL that fsspec knows. Raises `CheckpointError` where what that needs is not installed."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise CheckpointError(
                f"{url} is not on this machine, and fsspec, which reads and writes there, is not installed",
                help='pip install "playhead[remote]" and the package of the store: s3fs for s3://, gcsfs for '
                "gs://, adlfs for abfs://",
                path=url,
            ) from None
        try:
            self._files, path = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise CheckpointError(f"{url} cannot be used: {error}", path=url) from error
        self._url, self._root = url.rstrip("/"), path.rstrip("/")
        self._fetched: dict[str, BinaryIO] = {}
        weakref.finalize(self, _close, self._fetched)

    def __str__(self) -> str:
        return self._url

    def inside(self, directory: str) -> Remote:
        """The storage that is a directory of this one."""
        made = object.__new__(Remote)
        made._files, made._fetched = self._files, self._fetched
        made._url, made._root = f"{self._url}/{directory}", f"{self._root}/{directory}"
        return made

    def begun(self) -> bool:
        """One that was killed has left its lock, if another has not removed it since."""
        return bool(self._holder())

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Refuses nothing. Warns where another process seems to write here.

        True where the one that wrote here last was of this machine, did not come to its end, and is no more.
        """
        holder = self._holder()
        here = holder.get("machine") == this_machine() and isinstance(holder.get("pid"), int)
        alive = is_alive(holder["pid"]) if here else True
        mine = here and holder["pid"] == os.getpid()
        ago = time.time() - holder["time"] if isinstance(holder.get("time"), int | float) else 1e9
        if alive and not mine and ago < _LIVE:
            message = (
                f"{self} was written to {ago:.0f} s ago by process {holder.get('pid')} on "
                f"{holder.get('host')}, and nothing can be locked there: if that run has not ended, end one of "
                "the two, for each removes what the other saves"
            )
            warn(message, PlayheadWarning)
        with contextlib.suppress(Exception):  # what cannot be written can still hold a finished run
            self._write_lock()
        try:
            yield here and not alive
        finally:
            with contextlib.suppress(Exception):
                holder = self._holder()
                if (holder.get("pid"), holder.get("machine")) == (os.getpid(), this_machine()):
                    self._files.rm_file(self._path("", LOCK))

    def beat(self) -> None:
        """Writes the time into the lock."""
        self._write_lock()

    def require_writable(self) -> None:
        """Something is written and removed."""
        try:
            self._passing(self._probe)
        except Exception as error:
            raise CheckpointError(
                f"checkpoint={str(self)!r} cannot be written ({_said(error)})",
                help="see that the bucket is there and that this machine may write and delete in it",
                path=str(self),
            ) from error

    def sweep(self, *, alone: bool = False) -> None:
        """Saves that lack a manifest and are hours old, or all of those (`alone`)."""
        for directory in self.directories():
            if not directory.startswith("step-") or self.finished(directory):
                continue
            with contextlib.suppress(Exception):
                newest = max(written for _, _, written in self.files(directory))
                if alone or (newest and time.time() - newest > ABANDONED):
                    self.remove(directory)

    def directories(self) -> list[str]:
        """As far as there is something in them."""
        return [_last(entry) for entry in self._list("") if entry["type"] == "directory"]

    def has(self, directory: str, file: str) -> bool:
        """Asked of the store each time."""
        return any(
            _last(entry) == file and entry["type"] == "file" for entry in self._list(directory)
        )

    def finished(self, directory: str) -> bool:
        """Whether its manifest is there."""
        return self.has(directory, MANIFEST)

    def open(self, directory: str, file: str) -> BinaryIO:
        """A copy on this machine. It is fetched once for two readings, of which the first checks it."""
        path = self._path(directory, file)
        kept = self._fetched.pop(path, None)
        if kept is not None:
            kept.seek(0)
            return kept
        parent = path.rpartition("/")[0]
        for other in [other for other in self._fetched if other.rpartition("/")[0] != parent]:
            self._fetched.pop(other).close()
        fetched = self._told("read", lambda: self._fetch(path), path)
        self._fetched[path] = os.fdopen(os.dup(fetched.fileno()), "rb")
        return fetched

    def files(self, directory: str) -> list[tuple[str, int, float]]:
        """The time is 0 where the store does not tell it."""
        found = [entry for entry in self._list(directory) if entry["type"] == "file"]
        if not found:
            raise FileNotFoundError(f"{self.place(directory)} is not there")
        return [(_last(entry), int(entry["size"] or 0), self._written(entry)) for entry in found]

    def begin(self, directory: str) -> Draft:
        """In the directory itself, which is no save before it has a manifest."""
        return _RemoteDraft(self, directory)

    def remove(self, directory: str) -> None:
        """The manifest first."""
        names = [_last(entry) for entry in self._list(directory) if entry["type"] == "file"]
        for name in sorted(names, key=lambda name: name != MANIFEST):
            with contextlib.suppress(FileNotFoundError):
                path = self._path(directory, name)
                self._told("removed", lambda path=path: self._files.rm_file(path), path)  # type: ignore[misc]
        if not self._flat:
            with contextlib.suppress(Exception):
                self._files.rmdir(self._path(directory, ""))

    def place(self, directory: str) -> RemoteDirectory:
        """Its URL."""
        return RemoteDirectory(self, directory)

    def write(self, directory: str, file: str, fill: Fill) -> None:
        """Has `fill` write the file, anew where that failed for a reason that may pass."""
        path = self._path(directory, file)

        def once() -> None:
            self._make(directory)
            with self._files.open(path, "wb") as opened:
                fill(opened)

        self._passing(once)

    def _probe(self) -> None:
        path = self._path("", f".probe-{uuid.uuid4().hex}")
        self._make("")
        self._files.pipe_file(path, b"playhead")
        self._files.rm_file(path)

    def _make(self, directory: str) -> None:
        if not self._flat:
            self._files.makedirs(self._path(directory, ""), exist_ok=True)

    def _write_lock(self) -> None:
        said = {
            "playhead": 1,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "machine": this_machine(),
            "time": time.time(),
        }
        self._make("")
        self._files.pipe_file(self._path("", LOCK), json.dumps(said).encode())

    def _holder(self) -> dict[str, Any]:
        try:
            said = json.loads(self._files.cat_file(self._path("", LOCK)))
        except Exception:  # not there, or what the listing that follows will tell of
            return {}
        return said if isinstance(said, dict) else {}

    @property
    def _flat(self) -> bool:
        """Whether directories are only parts of names, and making one would make a bucket."""
        kinds = self._files.protocol
        return not _FLAT.isdisjoint((kinds,) if isinstance(kinds, str) else kinds)

    def _path(self, directory: str, file: str) -> str:
        return "/".join(part for part in (self._root, directory, file) if part)

    def _list(self, directory: str) -> list[dict[str, Any]]:
        path = self._path(directory, "")

        def listed() -> list[dict[str, Any]]:
            self._files.invalidate_cache()  # others write here, too
            return list(self._files.ls(path, detail=True))

        try:
            entries = self._told("listed", listed, path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [entry for entry in entries if entry["name"].rstrip("/") != path]

    def _written(self, entry: dict[str, Any]) -> float:
        try:
            written = self._files.modified(entry["name"])
        except (NotImplementedError, KeyError, AttributeError):
            return 0.0
        return float(written.timestamp())

    def _fetch(self, path: str) -> BinaryIO:
        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # it outlives this function
        try:
            with self._files.open(path, "rb") as opened:
                shutil.copyfileobj(opened, copy, 1 << 22)
            copy.seek(0)
        except BaseException:
            copy.close()
            raise
        return copy

    def _told(self, done: str, what: Callable[[], _T], path: str) -> _T:
        """`what()`. That something is not there is for the caller; all else is told of by `CheckpointError`."""
        try:
            return self._passing(what)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception as error:
            raise CheckpointError(
                f"{self._files.unstrip_protocol(path)} cannot be {done} ({_said(error)})",
                help="see that the store can be reached and that this machine may use it, and try again",
                path=str(self),
            ) from error

    def _passing(self, what: Callable[[], _T]) -> _T:
        for pause in PAUSES:
            try:
                return what()
            except Exception as error:
                if not _may_pass(error):
                    raise
            time.sleep(pause)
        return what()


@dataclass(frozen=True)
class _RemoteDraft:
    remote: Remote
    directory: str

    def write(self, file: str, fill: Fill) -> None:
        self.remote.write(self.directory, file, fill)

    def finish(self) -> RemoteDirectory:
        return self.remote.place(self.directory)

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self.remote.remove(self.directory)


def _close(files: dict[str, BinaryIO]) -> None:
    while files:
        files.popitem()[1].close()


def _last(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _may_pass(error: BaseException | None) -> bool:
    """Whether the error, or one behind it, is of a kind that a later try may not meet."""
    while error is not None:
        if isinstance(error, FileNotFoundError | PermissionError):
            return False
        if isinstance(error, TimeoutError | ConnectionError):
            return True
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        if any(kind.__name__.endswith(_PASSING_NAMES) for kind in type(error).__mro__):
            return True
        if _status(error) in _PASSING_STATUS:
            return True
        error = error.__cause__ or error.__context__
    return False


def _status(error: BaseException) -> int | None:
    """The HTTP status an error carries."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    for status in (getattr(error, "status", None), getattr(error, "code", None), response):
        if isinstance(status, int):
            return status
        if isinstance(status, str) and status.isdigit():
            return int(status)
    return None
