"""A checkpoint: one directory a save, either whole or not there.

    run/
      step-0000001200/
        manifest.json     {"playhead": 1, "files": {name: {"bytes": n, "blake2b": hex}}}
        state.json        where the run stands, in words and numbers
        arrays.npz        the arrays, named "group/number" as in state["arrays"][group][number]
      step-0000001400/

On a disk, a save is written into a hidden directory, flushed file by file, and renamed; on an object store,
where nothing can be renamed, its manifest is written last, and without one it is not there. A kill at any
moment leaves the saves before it as they were; what it leaves of its own, a later run removes when nobody
can still be writing it. Nothing here is pickled, and nothing but numpy is needed to read it (and fsspec,
from a store). A second save at one step gets the suffix `.1`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from playhead.errors import CheckpointError, NewerFormat, PlayheadWarning, warn
from playhead.keras.storage import MANIFEST, Draft, Fill, Place, Storage, at

FORMAT = 1
Array: TypeAlias = np.ndarray[Any, Any]
Named: TypeAlias = Sequence[tuple[str, Array]]
State: TypeAlias = dict[str, Any]
Where: TypeAlias = "str | os.PathLike[str] | Place | Storage"

_SAVE = re.compile(r"step-(\d+)(?:\.(\d+))?")
_ARRAYS = "arrays.npz"
_STATE = "state.json"


class _Damaged(Exception):
    """What is wrong with one save."""


def saves(root: Where) -> list[Place]:
    """The directories of the saves under `root`, oldest first."""
    storage = at(root)
    return [storage.place(name) for name in _finished(storage)]


def latest(path: Where) -> tuple[Place, State]:
    """The newest whole save under `path` (or `path` itself, if it is one) and its state.

    A damaged save is passed over with a `PlayheadWarning`. Raises `CheckpointError` where there is none, or
    none that is whole, and `NewerFormat` where the newest was written by a later playhead.
    """
    storage = at(path)
    found = [""] if storage.has("", MANIFEST) else _finished(storage)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {storage}", path=str(storage))
    faults = []
    for name in reversed(found):
        directory = storage.place(name)
        try:
            state = _read_state(storage, name)
        except _Damaged as fault:
            faults.append(f"{directory}: {fault}")
            continue
        for fault_text in faults:
            message = (
                f"a damaged checkpoint is passed over, going back to {directory.name}: {fault_text}"
            )
            warn(message, PlayheadWarning)
        return directory, state
    raise CheckpointError(
        "every checkpoint is damaged\n    " + "\n    ".join(faults),
        help="restore the directory from a copy, or move it away to start anew",
        path=str(storage),
    )


def read_arrays(directory: Where, state: State) -> dict[str, list[tuple[str, Array]]]:
    """The named arrays by group, with the dtypes and shapes they were saved with."""
    with at(directory).open("", _ARRAYS) as opened, np.load(opened, allow_pickle=False) as file:
        return {
            group: [
                (entry["name"], _as_saved(file[_key(group, k)], entry))
                for k, entry in enumerate(index)
            ]
            for group, index in state["arrays"].items()
        }


def size_and_time(directory: Where) -> tuple[int, float]:
    """The bytes of a save, and when it was finished (seconds since 1970)."""
    files = at(directory).files("")
    when = [written for name, _, written in files if name == MANIFEST]
    if not when:
        raise FileNotFoundError(f"{directory} has no {MANIFEST}")
    return sum(size for _, size, _ in files), when[0]


def write(
    root: Where,
    step: int,
    state: Mapping[str, Any],
    arrays: Mapping[str, Named],
    *,
    keep: int,
) -> Place:
    """Saves `state` (JSON) and `arrays` as the checkpoint of `step` and returns its directory.

    Afterwards the newest `keep` saves are left. Saves of later steps, which only a damaged end or an
    abandoned past can have left here, are removed.
    """
    storage = at(root)
    index = {group: [_entry(name, a) for name, a in named] for group, named in arrays.items()}
    name = _free_name(storage, step)
    draft = storage.begin(name)
    try:
        files = {
            _ARRAYS: _write(draft, _ARRAYS, lambda file: _write_arrays(file, arrays)),
            _STATE: _write(draft, _STATE, _json({"playhead": FORMAT, **state, "arrays": index})),
        }
        _write(draft, MANIFEST, _json({"playhead": FORMAT, "files": files}))
        directory = draft.finish()
    except BaseException:
        draft.abandon()
        raise
    _prune(storage, name, keep)
    return directory


def _age(name: str) -> tuple[int, int]:
    found = _SAVE.fullmatch(name)
    assert found is not None
    return int(found[1]), int(found[2] or 0)


def _named(storage: Storage) -> list[str]:
    return [name for name in storage.directories() if _SAVE.fullmatch(name)]


def _finished(storage: Storage) -> list[str]:
    return sorted((name for name in _named(storage) if storage.finished(name)), key=_age)


def _free_name(storage: Storage, step: int) -> str:
    name = f"step-{step:010d}"
    taken = [_age(other)[1] for other in _named(storage) if _age(other)[0] == step]
    return f"{name}.{max(taken) + 1}" if taken else name


def _prune(storage: Storage, newest: str, keep: int) -> None:
    everything = _finished(storage)
    later = [name for name in everything if _age(name) > _age(newest)]
    earlier = [name for name in everything if _age(name) <= _age(newest)]
    for name in later + earlier[: -max(keep, 1)]:
        storage.remove(name)


def _read_state(storage: Storage, directory: str) -> State:
    manifest = _parsed(MANIFEST, _read(storage, directory, MANIFEST))
    files = manifest.get("files")
    if not isinstance(files, dict) or _STATE not in files:
        raise _Damaged(f"{MANIFEST} names no files")
    if manifest.get("playhead", 0) > FORMAT:
        raise NewerFormat(
            f"{storage.place(directory)} is in checkpoint format {manifest['playhead']}, this playhead reads "
            f"up to {FORMAT}",
            help="update playhead",
        )
    for name, expected in files.items():
        if Path(name).name != name:
            raise _Damaged(f"{MANIFEST} names a file outside its directory: {name}")
        try:
            actual = _fingerprint(storage, directory, name)
        except OSError as error:
            raise _Damaged(f"{name} cannot be read ({error.strerror})") from None
        if actual != expected:
            raise _Damaged(f"{name} is not what was written")
    return _parsed(_STATE, _read(storage, directory, _STATE))


def _read(storage: Storage, directory: str, name: str) -> bytes:
    try:
        with storage.open(directory, name) as file:
            return file.read()
    except OSError as error:
        raise _Damaged(f"{name} cannot be read ({error.strerror})") from None


def _parsed(name: str, content: bytes) -> State:
    try:
        value = json.loads(content)
    except ValueError:
        raise _Damaged(f"{name} is not JSON") from None
    if not isinstance(value, dict):
        raise _Damaged(f"{name} is not a JSON object")
    return value


def _fingerprint(storage: Storage, directory: str, name: str) -> dict[str, Any]:
    with storage.open(directory, name) as file:
        digest = hashlib.file_digest(file, _digest)  # type: ignore[arg-type]
        return {"bytes": file.tell(), "blake2b": digest.hexdigest()}


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class _Hashed:
    """A file that is written from its beginning to its end, and what the manifest says of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = _digest()
        self._bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._digest.update(view)
        self._bytes += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def fingerprint(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "blake2b": self._digest.hexdigest()}


def _write(draft: Draft, name: str, fill: Fill) -> dict[str, Any]:
    fingerprint: dict[str, Any] = {}

    def hashed(file: BinaryIO) -> None:
        sink = _Hashed(file)
        fill(sink)  # type: ignore[arg-type]  # as much of a file as zipfile needs to write one in a stream
        fingerprint.update(sink.fingerprint())

    draft.write(name, hashed)
    return fingerprint


def _json(value: Any) -> Fill:
    content = json.dumps(value).encode()

    def fill(file: BinaryIO) -> None:
        file.write(content)

    return fill


def _write_arrays(file: BinaryIO, arrays: Mapping[str, Named]) -> None:
    """As `numpy.savez` does, without ever going back in the file."""
    with zipfile.ZipFile(file, "w") as archive:
        for group, named in arrays.items():
            for k, (_, array) in enumerate(named):
                with archive.open(f"{_key(group, k)}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _raw(array), allow_pickle=False)


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
