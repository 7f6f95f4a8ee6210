"""Pictures in a directory for each class, as `tf.keras.utils.image_dataset_from_directory` finds them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord, MissingSource, PipelineError
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, object_array
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.plan.shared import each_once
from playhead.sources.files.remote import Remote
from playhead.sources.folders import Found, folder
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
        files: list[Any] = self.found.read(numbers)
        if self.decode:
            files = [self._decoded(k, data) for k, data in zip(numbers, files, strict=True)]
            labels = self.labels
            return Rows(
                files
                if labels is None
                else [(f, labels[k]) for f, k in zip(files, numbers, strict=True)]
            )
        column = object_array(files)
        nest = column if self.labels is None else (column, self.labels[index])
        return Columns(nest, len(files))

    def _decoded(self, k: int, data: bytes) -> Any:
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


def named_classes(node: Node) -> Iterator[tuple[str, ...]]:
    """The class names of each image folder in a plan whose labels are the numbers of its directories."""
    for at in each_once(node):
        if isinstance(at, ImageFolder) and at.class_names:
            yield at.class_names


def image_folder(
    directory: str | os.PathLike[str],
    *,
    labels: Labels = "inferred",
    class_names: Sequence[str] | None = None,
    extensions: Sequence[str] = EXTENSIONS,
    decode: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageFolder:
    """The pictures below `directory`, class by class and by name.

    Raises `MissingSource` where there is no directory, or nothing in it; `PipelineError` for class names that
    are not those of the directories, and for labels of another number than there are files.
    """
    if decode:
        require_pillow()
    wanted = tuple(e.lower() if e.startswith(".") else f".{e.lower()}" for e in extensions)
    if isinstance(labels, str) and labels != "inferred":
        raise PipelineError(f'labels is "inferred", a list of numbers or None, not {labels!r}')
    if not isinstance(labels, str) and class_names is not None:
        raise PipelineError('class_names orders the directories, which labels="inferred" looks at')
    there = folder(directory, wanted, Remote(storage_options or {}))
    classes: tuple[str, ...] = ()
    given: Sequence[int] | None
    if isinstance(labels, str):
        classes = there.in_order(class_names)
        found, given = there.by_class(classes)
    else:
        found, given = there.anywhere(), labels
    if not found.names:
        raise MissingSource(
            f"no picture ({', '.join(wanted)}) lies in {found.directory}"
            + ("/*/" if isinstance(labels, str) else ""),
            help="pictures lie in a directory for each class; labels=None takes them from anywhere below",
            file=found.directory,
        )
    column = None if given is None else _column(given, len(found.names))
    return ImageFolder(found, column, classes, decode, _content(found, column))


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
    spread = np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64))
    for data in found.read(spread.tolist()):
        digest.update(data)
    return digest.hexdigest()
