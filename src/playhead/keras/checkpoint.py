"""A checkpoint on disk: one directory a save, either whole or not there.

    run/
      step-0000001200/
        manifest.json     {"playhead": 1, "files": {name: {"bytes": n, "blake2b": hex}}}
        state.json        where the run stands, in words and numbers
        arrays.npz        the arrays, named "group/number" as in state["arrays"][group][number]
      step-0000001400/

A save is written into a hidden directory, flushed to the disk file by file, and renamed. A kill at any
moment leaves the saves before it as they were; what it leaves of its own carries host and process in its
name, so that a later run removes only what nobody can still be writing. Nothing here is pickled, and
nothing but numpy is needed to read it. A second save at one step gets the suffix `.1`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import CheckpointError, NewerFormat, PlayheadWarning

FORMAT = 1
Array: TypeAlias = np.ndarray[Any, Any]
Named: TypeAlias = Sequence[tuple[str, Array]]
State: TypeAlias = dict[str, Any]

_SAVE = re.compile(r"step-(\d+)(?:\.(\d+))?")
_ARRAYS = "arrays.npz"
_TEMPORARY = re.compile(r"\.(?:writing|removing)-(?:(\d+)@(.+)-)?[0-9a-z]+")
_ABANDONED = (
    6 * 3600.0
)  # seconds after which a temporary directory of another machine is taken for dead


class _Damaged(Exception):
    """What is wrong with one save."""


def saves(root: str | os.PathLike[str]) -> list[Path]:
    """The directories of the saves under `root`, oldest first."""
    root = Path(root)
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if _SAVE.fullmatch(p.name) and p.is_dir()), key=_age)


def latest(path: str | os.PathLike[str]) -> tuple[Path, State]:
    """The newest whole save under `path` (or `path` itself, if it is one) and its state.

    A damaged save is passed over with a `PlayheadWarning`. Raises `CheckpointError` where there is none, or
    none that is whole, and `NewerFormat` where the newest was written by a later playhead.
    """
    path = Path(path)
    found = [path] if (path / "manifest.json").is_file() else saves(path)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {path}", path=str(path))
    faults = []
    for directory in reversed(found):
        try:
            state = _read_state(directory)
        except _Damaged as fault:
            faults.append(f"{directory}: {fault}")
            continue
        for fault_text in faults:
            message = (
                f"a damaged checkpoint is passed over, going back to {directory.name}: {fault_text}"
            )
            warnings.warn(PlayheadWarning(message), stacklevel=2)
        return directory, state
    raise CheckpointError(
        "every checkpoint is damaged\n    " + "\n    ".join(faults),
        help="restore the directory from a copy, or move it away to start anew",
        path=str(path),
    )


def read_arrays(directory: Path, state: State) -> dict[str, list[tuple[str, Array]]]:
    """The named arrays by group, with the dtypes and shapes they were saved with."""
    with np.load(directory / _ARRAYS, allow_pickle=False) as file:
        return {
            group: [
                (entry["name"], _as_saved(file[_key(group, k)], entry))
                for k, entry in enumerate(index)
            ]
            for group, index in state["arrays"].items()
        }


def write(
    root: str | os.PathLike[str],
    step: int,
    state: Mapping[str, Any],
    arrays: Mapping[str, Named],
    *,
    keep: int,
) -> Path:
    """Saves `state` (JSON) and `arrays` as the checkpoint of `step` and returns its directory.

    Afterwards the newest `keep` saves are left. Saves of later steps, which only a damaged end or an
    abandoned past can have left here, are removed.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(root, "writing")
    temporary.mkdir()
    index = {group: [_entry(name, a) for name, a in named] for group, named in arrays.items()}
    numbered: dict[str, Any] = {
        _key(group, k): _raw(array)
        for group, named in arrays.items()
        for k, (_, array) in enumerate(named)
    }
    with open(temporary / _ARRAYS, "wb") as file:
        np.savez(file, **numbered)
        _flush(file)
    _write_json(temporary / "state.json", {"playhead": FORMAT, **state, "arrays": index})
    names = sorted(p.name for p in temporary.iterdir())
    files = {name: _fingerprint(temporary / name) for name in names}
    _write_json(temporary / "manifest.json", {"playhead": FORMAT, "files": files})
    _flush_directory(temporary)
    directory = _free_name(root, step)
    os.rename(temporary, directory)
    _flush_directory(root)
    _prune(root, directory, keep)
    return directory


