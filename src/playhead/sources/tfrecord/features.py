"""What is asked for of each key of a `tf.train.Example`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import PipelineError
from playhead.sources.tfrecord.wire import BYTES, FLOAT, INT64, NAMES, Field, Kind


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the values of `shape` in every record, or `default_value` where it is missing.

    `dtype` is float32, int64 or bytes (str means bytes). A default of fewer values is broadcast to
    `shape`.
    """

    shape: Sequence[int] | int
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values: a 1-D array, empty where the record lacks it."""

    dtype: Any


@dataclass(frozen=True)
class FixedLenSequenceFeature:
    """A feature with any number of parts, each of `shape`: an array (number of parts, *shape).

    It is empty where the record lacks the feature; in an Example `allow_missing` must be True, as
    `tf.io.parse_single_example` asks for.
    """

    shape: Sequence[int] | int
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


Feature: TypeAlias = FixedLenFeature | VarLenFeature | FixedLenSequenceFeature


def field_of(name: str, feature: Any) -> Field:
    """A feature of this module or of `tf.io`, ready to parse. Raises `PipelineError`."""
    if isinstance(feature, type | str | np.dtype) or not hasattr(feature, "dtype"):
        raise PipelineError(
            f"feature {name!r} is {feature!r}",
            help=f"say it as {name!r}: FixedLenFeature([], np.int64), with its shape and dtype, or "
            "VarLenFeature(np.int64)",
            key=name,
        )
    kind = _kind(name, feature.dtype)
    match type(feature).__name__:
        case "VarLenFeature":
            return Field(name, kind, None, [] if kind == BYTES else b"")
        case "FixedLenFeature":
            shape = _shape(name, feature.shape)
            return Field(name, kind, shape, _default(name, kind, shape, feature.default_value))
        case "FixedLenSequenceFeature":
            return _sequence(name, kind, feature)
        case "RaggedFeature" | "SparseFeature":
            raise PipelineError(
                f"feature {name!r} is a {type(feature).__name__}, which puts several keys together",
                help="read each key with VarLenFeature, and put them together in a map",
                key=name,
            )
    raise PipelineError(
        f"feature {name!r} is {feature!r}",
        help="FixedLenFeature, VarLenFeature and FixedLenSequenceFeature are read",
        key=name,
    )


def _sequence(name: str, kind: Kind, feature: Any) -> Field:
    if not feature.allow_missing:
        raise PipelineError(
            f"feature {name!r} is a FixedLenSequenceFeature without allow_missing",
            help="in an Example a feature without values cannot be told from none: allow_missing=True",
            key=name,
        )
    inner = _shape(name, feature.shape)
    if not math.prod(inner):
        raise PipelineError(
            f"feature {name!r} has parts of shape {inner}, without values", key=name
        )
    return Field(name, kind, None, [] if kind == BYTES else b"", inner)


def _kind(name: str, dtype: Any) -> Kind:
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if dtype in (bytes, str, object):
        return BYTES
    try:
        return {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}[np.dtype(dtype)]
    except (TypeError, KeyError):
        said = getattr(dtype, "__name__", dtype)
        raise PipelineError(
            f"feature {name!r} has dtype {said}; an Example holds float32, int64 and bytes",
            help="parse as one of these, and cast in a map",
        ) from None


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    sizes = [shape] if isinstance(shape, int | np.integer) else list(shape)
    if any(not isinstance(size, int | np.integer) or size < 0 for size in sizes):
        raise PipelineError(
            f"feature {name!r} has shape {shape!r}, whose sizes are not all known",
            help="use VarLenFeature where the number of values varies",
        )
    return tuple(int(size) for size in sizes)


def _default(name: str, kind: Kind, shape: tuple[int, ...], value: Any) -> Any:
    """A default in the form that `_values` gives; None where there is none."""
    if value is None:
        return None
    try:
        given = np.asarray(value, object) if kind == BYTES else np.asarray(value)
        whole = given.size == np.prod(shape, dtype=np.int64)
        filled = given.reshape(shape) if whole else np.broadcast_to(given, shape)
        if kind == BYTES:
            return [v.encode() if isinstance(v, str) else b"" + v for v in filled.ravel()]
        if given.size and given.dtype.kind not in ("iu" if kind == INT64 else "iuf"):
            raise TypeError
        if kind == FLOAT:
            return filled.astype("<f4").tobytes()
        return b"".join(_as_varint(int(v)) for v in filled.ravel())
    except (TypeError, ValueError):
        raise PipelineError(
            f"feature {name!r}: default_value {value!r} does not fit {NAMES[kind]}{list(shape)}"
        ) from None


def _as_varint(value: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        raise ValueError
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
