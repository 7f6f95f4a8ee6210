"""TFRecord files of which some are compressed: read from their beginning, one after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from playhead import kernels
from playhead.errors import CorruptRecord, PlayheadError, UnparsableRecord
from playhead.kernels import FRAME, Records
from playhead.plan.block import ArraySpec, Block, Columns, Nest, object_array
from playhead.plan.compute import Chunk, Compute
from playhead.plan.losses import Lost, Part
from playhead.plan.places import Cursor, Places, Record
from playhead.sources.files.keeping import changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.unpacking import Broken, Packed, packed
from playhead.sources.files.walked import WalkedFiles
from playhead.sources.tfrecord.example import Parser
from playhead.sources.tfrecord.framing import Stretch, stretches
from playhead.sources.tfrecord.index import corrupt, unparsable
from playhead.sources.tfrecord.inflating import PACKINGS, Compression
from playhead.sources.tfrecord.reading import AnyParser


@dataclass(frozen=True, eq=False)
class WalkedRecords(WalkedFiles):
    """The records of several TFRecord files of which some are compressed: a stream.

    The cursor is a file, a record in it, and how many records came before in this pass. Going on there
    decompresses that file up to the record; files before it are not looked at.
    """

    op: ClassVar[str] = "tfrecords"
    counters: ClassVar[tuple[str, ...]] = ("file", "record", "index")
    elements: ClassVar[str] = "compressed records"

    parser: AnyParser | None
    check: bool

    def static_spec(self) -> Nest | None:
        return ArraySpec((), bytes) if self.parser is None else self.parser.spec()

    def describe(self) -> dict[str, Any]:
        """The files, and a digest of the features."""
        said = super().describe()
        return said if self.parser is None else {**said, "features": self.parser.digest}

    def sampled(self) -> tuple[Packed, ...]:
        return tuple(packed for packed in self.files if packed.seen.size)

    def endure(self, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
        """The records; the rest of a file behind a frame that is broken is lost as one."""
        epoch, index, skipped = cursor["epoch"], cursor["index"], cursor["record"]
        pace = compute.pace(self)
        for file in range(cursor["file"], len(self.files)):
            lost: Lost | None = None
            with contextlib.closing(self._stretches(file, skipped)) as found:
                try:
                    for first, stretch in found:
                        at = max(0, skipped - first)
                        while at < len(stretch):
                            stop = min(len(stretch), at + pace.size)
                            began = time.perf_counter()
                            block, error = self._block(file, first, stretch, at, stop)
                            if len(block):
                                yield self._chunk(epoch, file, first + at, index, block)
                            pace.report(stop - at, time.perf_counter() - began)
                            index, at = index + len(block), at + len(block)
                            if error is not None:
                                record = self.place(epoch, file, first + at, index)
                                index, at = index + 1, at + 1
                                behind = _cursor(epoch, file, first + at, index, 0)
                                yield Lost(error, behind, [record])
                except CorruptRecord as error:
                    self.require_unchanged(file)
                    if error.facts["record"] < skipped:
                        raise changed(self.path(file), "since the position was saved") from error
                    record = self.place(epoch, file, error.facts["record"], index)
                    index += 1
                    lost = Lost(error, _cursor(epoch, file + 1, 0, index, 0), [record])
            if lost is not None:
                yield lost
            skipped = 0

    def _block(
        self, file: int, first: int, stretch: Stretch, start: int, stop: int
    ) -> tuple[Block, PlayheadError | None]:
        """The records from `start` to `stop`, or up to one that is damaged, and what is wrong with it."""
        records = stretch.records(start, stop)
        if self.check:
            bad = kernels.check(records, stretch.crcs[start:stop])
            if bad >= 0:
                block, error = self._parsed(file, first, stretch, start, start + bad)
                wrong = start + bad
                offset = stretch.base + int(stretch.offsets[wrong])
                damage = corrupt(self.path(file), offset, first + wrong, "data")
                return block, error or damage
        return self._parsed(file, first, stretch, start, stop)

    def _parsed(
        self, file: int, first: int, stretch: Stretch, start: int, stop: int
    ) -> tuple[Block, PlayheadError | None]:
        records = stretch.records(start, stop)
        if self.parser is None:
            return Columns(object_array(kernels.slices(records)), stop - start), None
        try:
            return self._examples(self.parser, records), None
        except UnparsableRecord as error:
            wrong = start + error.facts["position"]
            place = (self.path(file), first + wrong)
            offset = stretch.base + int(stretch.offsets[wrong])
            block, _ = self._parsed(file, first, stretch, start, wrong)
            return block, unparsable(error, *place, offset)

    def _examples(self, parser: AnyParser, records: Records) -> Block:
        if kernels.NATIVE and isinstance(parser, Parser):
            blocks = parser.parse_apart(records, [len(records.which)])
            if blocks is not None:
                return blocks[0]
        return parser.parse(kernels.slices(records))

    def _chunk(self, epoch: int, file: int, record: int, index: int, block: Block) -> Chunk:
        places = np.arange(index, index + len(block), dtype=np.int64)
        return Chunk(
            block,
            Places(epoch, places),
            partial(_cursor, epoch, file, record, index),
            partial(self._records, epoch, file, record, index),
        )

    def _records(self, epoch: int, file: int, record: int, index: int, j: int) -> list[Record]:
        return [self.place(epoch, file, record + j, index + j)]

    def _stretches(self, file: int, skipped: int) -> Generator[tuple[int, Stretch], None, None]:
        """The frames of a file, and the number of each stretch's first. Raises for damaged ones."""
        packed, path = self.files[file], self.path(file)
        blocks = self.blocks(file, f"its first {skipped} records" if skipped else None)
        first = end = 0
        try:
            for stretch in stretches(blocks, check=False):
                yield first, stretch
                first += len(stretch)
                if stretch.damage is not None:
                    where = stretch.base + stretch.damage.offset
                    size = packed.seen.size - where if packed.packing is None else None
                    raise corrupt(path, where, first, stretch.damage.reason, size)
                end = stretch.base + int(stretch.offsets[-1] + stretch.lengths[-1]) + FRAME
        except Broken as error:
            raise CorruptRecord(
                f"{path}, after record {first - 1} at byte {end} once decompressed: {error}"
                if first
                else f"{path}, record 0: {error}",
                help="the file is damaged or was cut short: compare it with its original, and copy "
                "or write it again",
                file=path,
                record=first,
                offset=end,
                reason="compression",
            ) from error
        if first < skipped:
            raise changed(path, "since the position was saved")


def walked_records(
    files: Sequence[Seen],
    compressions: Sequence[Compression],
    opening: Opening,
    parser: AnyParser | None,
    *,
    check: bool,
) -> WalkedRecords:
    """The records of files that are there."""
    kinds = [PACKINGS[compression] for compression in compressions]
    return WalkedRecords(packed(files, kinds, opening), opening, parser, check)


def _cursor(epoch: int, file: int, record: int, index: int, j: int) -> Cursor:
    return {"epoch": epoch, "file": file, "record": record + j, "index": index + j}
