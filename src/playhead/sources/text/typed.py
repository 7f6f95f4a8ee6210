"""What the values of JSON become: in the dtypes that are named, and else as `as_element` has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import IntegerOverflow, UnequalElements
from playhead.plan.block import Element, as_element
from playhead.sources.alike import Kept
from playhead.sources.text.undecodable import Undecodable

Dtypes: TypeAlias = Any  # a nest: dicts of numpy dtypes, `str`, `bytes` or `object`
# The keys that lead to a value, the last one outside: (((), "a"), "b") is ["a"]["b"].
Path: TypeAlias = tuple[()] | tuple[Any, str]


class Reader:
    """What makes elements of the values at `path`, as Python's json gives them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def one(self, value: Any) -> Element:
        """The element. Raises `Undecodable`."""
        raise NotImplementedError

    def all(self, values: list[Any]) -> Kept:
        """What `one` makes of each, by columns where they are alike.

        Raises `Undecodable` for any that is not to be read, which need not be the first.
        """
        return [self.one(value) for value in values]


def reader(dtypes: Dtypes, path: Path = ()) -> Reader:
    """What reads the values at `path` in these dtypes."""
    if dtypes is None:
        return _ByRule(path)
    if dtypes is object:
        return _AsIs(path)
    if isinstance(dtypes, dict):
        return _Dicts(dtypes, path)
    return _Numbers(dtypes, path) if isinstance(dtypes, np.dtype) else _Words(dtypes, path)


class _AsIs(Reader):
    def one(self, value: Any) -> Element:
        return value

    def all(self, values: list[Any]) -> Kept:
        return values


class _Dicts(Reader):
    def __init__(self, dtypes: dict[str, Dtypes], path: Path) -> None:
        super().__init__(path)
        self.readers = {key: reader(part, (path, key)) for key, part in dtypes.items()}

    def one(self, value: Any) -> Element:
        if type(value) is not dict:
            raise _unlike(value, dict, self.path)
        made, readers = {}, self.readers
        for key, part in value.items():
            if key in readers:
                made[key] = readers[key].one(part)
            else:
                made[key] = _by_rule(part, (self.path, key))
        return made

    def all(self, values: list[Any]) -> Kept:
        keys = list(values[0]) if set(map(type, values)) == {dict} else []
        if not keys or not all(map(keys.__eq__, map(list, values))):
            return super().all(values)
        kept = {}
        for key in keys:
            part = self.readers.get(key) or _ByRule((self.path, key))
            kept[key] = part.all(list(map(itemgetter(key), values)))
        return kept


class _Words(Reader):
    def __init__(self, kind: type, path: Path) -> None:
        super().__init__(path)
        self.kind = kind

    def one(self, value: Any) -> Element:
        return _cast(value, self.kind, self.path)

    def all(self, values: list[Any]) -> Kept:
        if self.kind is str and set(map(type, values)) == {str}:
            return values
        return super().all(values)


class _Numbers(Reader):
    """Of what is plainly of the dtype, `all` does not ask what `_cast` has to ask."""

    def __init__(self, dtype: np.dtype[Any], path: Path) -> None:
        super().__init__(path)
        self.dtype = dtype
        self.plain = _plain(dtype)

    def one(self, value: Any) -> Element:
        return _cast(value, self.dtype, self.path)

    def all(self, values: list[Any]) -> Kept:
        kinds = set(map(type, values))
        try:
            if kinds <= self.plain:
                return np.array(values, self.dtype)
            if kinds == {list}:
                inside = list(chain.from_iterable(values))
                if self.plain.issuperset(map(type, inside)):
                    return _arrays(values, inside, self.dtype)
        except (ValueError, TypeError, OverflowError):
            pass  # `_cast` says of which value it comes
        return super().all(values)


def _arrays(values: list[list[Any]], inside: list[Any], dtype: Any) -> Kept:
    """Lists of numbers as arrays; as one of all where they are equally long. `inside` is what they hold."""
    if len(set(map(len, values))) == 1:
        return np.array(inside, dtype).reshape(len(values), -1 if inside else 0)
    return [np.array(value, dtype) for value in values]


