"""Elements as bytes and back: nests of arrays, numbers, text; nothing is pickled.

The format is described in `playhead.sources.saved.store`.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from playhead.plan.aligned import aligned_empty
from playhead.plan.block import (
    Element,
    Nest,
    map_nest,
)

SIZE = struct.Struct("<I")
END = 4  # bytes behind the last leaf: an empty array lies inside its element, too
_LENGTH = struct.Struct("<q")

Structure = list[Any]  # JSON; see `take_apart`
Raw = bytes | memoryview


def take_apart(value: Any, path: str, parts: list[Raw]) -> Structure:
    """The structure of a nest; its leaves' bytes go to `parts`, each padded to 8.

    Structures: ["dict", [[key, structure], ...]], ["tuple", [structure, ...]], ["array", dtype, shape],
    ["scalar", dtype], ["objects", shape], ["str"], ["bytes"], ["none"].
    """
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise Unsaved(path, f"has the key {key!r}", "keys may be str or int")
        return [
            "dict",
            [[k, take_apart(part, f"{path}[{k!r}]", parts)] for k, part in value.items()],
        ]
    if isinstance(value, tuple):
        return [
            "tuple",
            [take_apart(part, f"{path}[{k}]", parts) for k, part in enumerate(value)],
        ]
    if value is None:
        return ["none"]
    if isinstance(value, np.ndarray | np.generic):
        return _take_array(value, path, parts)
    if isinstance(value, str | bytes):
        raw = _encoded(value)
        parts += (_LENGTH.pack(len(raw)), raw, padding(len(raw)))
        return ["str" if isinstance(value, str) else "bytes"]
    raise Unsaved(
        path,
        f"is of type {type(value).__name__}",
        "arrays, numpy's scalars, str, bytes and None can be saved, in dicts and tuples",
    )


def _take_array(value: Any, path: str, parts: list[Raw]) -> Structure:
    if isinstance(value, np.str_ | np.bytes_ | np.ma.MaskedArray):
        masked = isinstance(value, np.ma.MaskedArray)
        help = "save the data and the mask" if masked else "make it str or bytes: numpy strips NULs"
        raise Unsaved(path, f"is of type {type(value).__name__}", help)
    if value.dtype == object:
        return _take_objects(np.asarray(value), path, parts)
    said = _dtype_said(value.dtype)
    if said is None:
        raise Unsaved(
            path, f"has the dtype {value.dtype}", "cast it to a dtype of numpy's or ml_dtypes'"
        )
    array = np.asarray(value, order="C")
    if array.nbytes:
        raw = array.reshape(-1).view(np.uint8).data
        parts += (raw, padding(len(raw)))
    return ["scalar", said] if isinstance(value, np.generic) else ["array", said, list(array.shape)]


def _take_objects(array: np.ndarray[Any, Any], path: str, parts: list[Raw]) -> Structure:
    items: list[Any] = array.reshape(-1).tolist()
    kinds = [_OBJECTS.get(type(item), -1) for item in items]
    if -1 in kinds:
        odd = type(items[kinds.index(-1)]).__name__
        raise Unsaved(
            path,
            f"is an array of objects, one of type {odd}",
            "str, bytes and None can be saved in one",
        )
    encoded = [b"" if item is None else _encoded(item) for item in items]
    lengths = np.array([len(raw) for raw in encoded], "<i8").tobytes()
    joined = b"".join(encoded)
    parts += (bytes(kinds), padding(len(kinds)), lengths, joined, padding(len(joined)))
    return ["objects", list(array.shape)]


_OBJECTS: dict[type, int] = {bytes: 0, str: 1, type(None): 2}


class Unsaved(Exception):
    """A leaf that cannot be saved: its path, what it is, what can be done."""

    def __init__(self, path: str, what: str, help: str) -> None:
        super().__init__(path, what, help)
        self.path, self.what, self.help = path, what, help


def _encoded(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def padding(size: int) -> bytes:
    return bytes(-size % 8)


@functools.lru_cache
def _dtype_said(dtype: np.dtype[Any]) -> Any:
    """A dtype in JSON; None for one that holds objects, or that its name does not give back."""
    if dtype.hasobject or not dtype.itemsize:
        return None
    said = dtype.name if dtype.isbuiltin == 2 else _listed(dtype)
    try:
        return said if _dtype(said) == dtype else None
    except (ValueError, TypeError, AttributeError, ImportError):
        return None


def _listed(dtype: np.dtype[Any]) -> Any:
    return json.loads(json.dumps(np.lib.format.dtype_to_descr(dtype)))


def _dtype(said: Any) -> np.dtype[Any]:
    """The inverse of `_dtype_said`. Raises ValueError, TypeError and the like for what it never says."""
    if isinstance(said, str):
        try:
            dtype = np.dtype(said)
        except TypeError:
            dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), said))
    else:
        dtype = np.lib.format.descr_to_dtype(_as_descr(said))
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{said!r} is no dtype of plain bytes")
    return dtype


def _as_descr(said: Any) -> Any:
    """A structured dtype's description with the tuples that JSON made lists of."""
    if isinstance(said, str):
        return said
    if said and all(isinstance(part, list) for part in said):
        return [
            (tuple(name) if isinstance(name, list) else name, _as_descr(kind), *map(tuple, shape))
            for name, kind, *shape in said
        ]
    kind, shape = said
    return _as_descr(kind), tuple(shape)


