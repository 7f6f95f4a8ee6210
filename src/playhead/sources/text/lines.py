"""Lines of text files, and the JSON in them: read at random, or walked where they are compressed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from playhead.errors import PipelineError
from playhead.plan.block import Block, Nest
from playhead.plan.places import Index
from playhead.sources.files.indexed import indexed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import Paths
from playhead.sources.files.remote import Remote
from playhead.sources.files.shelf import Shelf, absolute
from playhead.sources.files.unpacking import packings
from playhead.sources.text.cuts import Lines
from playhead.sources.text.decoding import (
    AsJson,
    AsText,
    Line,
    Undecodable,
    as_text,
    checked_dtypes,
)
from playhead.sources.text.offsets import FileOffsets, Offsets, OffsetsKind
from playhead.sources.text.texts import Raws, TextRecords, Texts
from playhead.sources.text.walked import WalkedLines, walked_lines

Decoder = AsText | AsJson


@dataclass(frozen=True, eq=False)
class TextLines(TextRecords):
    """The lines of several text files as one source."""

    op: ClassVar[str] = "lines"

    decoder: Decoder

    @cached_property
    def light(self) -> bool:
        return not self.texts.spans.far

    def gather(self, index: Index) -> Block:
        """The lines at `index` (int64[n], in any order) as n elements. Pure and thread-safe.

        `Columns` of one object array of str or bytes; for JSON, whose lines need not be alike, `Rows`.
        Raises `IndexError`, `SourceChanged`, and `UnparsableRecord` naming file, line and byte.
        """
        raws = self.texts.read(index)
        try:
            return self.decoder.block(raws)
        except Exception:  # what is wrong with the first that is wrong, only reading each tells
            return self.decoder.made(self._one_by_one(raws, index))

    def _one_by_one(self, raws: Raws, index: Index) -> list[Any]:
        """The elements, or the error that names the first that there is none of."""
        made: list[Any] = []
        try:
            for raw in raws:
                made.append(self.decoder.element(raw))
        except Undecodable as error:
            raise error.at(Line(*self.texts.place(int(index[len(made)])))) from None
        return made

    def describe(self) -> dict[str, Any]:
        """How many lines, a digest of the files' bytes, how they are decoded; never paths."""
        index = self.texts.index
        said = {"op": self.op, "records": index.records, "content": index.content}
        return {**said, **self.decoder.said()}

    def static_spec(self) -> Nest | None:
        return self.decoder.spec()


class JsonLines(TextLines):
    """The JSON values in the lines of several text files as one source."""

    op: ClassVar[str] = "json_lines"


def lines(
    files: Paths,
    *,
    encoding: str | None = "utf-8",
    errors: str = "strict",
    skip_blank: bool = False,
    index: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TextLines | WalkedLines:
    """The lines of text files, one file after the other, without their line ends.

    Seekable through an index of offsets that is built once, of remote files when it is first needed; where any
    file is compressed (gzip, bz2, xz, zstd, told by its name or its first bytes), a stream over all.
    Raises `MissingSource`, `SourceError` for files that cannot be reached, `PipelineError` for an unknown
    encoding.
    """
    opening = Opening(Remote(storage_options or {}))
    found = opening.find(files, "from_lines", "text file", "*.txt")
    return _source(found, opening, as_text(encoding, errors), skip_blank, index)


def json_lines(
    files: Paths,
    *,
    dtypes: Any = None,
    encoding: str = "utf-8",
    skip_blank: bool = True,
    index: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TextLines | WalkedLines:
    """The JSON values in the lines of text files; otherwise as `lines`."""
    if encoding is None:
        raise PipelineError("from_json_lines reads text: encoding names how it is written")
    opening = Opening(Remote(storage_options or {}))
    found = opening.find(files, "from_json_lines", "JSON lines file", "*.jsonl")
    decoder = AsJson(as_text(encoding, "strict"), checked_dtypes(dtypes))
    return _source(found, opening, decoder, skip_blank, index)


def _source(
    files: list[Seen],
    opening: Opening,
    decoder: Decoder,
    skip_blank: bool,
    index: str | os.PathLike[str] | None,
) -> TextLines | WalkedLines:
    kinds = packings(files, opening)
    if any(kinds):
        return walked_lines(files, kinds, opening, decoder, skip_blank)
    shelf = Shelf(OffsetsKind(Lines()), opening, None if index is None else absolute(index))

    def texts(found: list[FileOffsets]) -> Texts:
        return Texts(Offsets.of(found, skip_blank=skip_blank), opening.remote)

    kind = JsonLines if isinstance(decoder, AsJson) else TextLines
    return kind(indexed(shelf, files, texts), decoder)