def _plain(dtype: np.dtype[Any]) -> frozenset[type]:
    """The types of Python whose values, and lists of them, are of that dtype unless they are too large."""
    if dtype.kind == "b":
        return frozenset({bool})
    if dtype.kind == "f":
        return frozenset({int, float})
    if dtype.kind in "iu" and np.can_cast(dtype, np.int64):
        return frozenset({int})
    return frozenset()  # complex; and uint64, as numpy has [1, 1 << 63] be floats


def _same(value: str) -> str:
    return value


# What most values are; `as_element` would say the same of them.
_PLAIN: dict[type, Callable[[Any], Any]] = {str: _same, float: np.float32, bool: np.bool_}


class _ByRule(Reader):
    def one(self, value: Any) -> Element:
        return _by_rule(value, self.path)

    def all(self, values: list[Any]) -> Kept:
        kinds = set(map(type, values))
        if kinds == {str}:
            return values
        if kinds == {dict}:
            return _Dicts({}, self.path).all(values)
        if kinds == {list} and all(values):
            inside = list(chain.from_iterable(values))
            dtype = _number(inside)
            return super().all(values) if dtype is None else _arrays(values, inside, dtype)
        dtype = _number(values)
        return super().all(values) if dtype is None else np.array(values, dtype)


def _by_rule(value: Any, path: Path) -> Element:
    kind = type(value)
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if kind is int and -(1 << 31) <= value < 1 << 31:
        return np.int32(value)
    if kind is dict:
        return {key: _by_rule(part, (path, key)) for key, part in value.items()}
    try:
        dtype = _number(value) if kind is list else None
        return as_element(value) if dtype is None else np.array(value, dtype)
    except IntegerOverflow:
        large = kind is int and not -(1 << 63) <= value < 1 << 63
        raise Undecodable(
            f"{_where(path)}a whole number that does not fit int32, which JSON's numbers become unless told",
            f"dtypes={_spelled(path, 'object' if large else 'np.int64')}",
        ) from None
    except (UnequalElements, TypeError, ValueError) as error:
        raise Undecodable(
            f"{_where(path)}{getattr(error, 'what', error)}",
            f"dtypes={_spelled(path, 'object')} keeps it as Python's json gives it",
        ) from None


def _number(values: list[Any]) -> type[np.generic] | None:
    """What `as_element` makes of values that are all floats, or all bools, or all whole and fit int32."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.float32
    if kinds == {bool}:
        return np.bool_
    if kinds == {int} and min(values) >= -(1 << 31) and max(values) < 1 << 31:
        return np.int32
    return None


def _cast(value: Any, dtype: Any, path: Path) -> Any:
    if dtype in (str, bytes):
        if not isinstance(value, str):
            raise _unlike(value, dtype, path)
        try:
            return value if dtype is str else value.encode()
        except UnicodeEncodeError:  # half of a pair, which is no letter
            raise _unlike(value, dtype, path) from None
    if isinstance(value, dict):
        raise _unlike(value, dtype, path)
    try:
        # What does not fit int64 makes numpy think of floats.
        given = np.asarray(value, object if dtype == np.uint64 and _whole(value) else None)
        made = np.array(value, dtype)
    except (ValueError, TypeError, OverflowError):
        raise _unlike(value, dtype, path) from None
    if given.size and (
        given.dtype.kind in "USV"
        or (given.dtype.kind in "fc" and made.dtype.kind in "iub")
        or (given.dtype.kind == "O" and made.dtype.kind == "b")
    ):
        raise _unlike(value, dtype, path)
    return made if made.ndim else made[()]


def _whole(value: Any) -> bool:
    return all(map(_whole, value)) if isinstance(value, list) else type(value) is int


def _unlike(value: Any, dtype: Any, path: Path) -> Undecodable:
    said = json.dumps(value)
    said = said if len(said) <= 60 else said[:57] + "..."
    return Undecodable(
        f"{_where(path)}{said} is no {name_of(dtype)}",
        f"dtypes={_spelled(path, 'object')} keeps it as Python's json gives it",
    )


def name_of(dtype: Any) -> str:
    """What a leaf of `Dtypes` is called."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype.__name__)


def _where(path: Path) -> str:
    said = ""
    while path:
        path, key = path
        said = f"[{key!r}]{said}"
    return f"{said}: " if said else ""


def _spelled(path: Path, dtype: str) -> str:
    while path:
        path, key = path
        dtype = f"{{{key!r}: {dtype}}}"
    return dtype
