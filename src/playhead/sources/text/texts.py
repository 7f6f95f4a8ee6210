"""Records of text files, read at random through their offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from playhead.plan.node import Node, Source
from playhead.plan.places import Record
from playhead.sources.files.indexed import Indexed
from playhead.sources.files.keeping import Mapped, changed
from playhead.sources.files.maps import Maps
from playhead.sources.files.remote import Remote
from playhead.sources.files.spans import Spans
from playhead.sources.text import offsets
from playhead.sources.text.cuts import Integers
from playhead.sources.text.offsets import Offsets

_ENDS = (b"\n", b"\r")


@dataclass(frozen=True, eq=False)
class Texts:
    """The bytes of the records of `Offsets`. Thread-safe; it can be pickled."""

    index: Offsets
    remote: Remote = field(default_factory=Remote)
    spans: Spans = field(init=False, repr=False)

    def __post_init__(self) -> None:
        spans = Spans(Maps(self.index.files, self._same), self.remote)
        object.__setattr__(self, "spans", spans)

    def __reduce__(self) -> tuple[type[Texts], tuple[Offsets, Remote]]:
        return Texts, (self.index, self.remote)

    def _same(self, number: int, buffer: Mapped) -> bool:
        return offsets.content_of(buffer) == self.index.contents[number]

    def read(self, index: Integers) -> list[bytes]:
        """The records at `index` (int64, any order, repeats allowed) with their line ends.

        Raises `IndexError`, `SourceChanged` for a file that was written since it was indexed, and
        `SourceError` for one that cannot be reached.
        """
        files, _, starts, stops = self.index.locate(index)
        found = self.spans.read(files, starts, stops)
        for position, raw in enumerate(found):
            if raw[-1:] not in _ENDS:
                self._require_last(int(files[position]), int(stops[position]))
        return found

    def _require_last(self, file: int, stop: int) -> None:
        seen = self.index.files[file]
        if stop != seen.size:  # only a file's last record has no line end
            raise changed(seen.path, "while it was in use")

    def place(self, index: int) -> tuple[str, int, int]:
        """Where a record lies: its file, its number there from 0, and the byte where it begins."""
        files, numbers, starts, _ = self.index.locate(np.array([index], np.int64))
        return self.index.files[int(files[0])].path, int(numbers[0]), int(starts[0])

    def record(self, source: str, epoch: int, index: int) -> Record:
        path, number, _ = self.place(index)
        return Record(source, epoch, index, path, number)


@dataclass(frozen=True, eq=False)
class TextRecords(Source):
    """The records of text files as a source; what they are made into is its subclasses'."""

    indexed: Indexed[Texts]
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def texts(self) -> Texts:
        """What reads the records. The first time, their index may have to be built."""
        return self.indexed.get()

    @property
    def cardinality(self) -> int:
        return self.texts.index.records

    @property
    def finite(self) -> bool:
        """True, and no index is needed to say so."""
        return True

    def record(self, epoch: int, index: int) -> Record:
        return self.texts.record(self.info.name or self.op, epoch, index)


def without_end(raw: bytes) -> bytes:
    """A line without its line end, \\n or \\r\\n; a \\r at the end of a file's last line goes too."""
    return raw.removesuffix(b"\n").removesuffix(b"\r")
