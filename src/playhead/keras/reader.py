"""Who in Keras is reading, and for what.

Keras hands a data adapter to `fit`, `evaluate` and `predict` alike and tells it nothing about them, nor about
the arguments it was called with besides. All of that stands in the frames of the call.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from keras.src.trainers.epoch_iterator import EpochIterator

from playhead.errors import PipelineError, TrainingError

_DEEP = 12  # frames between an adapter and the trainer's method, and some more
_DROPPED = {
    "y": "targets belong in the dataset: its elements are (inputs, targets)",
    "sample_weight": "weights belong in the dataset: its elements are (inputs, targets, sample weights)",
    "class_weight": "give each example its weight in a map: elements are (inputs, targets, sample weights)",
}


@dataclass(frozen=True)
class Call:
    """`method` of the `EpochIterator` `reader` calls; where it is being made, for `kind` of steps of `model`.

    `kind` is "train", "test" or "predict", and "" where nobody knows.
    """

    reader: Any
    method: str
    kind: str
    model: Any

    @property
    def training(self) -> bool:
        return self.kind == "train"


def calling() -> Call | None:
    """Who in Keras has called the caller; None where it is none of Keras' loops.

    Raises TrainingError for an argument of theirs that Keras would drop in silence.
    """
    frame: FrameType | None = sys._getframe(2)
    found: FrameType | None = None
    for _ in range(_DEEP):
        if frame is None:
            break
        if isinstance(frame.f_locals.get("self"), EpochIterator):
            found = frame
            break
        frame = frame.f_back
    if found is None:
        return None
    reader, method = found.f_locals["self"], found.f_code.co_name
    if method == "__init__":
        _require_heard(found.f_locals)
    kind, model = _steps(found.f_back) if method == "__init__" else ("", None)
    return Call(reader, method, kind, model)


def _steps(frame: FrameType | None) -> tuple[str, Any]:
    """What a reader is being made for; `fit` makes that of its own data before that for validation."""
    for _ in range(_DEEP):
        if frame is None:
            break
        name, known = frame.f_code.co_name, frame.f_locals
        if name in ("fit", "evaluate", "predict") and "callbacks" in known and "self" in known:
            trains = name == "fit" and "epoch_iterator" not in known
            return "train" if trains else "predict" if name == "predict" else "test", known["self"]
        frame = frame.f_back
    return "", None


def _require_heard(given: dict[str, Any]) -> None:
    for name, reason in _DROPPED.items():
        if given.get(name) is not None:
            raise TrainingError(
                f"{name}= beside a playhead dataset, which Keras would leave out in silence",
                help=reason,
            )


def require_end(call: Call, cardinality: int) -> None:
    """Raises `PipelineError` where `cardinality` says that there is no end, and no number of steps is given."""
    if cardinality == -1 and call.reader.steps_per_epoch is None:
        name = "steps_per_epoch" if call.training else "steps"
        raise PipelineError(
            "the dataset has no end, so a pass over it has none",
            help=f"say {name}= (for validation_data: validation_steps=), or leave out repeat()",
        )


def let_end(reader: Any, after: int | None = None) -> None:
    """Has `reader` take the coming epoch for one of `after` batches, which are to be no mishap.

    None: until the data ends, in this pass as in those before. Keras takes the length of the first pass for
    that of all later ones, and warns that the data ran out.
    """
    reader.steps_per_epoch, reader._num_batches = None, after
    reader._interrupted_warning = _quiet


def _quiet() -> None:
    pass
