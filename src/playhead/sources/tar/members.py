"""The members of tar files, as their headers say, and which of them make a sample.

WebDataset's convention: the key of a member is its path up to the first dot of its last part, what follows the
dot its extension. Neighbours of one key are a sample. Names without a key or an extension (`README`,
`.hidden`), members below `__meta__`-like names, directories, links and devices belong to none.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from playhead.errors import CorruptRecord

BLOCK = 512

_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__(/|$)")


class Readable(Protocol):
    """A file that is read forwards."""

    def read(self, size: int = -1, /) -> bytes:
        """So many bytes, less at the end, all that is left for -1."""
        ...

    def tell(self) -> int:
        """Where reading goes on."""
        ...

    def seek(self, offset: int, /) -> int:
        """Go on further behind."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in a tar file: its `name`, and where its bytes lie."""

    name: str
    offset: int
    size: int


def split(name: str) -> tuple[str, str] | None:
    """A member's key and its extension, in lower case; None where it belongs to no sample."""
    found = _NAME.fullmatch(name)
    if found is None or _META.match(name):
        return None
    return found[1], found[2].lower()


def members(file: Readable, path: str, size: int | None = None) -> Iterator[Member]:
    """The regular files of a tar file, in order, from its beginning; `file` is only read forwards.

    `size` is the file's where it is known. Raises `CorruptRecord` (file, offset, member) for what is no
    header, for a file that ends early, and for what is no plain file.
    """
    source = _Remembering(file)
    before = ""
    offset = 0
    try:
        with tarfile.open(
            fileobj=source,  # type: ignore[call-overload]
            mode="r:",
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            while (found := tar.next()) is not None:
                tar.members.clear()  # it would keep them all
                offset = tar.offset if size is None else min(tar.offset, size)
                if found.size < 0:
                    raise _no_header(path, found.offset, before, "a size below 0")
                if size is not None and found.offset_data + found.size > size:
                    raise cut(path, found.name, found.offset_data)
                if found.sparse is not None:
                    raise corrupt(
                        f"{path}, member {found.name!r} at byte {found.offset}: a sparse file",
                        path,
                        found.offset,
                        found.name,
                        help="write the archive again without tar's --sparse",
                    )
                if found.isreg():
                    yield Member(found.name, found.offset_data, found.size)
                before = found.name
    except tarfile.TarError as error:
        raise _no_header(path, offset, before, str(error)) from None
    if source.last != bytes(BLOCK):
        ended = len(source.last) < BLOCK
        reason = "the file ends without the mark of an end" if ended else "no header"
        raise _no_header(path, offset, before, reason)
    while rest := file.read(1 << 20):
        if rest.strip(b"\0"):
            raise corrupt(
                f"{path}: data behind the archive's end at byte {offset}",
                path,
                offset,
                before,
                help="tar files are joined by tar --concatenate, not by cat; or name the parts as files",
            )


def corrupt(what: str, path: str, offset: int, member: str, help: str) -> CorruptRecord:
    return CorruptRecord(what, help=help, file=path, offset=offset, member=member)


def cut(path: str, member: str, offset: int) -> CorruptRecord:
    """The error for a member whose bytes are not all there."""
    return corrupt(
        f"{path}: the file ends inside member {member!r}, whose data begin at byte {offset}",
        path,
        offset,
        member,
        help="the file was cut short: copy or write it again",
    )


def _no_header(path: str, offset: int, before: str, reason: str) -> CorruptRecord:
    where = f"behind member {before!r}" if before else "where its first member should be"
    return corrupt(
        f"{path}, byte {offset}, {where}: {reason}",
        path,
        offset,
        before,
        help="the file is damaged or was cut short (or is no tar file): compare it with its original, and "
        "copy or write it again",
    )


class _Remembering:
    """A file that remembers what was read last: tarfile takes any damage for the archive's end."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.last = b""
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        self.last = self._file.read(size)
        return self.last
