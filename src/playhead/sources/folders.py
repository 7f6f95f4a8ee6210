"""The files below a directory, in a directory for each class or anywhere, on this machine or on a store."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.errors import MissingSource, PipelineError
from playhead.sources.files.keeping import changed, require_file, unreadable
from playhead.sources.files.maps import Seen
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import Remote


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Files below a directory or URL: their paths from there, with `/` in them, and sizes (int64[n])."""

    directory: str
    names: tuple[str, ...]
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    remote: Remote

    def path(self, k: int) -> str:
        """A file's path, or its URL."""
        if not is_remote(self.directory):
            return os.path.join(self.directory, *self.names[k].split("/"))
        web = self.directory.startswith(("http://", "https://"))
        name = self.names[k]
        return f"{self.directory}/{urllib.parse.quote(name) if web else name}"

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The bytes of some files; remote ones are asked for together.

        Raises `MissingSource`, and `SourceChanged` for one that has another size than it had.
        """
        if is_remote(self.directory):
            return self.remote.whole_all(
                [Seen(self.path(k), int(self.sizes[k]), 0) for k in numbers]
            )
        return [self._local(k) for k in numbers]

    def _local(self, k: int) -> bytes:
        path = self.path(k)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            require_file(path, "picture", "*.jpg")
            raise unreadable(path, error) from error
        if len(data) != self.sizes[k]:
            raise changed(path, "after it was found")
        return data


@dataclass(frozen=True, slots=True)
class Folder:
    """What lies below a directory: the directories in it, and the files that were looked for, with sizes."""

    root: str
    remote: Remote
    classes: tuple[str, ...]
    sizes: dict[str, int]

    def anywhere(self) -> Found:
        """All files, in the order of their directories, then of their names."""
        return self._found(sorted(self.sizes, key=_directory_and_name))

    def by_class(self, classes: Sequence[str]) -> tuple[Found, list[int]]:
        """The files in some classes, one after the other, and the number of each file's class."""
        within: dict[str, list[str]] = {name: [] for name in classes}
        for name in self.sizes:
            top, inside, _ = name.partition("/")
            if inside and top in within:
                within[top].append(name)
        parts = [sorted(within[name], key=_directory_and_name) for name in classes]
        numbers = [number for number, part in enumerate(parts) for _ in part]
        return self._found([name for part in parts for name in part]), numbers

    def _found(self, names: list[str]) -> Found:
        sizes = np.array([self.sizes[name] for name in names], np.int64)
        return Found(self.root, tuple(names), sizes, self.remote)

    def in_order(self, class_names: Sequence[str] | None) -> tuple[str, ...]:
        """The classes, or `class_names`. Raises `PipelineError` where these are others."""
        if class_names is None:
            return self.classes
        missing = sorted(set(class_names) - set(self.classes))
        more = sorted(set(self.classes) - set(class_names))
        if sorted(class_names) != list(self.classes):
            raise PipelineError(
                f"class_names are not the directories in {self.root}: "
                + "; ".join(
                    f"{what} {', '.join(map(repr, some))}"
                    for what, some in (("no directory", missing), ("not named:", more))
                    if some
                ),
                help="name each directory once, in the order of the labels",
            )
        return tuple(class_names)


def _directory_and_name(name: str) -> tuple[str, str]:
    directory, _, last = name.rpartition("/")
    return directory, last


def folder(directory: str | os.PathLike[str], endings: tuple[str, ...], remote: Remote) -> Folder:
    """The files below a directory or a URL whose names have one of some endings, in lower case.

    Raises `MissingSource` where there is no such directory.
    """
    root = os.fspath(directory).removeprefix("file://")
    if is_remote(root):
        return _on_store(root.rstrip("/"), endings, remote)
    root = os.path.abspath(root)
    if not os.path.isdir(root):
        raise MissingSource(
            f"no directory {root} (the working directory is {os.getcwd()})",
            help="check the spelling, and that the data is mounted on this machine",
            file=root,
        )
    classes = tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir()))
    return Folder(root, remote, classes, dict(_walked(root, endings)))


def _walked(root: str, endings: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The files below a directory, from there, and their sizes; links to directories are not followed."""
    waiting = [(root, "")]
    while waiting:
        directory, above = waiting.pop()
        try:
            with os.scandir(directory) as there:
                entries = list(there)
        except OSError as error:
            raise unreadable(directory, error) from error
        for entry in entries:
            if _is_directory(entry):
                if not entry.is_symlink():
                    waiting.append((entry.path, f"{above}{entry.name}/"))
            elif entry.name.lower().endswith(endings):
                yield above + entry.name, entry.stat().st_size


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _on_store(root: str, endings: tuple[str, ...], remote: Remote) -> Folder:
    directories, files = remote.below(root, endings)
    if root.startswith(("http://", "https://")):
        directories = [urllib.parse.unquote(name) for name in directories]
        files = {urllib.parse.unquote(name): seen for name, seen in files.items()}
    # Stores of objects know no directories but those that names have.
    parts = [name.partition("/") for name in files]
    classes = {name for name in directories if "/" not in name}
    classes |= {top for top, inside, _ in parts if inside}
    sizes = {name: seen.size for name, seen in files.items()}
    return Folder(root, remote, tuple(sorted(classes)), sizes)
