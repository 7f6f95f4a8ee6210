"""From a saved position and a pipeline to the place where an iterator goes on, or the reason why it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from playhead.errors import (
    FunctionChanged,
    LibraryChanged,
    PipelineChanged,
    UnreadablePosition,
    warn,
)
from playhead.plan.description import (
    Difference,
    adopt,
    compare,
    differing,
    only_batch_size,
    render,
)
from playhead.plan.extension import is_extension
from playhead.plan.node import Node
from playhead.plan.order import Grid
from playhead.plan.origin import Place, can_enter, cut_anew, entry, records_since, resized
from playhead.plan.places import is_count
from playhead.position import Origin, Position

OnChange = Literal["error", "by_record", "from_here"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where and in what an iterator goes on: in `cut`, which is `node` unless batches are cut anew.

    `cursor` is a stream's, JSON; None for a seekable pipeline.
    """

    node: Node
    cut: Node
    origin: Origin | None
    lineage: tuple[dict[str, Any], ...]
    step: int
    epoch: int
    inner: int
    records: int
    cursor: Any


def enter(
    node: Node,
    position: Position,
    *,
    on_change: OnChange,
    override: Iterable[str],
    epochs: int | None,
) -> Entry:
    """Compare the position with the pipeline and go on there; see `Iterator.load_state_dict`."""
    given = node
    saved = position.pipeline["operations"]
    node = adopt(saved, given)
    found = compare(saved, node)
    accepted = set(override)
    moved = [d for d in differing(found) if d.op not in accepted]
    if moved and is_extension(found, node, position.epoch, position.step_in_epoch):
        moved = []
    if moved and on_change == "from_here":
        return _from_here(given, position)
    origin, cut = position.origin, node
    if moved and on_change == "by_record" and only_batch_size(found) is not None:
        origin, cut = _by_record(position, found, node)
    elif moved:
        raise _changed(position, found)
    elif origin is not None and origin.places:
        cut = _cut_as_saved(node, origin)
    if not _belongs(cut, origin, position):
        if differing(found):
            raise _changed(position, found)
        raise UnreadablePosition(
            "the position's numbers do not agree with each other in this pipeline",
            help="take an earlier one: this one was damaged or edited",
        )
    _require_epochs(position, epochs)
    _warn(found)
    return Entry(
        node,
        cut,
        origin,
        position.lineage,
        position.step,
        position.epoch,
        position.step_in_epoch,
        position.records or 0,
        position.cursor,
    )


def _from_here(node: Node, position: Position) -> Entry:
    past: dict[str, Any] = {"until_step": position.step, "pipeline": position.pipeline}
    if position.origin is not None and position.origin.places:
        past["origin"] = position.origin.to_dict()
    return Entry(
        node,
        node,
        Origin(position.step, position.records),
        (*position.lineage, past),
        position.step,
        0,
        0,
        position.records or 0,
        None if node.seekable else node.start(0),
    )


def _by_record(position: Position, found: list[Difference], node: Node) -> tuple[Origin, Node]:
    difference = only_batch_size(found)
    assert difference is not None and difference.saved is not None and difference.now is not None
    if not node.seekable:
        raise _changed(position, found)
    size = difference.saved.get("size")
    if not is_count(size) or not size:
        raise UnreadablePosition(f"the position has batches of {size!r}")
    old = resized(node, size)
    before = position.origin
    if before is not None and before.places:
        old = _cut_as_saved(old, before)
    if not _belongs(old, before, position):
        raise _changed(position, found)
    places, record = entry(old, (position.epoch, position.step_in_epoch))
    origin = Origin(position.step, position.records, tuple(places), record)
    return origin, cut_anew(resized(node, difference.now["size"]), places, record)


def _cut_as_saved(node: Node, origin: Origin) -> Node:
    if not can_enter(node, list(origin.places), origin.record):
        raise UnreadablePosition(
            "the position's origin names places that this pipeline does not have"
        )
    return cut_anew(node, list(origin.places), origin.record)


