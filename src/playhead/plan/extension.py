"""Whether a longer `repeat` or `take` leaves everything in its place that came before a position."""

from __future__ import annotations

from typing import Any

import numpy as np

from playhead.plan.description import Difference, differing, with_changes
from playhead.plan.node import Node
from playhead.plan.places import Places, Record, is_count

# What may stand behind the longer one. A batch can be short at the old end, and a repeat keeps its first
# pass only; the others give the same elements at the same places.
KEEPING = ("map", "enumerate", "filter", "skip", "take")
CUTTING = ("batch", "padded_batch", "repeat")


def is_extension(found: list[Difference], node: Node, epoch: int, index: int) -> bool:
    """Whether only counts of `repeat` and `take` changed, and none of the first `index` elements.

    Only the first epoch can be told: later ones begin elsewhere. The elements of a stream cannot be compared,
    so there every count must have grown, with nothing behind it that cuts.
    """
    moved = differing(found)
    if not moved or epoch != 0 or not all(_is_of_counts(d) for d in moved):
        return False
    behind = found[found.index(moved[0]) + 1 :]
    if not all(d.op in (*KEEPING, *CUTTING) for d in behind):
        return False
    if not node.seekable:
        return all(map(_grew, moved)) and not any(map(_cuts, behind))
    counts = {id(d.node): {"count": _before(d)} for d in moved}
    old = with_changes(node, counts)
    once = {id(d.node): {"count": 1} for d in behind if d.op == "repeat"}
    first_pass = with_changes(node, counts | once)
    if any(at.length is not None and index > at.length for at in (old, first_pass, node)):
        return False
    return index == 0 or _records(old, index - 1) == _records(node, index - 1)


def _is_of_counts(difference: Difference) -> bool:
    before = _before(difference)
    return (
        difference.op in ("repeat", "take")
        and difference.fields == ("count",)
        and (before is None or is_count(before))
    )


def _before(difference: Difference) -> Any:
    return (difference.saved or {}).get("count")


def _grew(difference: Difference) -> bool:
    before, after = _before(difference), (difference.now or {}).get("count")
    return before is not None and (after is None or after > before)


def _cuts(difference: Difference) -> bool:
    operation = difference.now or {}
    return difference.op in CUTTING and not operation.get("drop_remainder")


def _records(node: Node, index: int) -> list[Record]:
    return list(node.locate(Places(0, np.array([index], np.int64))).records())
