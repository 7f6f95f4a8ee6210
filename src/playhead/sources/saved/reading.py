"""A dataset that was saved in a directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from playhead.plan.block import (
    ArraySpec,
    Block,
    Nest,
    map_nest,
)
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.saved.store import Store, local


@dataclass(frozen=True, eq=False)
class Saved(Source):
    """The elements that `write` wrote."""

    op: ClassVar[str] = "saved"

    store: Store
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.store.count

    def gather(self, index: Index) -> Block:
        return self.store.block(index)

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or self.op, epoch, index, self.store.file(), index)

    def static_spec(self) -> Nest | None:
        if not self.store.columnar:
            return None
        return map_nest(lambda form: ArraySpec(form.shape, form.dtype), self.store.forms)

    def describe(self) -> dict[str, Any]:
        manifest = self.store.manifest
        said = {"op": self.op, "records": manifest.records, "content": manifest.content}
        return {**said, "kind": "full"}


def saved(path: str | os.PathLike[str]) -> Saved:
    """The dataset that was saved in the directory `path`; files are mapped when first read.

    Raises `MissingSource` where none is, `SourceError` for a manifest that is damaged or newer. Elements are
    checked when they are read: `CorruptRecord` names the file, the byte and the element.
    """
    store = Store(local(path))
    _ = store.manifest  # complain now
    return Saved(store)
