"""Files of which some are compressed, so that all are read from their beginning, one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from playhead.errors import PipelineError, SlowResume, warn
from playhead.plan.block import Block
from playhead.plan.losses import Enduring
from playhead.plan.node import UNKNOWN, Node
from playhead.plan.places import Cursor, Index, Record, has_counts
from playhead.sources.files.opening import Opening
from playhead.sources.files.unpacking import Packed, unpacked


@dataclass(frozen=True, eq=False)
class WalkedFiles(Enduring):
    """A stream. Its cursor is an epoch and `counters`: a file, a place in it, and how many came before."""

    elements: ClassVar[str]  # what they are, for messages

    files: tuple[Packed, ...]
    opening: Opening
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return UNKNOWN if any(packed.seen.size for packed in self.files) else 0

    def gather(self, index: Index) -> Block:
        raise PipelineError(f"{self.elements} cannot be jumped to")

    def describe(self) -> dict[str, Any]:
        """A digest of the files' sizes and of their first and last bytes."""
        samples = b"".join(packed.sample for packed in self.sampled())
        content = hashlib.blake2b(samples, digest_size=16).hexdigest()
        return {"op": self.op, "content": content, "kind": "sampled"}

    def sampled(self) -> tuple[Packed, ...]:
        """The files that decide what the elements are."""
        return self.files

    def start_stream(self, epoch: int) -> Cursor:
        return {"epoch": epoch, **dict.fromkeys(self.counters, 0)}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counted = has_counts(cursor, self.counters) and cursor.get("epoch") == epoch
        return counted and cursor["file"] <= len(self.files)

    def path(self, file: int) -> str:
        return self.files[file].seen.path

    def place(self, epoch: int, file: int, number: int, index: int) -> Record:
        """Element `index` of a pass, which is made of what has that number in its file."""
        return Record(self.info.name or self.op, epoch, index, self.path(file), number)

    def require_unchanged(self, file: int) -> None:
        """Raise `SourceChanged` for a file that is not what it was: then that is why it is damaged."""
        packed = self.files[file]
        self.opening.unchanged(packed.seen, packed.sample)

    def blocks(self, file: int, again: str | None = None, start: int = 0) -> Iterator[bytes]:
        """The bytes of a file once it is decompressed, from byte `start` of the file on.

        `again`: how much of it was delivered before and is to be passed over, for the warning. Raises
        `SourceChanged` for a file that is not what it was, and `Broken` where it is damaged.
        """
        packed = self.files[file]
        seen = self.opening.unchanged(packed.seen, packed.sample)
        if again is not None and packed.packing is not None:
            warn(
                f"resuming in {seen.path} decompresses {again} again; files that are not compressed are "
                "resumed at once",
                SlowResume,
            )
        return unpacked(self.opening.blocks(seen, start), packed.packing)
