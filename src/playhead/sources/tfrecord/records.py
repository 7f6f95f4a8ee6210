"""Records of TFRecord files, read at random through an index, or walked where they are compressed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from playhead import kernels
from playhead.errors import PipelineError, UnparsableRecord
from playhead.plan.block import ArraySpec, Block, Columns, Nest
from playhead.plan.failing import IgnoreErrors
from playhead.plan.node import Node, Source
from playhead.plan.places import Record
from playhead.sources.files.indexed import Indexed, indexed
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import Paths
from playhead.sources.files.remote import Remote
from playhead.sources.files.shelf import Shelf, absolute
from playhead.sources.files.unpacking import Packed
from playhead.sources.tfrecord import infer
from playhead.sources.tfrecord.building import CHECKED, Records
from playhead.sources.tfrecord.compressed import WalkedRecords, walked_records
from playhead.sources.tfrecord.example import Feature, Parser
from playhead.sources.tfrecord.index import Index, Integers, Verify, unparsable
from playhead.sources.tfrecord.inflating import PACKINGS, Compression, checked, compression_of
from playhead.sources.tfrecord.reading import AnyParser, Reader
from playhead.sources.tfrecord.sequence_example import SequenceParser


def tfrecords(
    files: Paths,
    *,
    features: Mapping[str, Feature | Any] | Literal["infer"] | None = None,
    context_features: Mapping[str, Feature | Any] | None = None,
    sequence_features: Mapping[str, Feature | Any] | None = None,
    verify: Verify = "always",
    index: str | os.PathLike[str] | None = None,
    compression_type: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    tolerant: bool = False,
) -> TFRecords | WalkedRecords:
    """The records of TFRecord files, one file after the other.

    `files` is a path, a pattern (`*`, `?`, `[...]`, `**`) or a URL that fsspec knows, or several in the
    order they are read in; what a pattern matches is sorted by name. Each record is `bytes`, or with
    `features` (a dict of `FixedLenFeature` and `VarLenFeature`, playhead's or `tf.io`'s) the dict that
    `tf.io.parse_single_example` would give. "infer" guesses the features from the first 256 records, and
    prints them on stderr as code to paste. With `context_features` or `sequence_features` it is the pair of
    dicts that `tf.io.parse_single_sequence_example` would give.

    `verify` says when the CRC of a record's data is checked: "always" is when indexing and at each
    read, "index" only when indexing, "read" only at each read, "never" not at all. `index` names a
    directory, or a URL, for the index, which otherwise lies where `Shelf` says. Remote files are indexed when
    that is first needed.

    `compression_type` is that of tf.data: "GZIP", "ZLIB" or "" (none) for all files; by default each
    file's first bytes tell. Where one is compressed, all are walked from their beginning.

    `tolerant`: damage is no error before the record that has it is read. What lies behind a broken frame is one
    record; data are not checked when indexing, but at each read.

    Local files are mapped into memory. Truncating one while it is in use ends the process (SIGBUS), as
    with any mapping.

    Raises `MissingSource`, `CorruptRecord`, `SourceChanged`, or `SourceError` for remote files that
    cannot be reached.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "empty.tfrecord")
    >>> open(path, "wb").close()
    >>> tfrecords(path).cardinality
    0
    """
    if verify not in ("always", "index", "read", "never"):
        raise PipelineError(
            f'verify is "always", "index", "read" or "never", not {verify!r}', verify=verify
        )
    if tolerant and verify == "index":
        raise PipelineError(
            'verify="index" stops at the first damage, before anything is read, and nothing can be left out',
            help='verify="always" and "read" check each record when it is read',
            verify=verify,
        )
    compression = checked(compression_type, "compression_type")
    parser = _parser(features, context_features, sequence_features)
    opening = Opening(Remote(storage_options or {}))
    where = None if index is None else absolute(index)
    shelf = Shelf(Records(verify in CHECKED and not tolerant, tolerant), opening, where)
    seen = opening.look(opening.expand(files))
    kinds = _compressions(opening, seen, compression)
    source: TFRecords | WalkedRecords
    if any(kinds):
        source = walked_records(seen, kinds, opening, parser, check=verify != "never")
    else:
        source = TFRecords(
            (),
            indexed(shelf, seen, lambda found: Reader(Index.of(found), verify, opening.remote)),
            parser,
        )
    if features == "infer":
        # Walked: what is said here must not wait for an index.
        packed = tuple(
            Packed(file, PACKINGS[kind], b"") for file, kind in zip(seen, kinds, strict=True)
        )
        walked = WalkedRecords(packed, opening, None, check=verify != "never")
        first = IgnoreErrors((walked,), False) if tolerant else walked
        return replace(source, parser=Parser(_inferred(first)))
    return source


def _parser(
    features: Mapping[str, Feature | Any] | Literal["infer"] | None,
    context: Mapping[str, Feature | Any] | None,
    sequences: Mapping[str, Feature | Any] | None,
) -> AnyParser | None:
    named = {"features": features, "context_features": context, "sequence_features": sequences}
    for name, asked in named.items():
        if asked is None or isinstance(asked, Mapping) or (name, asked) == ("features", "infer"):
            continue
        raise PipelineError(
            f"{name} is a dict from names to FixedLenFeature and the like, not {asked!r}",
            help='features="infer" guesses them from the records, and prints the dict',
            features=asked,
        )
    if context is not None or sequences is not None:
        if features is not None:
            raise PipelineError(
                "features is for Examples, context_features and sequence_features for SequenceExamples",
                help="give one or the other",
            )
        return SequenceParser(context, sequences)
    return Parser(features) if isinstance(features, Mapping) else None


def _inferred(source: Node) -> dict[str, Feature]:
    """What the first of the records ask for."""
    records = source.firsts(infer.LOOKED_AT) if source.cardinality else []
    features = infer.inferred(records)
    infer.say(features, len(records))
    return features


def _compressions(
    opening: Opening,
    files: Sequence[Seen],
    compression: Compression | None,
) -> list[Compression]:
    """How each file is compressed."""
    if compression is not None:
        return [compression] * len(files)
    starts = opening.starts(list(dict.fromkeys(files)))
    told = {seen.path: compression_of(start) for seen, start in starts}
    return [told[seen.path] for seen in files]


@dataclass(frozen=True, eq=False)
class TFRecords(Source):
    """The records of several TFRecord files as one source."""

    op: ClassVar[str] = "tfrecords"

    indexed: Indexed[Reader]
    parser: AnyParser | None

    @property
    def reader(self) -> Reader:
        """What reads the records."""
        return self.indexed.get()

    @property
    def cardinality(self) -> int:
        return self.reader.index.records

    @cached_property
    def finite(self) -> bool:
        return True

    @cached_property
    def light(self) -> bool:
        return not self.reader.spans.far

    @cached_property
    def unlocked(self) -> bool:
        return self.light and isinstance(self.parser, Parser) and kernels.NATIVE

    def gather(self, index: Integers) -> Block:
        """The records at `index` (int64[n], in any order) as n elements. Pure and thread-safe.

        Without features: `Columns` of one object array of `bytes`, shape (n,). With features: what
        `Parser.parse` gives. Raises `IndexError`, `CorruptRecord`, `SourceChanged`, and
        `UnparsableRecord` naming file and record.
        """
        if self.parser is None:
            column = np.empty(len(index), object)
            column[:] = self.reader.read(index)
            return Columns(column, len(index))
        try:
            return self.reader.parse(index, self.parser)
        except UnparsableRecord as error:
            place = self.reader.place(int(index[error.facts["position"]]))
            raise unparsable(error, *place) from None

    def gather_apart(self, index: Integers, ends: list[int]) -> list[Block] | None:
        return None if self.parser is None else self.reader.parse_apart(index, ends, self.parser)

    def record(self, epoch: int, index: int) -> Record:
        file, number, _ = self.reader.place(index)
        return Record(self.info.name or self.op, epoch, index, file, number)

    def describe(self) -> dict[str, Any]:
        """How many records, and digests of their bytes and of the features; never paths."""
        index = self.reader.index
        said = {"op": self.op, "records": index.records, "content": index.content}
        return said if self.parser is None else {**said, "features": self.parser.digest}

    def static_spec(self) -> Nest:
        return ArraySpec((), bytes) if self.parser is None else self.parser.spec()
