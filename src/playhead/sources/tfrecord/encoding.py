"""Dicts of arrays as serialized `tf.train.Example`s, without TensorFlow and without protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from playhead.errors import PipelineError
from playhead.sources.tfrecord.wire import BYTES, FLOAT, INT64

_FEW = 8
_VARINT = 10  # bytes, at most


def example(element: Mapping[str, Any]) -> bytes:
    """One element as a serialized Example.

    Integers and booleans become an int64_list, floats a float_list (rounded to float32), bytes and str
    (as UTF-8) a bytes_list. Arrays are written in C order; their shapes are not kept. Raises
    `PipelineError` naming the key of a value that an Example cannot hold.
    """
    entries = []
    for key, value in element.items():
        if not isinstance(key, str):
            raise PipelineError(f"the keys of an Example are str, not {key!r}")
        feature = _feature(key, value)
        entries.append(_part(0x0A, _part(0x0A, key.encode()) + _part(0x12, feature)))
    return _part(0x0A, b"".join(entries))


def varints(values: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """Numbers as base-128 varints, one after the other; negative ones take ten bytes."""
    if len(values) <= _FEW:
        return b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values.tolist())
    left = values.view(np.uint64)
    shifts = np.arange(_VARINT, dtype=np.uint64) * np.uint64(7)
    groups = left[:, None] >> shifts
    more = groups >> np.uint64(7) != 0
    more[:, -1] = False  # a shift by 70 is none
    there = np.ones(groups.shape, bool)
    there[:, 1:] = more[:, :-1]
    out = (groups & np.uint64(127)).astype(np.uint8) | (more.astype(np.uint8) << 7)
    packed: bytes = out[there].tobytes()
    return packed


def _feature(key: str, value: Any) -> bytes:
    """A Feature: one of the three lists."""
    if isinstance(value, bytes | str):
        return _part(BYTES, _bytes_list(key, [value]))
    if isinstance(value, list | tuple):
        # numpy's own strings would lose NULs at the end.
        items = np.array(value, object).reshape(-1).tolist()
        if not items:
            return b""  # nothing tells its kind; it reads as a feature that is missing
        words = [isinstance(item, bytes | str) for item in items]
        if any(isinstance(item, list | tuple) for item in items) or (any(words) and not all(words)):
            raise PipelineError(
                f"feature {key!r} is a list of parts that are not alike",
                help="an Example keeps one row of numbers, or of bytes and str, for each key",
                key=key,
            )
        if any(words):
            return _part(BYTES, _bytes_list(key, items))
    array = np.asarray(value)
    if isinstance(value, Mapping) or array.dtype.kind not in "biufSUOV":
        raise _not_in_an_example(key, value)
    match array.dtype.kind:
        case "b" | "i" | "u":
            if array.dtype.kind == "u" and array.size and int(array.max()) >= 1 << 63:
                raise PipelineError(
                    f"feature {key!r} holds {array.max()}, which does not fit int64",
                    help="an Example holds int64; keep larger numbers as bytes",
                    key=key,
                )
            packed = varints(np.ascontiguousarray(array, np.int64).reshape(-1))
            return _part(INT64, _part(0x0A, packed) if packed else b"")
        case "f":
            packed = np.ascontiguousarray(array, "<f4").tobytes()
            return _part(FLOAT, _part(0x0A, packed) if packed else b"")
        case "V":
            # What ml_dtypes calls its kinds of float.
            try:
                return _feature(key, array.astype(np.float32))
            except (TypeError, ValueError):
                raise _not_in_an_example(key, value) from None
    return _part(BYTES, _bytes_list(key, array.reshape(-1).tolist()))


def _bytes_list(key: str, items: Iterable[Any]) -> bytes:
    out = []
    for item in items:
        if isinstance(item, str):
            item = item.encode()
        if not isinstance(item, bytes):
            raise _not_in_an_example(key, item)
        out.append(_part(0x0A, item))
    return b"".join(out)


def _part(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _not_in_an_example(key: str, value: Any) -> PipelineError:
    kind = f"{value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
    return PipelineError(
        f"feature {key!r} is {kind}, which no Example holds",
        help="an Example holds numbers, bytes and str, and arrays of one of these: give each part a "
        "key of its own, in a map",
        key=key,
    )
