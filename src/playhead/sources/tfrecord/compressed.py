"""TFRecord files of which some are compressed: read from their beginning, one after the other."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from playhead import kernels
from playhead.errors import (
    CorruptRecord,
    PipelineError,
    PlayheadError,
    SlowResume,
    UnparsableRecord,
    warn,
)
from playhead.kernels import FRAME, Records
from playhead.plan.block import ArraySpec, Block, Columns, Nest, object_array
from playhead.plan.compute import Chunk, Compute
from playhead.plan.losses import Enduring, Lost, Part
from playhead.plan.node import UNKNOWN, Node
from playhead.plan.places import Cursor, Index, Places, Record, has_counts
from playhead.sources.files.keeping import changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.unpacking import Broken, Packed, packed, unpacked
from playhead.sources.tfrecord.example import Parser
from playhead.sources.tfrecord.framing import Stretch, stretches
from playhead.sources.tfrecord.index import corrupt, unparsable
from playhead.sources.tfrecord.inflating import PACKINGS, Compression
from playhead.sources.tfrecord.reading import AnyParser


@dataclass(frozen=True, eq=False)
class WalkedRecords(Enduring):
    """The records of several TFRecord files of which some are compressed: a stream.

    The cursor is a file, a record in it, and how many records came before in this pass. Going on there
    decompresses that file up to the record; files before it are not looked at.
    """

    op: ClassVar[str] = "tfrecords"
    counters: ClassVar[tuple[str, ...]] = ("file", "record", "index")

    files: tuple[Packed, ...]
    opening: Opening
    parser: AnyParser | None
    check: bool
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return 0 if not any(packed.seen.size for packed in self.files) else UNKNOWN

    def gather(self, index: Index) -> Block:
        raise PipelineError("compressed records cannot be jumped to")

    def static_spec(self) -> Nest | None:
        return ArraySpec((), bytes) if self.parser is None else self.parser.spec()

    def describe(self) -> dict[str, Any]:
        """Digests of the files' sizes and of their first and last bytes, and of the features."""
        samples = b"".join(packed.sample for packed in self.files if packed.seen.size)
        content = hashlib.blake2b(samples, digest_size=16).hexdigest()
        said = {"op": self.op, "content": content, "kind": "sampled"}
        return said if self.parser is None else {**said, "features": self.parser.digest}

    def start_stream(self, epoch: int) -> Cursor:
        return {"epoch": epoch, "file": 0, "record": 0, "index": 0}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counted = has_counts(cursor, self.counters) and cursor.get("epoch") == epoch
        return counted and cursor["file"] <= len(self.files)

    def endure(self, cursor: Cursor, compute: Compute) -> Generator[Part, None, None]:
        """The records; the rest of a file behind a frame that is broken is lost as one."""
        epoch, index, skipped = cursor["epoch"], cursor["index"], cursor["record"]
        pace = compute.pace(self)
        for file in range(cursor["file"], len(self.files)):
            path = self.files[file].seen.path
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
                                record = self._record(epoch, file, first + at, index)
                                index, at = index + 1, at + 1
                                behind = _cursor(epoch, file, first + at, index, 0)
                                yield Lost(error, behind, [record])
                except CorruptRecord as error:
                    packed = self.files[file]
                    self.opening.unchanged(packed.seen, packed.sample)  # or that is why
                    if error.facts["record"] < skipped:
                        raise changed(path, "since the position was saved") from error
                    record = self._record(epoch, file, error.facts["record"], index)
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
                damage = corrupt(self.files[file].seen.path, offset, first + wrong, "data")
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
            place = (self.files[file].seen.path, first + wrong)
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
        return [self._record(epoch, file, record + j, index + j)]

    def _record(self, epoch: int, file: int, record: int, index: int) -> Record:
        path = self.files[file].seen.path
        return Record(self.info.name or self.op, epoch, index, path, record)

    def _stretches(self, file: int, skipped: int) -> Generator[tuple[int, Stretch], None, None]:
        """The frames of a file, and the number of each stretch's first. Raises for damaged ones."""
        packed = self.files[file]
        path = packed.seen.path
        seen = self.opening.unchanged(packed.seen, packed.sample)
        if skipped and packed.packing is not None:
            warn(
                f"resuming in {path} decompresses its first {skipped} records again; files that are "
                "not compressed are resumed at once",
                SlowResume,
            )
        first = 0
        end = 0
        try:
            blocks = unpacked(self.opening.blocks(seen), packed.packing)
            for stretch in stretches(blocks, check=False):
                yield first, stretch
                first += len(stretch)
                if stretch.damage is not None:
                    where = stretch.base + stretch.damage.offset
                    size = seen.size - where if packed.packing is None else None
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
