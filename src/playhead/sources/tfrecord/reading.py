"""The bytes of TFRecords that were indexed: mapped where they are local, in ranges where they are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import PlayheadError
from playhead.kernels import FOOTER, HEADER, Records
from playhead.plan.block import Block
from playhead.sources.files import maps
from playhead.sources.files.keeping import Mapped, changed
from playhead.sources.files.maps import Glances
from playhead.sources.files.remote import Remote
from playhead.sources.files.spans import FILES_AT_ONCE, Spans
from playhead.sources.tfrecord.building import build
from playhead.sources.tfrecord.example import Parser
from playhead.sources.tfrecord.index import Checksums, Index, Integers, Verify, agrees, corrupt
from playhead.sources.tfrecord.sequence_example import SequenceParser

AnyParser: TypeAlias = Parser | SequenceParser


@dataclass(frozen=True, eq=False)
class Reader:
    """The records of an `Index`; local files are mapped when first read. Thread-safe; it can be pickled."""

    index: Index
    verify: Verify
    remote: Remote = field(default_factory=Remote)
    spans: Spans = field(init=False, repr=False)

    def __post_init__(self) -> None:
        files = range(len(self.index.paths))
        seen = tuple(self.index.seen(number) for number in files)
        spans = Spans(Glances(seen, self._same), self.remote, watched=not self.checks)
        object.__setattr__(self, "spans", spans)

    def __reduce__(self) -> tuple[type[Reader], tuple[Index, Verify, Remote]]:
        return Reader, (self.index, self.verify, self.remote)

    @property
    def checks(self) -> bool:
        """Whether every record's CRC is checked when it is read."""
        return self.verify in ("always", "read")

    def place(self, index: int) -> tuple[str, int, int]:
        """Where a record lies: its file, its number there, and the byte where its frame begins."""
        file = int(self.index.locate(np.array([index], np.int64))[0])
        number = index - int(self.index.starts[file])
        return self.index.paths[file], number, int(self.index.edges[index + file])

    def read(self, index: Integers) -> list[bytes]:
        """The data of the records at `index` (int64, any order, repeats allowed), in that order.

        Raises `IndexError`, and `CorruptRecord` or `SourceChanged` for bytes that are not what was
        indexed.
        """
        found: list[bytes] = []
        order: list[Integers] = []
        for here, records, crcs in self._located(index):
            if self.checks:
                bad = kernels.check(records, crcs)
                if bad >= 0:
                    raise self._damage(int(index[here[bad]]))
            found += kernels.slices(records)
            order.append(here)
        if len(order) < 2:
            return found
        data = dict(zip(np.concatenate(order).tolist(), found, strict=True))
        return [data[position] for position in range(len(index))]

    def parse(self, index: Integers, parser: AnyParser) -> Block:
        """The records at `index`, parsed; raises what `read` and `Parser.parse` raise."""
        blocks = self.parse_apart(index, [len(index)], parser)
        return parser.parse(self.read(index)) if blocks is None else blocks[0]

    def parse_apart(
        self, index: Integers, ends: list[int], parser: AnyParser
    ) -> list[Block] | None:
        """A block for each part of the records at `index`, part k ending before record `ends[k]`.

        Without Python's lock, whatever their number. None where that cannot be done: `parse` them part by part.
        """
        if kernels.NATIVE and isinstance(parser, Parser):
            for here, records, crcs in self._located(index):
                if len(here) < len(index):
                    break  # too many files to hold all of them open
                return parser.parse_apart(records, ends, crcs if self.checks else None)
        return None

    def _located(self, index: Integers) -> Iterator[tuple[Integers, Records, Checksums]]:
        """The records at `index`, in groups of few files: positions in `index`, where they lie, and
        the stored CRCs.
        """
        names, which, starts, stops, crcs = self.index.frames(index)
        if len(self.index.broken):
            wrong = np.flatnonzero(np.isin(index, self.index.broken))
            if len(wrong):
                raise self._damage(int(index[wrong[0]]))
        # Few enough files all stay open; of more, what one call holds comes on top.
        every = len(self.index.paths) <= maps._OPEN_FILES
        size = len(names) if every else FILES_AT_ONCE
        for first in range(0, len(names), max(1, size)):
            group = names[first : first + size].tolist()
            if len(group) == len(names):
                yield np.arange(len(index)), self._records(group, which, starts, stops), crcs
                return
            here = np.flatnonzero((which >= first) & (which < first + size))
            records = self._records(group, which[here] - first, starts[here], stops[here])
            yield here, records, crcs[here]

    def _records(
        self, files: list[int], which: Integers, starts: Integers, stops: Integers
    ) -> Records:
        """The data of records, each in the `which`th of some files, from `starts` to `stops`."""
        return self.spans.records(files, which, starts, stops, (HEADER.size, FOOTER.size))

    def _same(self, number: int, buffer: Mapped) -> bool:
        """Whether a file that was touched holds what was indexed."""
        part = self.index.file(number)
        if not agrees(part, buffer):
            return False
        if self.checks:
            return True
        again = build(part.path, self.verify == "index", tolerant=part.broken)
        return np.array_equal(again.edges, part.edges) and np.array_equal(again.crcs, part.crcs)

    def _damage(self, index: int) -> PlayheadError:
        """What is wrong with a record whose frame is not as the index says."""
        path, record, offset = self.place(index)
        file = self.index.paths.index(path)
        if file in self.spans.far:
            return self._remote_damage(file, record, index)
        status = os.stat(path) if os.path.exists(path) else None
        known = (self.index.sizes[file], self.index.mtimes_ns[file])
        if status is None or (status.st_size, status.st_mtime_ns) != known:
            return changed(path, "while it was in use")
        scan = kernels.scan(self.spans.maps.get(file), offset, stop=offset + 1)
        size = self.index.sizes[file] - offset if self._is_broken(index) else None
        if scan.damage is None or (size is not None and scan.damage.reason == "data"):
            return changed(path, "while it was in use")
        return corrupt(path, offset, record, scan.damage.reason, size)

    def _is_broken(self, index: int) -> bool:
        """Whether that record is no frame, but the rest of its file."""
        return bool(np.isin(index, self.index.broken))

    def _remote_damage(self, file: int, record: int, index: int) -> PlayheadError:
        seen = self.index.seen(file)
        start, stop = self.index.edges[index + file : index + file + 2].tolist()
        self.remote.require_same(seen)
        size = None
        if self._is_broken(index):  # its length tells: all of it may be long
            size, stop = stop - start, min(stop, start + HEADER.size)
        scan = kernels.scan(self.remote.read(seen, start, stop))
        if scan.damage is None:
            return changed(seen.path, "while it was in use")
        return corrupt(seen.path, start, record, scan.damage.reason, size)
