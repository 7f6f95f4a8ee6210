"""Several datasets mixed by the numbers of another one: choose_from_datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.branches import Alike
from playhead.plan.compute import Chunk, Compute
from playhead.plan.elements import note
from playhead.plan.node import UNKNOWN, Node
from playhead.plan.places import Cursor, has_counts
from playhead.plan.streams import Streams, are_numbers, fits_each
from playhead.plan.walking import Item


@dataclass(frozen=True, eq=False)
class ChooseFromDatasets(Alike):
    """The next element of the dataset that the first parent names, draw by draw."""

    op: ClassVar[str] = "choose_from_datasets"

    stop_on_empty: bool

    @property
    def sides(self) -> tuple[Node, ...]:
        return self.parents[1:]

    @property
    def cardinality(self) -> int:
        return 0 if self.parents[0].cardinality == 0 else UNKNOWN

    @cached_property
    def seekable(self) -> bool:
        return False

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op}
        return said if self.stop_on_empty else said | {"stop_on_empty_dataset": False}

    def start_stream(self, epoch: int) -> Cursor:
        at = [parent.start(epoch) for parent in self.parents]
        return {"epoch": epoch, "given": 0, "ended": [], "at": at}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        counted = has_counts(cursor, ("epoch", "given")) and cursor["epoch"] == epoch
        ended = are_numbers(cursor.get("ended") if counted else None, len(self.parents) - 1)
        return ended and fits_each(self, cursor.get("at"), epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, given = cursor["epoch"], cursor["given"]
        streams = Streams(self, cursor["at"], compute)
        ended = set(cursor["ended"])
        while (choice := streams.next(0)) is not None:
            number = self._number(choice)
            item = streams.next(number + 1)
            if item is None:
                ended.add(number)
                if self.stop_on_empty or len(ended) == len(self.parents) - 1:
                    return
                streams.passed(choice, 0)
                continue
            said = {"epoch": epoch, "ended": sorted(ended)}
            yield streams.chunk(
                item,
                number + 1,
                (epoch, given),
                said | {"given": given},
                said | {"given": given + 1},
                choice,
            )
            given += 1

    def _number(self, choice: Item) -> int:
        value = choice.row
        if np.ndim(value) or np.asarray(value).dtype.kind not in "iu":
            error = PipelineError(f"{self.op}: a choice is a whole number, not {value!r}")
        elif 0 <= int(value) < len(self.parents) - 1:
            return int(value)
        else:
            error = PipelineError(
                f"{self.op}: choice {int(value)} of {len(self.parents) - 1} datasets"
            )
        note(error, self, choice.key, choice.trace())
        raise error
