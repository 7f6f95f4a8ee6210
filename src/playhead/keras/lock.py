"""One run at a time in a directory, as far as the file system can tell.

The lock is the kernel's (`flock`) on the file `.lock`: it goes with the process, however that ends, and the
file stays. Where there is no such lock (Windows, some network and object stores) nothing is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from playhead.errors import CheckpointError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"

_held: set[int] = set()


@contextlib.contextmanager
def held(root: Path) -> Iterator[bool]:
    """Holds `root`, which is made if it is not there; whether that could be done.

    Raises `CheckpointError`, naming the process, where another run holds it.
    """
    handle = None if fcntl is None else _open(root)
    try:
        locked = handle is not None and _lock(handle, root)
        yield locked
    finally:
        if handle is not None:
            _held.discard(handle)
            os.close(handle)


def _open(root: Path) -> int | None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # a directory that cannot be written can still hold a finished run
        return None
    _held.add(handle)
    return handle


def _lock(handle: int, root: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _said(handle)
        raise CheckpointError(
            f"the directory {root} is in use by another run{holder}",
            help="end that one first, or give this run a directory of its own",
            path=str(root),
        ) from None
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(
            handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0
        )
    return True


def _said(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return f" (process {holder['pid']} on {holder['host']})"
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _let_go_in_child() -> None:
    # A forked worker that outlives its killed parent must not keep the parent's lock.
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