@dataclass(frozen=True, slots=True)
class Form:
    """A leaf as its structure says: `size` bytes, or None where they say it themselves."""

    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int | None


NO_STRUCTURE = (ValueError, TypeError, AttributeError, ImportError, RecursionError)


def forms_in(said: Structure) -> Nest:
    """The nest of `Form`s of a structure. Raises one of `NO_STRUCTURE` for what is none."""
    match said:
        case ["dict", items]:
            return {key: forms_in(part) for key, part in items}
        case ["tuple", items]:
            return tuple(forms_in(part) for part in items)
        case ["array" | "scalar" as kind, dtype, *shape]:
            found = _dtype(dtype)
            axes = _axes(shape[0]) if shape else ()
            return Form(kind, found, axes, math.prod(axes) * found.itemsize)
        case ["objects", shape]:
            return Form("objects", np.dtype(object), _axes(shape), None)
        case ["str" | "bytes" | "none" as kind]:
            return Form(kind, np.dtype(object), (), None)
    raise ValueError(f"no structure: {said!r}")


def _axes(said: Any) -> tuple[int, ...]:
    axes = tuple(map(int, said))
    if any(axis < 0 for axis in axes):
        raise ValueError(f"no shape: {said!r}")
    return axes


@functools.lru_cache(maxsize=1024)
def _forms_of(text: bytes) -> Nest:
    return forms_in(json.loads(text))


def put_together(data: memoryview, first: Nest) -> Element:
    """The element of a frame's data, in memory of its own."""
    (own,) = SIZE.unpack_from(data)
    at = SIZE.size
    forms = first
    if own:
        forms = _forms_of(bytes(data[at : at + own]))
        at += own + len(padding(own))

    def take(size: int) -> memoryview:
        nonlocal at
        if not 0 <= size <= len(data) - at:
            raise ValueError("a leaf reaches beyond its element")
        found = data[at : at + size]
        at += size + len(padding(size))
        return found

    def text(kind: str) -> str | bytes:
        (length,) = _LENGTH.unpack(take(8))
        raw = bytes(take(length))
        return raw.decode("utf-8", "surrogatepass") if kind == "str" else raw

    def leaf(form: Form) -> Any:
        if form.kind == "none":
            return None
        if form.size is None:
            return _objects(form.shape, take) if form.kind == "objects" else text(form.kind)
        kept = np.frombuffer(take(form.size), np.uint8)
        raw = aligned_empty((form.size,), np.dtype(np.uint8))
        raw[...] = kept
        if not form.size:
            return np.empty(form.shape, form.dtype)
        return raw.view(form.dtype)[0] if form.kind == "scalar" else _shaped(raw, form)

    element = map_nest(leaf, forms)
    if at + END != len(data):
        raise ValueError("its leaves are shorter than it")
    return element


def _shaped(raw: np.ndarray[Any, Any], form: Form) -> np.ndarray[Any, Any]:
    return raw.view(form.dtype).reshape(form.shape)


def _objects(shape: tuple[int, ...], take: Any) -> np.ndarray[Any, Any]:
    count = math.prod(shape)
    kinds = bytes(take(count))
    lengths = np.frombuffer(take(8 * count), "<i8")
    stops = np.cumsum(lengths)
    raw = bytes(take(int(lengths.sum())))
    array = np.empty(count, object)
    for k, (kind, start, stop) in enumerate(
        zip(kinds, (stops - lengths).tolist(), stops.tolist(), strict=True)
    ):
        item = raw[start:stop]
        array[k] = (item, item.decode("utf-8", "surrogatepass") if kind == 1 else item, None)[kind]
    return array.reshape(shape)
