"""What a line of text becomes: str, bytes, or what its JSON says."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np

from playhead.errors import IntegerOverflow, PipelineError, UnequalElements, UnparsableRecord
from playhead.plan.block import ArraySpec, Element, Nest, as_element, map_nest, named_leaves
from playhead.sources.text.texts import without_end

Dtypes: TypeAlias = Any  # a nest: dicts of numpy dtypes, `str`, `bytes` or `object`


@dataclass(frozen=True, slots=True)
class Line:
    """Where a line lies: `number` counts from 0."""

    file: str
    number: int
    offset: int


class Undecodable(Exception):
    """What is wrong with a line, and what can be done."""

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason)
        self.reason, self.help = reason, help

    def at(self, line: Line) -> UnparsableRecord:
        """The error that names the line, counted from 1 as editors do; `record` counts from 0."""
        return UnparsableRecord(
            f"{line.file}, line {line.number + 1} at byte {line.offset}: {self.reason}",
            help=f"{self.help}; ignore_errors() leaves such lines out",
            file=line.file,
            line=line.number + 1,
            record=line.number,
            offset=line.offset,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class AsText:
    """A line as str, or as bytes where `encoding` is None."""

    encoding: str | None
    errors: str

    def element(self, raw: bytes) -> str | bytes:
        """The line without its end. Raises `Undecodable`."""
        line = without_end(raw)
        if self.encoding is None:
            return line
        try:
            return line.decode(self.encoding, self.errors)
        except UnicodeDecodeError as error:
            raise Undecodable(
                f"its byte {error.start} (0x{line[error.start]:02x}) is not {self.encoding}: "
                f"{error.reason}",
                'name the encoding it has, as in encoding="latin-1"; errors="replace" puts a mark there; '
                "encoding=None gives bytes",
            ) from None

    def spec(self) -> Nest:
        return ArraySpec((), bytes if self.encoding is None else str)

    def said(self) -> dict[str, Any]:
        said = {} if self.encoding == "utf-8" else {"encoding": self.encoding}
        return said if self.errors == "strict" else {**said, "errors": self.errors}


@dataclass(frozen=True, slots=True)
class AsJson:
    """What the JSON of a line says, its numbers in the dtypes that `dtypes` names."""

    text: AsText
    dtypes: Dtypes

    def element(self, raw: bytes) -> Element:
        """Raises `Undecodable`."""
        line = self.text.element(raw)
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            help = "mend the line: each holds one whole JSON value"
            if line[:1] == "\ufeff":
                help = 'encoding="utf-8-sig" takes off the mark of byte order'
            elif line.strip() == "[":
                help = "one JSON text over many lines is read by from_sequence(json.load(file))"
            raise Undecodable(f"not JSON: {error.msg} at character {error.pos}", help) from None
        except (RecursionError, ValueError) as error:
            raise Undecodable(f"not JSON that can be read: {error}", "mend the line") from None
        return _typed(value, self.dtypes, ())

    def spec(self) -> None:
        return None

    def said(self) -> dict[str, Any]:
        said = self.text.said()
        if self.dtypes is not None:
            named = sorted((path, _named(leaf)) for path, leaf in named_leaves(self.dtypes))
            said["dtypes"] = blake2b(json.dumps(named).encode(), digest_size=8).hexdigest()
        return said


def as_text(encoding: str | None, errors: str) -> AsText:
    """Raises `PipelineError` for what is no encoding of lines that end in the byte 10."""
    if encoding is None:
        return AsText(None, "strict")
    try:
        name = codecs.lookup(encoding).name
        codecs.lookup_error(errors)
        single = b"\n".decode(encoding) == "\n" and "a\n".encode(encoding)[-2:] == b"a\n"
    except LookupError as error:
        raise PipelineError(str(error), encoding=encoding) from None
    except UnicodeError:
        single = False
    if not single:
        raise PipelineError(
            f"lines cannot be told apart in {encoding}: their end is not the byte 10 there",
            help="convert the files to UTF-8",
            encoding=encoding,
        )
    return AsText("utf-8" if name == "utf-8" else name, errors)


def checked_dtypes(dtypes: Any) -> Dtypes:
    """`dtypes` with numpy's own names for them. Raises `PipelineError` for what is no dtype."""

    def of(leaf: Any) -> Any:
        if leaf in (str, bytes, object):
            return leaf
        try:
            found = np.dtype(getattr(leaf, "as_numpy_dtype", leaf))
        except TypeError:
            raise PipelineError(f"dtypes: {leaf!r} is no dtype") from None
        if found.kind not in "biufc":
            raise PipelineError(
                f"dtypes: {found} is no dtype of numbers; str, bytes and object are said so"
            )
        return found

    if dtypes is None:
        return None
    if isinstance(dtypes, Mapping):
        return {key: checked_dtypes(part) for key, part in dtypes.items()}
    return map_nest(of, dtypes)


