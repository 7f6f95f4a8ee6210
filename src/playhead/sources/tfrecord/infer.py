"""Guessing from the first Examples of a set what features they hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from playhead import kernels
from playhead.errors import PipelineError
from playhead.sources.tfrecord.features import Feature, FixedLenFeature, VarLenFeature
from playhead.sources.tfrecord.wire import (
    BYTES,
    DTYPES,
    FLOAT,
    INT64,
    NAMES,
    Kind,
    Malformed,
    fields_of,
    unparsable,
    values_of_any,
)

LOOKED_AT = 256

_CODE = {BYTES: "bytes", FLOAT: "np.float32", INT64: "np.int64"}


def inferred(records: Sequence[bytes]) -> dict[str, Feature]:
    """The features that serialized Examples hold, by name.

    `FixedLenFeature` where each record has equally many values (shape () for one), `VarLenFeature`
    elsewhere. A key that is always empty is left out: nothing tells its kind. Raises
    `UnparsableRecord` for a record that is no Example, and `PipelineError` where no record holds
    anything, or records hold unlike kinds under one key.
    """
    kinds: dict[str, Kind] = {}
    counts: dict[str, list[int]] = {}
    for record, held in enumerate(_holdings(records)):
        for name, (kind, count) in held.items():
            if kinds.setdefault(name, kind) != kind:
                raise PipelineError(
                    f"feature {name!r} holds {NAMES[kinds[name]]} in some records and {NAMES[kind]} "
                    f"in others (record {record})",
                    help="name the features that all records share with features={...}",
                    key=name,
                )
            counts.setdefault(name, []).append(count)
    if not kinds:
        raise PipelineError(
            f"of {len(records)} records none holds a feature that tells its kind",
            help="name them with features={...}, or read the records as bytes",
        )
    return {name: _feature(kinds[name], counts[name], len(records)) for name in sorted(kinds)}


def code(features: Mapping[str, Feature]) -> str:
    """The features as Python to paste, for a module that has `import playhead as ph`, and np."""
    lines = [f"    {name!r}: {_call(feature)}," for name, feature in features.items()]
    return "\n".join(["features = {", *lines, "}"])


def say(features: Mapping[str, Feature], looked_at: int) -> None:
    """Print them on stderr."""
    if sys.stderr is not None:
        which = "1 record" if looked_at == 1 else f"{looked_at} records"
        print(
            f'playhead: features="infer" looked at {which}; this says the same outright:\n'
            f"{code(features)}",
            file=sys.stderr,
        )


def _feature(kind: Kind, counts: Sequence[int], records: int) -> Feature:
    dtype: Any = bytes if kind == BYTES else DTYPES[kind].type
    if len(counts) < records or len(set(counts)) > 1:
        return VarLenFeature(dtype)
    return FixedLenFeature(() if counts[0] == 1 else (counts[0],), dtype)


def _call(feature: Feature) -> str:
    kind = {bytes: BYTES, np.float32: FLOAT, np.int64: INT64}[feature.dtype]
    if isinstance(feature, FixedLenFeature):
        shape = list(feature.shape) if isinstance(feature.shape, Sequence) else feature.shape
        return f"ph.FixedLenFeature({shape!r}, {_CODE[kind]})"
    return f"ph.VarLenFeature({_CODE[kind]})"


def _holdings(records: Sequence[bytes]) -> Iterator[dict[str, tuple[Kind, int]]]:
    """Of each record, the kind of every feature that holds any value, and how many it holds.

    Raises what `parse` raises.
    """
    for position, data in enumerate(records):
        held: dict[str, tuple[Kind, int]] = {}
        try:
            for name, span in _features(data):
                lists = [part[0] for part in fields_of(data, *span) if part[0] in NAMES]
                if len(lists) == 1:
                    values = values_of_any(data, *span, lists[0])
                    held[name] = (lists[0], _count(lists[0], values))
        except (Malformed, UnicodeDecodeError) as error:
            raise unparsable(position, None, getattr(error, "reason", str(error))) from None
        yield {name: (kind, count) for name, (kind, count) in held.items() if count}


def _features(data: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each name in an Example, and where its Feature lies."""
    for tag, start, stop in fields_of(data, 0, len(data)):
        if tag != 0x0A:
            continue
        for inner, begin, end in fields_of(data, start, stop):
            if inner != 0x0A:
                continue
            entry = {part[0]: part[1:] for part in fields_of(data, begin, end)}
            if 0x0A in entry and 0x12 in entry:
                yield data[slice(*entry[0x0A])].decode(), entry[0x12]


def _count(kind: Kind, values: Any) -> int:
    if kind == BYTES:
        return len(values)
    return len(values) // 4 if kind == FLOAT else len(kernels.varints(values)[0])
