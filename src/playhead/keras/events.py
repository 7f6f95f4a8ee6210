"""TensorBoard's event files, noted at a save and cut back to it at a resume.

Every process writes files of its own, and TensorBoard reads all that lie in one directory. So what a killed
process wrote after its last save has to go, or its steps would be there twice. TensorFlow's own file systems
are used throughout: a `log_dir` may be wherever TensorFlow can write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from playhead.errors import PlayheadWarning, warn

_MARK = "tfevents"  # TensorBoard reads the files that have it in their names
_ASIDE = "abandoned"
_CHUNK = 1 << 22


def noted(callback: Any) -> dict[str, int]:
    """Flushes what a TensorBoard callback has written: sizes of the event files in its directories, by name."""
    for writer in callback._writers.values():
        writer.flush()
    gfile = _gfile()
    root = callback.log_dir
    return {name: gfile.stat(os.path.join(root, name)).length for name in _found(root)}


def cut_back(log_dir: str, files: Mapping[str, int]) -> None:
    """The event files under `log_dir` become those that `noted` gave, at those sizes.

    Each is replaced by its beginning, so that a process which may still have it open writes elsewhere. Files
    that are not among `files` were begun after the save; they are renamed, and TensorBoard passes them over.
    Warns where one cannot be changed: the curves then show some steps twice.
    """
    gfile = _gfile()
    for name in _found(log_dir):
        path = os.path.join(log_dir, name)
        try:
            if name not in files:
                gfile.rename(path, _free(path), overwrite=False)
            elif gfile.stat(path).length > files[name]:
                _keep_beginning(path, files[name])
        except Exception as error:  # of whatever file system it is
            warn(
                f"{path} cannot be cut back to the checkpoint, and TensorBoard will show some steps twice: "
                f"{error}",
                PlayheadWarning,
            )


def _keep_beginning(path: str, size: int) -> None:
    gfile = _gfile()
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name.replace(_MARK, 'cut')}")
    with gfile.GFile(path, "rb") as old, gfile.GFile(part, "wb") as new:
        while size:
            piece = old.read(min(size, _CHUNK))
            if not piece:
                break
            new.write(piece)
            size -= len(piece)
    gfile.rename(part, path, overwrite=True)


def _free(path: str) -> str:
    folder, name = os.path.split(path)
    aside = os.path.join(folder, name.replace(_MARK, _ASIDE))
    number, found = 0, aside
    while _gfile().exists(found):
        number += 1
        found = f"{aside}.{number}"
    return found


def _found(log_dir: str) -> Iterator[str]:
    """The event files of training and validation, by their paths in `log_dir`."""
    gfile = _gfile()
    for part in ("train", "validation"):
        folder = os.path.join(log_dir, part)
        if gfile.isdir(folder):
            names = sorted(name.rstrip("/") for name in gfile.listdir(folder))
            yield from (f"{part}/{name}" for name in names if _MARK in name)


def _gfile() -> Any:
    """TensorFlow is there: the callback writes by it."""
    import tensorflow as tf

    return tf.io.gfile
