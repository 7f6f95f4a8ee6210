"""Which files a dataset was given: patterns, lists, and their order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from typing import Any, TypeAlias

from playhead.errors import MissingSource, PipelineError
from playhead.sources.files.braces import spelled_out
from playhead.sources.files.keeping import DIRECTORY

Paths: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def expand(files: Paths, constructor: str = "from_tfrecords") -> list[str]:
    """Absolute paths of what `files` names, in reading order, patterns replaced by matches.

    `files` is a path or a pattern, or any iterable of these; braces in one are `spelled_out`. Raises
    `MissingSource` for an empty one and for a pattern that matches nothing, `PipelineError` for no path.
    """
    several = isinstance(files, Iterable) and not isinstance(files, str | bytes | os.PathLike)
    listed: Any = files if several else [files]
    given: list[str] = []
    for file in listed:
        path = os.fspath(file) if isinstance(file, str | os.PathLike) else None
        if not isinstance(path, str):
            raise PipelineError(
                f"{constructor} was given {file!r} for a file",
                help="files are a path or a pattern, str or pathlib.Path, or a list of these",
            )
        given.append(path)
    if not given:
        raise MissingSource(
            f"{constructor} was given an empty list of files",
            help="the pattern that made the list matched nothing: check it, and that the data is mounted",
        )
    return [
        path if is_remote(path) else os.path.abspath(path)
        for file in given
        for name in ([file] if os.path.exists(file) else spelled_out(file))
        for path in _matches(name)
    ]


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def _matches(path: str) -> list[str]:
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
