"""Which files a dataset was given: patterns, lists, and their order."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import TypeAlias

from playhead.errors import MissingSource
from playhead.sources.keeping import DIRECTORY

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def expand(files: Paths) -> list[str]:
    """Absolute paths of what `files` names, in reading order, patterns replaced by matches.

    Raises `MissingSource` for an empty list and for a pattern that matches nothing.
    """
    if isinstance(files, str | os.PathLike):
        files = [files]
    if not len(files):
        raise MissingSource(
            "from_tfrecords was given an empty list of files",
            help="the pattern that made the list matched nothing: check it, and that the data is mounted",
        )
    return [
        path if is_remote(path) else os.path.abspath(path)
        for file in files
        for path in _matches(file)
    ]


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def _matches(file: str | os.PathLike[str]) -> list[str]:
    path = os.fspath(file)
    if not isinstance(path, str):
        raise TypeError(f"a path is str or os.PathLike[str], not {type(path).__name__}")
    path = path.removeprefix("file://")
    if not glob.has_magic(path) or is_remote(path) or os.path.exists(path):
        return [path]
    found = [
        match
        for match in sorted(glob.glob(path, recursive=True))
        if os.path.isfile(match) and DIRECTORY not in match.split(os.sep)
    ]
    if not found:
        raise MissingSource(
            f"no file matches {path!r} (the working directory is {os.getcwd()})",
            help="check the pattern, and that the data is mounted on this machine",
            pattern=path,
        )
    return found