def _require_epochs(position: Position, epochs: int | None) -> None:
    """Raises where the run was further than the epochs now asked for; at their very end nothing is left."""
    if epochs is None or position.epoch < epochs:
        return
    if (position.epoch, position.step_in_epoch) != (epochs, 0):
        raise PipelineChanged(
            f"the position stands in epoch {position.epoch}, counted from 0, and iterator("
            f"epochs={epochs}) ends before it",
            help=f"iterator(epochs={position.epoch + 1}) or more goes on",
            differences=[],
            step=position.step,
        )


def grid(node: Node, origin: Origin | None, epoch: int) -> Grid:
    """Which step stands at which place; an endless epoch never ends, so it is the only one."""
    length = node.length if node.seekable else None
    step = origin.step if origin else 0
    if origin is not None and origin.places:
        first, inner = origin.places[0]
        return Grid(length, (step, first, inner), node.length_at(first))
    return Grid(length, (step, epoch if length is None else 0, 0))


def records_before(node: Node, origin: Origin | None, place: Place) -> int | None:
    """Records delivered before a place of a seekable pipeline; None where they cannot be counted."""
    if not node.countable or (origin is not None and origin.records is None):
        return None
    before = (origin.records or 0) if origin else 0
    if origin is not None and origin.places:
        return before + records_since(node, list(origin.places), origin.record, place)
    epoch, inner = place
    whole = node.count_records(node.length) if node.length is not None else 0
    return before + epoch * whole + node.count_records(inner)


def _belongs(node: Node, origin: Origin | None, position: Position) -> bool:
    """Whether the numbers of a position agree with each other and with the pipeline."""
    epoch, inner = position.epoch, position.step_in_epoch
    if not node.seekable:
        return position.cursor is not None and node.fits(position.cursor, epoch)
    end = node.length_at(epoch)
    if position.cursor is not None or (end is not None and inner > end):
        return False
    if origin is not None and origin.places and (epoch, inner) < origin.places[0]:
        return False
    if grid(node, origin, epoch).joined(epoch, inner) != position.step:
        return False
    records = records_before(node, origin, (epoch, inner))
    return records is None or records == position.records


def _changed(position: Position, found: list[Difference]) -> PipelineChanged:
    moved = differing(found)
    help = "restore what was changed"
    batch = only_batch_size(found)
    jumps = batch is not None and batch.node is not None and batch.node.seekable
    if jumps and position.records is not None:
        help += f', or on_change="by_record" (of fit or load_state_dict) goes on at record {position.records}'
    help += '; on_change="from_here" starts the new pipeline at its beginning'
    if not moved:
        why = "the position lies behind the end of this pipeline, or on another grid"
    else:
        why = "Going on would repeat or skip records."
    return PipelineChanged(
        f"the saved position does not fit this pipeline\n{render(found)}\n"
        f"  At step {position.step}: {why}",
        help=help,
        differences=moved,
        step=position.step,
    )


def _warn(found: list[Difference]) -> None:
    """What leaves every place where it is, and still may change values."""
    for difference in found:
        saved, now = difference.saved or {}, difference.now or {}
        called = f"{difference.op}({(now or saved).get('fn')})"
        if difference.kind == "function":
            other = difference.op in ("filter", "generator")
            effect = "other elements may follow" if other else "values may differ"
            warn(
                f"{called} {difference.where} has other code than when the position was saved: {effect}",
                FunctionChanged,
            )
        elif difference.kind in ("added", "removed") and difference.op == "map":
            warn(
                f"{called} was {difference.kind} since the position was saved: values may differ",
                FunctionChanged,
            )
        elif difference.kind == "numpy":
            warn(
                f"random numbers of {called} come from numpy {now.get('numpy')}, the position from "
                f"{saved.get('numpy')}: its generators may draw other numbers",
                LibraryChanged,
            )
