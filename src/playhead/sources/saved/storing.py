"""Writing a store: in constant memory, by one writer at a time, complete or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from playhead import kernels
from playhead.errors import (
    ElementError,
    PipelineError,
    SourceError,
)
from playhead.kernels import FOOTER, FRAME
from playhead.plan.block import (
    Element,
)
from playhead.plan.description import (
    Operation,
)
from playhead.plan.lock import Lock
from playhead.position import sync_directory
from playhead.sources.saved.nests import END, SIZE, Raw, Structure, Unsaved, padding, take_apart
from playhead.sources.saved.store import MANIFEST, OWN, ROW, Manifest, local, read_manifest

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_ROWS_AT_ONCE = 4096
_BUFFER = 1 << 20


class _Writer:
    """Writes elements to new files in a directory, in constant memory."""

    def __init__(self, elements: BinaryIO, index: BinaryIO) -> None:
        self._elements, self._index = elements, index
        self._rows: list[tuple[int, int, int]] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self.structure: Structure | None = None
        self.alike = True
        self.count = self.nbytes = 0

    def add(self, element: Element, records: int) -> None:
        """Raises `ElementError` naming the leaf that cannot be saved."""
        parts: list[Raw] = []
        try:
            structure = take_apart(element, "", parts)
        except Unsaved as error:
            leaf = f"its leaf {error.path}" if error.path else "it"
            raise ElementError(
                f"element {self.count} cannot be saved: {leaf} {error.what}",
                help=error.help,
                element=self.count,
                leaf=error.path,
            ) from None
        own = b""
        if self.structure is None:
            self.structure = structure
            self._digest.update(json.dumps(structure).encode())
        elif structure != self.structure:
            own, self.alike = json.dumps(structure).encode(), False
        data = b"".join((SIZE.pack(len(own)), own, padding(len(own)), *parts, bytes(END)))
        crc = kernels.masked_crc32c(data)
        self._elements.write(kernels.header(len(data)) + data + FOOTER.pack(crc))
        self._row(crc, records)
        self.nbytes += len(data) + FRAME
        self.count += 1

    def finish(self) -> str:
        """The digest of all; everything is on the disk then."""
        self._row(0, 0)
        self._flush()
        for file in (self._elements, self._index):
            file.flush()
            os.fsync(file.fileno())
        return self._digest.hexdigest()

    def _row(self, crc: int, records: int) -> None:
        self._rows.append((self.nbytes, crc, min(records, 2**32 - 1)))
        if len(self._rows) == _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        rows = np.array(self._rows, ROW).tobytes()
        self._digest.update(rows)
        self._index.write(rows)
        self._rows = []


def write(
    path: str | os.PathLike[str], elements: Iterable[Element], *, overwrite: bool = False
) -> None:
    """Save `elements` in the directory `path`, which is made if it is not there, for `saved` to read.

    An element is a nest (dicts with keys of str or int, tuples) of numpy arrays and scalars, str, bytes, None,
    and object arrays of those three; namedtuples become tuples. They are written one by one. A process that is
    killed leaves either nothing readable there (with `overwrite` the old dataset) or the whole.

    Raises `ElementError` naming the leaf for anything else, and `PipelineError` where a dataset is saved there
    already, unless `overwrite`, or where the directory holds other files.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "squares")
    >>> from playhead.sources.saved.reading import saved
    >>> write(path, ({"x": np.int64(k * k)} for k in range(4)))
    >>> saved(path).gather(np.array([3, 1])).nest
    {'x': array([9, 1])}
    """
    directory = local(path)
    with alone(directory) as locked:
        if not overwrite and os.path.exists(os.path.join(directory, MANIFEST)):
            raise PipelineError(
                f"a dataset is saved at {directory} already",
                help="save(..., overwrite=True) replaces it; or save to another directory",
                path=directory,
            )
        write_elements(directory, ((element, 1) for element in elements), locked)


def write_elements(
    directory: str,
    elements: Iterable[tuple[Element, int]],
    locked: bool,
    key: str | None = None,
    pipeline: list[Operation] | None = None,
) -> None:
    """Write elements, each with how many source records it is made of, and then the manifest."""
    there = os.listdir(directory)
    foreign = [n for n in there if n[0] != "." and n != MANIFEST and not OWN.fullmatch(n)]
    if foreign:
        raise PipelineError(
            f"{directory} holds other files ({sorted(foreign)[0]}), and no saved dataset",
            help="name a new directory",
            path=directory,
        )
    name = f"elements-{secrets.token_hex(4)}"
    files = [os.path.join(directory, f"{name}.{kind}") for kind in ("bin", "index")]
    try:
        with open(files[0], "xb", _BUFFER) as data, open(files[1], "xb") as index:
            writer = _Writer(data, index)
            for element, records in elements:
                writer.add(element, records)
            content = writer.finish()
        made = Manifest(
            writer.count,
            writer.structure,
            writer.alike,
            writer.nbytes,
            content,
            f"{name}.bin",
            f"{name}.index",
            key,
            pipeline or [],
        )
        sync_directory(Path(directory))
        _commit(directory, made.to_json())
    except BaseException:
        if not _is_committed(directory, f"{name}.bin"):
            for file in files:
                Path(file).unlink(missing_ok=True)
        raise
    if locked:  # else another writer may be at work on some of them
        _sweep(directory, keep=(f"{name}.bin", f"{name}.index"))


def _commit(directory: str, text: bytes) -> None:
    """Put the manifest in its place: from here on the store is this one."""
    temporary = os.path.join(directory, f"{MANIFEST}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, os.path.join(directory, MANIFEST))
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(Path(directory))


def _is_committed(directory: str, elements: str) -> bool:
    try:
        return read_manifest(directory).elements == elements
    except SourceError:
        return False


def _sweep(directory: str, keep: tuple[str, ...]) -> None:
    """Take away what an earlier store had, and what killed writers left."""
    for name in os.listdir(directory):
        if OWN.fullmatch(name) and name not in keep:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


_turns: dict[str, Lock] = {}
_taking_turns = Lock()


@contextlib.contextmanager
def alone(directory: str) -> Iterator[bool]:
    """Writing in `directory`, which is made, after whoever writes there now; whether that is certain.

    Threads take turns by a lock of their own. The kernel's is that of the process: it goes with it, however
    that ends, and a forked child does not keep it. Some network file systems and Windows have none.
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        raise PipelineError(
            f"{directory} is a file, and a dataset is saved to a directory",
            help="name a new directory",
            path=directory,
        ) from None
    with _taking_turns:
        turn = _turns.setdefault(os.path.realpath(directory), Lock())
    with turn:
        handle = os.open(os.path.join(directory, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            yield _lock(handle)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