def require_writable(root: str | os.PathLike[str]) -> None:
    """Makes the directory. Raises `CheckpointError` where that, or writing into it, cannot be done."""
    root = Path(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = _temporary(root, "writing")
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        what = "is a file" if root.is_file() else f"cannot be written ({error.strerror})"
        raise CheckpointError(
            f"checkpoint={os.fspath(root)!r} {what}, where fit needs a directory to save in",
            help="name a directory that can be made and written",
            path=str(root),
        ) from None


def sweep(root: str | os.PathLike[str], *, alone: bool = False) -> None:
    """Removes what a killed process left half written or half removed under `root`.

    That is what a process of this machine left that is no more, or, where the caller knows to be `alone`,
    any of this machine; and what has not been touched for hours. The rest may belong to a run that another
    machine is just ending.
    """
    root = Path(root)
    if not root.is_dir():
        return
    for path in root.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found is None:
            continue
        pid, host = found.groups()
        here = host == _here()
        if (here and (alone or not _alive(int(pid)))) or _untouched(path) > _ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _temporary(root: Path, kind: str) -> Path:
    return root / f".{kind}-{os.getpid()}@{_here()}-{uuid.uuid4().hex}"


def _here() -> str:
    """This machine, and where processes are numbered anew in it (containers), which of them."""
    host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    with contextlib.suppress(OSError):
        host += f".{os.stat('/proc/self/ns/pid').st_ino}"
    return host


def _alive(pid: int) -> bool:
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


def _age(directory: Path) -> tuple[int, int]:
    found = _SAVE.fullmatch(directory.name)
    assert found is not None
    return int(found[1]), int(found[2] or 0)


def _free_name(root: Path, step: int) -> Path:
    name = f"step-{step:010d}"
    taken = [_age(p)[1] for p in saves(root) if _age(p)[0] == step]
    return root / (f"{name}.{max(taken) + 1}" if taken else name)


def _prune(root: Path, newest: Path, keep: int) -> None:
    everything = saves(root)
    later = [p for p in everything if _age(p) > _age(newest)]
    earlier = [p for p in everything if _age(p) <= _age(newest)]
    for directory in later + earlier[: -max(keep, 1)]:
        # Renamed first: a kill while removing must not leave something that looks like a save.
        doomed = _temporary(root, "removing")
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _read_state(directory: Path) -> State:
    manifest = _read_json(directory / "manifest.json")
    files = manifest.get("files")
    if not isinstance(files, dict) or "state.json" not in files:
        raise _Damaged("manifest.json names no files")
    if manifest.get("playhead", 0) > FORMAT:
        raise NewerFormat(
            f"{directory} is in checkpoint format {manifest['playhead']}, this playhead reads up to {FORMAT}",
            help="update playhead",
        )
    for name, expected in files.items():
        if Path(name).name != name:
            raise _Damaged(f"manifest.json names a file outside its directory: {name}")
        try:
            actual = _fingerprint(directory / name)
        except OSError as error:
            raise _Damaged(f"{name} cannot be read ({error.strerror})") from None
        if actual != expected:
            raise _Damaged(f"{name} is not what was written")
    return _read_json(directory / "state.json")


def _read_json(path: Path) -> State:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise _Damaged(f"{path.name} cannot be read ({error.strerror})") from None
    except ValueError:
        raise _Damaged(f"{path.name} is not JSON") from None
    if not isinstance(value, dict):
        raise _Damaged(f"{path.name} is not a JSON object")
    return value


def _write_json(path: Path, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)
        _flush(file)


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return {"bytes": file.tell(), "blake2b": digest.hexdigest()}


def _key(group: str, number: int) -> str:
    return f"{group}/{number:05d}"


def _entry(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}


def _raw(array: Array) -> Array:
    """`array` as .npy can hold it without pickle: dtypes from outside numpy (bfloat16 ...) become bytes."""
    if array.dtype.isbuiltin == 1 and not array.dtype.hasobject:
        return array
    if array.dtype.hasobject:
        raise CheckpointError(f"an array of dtype {array.dtype} cannot be saved")
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _as_saved(stored: Array, entry: Mapping[str, Any]) -> Array:
    dtype = _dtype(entry["dtype"])
    if stored.dtype != dtype:
        stored = np.frombuffer(stored.tobytes(), dtype)
    return stored.reshape(entry["shape"])


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # numpy knows these dtypes only once this package is loaded

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
