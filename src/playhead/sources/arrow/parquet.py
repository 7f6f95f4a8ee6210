"""Rows of Parquet files, read at random, a row group at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from playhead.errors import PipelineError
from playhead.plan.block import Block, Nest
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.arrow.footers import read_footers
from playhead.sources.arrow.groups import Groups
from playhead.sources.arrow.selection import schema_of
from playhead.sources.arrow.types import require
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import Paths
from playhead.sources.files.remote import Remote

KEPT = 256 << 20  # bytes of row groups that are kept in memory


@dataclass(frozen=True, eq=False)
class ParquetRows(Source):
    """The rows of several Parquet files as one source."""

    op: ClassVar[str] = "parquet"

    groups: Groups
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @cached_property
    def light(self) -> bool:
        return not self.groups.far

    @property
    def cardinality(self) -> int:
        return self.groups.count

    def gather(self, index: Index) -> Block:
        """The rows at `index` (int64[n], in any order) as n dicts. Thread-safe.

        `Columns`, or `Rows` where lists vary in length. Raises `IndexError`, `SourceChanged`, `CorruptRecord`
        naming file and row group, `UnparsableRecord` naming file, row and column.
        """
        return self.groups.read(index)

    def record(self, epoch: int, index: int) -> Record:
        path, number = self.groups.place(index)
        return Record(self.info.name or self.op, epoch, index, path, number)

    def describe(self) -> dict[str, Any]:
        """How many rows, and digests of the files' footers and of what is read; never paths."""
        groups = self.groups
        said = {"op": self.op, "records": groups.count, "schema": groups.schema.digest()}
        return {**said, "content": groups.content}

    def static_spec(self) -> Nest:
        return self.groups.schema.spec()


def parquet(
    files: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    cache_bytes: int = KEPT,
    storage_options: Mapping[str, Any] | None = None,
) -> ParquetRows:
    """The rows of Parquet files, one file after the other, as dicts of columns.

    Only the footers are read now. Raises `MissingSource`, `CorruptRecord` for what is no Parquet file,
    `PipelineError` for files of different columns and for columns of types that no element can have.
    """
    require("from_parquet")
    opening = Opening(Remote(storage_options or {}))
    found = opening.find(files, "from_parquet", "Parquet file", "*.parquet")
    unlike = list(dict.fromkeys(found))
    footers, columns_of = read_footers(unlike, opening.remote)
    first, types = found[0].path, columns_of[0]
    schema = schema_of(types, "from_parquet", columns, dtypes, fill)
    for path, other in zip((seen.path for seen in unlike), columns_of, strict=True):
        for name in schema.names:
            there = other.field(name).type if name in other.names else None
            if there != types.field(name).type and (there is None or name not in (dtypes or ())):
                what = "no such column" if there is None else f"{there}"
                raise PipelineError(
                    f"from_parquet: the column {name!r} is {types.field(name).type} in {first}, and "
                    f"in {path} {what}",
                    help="columns=[...] names what they share; or write the files anew with one schema"
                    if there is None
                    else f"dtypes={{{name!r}: ...}} reads it alike from all; or write the files anew",
                    column=name,
                    file=path,
                )
    several = tuple(footers.files[seen.path] for seen in found)
    return ParquetRows(Groups(several, schema, cache_bytes, footers))
