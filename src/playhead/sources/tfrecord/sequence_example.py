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
from dataclasses import dataclass
from typing import Any

from playhead.errors import PipelineError, UnparsableRecord
from playhead.plan.block import ArraySpec, Block, Nest, Rows, object_array
from playhead.sources.tfrecord import wire
from playhead.sources.tfrecord.example import Parser
from playhead.sources.tfrecord.features import Feature, FixedLenFeature, VarLenFeature, field_of
from playhead.sources.tfrecord.wire import (
    BYTES,
    DTYPES,
    Array,
    Field,
    Malformed,
    entries_of,
    fields_of,
    unparsable,
)


@dataclass(frozen=True, slots=True)
class Step:
    """What each step of a sequence holds; in the record the sequence is called `key`, and here `name`."""

    name: str
    key: str
    field: Field
    lacking: bool  # whether a record may lack the sequence

    @property
    def spec(self) -> ArraySpec:
        if self.field.shape is None:
            return ArraySpec((None,), object)
        kind = self.field.kind
        return ArraySpec((None, *self.field.shape), bytes if kind == BYTES else DTYPES[kind])

    def __str__(self) -> str:
        said = repr((self.name, self.field.kind, self.field.shape, self.lacking))
        return said if self.key == self.name else f"{said} from {self.key!r}"


class SequenceParser:
    """Parses SequenceExamples into pairs of dicts: the context, and the sequences.

    A sequence, asked for as `FixedLenSequenceFeature`, is an array (number of steps, *shape). As
    `VarLenFeature`, or `tf.io.RaggedFeature`, it is an object array (number of steps,) of one-dimensional
    arrays, each of one step's values; it has no steps where the record lacks it. Raises `PipelineError` for
    other kinds of sequences, and for what `Parser` refuses in the context.
    """

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
        said = sorted(map(str, self.steps))
        text = "\n".join([self.context.digest, *said])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def spec(self) -> Nest:
        """The `ArraySpec` of each feature."""
        return self.context.spec(), {step.name: step.spec for step in self.steps}

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

    def _sequences(self, data: bytes) -> dict[str, Array]:
        found = _feature_lists(data)
        made = {}
        for step in self.steps:
            span = found.get(step.key.encode())
            if span is None and not step.lacking:
                reason = f"sequence {step.key!r} is missing, and allow_missing is not set"
                raise Malformed(reason, step.name)
            try:
                spans = [] if span is None else _steps(data, *span)
                read = _stacked if step.field.shape is not None else _apart
                made[step.name] = read(step.field, data, spans)
            except Malformed as error:
                error.key = step.name
                raise
        return made


def _step(name: str, feature: Any) -> Step:
    match type(feature).__name__:
        case "FixedLenSequenceFeature":
            fixed = field_of(name, FixedLenFeature(feature.shape, feature.dtype))
            if not math.prod(fixed.shape or ()):
                raise PipelineError(f"sequence {name!r} has steps of shape {fixed.shape}", key=name)
            return Step(name, name, fixed, bool(feature.allow_missing))
        case "VarLenFeature":
            return Step(name, name, field_of(name, feature), True)
        case "RaggedFeature" if not feature.partitions:
            field = field_of(name, VarLenFeature(feature.dtype))
            return Step(name, feature.value_key or name, field, True)
    raise PipelineError(
        f"sequence {name!r} is {feature!r}",
        help="FixedLenSequenceFeature gives all steps one shape, VarLenFeature and a RaggedFeature without "
        "partitions read steps of any length",
        key=name,
    )


def _feature_lists(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Where each FeatureList lies, by its name; of lists with one name the last."""
    odd = "an entry of the SequenceExample does not have one name and one list"
    return dict(entries_of(data, 0x12, odd))


def _steps(data: bytes, start: int, stop: int) -> list[tuple[int, int]]:
    """Where the Features of a FeatureList lie."""
    parts = list(fields_of(data, start, stop))
    if any(tag != 0x0A for tag, _, _ in parts):
        raise Malformed("a list of features holds something else")
    return [(begin, end) for _, begin, end in parts]


def _apart(field: Field, data: bytes, steps: Sequence[tuple[int, int]]) -> Array:
    """An array of each step's values, none of a step that is empty."""
    column = [
        wire.values(data, *span, field.kind) if span[0] < span[1] else field.default
        for span in steps
    ]
    try:
        return object_array(wire.varying(field, column))
    except UnparsableRecord as error:
        raise _at_step(field, error) from None


def _stacked(field: Field, data: bytes, steps: Sequence[tuple[int, int]]) -> Array:
    """All steps of a sequence as an array."""
    column = [wire.values(data, *span, field.kind) for span in steps]
    try:
        return wire.fixed(field, column)
    except UnparsableRecord as error:
        raise _at_step(field, error) from None


def _at_step(field: Field, error: UnparsableRecord) -> Malformed:
    return Malformed(f"step {error.facts['position']}: {error.facts['reason']}", field.name)
