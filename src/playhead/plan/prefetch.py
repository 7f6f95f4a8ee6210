"""Reading ahead: says how far, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from playhead.plan.block import Nest
from playhead.plan.compute import Chunk, Compute, Pace
from playhead.plan.node import Node
from playhead.plan.places import Cursor, Located, Places

AUTOTUNE = -1
Where: TypeAlias = Literal["threads", "processes", "ray"]


@dataclass(slots=True)
class Found:
    """What an iterator found out: the next one begins with it."""

    workers: int | None = None
    pace: Pace | None = None


@dataclass(frozen=True, eq=False)
class Prefetch(Node):
    """Up to `buffer_size` elements ahead, computed by `workers` at once; AUTOTUNE (-1) chooses.

    `on` says what the workers are, `timeout` how many seconds a task may take.

    Transparent to places, cursors and the description: the iterator looks for the outermost one.
    """

    op: ClassVar[str] = "prefetch"
    keeps_keys: ClassVar[bool] = True

    buffer_size: int
    workers: int
    on: Where = "threads"
    timeout: float | None = None
    found: Found = field(default_factory=Found, kw_only=True)

    @cached_property
    def unlocked(self) -> bool:
        return self.parent.unlocked

    def describe(self) -> dict[str, Any] | None:
        return None

    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "buffer_size": self.buffer_size}
        said |= {"workers": self.workers, "on": self.on}
        return said if self.timeout is None else said | {"timeout": self.timeout}

    def static_spec(self) -> Nest | None:
        return self.parent.static_spec()

    def spec(self) -> Nest:
        return self.parent.spec()

    def length_at(self, epoch: int) -> int | None:
        return self.parent.length_at(epoch)

    def locate(self, places: Places) -> Located:
        return self.parent.locate(places)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        return self.parent.open(cursor, compute)


def outermost(node: Node) -> Prefetch | None:
    """The prefetch nearest to the consumer."""
    level = [node]
    while level:
        for at in level:
            if isinstance(at, Prefetch):
                return at
        level = list(dict.fromkeys(parent for at in level for parent in at.parents))
    return None
