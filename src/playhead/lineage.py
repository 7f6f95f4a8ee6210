"""Which records made a step of a run that is over, or that has changed its pipeline on the way."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from playhead.errors import NotSeekable, OutOfReach
from playhead.plan.places import Record
from playhead.position import Origin, Position

if TYPE_CHECKING:
    from playhead.dataset import Dataset


def trace(run: Position | str | os.PathLike[str], dataset: Dataset, *, step: int) -> list[Record]:
    """The records of the `step`th element of a run: a position, or the path of a run or of a saved position.

    A run's path is the `checkpoint` of `playhead.keras.fit`, a directory or a URL. `dataset` is the pipeline
    of that time: drawn seeds are adopted from the position, and where the run went through several pipelines
    (`on_change="from_here"`), the one that made this step is compared.
    Raises `PipelineChanged` where `dataset` is another, `OutOfReach` for a step never made.
    """
    position = run if isinstance(run, Position) else _saved(run)
    if not 1 <= step <= position.step:
        raise OutOfReach(f"the run made steps 1 to {position.step}, not {step}", step=step)
    if not dataset.seekable:
        raise NotSeekable(
            "this dataset is a stream: what made a step is known only while it is walked"
        )
    begin = 0
    for past in position.lineage:
        if step <= past["until_step"]:
            origin = Origin.from_dict(past["origin"]) if "origin" in past else Origin(begin, None)
            epoch, index = origin.places[0] if origin.places else (0, 0)
            then = replace(
                position,
                step=origin.step,
                epoch=epoch,
                step_in_epoch=index,
                records=origin.records,
                cursor=None,
                pipeline=past["pipeline"],
                origin=origin,
                lineage=(),
            )
            return _trace(then, dataset, step)
        begin = past["until_step"]
    return _trace(position, dataset, step)


def _saved(path: str | os.PathLike[str]) -> Position:
    """What was saved last in a run's directory, here or on an object store, or in a file."""
    if "://" not in os.fspath(path) and not Path(path).is_dir():
        return Position.load(path)
    _, state = importlib.import_module("playhead.keras.checkpoint").latest(path)
    return Position.from_dict(state["position"])


def _trace(position: Position, dataset: Dataset, step: int) -> list[Record]:
    iterator = dataset.iterator(epochs=None)
    iterator.load_state_dict(position)
    return iterator.trace(step)
