"""Going on at the same record with another batch size.

The pipeline has one batch, and after it only maps and repeats. The batches of the pass that was under way are
cut anew from the record that comes next; earlier passes are not on the grid any more, later ones are regular.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from playhead.errors import PipelineChanged
from playhead.plan.batches import Batch
from playhead.plan.cuts import Split
from playhead.plan.elements import Map
from playhead.plan.node import Node
from playhead.plan.order import Repeat
from playhead.plan.prefetch import Prefetch

Place = tuple[int, int]


def resized(node: Node, size: int) -> Node:
    """The pipeline as it was with batches of `size`. Raises `PipelineChanged` where it has another shape."""
    if isinstance(node, Batch):
        if node.parent.weight != 1:
            raise _refused("two batch operations")
        return replace(node, size=size, origin=None)
    if isinstance(node, Map | Repeat | Prefetch | Split):
        return replace(node, parents=(resized(node.parent, size),))
    raise _refused(f"{node.op} after batch")


def _refused(what: str) -> PipelineChanged:
    return PipelineChanged(
        f'on_change="by_record" cannot go on in a pipeline with {what}',
        help="it needs one batch, with only map, repeat and prefetch after it; "
        'on_change="from_here" starts the new pipeline at its beginning',
    )


def can_enter(node: Node, places: list[Place], record: int) -> bool:
    """Whether `cut_anew` would give a pipeline: a position may come from anywhere."""
    if isinstance(node, Batch):
        length = node.parent.length
        return len(places) == 1 and (length is None or record <= length)
    if isinstance(node, Repeat):
        if len(places) < 2:
            return False
        first = node.first_pass(places[0][0])
        inside = first <= places[1][0] <= first + node.stride
        return inside and can_enter(node.parent, places[1:], record)
    return isinstance(node, Map | Prefetch | Split) and can_enter(node.parent, places, record)


def places_of(node: Node, place: Place) -> tuple[list[Place], int]:
    """The place at each repeat and at the batch from the root down, and the record that place begins at."""
    epoch, index = place
    if isinstance(node, Batch):
        start = int(node.first_element(epoch, np.array([index], np.int64))[0])
        length = node.parent.length
        return [place], start if length is None else min(start, length)
    if isinstance(node, Repeat):
        below, record = places_of(node.parent, node.place_below(epoch, index))
        return [place, *below], record
    return places_of(node.parent, place)


def entry(node: Node, place: Place) -> tuple[list[Place], int]:
    """The places and the record at which a pipeline with other batches goes on.

    A pass that was over stays over, with what `drop_remainder` left of it.
    """
    places, record = places_of(node, place)
    batch = _batch(node)
    epoch, index = places[-1]
    begin = batch.origin[1] if batch.origin is not None and batch.origin[0] == epoch else 0
    over = begin < index == batch.length_at(epoch)
    return places, batch.parent.length or 0 if over else record


def _batch(node: Node) -> Batch:
    while not isinstance(node, Batch):
        node = node.parent
    return node


def cut_anew(node: Node, places: list[Place], record: int) -> Node:
    """The pipeline whose pass at `places` goes on from `record`."""
    if isinstance(node, Batch):
        return replace(node, origin=(*places[0], record))
    if isinstance(node, Repeat):
        child = cut_anew(node.parent, places[1:], record)
        return replace(node, parents=(child,), origin=(*places[0], *places[1]))
    return replace(node, parents=(cut_anew(node.parent, places, record),))


def records_since(node: Node, places: list[Place], record: int, place: Place) -> int:
    """Records delivered between the place where the batches were cut anew and `place`."""
    below, at = places_of(node, place)
    first, now = places[-1][0], below[-1][0]
    if now == first:
        return at - record
    batch = _batch(node)
    end = batch.length_at(first)
    whole = batch.length
    assert end is not None and whole is not None
    _, last = places_of(batch, (first, end))
    return last - record + (now - first - 1) * batch.count_records(whole) + at
