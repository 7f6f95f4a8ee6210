"""What the bytes of a file become, by the extension of its name."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import Element, as_element
from playhead.plan.functions import function_name
from playhead.sources.text.decoding import AsJson, AsText, Undecodable

Decoder: TypeAlias = Callable[[bytes], Any]
Decode: TypeAlias = Literal["auto"] | Mapping[str, Decoder | Literal["auto"]] | None

# What is read of pictures; Pillow knows others, of which some run programs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
_JSON = AsJson(AsText("utf-8", "strict"), None)


def require_pillow() -> Any:
    """`PIL.Image`. Raises `PipelineError` where Pillow is not installed."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise PipelineError(
            "pictures are decoded by Pillow, which is not installed",
            help='pip install "playhead[images]"; or leave them bytes, and decode them in a map',
        ) from None


def image(data: bytes) -> np.ndarray[Any, Any]:
    """A JPEG, PNG, BMP, GIF (its first frame) or WebP file as RGB: uint8 [height, width, 3].

    By Pillow, whatever else is installed, so that the same file is the same bits everywhere. Raises ValueError
    for what is none of these, and what Pillow raises for what is damaged or cut short.
    """
    pillow = require_pillow()
    try:
        opened = pillow.open(io.BytesIO(data), formats=_FORMATS)
    except importlib.import_module("PIL").UnidentifiedImageError:
        # Pillow's own words hold the address of the buffer, and so differ from run to run.
        names = ", ".join(_FORMATS)
        raise ValueError(f"{len(data)} bytes that are no picture ({names})") from None
    with opened:
        return np.array(opened if opened.mode == "RGB" else opened.convert("RGB"))


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _number(data: bytes) -> int:
    return int(data.decode("ascii"))


def _array(data: bytes) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return made


def _arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


USUAL: dict[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("json", "jsn"), _JSON.element),
    **dict.fromkeys(("cls", "cls2", "index"), _number),
    "npy": _array,
    "npz": _arrays,
    **dict.fromkeys(("jpg", "jpeg", "png"), image),
}


class Unreadable(Exception):
    """What is wrong with a file's bytes, and what can be done."""

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason)
        self.reason, self.help = reason, help


@dataclass(frozen=True, slots=True)
class ByExtension:
    """How the bytes of files are decoded: the `usual` way, and some extensions by functions of their own.

    A function is found by the whole extension ("seg.png"), the usual way also by its last part.
    """

    usual: bool
    own: Mapping[str, Decoder]

    def element(self, extension: str, data: bytes) -> Element:
        """Raises `Unreadable`."""
        function = self.own.get(extension)
        if function is None and self.usual:
            function = usual(extension)
        if function is None:
            return data
        try:
            return as_element(function(data))
        except PipelineError:
            raise
        except Undecodable as error:
            reason = error.reason
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise Unreadable(
            f"cannot be decoded: {reason}",
            f"decode={{{extension!r}: function}} decodes it another way, decode=None leaves bytes",
        )

    def changes(self, extension: str) -> bool:
        """Whether what becomes of an extension is something else than its bytes."""
        return extension in self.own or (self.usual and usual(extension) is not None)

    def said(self) -> dict[str, Any]:
        if not self.own:
            return {"decode": "auto"} if self.usual else {}
        named = sorted((name, function_name(f)) for name, f in self.own.items())
        digest = hashlib.blake2b(json.dumps(named).encode(), digest_size=8).hexdigest()
        return {"decode": digest}


def usual(extension: str) -> Decoder | None:
    """The decoder for an extension, or for its part after the last dot; None: bytes stay bytes."""
    return USUAL.get(extension.rpartition(".")[2])


def by_extension(decode: Decode, constructor: str) -> ByExtension:
    """Raises `PipelineError` for what is no way to decode, or needs Pillow where that is missing."""
    if decode is None:
        return ByExtension(False, {})
    if decode == "auto":
        return ByExtension(True, {})
    if not isinstance(decode, Mapping):
        raise PipelineError(
            f'{constructor}: decode is "auto", None, or a dict of extensions, not {decode!r}'
        )
    own: dict[str, Decoder] = {}
    for given, function in decode.items():
        name = given.removeprefix(".").lower()
        found = usual(name) if function == "auto" else function
        if found is None or not callable(found):
            raise PipelineError(
                f"{constructor}: decode[{given!r}] is {function!r}, and no function decodes that",
                help='give a function of bytes; "auto" is known for ' + ", ".join(USUAL),
            )
        if found is image:
            require_pillow()
        own[name] = found
    return ByExtension(False, own)
