"""Samples in tar files, as WebDataset writes them: read at random, or walked where they are compressed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.plan.block import Block, Rows
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.files import shelf
from playhead.sources.files.indexed import Indexed, indexed
from playhead.sources.files.keeping import Mapped
from playhead.sources.files.maps import Maps
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import Paths
from playhead.sources.files.remote import Remote
from playhead.sources.files.shelf import Shelf
from playhead.sources.files.spans import Spans
from playhead.sources.files.unpacking import packings
from playhead.sources.tar.building import Members, content_of, of_broken
from playhead.sources.tar.extensions import ByExtension, Decode, by_extension
from playhead.sources.tar.index import Shards
from playhead.sources.tar.members import Member
from playhead.sources.tar.sample import as_sample
from playhead.sources.tar.walked import WalkedTar, walked_tar


@dataclass(frozen=True, eq=False)
class TarSamples(Source):
    """The samples of several tar files as one source."""

    op: ClassVar[str] = "tar"

    indexed: Indexed[Archives]
    decoding: ByExtension
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def archives(self) -> Archives:
        return self.indexed.get()

    @cached_property
    def finite(self) -> bool:
        return True

    @property
    def cardinality(self) -> int:
        return self.archives.shards.samples

    def gather(self, index: Index) -> Block:
        """The samples at `index` (int64[n], in any order) as n dicts. Thread-safe.

        Raises `IndexError`, `SourceChanged`, and `UnparsableRecord` naming file, sample, member and byte.
        """
        return Rows(
            [
                as_sample(
                    sample.members, sample.bytes_of, self.decoding, sample.path, sample.number
                )
                for sample in self.archives.read(index)
            ]
        )

    def record(self, epoch: int, index: int) -> Record:
        (file,), (number,) = self.archives.shards.locate(np.array([index], np.int64))
        path = self.archives.shards.shards[int(file)].seen.path
        return Record(self.info.name or self.op, epoch, index, path, int(number))

    def describe(self) -> dict[str, Any]:
        """How many samples, a digest of what the files hold, how it is decoded; never paths."""
        shards = self.archives.shards
        said = {"op": self.op, "records": shards.samples, "content": shards.content}
        return {**said, "kind": "sampled", **self.decoding.said()}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample's members and their bytes, and where they lie: the `number`th sample of a file."""

    path: str
    number: int
    members: list[Member]
    data: dict[int, bytes]  # by a member's offset

    def bytes_of(self, member: Member) -> bytes:
        return self.data[member.offset]


@dataclass(frozen=True, eq=False)
class Archives:
    """The bytes of the samples of `Shards`. Thread-safe; it can be pickled."""

    shards: Shards
    remote: Remote = field(default_factory=Remote)
    spans: Spans = field(init=False, repr=False)

    def __post_init__(self) -> None:
        seen = tuple(shard.seen for shard in self.shards.shards)
        object.__setattr__(self, "spans", Spans(Maps(seen, self._same), self.remote))

    def __reduce__(self) -> tuple[type[Archives], tuple[Shards, Remote]]:
        return Archives, (self.shards, self.remote)

    def _same(self, number: int, buffer: Mapped) -> bool:
        shard = self.shards.shards[number]
        found = (member for sample in range(len(shard)) for member in shard.of(sample))
        content = content_of(found, lambda start, stop: buffer[start:stop])
        return (of_broken(content) if shard.broken else content) == shard.content

    def read(self, index: Index) -> Iterator[Sample]:
        """The samples at `index` (int64[n], in any order), whose bytes are read at once.

        Raises `IndexError`, `CorruptRecord` for the rest of a damaged file, and what `Spans.read` raises.
        """
        files, numbers = self.shards.locate(index)
        places = list(zip(files.tolist(), numbers.tolist(), strict=True))
        for file, number in places:
            self.shards.shards[file].require_sample(number)
        found = [list(self.shards.shards[file].of(number)) for file, number in places]
        spread = np.repeat(files, [len(members) for members in found])
        starts = np.array([member.offset for members in found for member in members], np.int64)
        sizes = np.array([member.size for members in found for member in members], np.int64)
        data = iter(self.spans.read(spread, starts, starts + sizes))
        for (file, number), members in zip(places, found, strict=True):
            path = self.shards.shards[file].seen.path
            yield Sample(path, number, members, {m.offset: next(data) for m in members})


def tar(
    files: Paths,
    *,
    decode: Decode = None,
    index: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    tolerant: bool = False,
) -> TarSamples | WalkedTar:
    """The samples of tar files, one file after the other.

    Seekable through an index of members that is built once; where any file is compressed (gzip, bz2, xz, zstd,
    told by its name or its first bytes), a stream over all. Raises `MissingSource`, `CorruptRecord`,
    `SourceError` for what cannot be reached, `PipelineError` for what is no way to decode.

    `tolerant`: damage is no error before the rest of its file is read, which then is one sample.
    """
    decoding = by_extension(decode, "from_tar")
    opening = Opening(Remote(storage_options or {}))
    seen = opening.find(files, "from_tar", "tar file", "*.tar")
    kinds = packings(seen, opening)
    if any(kinds):
        return walked_tar(seen, kinds, opening, decoding)
    where = None if index is None else shelf.absolute(index)
    shelves = Shelf(Members(tolerant), opening, where)
    return TarSamples(
        indexed(shelves, seen, lambda found: Archives(Shards.of(found), opening.remote)), decoding
    )
