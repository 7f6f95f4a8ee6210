"""Records of text files, read at random through their offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from playhead import kernels
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


@dataclass(frozen=True, slots=True)
class Raws:
    """Records as they lie in files, with their line ends, one behind the other in `data`.

    Record k ends in front of byte `stops[k]`.
    """

    data: bytes
    stops: Integers

    def __len__(self) -> int:
        return len(self.stops)

    def __iter__(self) -> Iterator[bytes]:
        edges = itertools.pairwise([0, *self.stops.tolist()])
        return (self.data[start:stop] for start, stop in edges)

    def ended(self) -> bytes:
        """All of them, with a line end behind a file's last that has none."""
        return self.data if _is_end(self.data, self.stops).all() else ended(self)

    def parts(self, size: int) -> Iterator[Raws]:
        """The same, `size` records at a time: once, though there are none."""
        begin = 0
        for first in range(0, max(1, len(self)), size):
            stops = self.stops[first : first + size]
            end = int(stops[-1]) if len(stops) else 0
            yield Raws(self.data[begin:end], stops - begin)
            begin = end


def _is_end(data: bytes, stops: Integers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether a line end stands in front of each of `stops`."""
    marks = np.frombuffer(data, np.uint8)[stops - 1]
    found: np.ndarray[Any, np.dtype[np.bool_]] = (marks == ord("\n")) | (marks == ord("\r"))
    return found


def ended(rows: Iterable[bytes]) -> bytes:
    """Records one behind the other, each with a line end."""
    return b"".join(row if row[-1:] in (b"\n", b"\r") else row + b"\n" for row in rows)


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

    def read(self, index: Integers) -> Raws:
        """The records at `index` (int64, any order, repeats allowed); neighbours in the file as one part of it.

        Raises `IndexError`, `SourceChanged` for a file that was written since it was indexed, and
        `SourceError` for one that cannot be reached.
        """
        # What is far is asked for in parts that are not too large, which come at once.
        run = None if self.spans.far else self.index.run(index)
        if run is not None:
            file, edges = run
            files, starts, stops = np.full(1, file), edges[:1], edges[-1:]
            ends = edges[1:] - edges[0]
        else:
            files, _, starts, stops = self.index.locate(index)
            ends = np.cumsum(stops - starts)
            files, starts, stops = self._joined(files, starts, stops)
        found = self._read(files, starts, stops)
        data = found[0] if len(found) == 1 else b"".join(found)
        for k in np.flatnonzero(~_is_end(data, ends)).tolist():
            files, _, _, stops = self.index.locate(index[k : k + 1])
            self._require_last(int(files[0]), int(stops[0]))
        return Raws(data, ends)

    def _joined(self, files: Integers, starts: Integers, stops: Integers) -> tuple[Integers, ...]:
        """The parts of files, as fewer where some are neighbours."""
        apart = (starts[1:] != stops[:-1]) | (files[1:] != files[:-1])
        if self.spans.far or apart.all():
            return files, starts, stops
        first = np.concatenate([[0], np.flatnonzero(apart) + 1])
        last = np.concatenate([first[1:], [len(files)]]) - 1
        return files[first], starts[first], stops[last]

    def _read(self, files: Integers, starts: Integers, stops: Integers) -> list[bytes]:
        if not len(files) or files.min() != files.max():
            return self.spans.read(files, starts, stops)
        which = np.zeros_like(files)
        return kernels.slices(self.spans.records([int(files[0])], which, starts, stops))

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