def _named(leaf: Any) -> str:
    return leaf.name if isinstance(leaf, np.dtype) else str(leaf.__name__)


def _typed(value: Any, dtypes: Dtypes, path: tuple[str, ...]) -> Element:
    if dtypes is None and type(value) in _PLAIN:
        return _PLAIN[type(value)](value)
    if dtypes is None and type(value) is int and -(1 << 31) <= value < 1 << 31:
        return np.int32(value)
    if dtypes is object:
        return value
    if isinstance(value, dict):
        inner = dtypes if isinstance(dtypes, dict) else {}
        if dtypes is not None and not isinstance(dtypes, dict):
            raise _unlike(value, dtypes, path)
        return {key: _typed(part, inner.get(key), (*path, key)) for key, part in value.items()}
    if dtypes is None:
        return _by_rule(value, path)
    return _cast(value, dtypes, path)


def _same(value: str) -> str:
    return value


# What most values are; `as_element` would say the same of them.
_PLAIN: dict[type, Callable[[Any], Any]] = {str: _same, float: np.float32, bool: np.bool_}


def _by_rule(value: Any, path: tuple[str, ...]) -> Element:
    try:
        found = _alike(value) if type(value) is list else None
        return as_element(value) if found is None else found
    except IntegerOverflow:
        large = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
        raise Undecodable(
            f"{_where(path)}a whole number that does not fit int32, which JSON's numbers become unless told",
            f"dtypes={_spelled(path, 'object' if large else 'np.int64')}",
        ) from None
    except (UnequalElements, TypeError, ValueError) as error:
        raise Undecodable(
            f"{_where(path)}{getattr(error, 'what', error)}",
            f"dtypes={_spelled(path, 'object')} keeps it as Python's json gives it",
        ) from None


def _alike(value: list[Any]) -> np.ndarray[Any, Any] | None:
    """A list of floats, or of whole numbers that fit int32, as `as_element` makes it, only sooner."""
    kinds = set(map(type, value))
    if kinds == {float}:
        return np.array(value, np.float32)
    if kinds == {int} and min(value) >= -(1 << 31) and max(value) < 1 << 31:
        return np.array(value, np.int32)
    return None


def _cast(value: Any, dtype: Any, path: tuple[str, ...]) -> Any:
    if dtype in (str, bytes):
        if not isinstance(value, str):
            raise _unlike(value, dtype, path)
        return value if dtype is str else value.encode()
    if isinstance(dtype, dict):
        raise _unlike(value, dict, path)
    try:
        given = np.asarray(value)
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


def _unlike(value: Any, dtype: Any, path: tuple[str, ...]) -> Undecodable:
    said = json.dumps(value)
    said = said if len(said) <= 60 else said[:57] + "..."
    return Undecodable(
        f"{_where(path)}{said} is no {_named(dtype)}",
        f"dtypes={_spelled(path, 'object')} keeps it as Python's json gives it",
    )


def _where(path: Iterable[str]) -> str:
    said = "".join(f"[{key!r}]" for key in path)
    return f"{said}: " if said else ""


def _spelled(path: tuple[str, ...], dtype: str) -> str:
    for key in reversed(path):
        dtype = f"{{{key!r}: {dtype}}}"
    return dtype
