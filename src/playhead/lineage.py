"""Which records made a step of a run that is over, or that has changed its pipeline on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from playhead.errors import OutOfReach
from playhead.plan.node import Record
from playhead.position import Origin, Position

if TYPE_CHECKING:
    from playhead.dataset import Dataset


def trace(position: Position, dataset: Dataset, *, step: int) -> list[Record]:
    """The records of the `step`th element of the run that `position` was saved in.

    `dataset` is the pipeline of that time: drawn seeds are adopted from the position, and where the run
    went through several pipelines (`on_change="from_here"`), the one that made this step is compared.
    Raises `PipelineChanged` where `dataset` is another, `OutOfReach` for a step never made.
    """
    if not 1 <= step <= position.step:
        raise OutOfReach(f"the run made steps 1 to {position.step}, not {step}", step=step)
    begin, records = 0, 0
    for past in position.lineage:
        if step <= past["until_step"]:
            then = replace(
                position,
                step=begin,
                epoch=0,
                step_in_epoch=0,
                records=records,
                cursor=None,
                pipeline=past["pipeline"],
                origin=Origin(begin, records) if begin else None,
                lineage=(),
            )
            return _trace(then, dataset, step)
        begin = past["until_step"]
    return _trace(position, dataset, step)


def _trace(position: Position, dataset: Dataset, step: int) -> list[Record]:
    iterator = dataset.iterator(epochs=None)
    iterator.load_state_dict(position)
    return iterator.trace(step)
