"""Pictures in a directory for each class, as `tf.keras.utils.image_dataset_from_directory` finds them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord, MissingSource, PipelineError
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, object_array
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.files.keeping import changed, require_file, unreadable
from playhead.sources.tar.extensions import image, require_pillow

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_SAMPLES = 64

Labels: TypeAlias = Literal["inferred"] | Sequence[int] | None


@dataclass(frozen=True, eq=False)
class ImageFolder(Source):
    """The files of a directory, each with the number of its class."""

    op: ClassVar[str] = "image_folder"

    found: Found
    labels: np.ndarray[Any, np.dtype[np.int32]] | None
    class_names: tuple[str, ...]
    decode: bool
    content: str
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return len(self.found.names)

    def gather(self, index: Index) -> Block:
        """The files at `index` (int64[n], in any order) as n elements. Thread-safe.

        Bytes, or with `decode` uint8 [height, width, 3]; with labels a tuple of that and an int32. Raises
        `IndexError`, `MissingSource`, `SourceChanged`, and `CorruptRecord` for a file that cannot be decoded.
        """
        outside = np.flatnonzero((index < 0) | (index >= self.cardinality))
        if len(outside):
            raise IndexError(f"file {index[outside[0]]} of {self.cardinality}")
        numbers = index.tolist()
        files = [self._element(k) for k in numbers]
        if self.decode:
            labels = self.labels
            return Rows(
                files
                if labels is None
                else [(f, labels[k]) for f, k in zip(files, numbers, strict=True)]
            )
        column = object_array(files)
        nest = column if self.labels is None else (column, self.labels[index])
        return Columns(nest, len(files))

    def _element(self, k: int) -> Any:
        data = self.found.read(k)
        if not self.decode:
            return data
        try:
            return image(data)
        except PipelineError:
            raise
        except Exception as error:
            path = self.found.path(k)
            raise CorruptRecord(
                f"{path} cannot be decoded: {error}",
                help="the file is damaged, or no picture: mend or remove it; ignore_errors() leaves it out",
                file=path,
                record=0,
                reason=str(error),
            ) from error

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or self.op, epoch, index, self.found.path(index))

    def describe(self) -> dict[str, Any]:
        """How many files, a digest of names, sizes, labels and some of the bytes; never the directory."""
        said = {"op": self.op, "records": self.cardinality, "content": self.content}
        return {**said, "kind": "sampled", **({"decode": True} if self.decode else {})}

    def static_spec(self) -> Nest:
        first = (
            ArraySpec((None, None, 3), np.dtype(np.uint8)) if self.decode else ArraySpec((), bytes)
        )
        return first if self.labels is None else (first, ArraySpec((), np.dtype(np.int32)))


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Files below a directory: their paths from there, with `/` in them, and their sizes (int64[n])."""

    directory: str
    names: tuple[str, ...]
    sizes: np.ndarray[Any, np.dtype[np.int64]]

    def path(self, k: int) -> str:
        return os.path.join(self.directory, *self.names[k].split("/"))

    def read(self, k: int) -> bytes:
        """A file's bytes. Raises `SourceChanged` where it has another size than it had."""
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


def image_folder(
    directory: str | os.PathLike[str],
    *,
    labels: Labels = "inferred",
    class_names: Sequence[str] | None = None,
    extensions: Sequence[str] = EXTENSIONS,
    decode: bool = False,
) -> ImageFolder:
    """The pictures below `directory`, class by class and by name.

    Raises `MissingSource` where there is no directory, or nothing in it; `PipelineError` for class names that
    are not those of the directories, and for labels of another number than there are files.
    """
    root = os.path.abspath(os.fspath(directory))
    if not os.path.isdir(root):
        raise MissingSource(
            f"no directory {root} (the working directory is {os.getcwd()})",
            help="check the spelling, and that the data is mounted on this machine",
            file=root,
        )
    if decode:
        require_pillow()
    wanted = tuple(e.lower() if e.startswith(".") else f".{e.lower()}" for e in extensions)
    names: list[str] = []
    numbers: list[int] = []
    sizes: list[int] = []
    classes: tuple[str, ...] = ()
    below: tuple[str, ...] = ("",)
    if isinstance(labels, str):
        if labels != "inferred":
            raise PipelineError(f'labels is "inferred", a list of numbers or None, not {labels!r}')
        below = classes = _classes(root, class_names)
    elif class_names is not None:
        raise PipelineError('class_names orders the directories, which labels="inferred" looks at')
    for number, name in enumerate(below):
        for path, size in _files(root, name, wanted):
            names.append(path)
            sizes.append(size)
            numbers.append(number)
    if not names:
        raise MissingSource(
            f"no picture ({', '.join(wanted)}) lies in {root}"
            + ("/*/" if isinstance(labels, str) else ""),
            help="pictures lie in a directory for each class; labels=None takes them from anywhere below",
            file=root,
        )
    found = Found(root, tuple(names), np.array(sizes, np.int64))
    given = numbers if isinstance(labels, str) else labels
    column = None if given is None else _column(given, len(names))
    return ImageFolder(found, column, classes, decode, _content(found, column))


def _classes(root: str, class_names: Sequence[str] | None) -> tuple[str, ...]:
    there = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if class_names is None:
        return tuple(there)
    if sorted(class_names) != there:
        missing = sorted(set(class_names) - set(there))
        more = sorted(set(there) - set(class_names))
        raise PipelineError(
            f"class_names are not the directories in {root}: "
            + "; ".join(
                f"{what} {', '.join(map(repr, some))}"
                for what, some in (("no directory", missing), ("not named:", more))
                if some
            ),
            help="name each directory once, in the order of the labels",
        )
    return tuple(class_names)


def _files(root: str, name: str, wanted: tuple[str, ...]) -> list[tuple[str, int]]:
    """The files below a directory, in the order of their directories and names, and their sizes."""
    found: list[tuple[str, int]] = []
    top = os.path.join(root, name) if name else root
    walked = os.walk(top, onerror=_raise)
    for where, _, files in sorted(walked, key=lambda part: part[0]):
        for file in sorted(files):
            if file.lower().endswith(wanted):
                path = os.path.join(where, file)
                relative = os.path.relpath(path, root).replace(os.sep, "/")
                found.append((relative, os.stat(path).st_size))
    return found


def _raise(error: OSError) -> None:
    raise unreadable(str(error.filename), error) from error


def _column(labels: Sequence[int], count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    column = np.asarray(labels)
    if column.shape != (count,) or column.dtype.kind not in "iu":
        raise PipelineError(
            f"labels are {column.dtype}{list(column.shape)}, and there are {count} pictures",
            help="one whole number for each picture, in the order of their paths",
        )
    return column.astype(np.int32)


def _content(found: Found, labels: np.ndarray[Any, Any] | None) -> str:
    """A digest (hex) of names, sizes and labels, and of the bytes of 64 files spread over all."""
    digest = hashlib.blake2b(digest_size=16)
    for name in found.names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(found.sizes.astype("<i8").tobytes())
    if labels is not None:
        digest.update(labels.astype("<i4").tobytes())
    count = len(found.names)
    for k in np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64)).tolist():
        digest.update(found.read(k))
    return digest.hexdigest()
