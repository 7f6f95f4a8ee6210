"""Anything with a length and items: torch and Hugging Face datasets, Grain sources, memory maps, lists."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from playhead.errors import PipelineError
from playhead.plan.block import Block, Nest, Rows, taken
from playhead.plan.lock import Lock
from playhead.plan.node import Node, Source
from playhead.plan.places import Index


class Guarded:
    """A sequence read by one thread at a time, unless it is said to be thread-safe."""

    def __init__(self, items: Any, thread_safe: bool) -> None:
        self.items = items
        self.thread_safe = thread_safe
        self._lock = Lock()

    def read(self, index: Index) -> list[Any]:
        """Copies of the items: what a sequence hands out may be its own memory."""
        with nullcontext() if self.thread_safe else self._lock:
            return [self._item(k) for k in index.tolist()]

    def _item(self, k: int) -> Any:
        try:
            return taken(self.items[k])
        except Exception as error:
            error.add_note(f"playhead: in from_sequence, item {k}")
            raise


@dataclass(frozen=True, eq=False)
class SequenceItems(Source):
    """Element k is items[k]. Its content is never read for a hash: `version` says which it is."""

    op: ClassVar[str] = "sequence"
    runs_user_code: ClassVar[bool] = True

    guarded: Guarded
    count: int
    version: str | None
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.count

    def gather(self, index: Index) -> Block:
        return Rows(self.guarded.read(index))

    def static_spec(self) -> Nest | None:
        return None

    def describe(self) -> dict[str, Any]:
        said = {"op": self.op, "records": self.count, "type": type(self.guarded.items).__name__}
        if self.version is not None:
            said["version"] = self.version
        said["kind"] = "declared"
        return said


def sequence(items: Any, version: str | None, thread_safe: bool) -> SequenceItems:
    """Raises `PipelineError` for what has no length or no items."""
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
        raise PipelineError(
            f"from_sequence needs __len__ and __getitem__, and {type(items).__name__} lacks one",
            help="from_generator walks anything that can be iterated",
        )
    if isinstance(items, dict | set):
        raise PipelineError(
            f"from_sequence reads items[0], items[1], ...; not a {type(items).__name__}"
        )
    return SequenceItems(Guarded(items, thread_safe), len(items), version)
