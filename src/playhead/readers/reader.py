"""What all constructors of `Dataset` that read from outside have in common."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Literal, TypeAlias

from playhead.errors import PipelineError
from playhead.plan.failing import IgnoreErrors
from playhead.plan.node import Info, Node

OnError: TypeAlias = Literal["raise", "skip"]

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Reader:
    """What `Dataset` is made of: the node at its end."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node


def info_here(name: str | None = None) -> Info:
    """The user's own line that called into playhead."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HOME):
        frame = frame.f_back
    return Info(name=name, where=f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")


def leaving_out(node: Node, on_error: OnError, name: str | None) -> Node:
    """A source where the user made it, and for "skip" what leaves out the records that cannot be had of it."""
    info = info_here(name)
    made = replace(node, info=info)
    return IgnoreErrors((made,), False, info=info) if skips(on_error) else made


def skips(on_error: OnError) -> bool:
    """Whether that says "skip". Raises `PipelineError` for what is neither."""
    if on_error not in ("raise", "skip"):
        raise PipelineError(f'on_error is "raise" or "skip", not {on_error!r}', on_error=on_error)
    return on_error == "skip"
