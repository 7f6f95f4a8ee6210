"""Samples in tar files, as WebDataset writes them: read at random, or walked where they are compressed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from playhead.errors import MissingSource
from playhead.plan.block import Block, Element, Rows
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.files.keeping import Mapped, changed, unreadable
from playhead.sources.files.maps import Maps
from playhead.sources.files.paths import Paths
from playhead.sources.tar import index as tar_index
from playhead.sources.tar.extensions import ByExtension, Decode, by_extension
from playhead.sources.tar.index import Shards
from playhead.sources.tar.members import Member
from playhead.sources.tar.sample import as_sample
from playhead.sources.tar.walked import WalkedTar, walked_tar
from playhead.sources.text.texts import named
from playhead.sources.text.walked import compression


@dataclass(frozen=True, eq=False)
class TarSamples(Source):
    """The samples of several tar files as one source."""

    op: ClassVar[str] = "tar"

    archives: Archives
    decoding: ByExtension
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.archives.shards.samples

    def gather(self, index: Index) -> Block:
        """The samples at `index` (int64[n], in any order) as n dicts. Thread-safe.

        Raises `IndexError`, `SourceChanged`, and `UnparsableRecord` naming file, sample, member and byte.
        """
        rows: list[Element] = []
        for k in index.tolist():
            file, number = self.archives.shards.locate(k)
            path, found, data = self.archives.sample(file, number)
            rows.append(as_sample(found, data, self.decoding, path, number))
        return Rows(rows)

    def record(self, epoch: int, index: int) -> Record:
        file, number = self.archives.shards.locate(index)
        path = self.archives.shards.shards[file].seen.path
        return Record(self.info.name or self.op, epoch, index, path, number)

    def describe(self) -> dict[str, Any]:
        """How many samples, a digest of what the files hold, how it is decoded; never paths."""
        shards = self.archives.shards
        said = {"op": self.op, "records": shards.samples, "content": shards.content}
        return {**said, "kind": "sampled", **self.decoding.said()}


@dataclass(frozen=True, eq=False)
class Archives:
    """The bytes of the samples of `Shards`. Thread-safe; it can be pickled."""

    shards: Shards
    maps: Maps = field(init=False, repr=False)

    def __post_init__(self) -> None:
        seen = tuple(shard.seen for shard in self.shards.shards)
        object.__setattr__(self, "maps", Maps(seen, self._same))

    def __reduce__(self) -> tuple[type[Archives], tuple[Shards]]:
        return Archives, (self.shards,)

    def _same(self, number: int, buffer: Mapped) -> bool:
        shard = self.shards.shards[number]
        found = [member for sample in range(len(shard)) for member in shard.of(sample)]
        names = [member.name.encode("utf-8", "surrogateescape") for member in found]
        return tar_index.content_of(buffer, found, names) == shard.content

    def sample(self, file: int, number: int) -> tuple[str, list[Member], Callable[[Member], bytes]]:
        """The file, the members and what reads the bytes of a sample."""
        shard = self.shards.shards[file]
        buffer = self.maps.get(file)
        path = shard.seen.path

        def data(member: Member) -> bytes:
            found = buffer[member.offset : member.offset + member.size]
            if len(found) != member.size:
                raise changed(path, "while it was in use")
            return found

        return path, list(shard.of(number)), data


def tar(
    files: Paths, *, decode: Decode = None, index: str | os.PathLike[str] | None = None
) -> TarSamples | WalkedTar:
    """The samples of local tar files, one file after the other.

    Seekable through an index of members that is built once; where any file is compressed (gzip, bz2, xz, told
    by its name or its first bytes), a stream over all. Raises `MissingSource`, `CorruptRecord`,
    `SourceError` for remote files, `PipelineError` for what is no way to decode.
    """
    decoding = by_extension(decode, "from_tar")
    paths = named(files, "from_tar", "tar file", "*.tar")
    if any(_compressed(path) for path in paths):
        return walked_tar(paths, decoding)
    where = None if index is None else os.path.abspath(index)
    return TarSamples(Archives(tar_index.load_or_build(paths, where)), decoding)


def _compressed(path: str) -> bool:
    try:
        return compression(path) is not None
    except OSError as error:
        if isinstance(error, MissingSource):
            raise
        raise unreadable(path, error) from error
