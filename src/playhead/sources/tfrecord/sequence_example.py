"""`tf.train.SequenceExample` records as arrays, without TensorFlow and without protobuf.

A SequenceExample is an Example, its context, with lists of features beside it:

    SequenceExample { 1: Features, 2: FeatureLists }
    FeatureLists    { 1: entry, repeated }
    entry           { 1: name, 2: FeatureList }
    FeatureList     { 1: Feature, repeated }

What `tf.io.parse_single_sequence_example` reads is read to the same values here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from playhead.errors import PipelineError, UnparsableRecord
from playhead.plan.block import ArraySpec, Block, Nest, Rows
from playhead.sources.tfrecord import wire
from playhead.sources.tfrecord.example import Parser
from playhead.sources.tfrecord.features import Feature, FixedLenFeature, field_of
from playhead.sources.tfrecord.wire import (
    BYTES,
    DTYPES,
    Array,
    Field,
    Malformed,
    fields_of,
    unparsable,
)

# The fields of one step, and whether a record may lack it.
Step = tuple[Field, bool]


class SequenceParser:
    """Parses SequenceExamples into pairs of dicts: the context, and the sequences.

    A sequence, asked for as `FixedLenSequenceFeature`, is an array (number of steps, *shape). Raises
    `PipelineError` for other kinds of sequences, and for what `Parser` refuses in the context.
    """

    native = False  # there is no kernel for it

    def __init__(
        self,
        context: Mapping[str, Feature | Any] | None,
        sequences: Mapping[str, Feature | Any] | None,
    ) -> None:
        self.context = Parser(context or {})
        self.steps = tuple(_step(name, feature) for name, feature in (sequences or {}).items())

    @property
    def digest(self) -> str:
        """What is asked for in 16 hex digits, in whatever order the names are."""
        said = sorted(repr((f.name, f.kind, f.shape, lacking)) for f, lacking in self.steps)
        text = "\n".join([self.context.digest, *said])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def spec(self) -> Nest:
        """The `ArraySpec` of each feature."""
        sequences = {
            f.name: ArraySpec(
                (None, *(f.shape or ())), bytes if f.kind == BYTES else DTYPES[f.kind]
            )
            for f, _ in self.steps
        }
        return self.context.spec(), sequences

    def parse(self, records: Sequence[bytes]) -> Block:
        """n records as `Rows` of pairs of dicts of arrays.

        Raises `UnparsableRecord` with `position` (in `records`), `key` and `reason`.
        """
        contexts = self.context.parse(records).own_rows()
        rows = []
        for position, (data, context) in enumerate(zip(records, contexts, strict=True)):
            try:
                rows.append((context, self._sequences(data)))
            except Malformed as error:
                raise unparsable(position, error.key, error.reason) from None
        return Rows(rows)

    def parse_parts(self, records: Any, crcs: Any = None) -> Block | None:
        """None: they have to be read first."""
        return None

    def _sequences(self, data: bytes) -> dict[str, Array]:
        found = _feature_lists(data)
        made = {}
        for field, lacking in self.steps:
            span = found.get(field.name.encode())
            if span is None and not lacking:
                reason = f"sequence {field.name!r} is missing, and allow_missing is not set"
                raise Malformed(reason, field.name)
            try:
                steps = [] if span is None else _steps(data, *span)
                made[field.name] = _stacked(field, data, steps)
            except Malformed as error:
                error.key = field.name
                raise
        return made


def _step(name: str, feature: Any) -> Step:
    if type(feature).__name__ != "FixedLenSequenceFeature":
        raise PipelineError(
            f"sequence {name!r} is {feature!r}",
            help="sequences are read with FixedLenSequenceFeature, which gives all steps one shape",
            key=name,
        )
    fixed = field_of(name, FixedLenFeature(feature.shape, feature.dtype))
    if not math.prod(fixed.shape or ()):
        raise PipelineError(f"sequence {name!r} has steps of shape {fixed.shape}", key=name)
    return fixed, bool(feature.allow_missing)


def _feature_lists(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Where each FeatureList lies, by its name; of lists with one name the last."""
    found: dict[bytes, tuple[int, int]] = {}
    for tag, start, stop in fields_of(data, 0, len(data)):
        if tag != 0x12:
            continue
        for inner, begin, end in fields_of(data, start, stop):
            if inner != 0x0A:
                continue
            entry = [part for part in fields_of(data, begin, end) if part[0] in (0x0A, 0x12)]
            if sorted(part[0] for part in entry) != [0x0A, 0x12]:
                raise Malformed(
                    "an entry of the SequenceExample does not have one name and one list"
                )
            (_, name, name_end), (_, *span) = sorted(entry)
            found[data[name:name_end]] = span[0], span[1]
    return found


def _steps(data: bytes, start: int, stop: int) -> list[tuple[int, int]]:
    """Where the Features of a FeatureList lie."""
    parts = list(fields_of(data, start, stop))
    if any(tag != 0x0A for tag, _, _ in parts):
        raise Malformed("a list of features holds something else")
    return [(begin, end) for _, begin, end in parts]


def _stacked(field: Field, data: bytes, steps: Sequence[tuple[int, int]]) -> Array:
    """All steps of a sequence as an array."""
    column = [wire.values(data, *span, field.kind) for span in steps]
    try:
        return wire.fixed(field, column)
    except UnparsableRecord as error:
        step, reason = error.facts["position"], error.facts["reason"]
        raise Malformed(f"step {step}: {reason}", field.name) from None
