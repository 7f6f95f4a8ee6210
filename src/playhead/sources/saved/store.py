"""Elements in a directory, readable at random: what `save` and `cache(filename)` write.

    playhead.json           the manifest, written last: where it is, the store is complete
    elements-XXXXXXXX.bin   one TFRecord frame for each element, one behind the other
    elements-XXXXXXXX.index n + 1 rows of 16 bytes: int64 where element k's frame begins (the last: where the
                            last one ends), uint32 the masked CRC-32C of its data as the frame stores it,
                            uint32 how many source records it is made of
    .lock                   held by whoever writes

All numbers are little-endian, XXXXXXXX are random hexadecimal digits. A frame's data, a multiple of 8 bytes:

    uint32 size of the element's own structure, 0 where it is the manifest's; that structure, JSON, padded to 8;
    the leaves in order, each padded to 8; 4 zeros

A leaf is its bytes in C order where the structure gives its size. A str (UTF-8, lone surrogates let
through) or bytes is an int64 length and the bytes; an object array of m items m kinds (uint8: 0 bytes, 1 str,
2 None), m int64 lengths, and the bytes of all. Nothing is pickled.

An overwrite writes files under new names and replaces the manifest, so a reader finds the old store or the new
one. What a killed writer leaves is taken away by the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from playhead import kernels
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    SourceChanged,
    SourceError,
)
from playhead.kernels import FOOTER, FRAME, HEADER, Records
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import (
    Block,
    Columns,
    Element,
    Nest,
    Rows,
    leaves,
    map_nest,
)
from playhead.plan.description import (
    Operation,
)
from playhead.plan.lock import Lock
from playhead.plan.places import Index
from playhead.sources.saved.nests import (
    END,
    NO_STRUCTURE,
    SIZE,
    Form,
    Structure,
    forms_in,
    padding,
    put_together,
)
from playhead.sources.tfrecord.index import Mapped, mapped

FORMAT = 1
MANIFEST = "playhead.json"

ROW = np.dtype([("edge", "<i8"), ("crc", "<u4"), ("records", "<u4")])
OWN = re.compile(r"elements-[0-9a-f]{8}\.(bin|index)|playhead\.json\.[0-9a-f]{8}\.tmp")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What playhead.json says.

    `structure` is the first element's, `alike` whether it is every element's. `content` is a digest of it and
    of the index, hence of every element's length and CRC. `key` and `pipeline` say of a cache what it is of.
    """

    records: int
    structure: Structure | None
    alike: bool
    nbytes: int
    content: str
    elements: str
    index: str
    key: str | None
    pipeline: list[Operation]

    def to_json(self) -> bytes:
        said = {"playhead": FORMAT, **{name: getattr(self, name) for name in self.__slots__}}
        crc = kernels.crc32c(json.dumps(said).encode())
        return json.dumps({**said, "crc": crc}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Raises ValueError, TypeError, KeyError or RecursionError for what `to_json` never gives."""
        said = json.loads(text)
        crc = said.pop("crc")
        if crc != kernels.crc32c(json.dumps(said).encode()):
            raise ValueError("its CRC does not match")
        said.pop("playhead")
        found = cls(**said)
        for name in (found.elements, found.index):
            if not OWN.fullmatch(name):
                raise ValueError(f"it names the file {name!r}")
        return found


def read_manifest(path: str) -> Manifest:
    """Raises `MissingSource` where nothing complete is, `SourceError` for a damaged or newer manifest."""
    file = os.path.join(path, MANIFEST)
    try:
        text = Path(file).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        there = "was not completed" if os.path.isdir(path) else "is not there"
        raise MissingSource(
            f"the saved dataset {path} {there}: there is no {file}",
            help="check the spelling, or save it again",
            file=file,
        ) from None
    try:
        newer = json.loads(text)["playhead"] > FORMAT
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(file, error) from None
    if newer:
        raise SourceError(
            f"{file} was written by a newer playhead than this one",
            help="upgrade playhead",
            file=file,
        )
    try:
        return Manifest.from_json(text)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(file, error) from None


def damaged(file: str, why: object) -> SourceError:
    return SourceError(
        f"{file} is damaged: {why}",
        help="copy it again from its original, or save the dataset again",
        file=file,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """The files of a store: `rows` of the index, and the elements' bytes, mapped."""

    rows: np.ndarray[Any, Any]
    buffer: Mapped
    columns: Nest | None


class Store:
    """A complete store, read at random; thread-safe. Files are mapped when first read.

    It is pickled as its path and its content: the process it comes to maps the files for itself, and
    raises `SourceChanged` where another store has taken its place.
    """

    def __init__(self, path: str, content: str | None = None) -> None:
        self.path = path
        self._content = content
        self._lock = Lock()
        self._told: Manifest | None = None
        self._opened: _Opened | None = None

    def __reduce__(self) -> tuple[type[Store], tuple[str, str]]:
        return Store, (self.path, self.manifest.content)

    @property
    def manifest(self) -> Manifest:
        """Raises `MissingSource`, `SourceChanged`, and `SourceError` for a damaged one."""
        with self._lock:
            if self._told is None:
                found = read_manifest(self.path)
                if self._content not in (None, found.content):
                    raise self._changed()
                self._told = found
            return self._told

    @property
    def count(self) -> int:
        return self.manifest.records

    @cached_property
    def forms(self) -> Nest:
        """The `Form`s of the first element."""
        try:
            said = self.manifest.structure
            return forms_in(["none"] if said is None else said)
        except NO_STRUCTURE as error:
            raise damaged(os.path.join(self.path, MANIFEST), error) from None

    @cached_property
    def columnar(self) -> bool:
        """Whether every element has the same shapes and dtypes, of fixed size."""
        said, forms = self.manifest, list(leaves(self.forms))
        if not said.alike or not all(f.size and (f.shape or f.kind == "scalar") for f in forms):
            return False
        frame = FRAME + SIZE.size + END + sum(f.size + len(padding(f.size)) for f in forms)
        return said.records > 0 and said.nbytes == said.records * frame

    def block(self, index: Index) -> Block:
        """The elements at `index` (int64[n], any order). Raises IndexError, `CorruptRecord`."""
        opened = self.opened()
        if index.size and int(index.view(np.uint64).max()) >= self.count:
            outside = index[(index < 0) | (index >= self.count)][0]
            raise IndexError(f"element {outside} of {self.count}")
        edges = opened.rows["edge"]
        starts = edges[index] + HEADER.size
        stops = edges[index + 1] - FOOTER.size
        records = Records([opened.buffer], np.zeros(len(index), np.int64), starts, stops)
        bad = kernels.check(records, opened.rows["crc"][index])
        if bad >= 0:
            raise self._corrupt(int(index[bad]), "data", "its bytes do not match its CRC")
        if opened.columns is not None:
            return Columns(map_nest(lambda column: column.at(index), opened.columns), len(index))
        whole = memoryview(opened.buffer)
        spans = zip(index.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return Rows([self._element(k, whole[start:stop]) for k, start, stop in spans])

    def source_records(self, start: int, stop: int) -> Index | None:
        """How many source records each of some elements is made of; None: one each."""
        counts = self.opened().rows["records"][start:stop].astype(np.int64)
        return None if (counts == 1).all() else counts

    def file(self) -> str:
        return os.path.join(self.path, self.manifest.elements)

    def opened(self) -> _Opened:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> _Opened:
        said = self.manifest
        index = os.path.join(self.path, said.index)
        try:
            rows = np.fromfile(index, np.uint8)
            with open(self.file(), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                buffer = mapped(file.fileno(), size)
        except FileNotFoundError as error:
            if read_manifest(self.path).content != said.content:
                raise self._changed() from None
            raise MissingSource(
                f"of the saved dataset {self.path} the file {error.filename} is missing",
                help="copy it again from its original, or save the dataset again",
                file=error.filename,
            ) from None
        digest = hashlib.blake2b(digest_size=16)
        if said.structure is not None:
            digest.update(json.dumps(said.structure).encode())
        digest.update(rows.data)
        if digest.hexdigest() != said.content or len(rows) != ROW.itemsize * (said.records + 1):
            raise damaged(index, "it is not the one that was written")
        table = rows.view(ROW)
        if size < said.nbytes:
            cut = int(np.searchsorted(table["edge"], size, side="right")) - 1
            raise self._corrupt(
                cut, "truncated", "the file ends inside it", int(table["edge"][cut])
            )
        columns = map_nest(_columns(buffer, table), self.forms) if self.columnar else None
        return _Opened(table, buffer, columns)

    def _element(self, k: int, data: memoryview) -> Element:
        try:
            return put_together(data, self.forms)
        except (*NO_STRUCTURE, IndexError, struct.error) as error:
            raise self._corrupt(k, "structure", f"it is not as it says ({error})") from None

    def _corrupt(
        self, record: int, reason: str, what: str, offset: int | None = None
    ) -> CorruptRecord:
        if offset is None:
            offset = int(self.opened().rows["edge"][record])
        file = self.file()
        return CorruptRecord(
            f"{file}, element {record} at byte {offset}: {what}",
            help="the file is damaged: copy it again from its original, or save the dataset again",
            file=file,
            offset=offset,
            record=record,
            reason=reason,
        )

    def _changed(self) -> SourceChanged:
        return SourceChanged(
            f"the saved dataset {self.path} was replaced while it was in use",
            help="build the dataset again; save new data under a new name",
            file=self.path,
        )


@dataclass(frozen=True, slots=True)
class _Column:
    """The bytes of one leaf in every frame: uint8 (n, size)."""

    raw: np.ndarray[Any, Any]
    form: Form

    def at(self, index: Index) -> np.ndarray[Any, Any]:
        out = aligned_empty((len(index), self.raw.shape[1]), np.dtype(np.uint8))
        kernels.gather(self.raw, index, out)
        return out.view(self.form.dtype).reshape(len(index), *self.form.shape)


def _columns(buffer: Mapped, rows: np.ndarray[Any, Any]) -> Any:
    """For the forms of a columnar store one by one, in order: their `_Column`."""
    count, frame = len(rows) - 1, int(rows["edge"][1])
    at = HEADER.size + SIZE.size

    def column(form: Form) -> _Column:
        nonlocal at
        assert form.size is not None
        raw: np.ndarray[Any, Any] = np.ndarray((count, form.size), np.uint8, buffer, at, (frame, 1))
        at += form.size + len(padding(form.size))
        return _Column(raw, form)

    return column


def local(path: str | os.PathLike[str]) -> str:
    said = os.fspath(path)
    if "://" in said:
        raise SourceError(
            f"{said} is remote, and datasets are saved to local directories only in this version",
            help="save it locally, then copy the directory",
        )
    return os.path.abspath(said)
