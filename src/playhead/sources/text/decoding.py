"""What a line of text becomes: str, bytes, or what its JSON says."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import (
    ArraySpec,
    Block,
    Columns,
    Element,
    Nest,
    Rows,
    named_leaves,
    object_array,
)
from playhead.sources import alike
from playhead.sources.text.texts import Raws, without_end
from playhead.sources.text.typed import Dtypes, Reader, name_of, reader
from playhead.sources.text.undecodable import Line as Line
from playhead.sources.text.undecodable import Undecodable as Undecodable

# In these a line is the same text alone and among others.
_STATELESS = ("utf-8", "ascii", "iso8859-1")
_LONG = 4096  # bytes a line, on average, from which taking many at once only costs memory
_AT_ONCE = 256  # lines of JSON that are parsed before what they say is put into columns, in a cache's reach
_raw_decode = json.JSONDecoder().raw_decode


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

    def elements(self, raws: Raws) -> list[str] | list[bytes]:
        """What `element` makes of each. Raises `Undecodable` where any is not to be read."""
        found = self._at_once(raws)
        return cast(list[str], [self.element(raw) for raw in raws]) if found is None else found

    def _at_once(self, raws: Raws) -> list[str] | list[bytes] | None:
        """Lines that are read together; None where that cannot be, or one has no end of its own."""
        if len(raws.data) > _LONG * len(raws):
            return None
        if self.encoding is None:
            parts = raws.data.split(b"\n")
            if parts.pop() or len(parts) != len(raws):
                return None
            return [part.removesuffix(b"\r") for part in parts] if b"\r" in raws.data else parts
        if self.encoding not in _STATELESS:
            return None
        try:
            text = raws.data.decode(self.encoding)
        except UnicodeDecodeError:
            return None  # what becomes of that, `errors` says
        lines = text.split("\n")
        if lines.pop() or len(lines) != len(raws):
            return None
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines

    def block(self, raws: Raws) -> Block:
        """The lines as one column of objects. Raises what `elements` raises."""
        return self.made(self.elements(raws))

    def made(self, elements: Sequence[Element]) -> Block:
        return Columns(object_array(elements), len(elements))

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
    reader: Reader = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", reader(self.dtypes))

    def element(self, raw: bytes) -> Element:
        """Raises `Undecodable`."""
        return self.reader.one(_value(cast(str, self.text.element(raw))))

    def block(self, raws: Raws) -> Block:
        """What `element` makes of each. Raises `Undecodable` where any is not to be read."""
        found = []
        for some in raws.parts(_AT_ONCE):
            lines = cast(list[str], self.text.elements(some))
            found.append(self.reader.all(_values(lines)))
        return alike.block(found)

    def made(self, elements: list[Element]) -> Block:
        return Rows(elements)

    def spec(self) -> None:
        return None

    def said(self) -> dict[str, Any]:
        said = self.text.said()
        if self.dtypes is not None:
            named = sorted((path, name_of(leaf)) for path, leaf in named_leaves(self.dtypes))
            said["dtypes"] = blake2b(json.dumps(named).encode(), digest_size=8).hexdigest()
        return said


def _values(lines: list[str]) -> list[Any]:
    """What the JSON of each line says. Raises `Undecodable`."""
    found = []
    try:
        for line in lines:
            value, end = _raw_decode(line)
            if end != len(line):
                break
            found.append(value)
        else:
            return found
    except (RecursionError, ValueError):
        pass
    return [_value(line) for line in lines]


def _value(line: str) -> Any:
    """What the JSON of a line says. Raises `Undecodable`."""
    try:
        value, end = _raw_decode(line)
        if end == len(line):
            return value
    except (RecursionError, ValueError):
        pass  # json.loads says what is wrong, if it is more than a space before the value
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        help = "mend the line: each holds one whole JSON value"
        if line[:1] == "\ufeff":
            help = 'encoding="utf-8-sig" takes off the mark of byte order'
        elif line.strip() == "[":
            help = "one JSON text over many lines is read by from_sequence(json.load(file))"
        raise Undecodable(f"not JSON: {error.msg} at character {error.pos}", help) from None
    except (RecursionError, ValueError) as error:
        raise Undecodable(f"not JSON that can be read: {error}", "mend the line") from None


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
        for kind in (str, bytes, object):
            if leaf == kind:  # np.dtype(str), too
                return kind
        if isinstance(leaf, tuple):
            raise PipelineError(
                f"dtypes: {leaf!r} is no dtype",
                help="a list of JSON is one array: name the dtype of its items",
            )
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
    return of(dtypes)
