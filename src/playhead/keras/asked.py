"""What `fit` is asked, of whichever Keras: checked before anything is done."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from playhead.dataset import Dataset
from playhead.errors import CheckpointError, PipelineError
from playhead.keras import checkpoint as store
from playhead.keras.storage import Storage

F = TypeVar("F", bound=Callable[..., Any])

RESUME = ("auto", "must", "never")
_REFUSED = {
    "x": "the dataset is the second argument, as in fit(model, ds)",
    "y": "targets belong in the dataset: its elements are (inputs, targets)",
    "sample_weight": "weights belong in the dataset: its elements are (inputs, targets, sample weights)",
    "batch_size": "the pipeline's batch(...) says it",
    "shuffle": "the pipeline's shuffle(...) says it",
    "validation_split": "split the data into two datasets and pass one as validation_data",
}


def refuse(given: Mapping[str, Any], others: Mapping[str, str]) -> None:
    """Raises TypeError for an argument of `model.fit` that the dataset, or one of `others`, speaks against."""
    for name, reason in {**_REFUSED, **others}.items():
        if name in given:
            raise TypeError(f"{name}= is refused: {reason}")


def two_given(fit: F) -> F:
    """`fit`, saying what to write instead of arrays, one by one or as x=, and of places for names."""

    @functools.wraps(fit)
    def asked(*given: Any, **arguments: Any) -> Any:
        if len(given) > 2 and not isinstance(given[1], Dataset):
            raise TypeError(
                "fit takes a playhead.Dataset, and was given several arguments in its place: arrays go in by "
                "playhead.Dataset.from_tensor_slices((x, y)).batch(32), and the rest by name"
            )
        if len(given) > 2:
            raise TypeError(
                "fit takes two arguments by place, the model and the dataset: the rest goes by name, as in "
                'fit(model, ds, checkpoint="run", epochs=10)'
            )
        if "x" in arguments:
            refuse(arguments, {})
        return fit(*given, **arguments)

    return cast(F, asked)


def unsaved(root: Storage, save_every: int | str) -> str:
    """What to say of a run that begins where another one has begun and left no save."""
    return (
        f"an earlier attempt began in {root}/ and ended before its first save "
        f"(save_every={save_every!r}): this one begins anew"
    )


def whole(value: Any, name: str, *, least: int = 1) -> int:
    """`value` as an int. Raises ValueError for anything but a whole number from `least` on."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r} is not a whole number from {least} on")
    return number


def require_named(checkpoint: str | os.PathLike[str]) -> None:
    """Raises ValueError for no name at all."""
    if not os.fspath(checkpoint):
        raise ValueError("checkpoint= is empty, where fit needs the name of a directory")


def require_one(value: str, known: tuple[str, ...], name: str) -> None:
    """Raises ValueError for what is not among `known`."""
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(map(repr, known))}, not {value!r}")


def require_there(root: Storage, resume: str) -> bool:
    """Whether a run is there. Raises `CheckpointError` where `resume` wants it otherwise."""
    there = bool(store.saves(root))
    if there and resume == "never":
        raise CheckpointError(
            f'{root} holds a run already, and resume="never"',
            help='choose another directory, move this one away, or resume="auto"',
            path=str(root),
        )
    if not there and resume == "must":
        raise CheckpointError(
            f'there is no checkpoint in {root}, and resume="must"',
            help='check the path; resume="auto" starts a run where there is none',
            path=str(root),
        )
    return there


def steps_of(ds: Dataset, given: int | None) -> int:
    """Steps of an epoch, -2 where only walking a pass tells. Raises `PipelineError` where there are none."""
    length = given if given is not None else ds.cardinality()
    if length == -1:
        raise PipelineError(
            "the dataset has no end, so an epoch has none",
            help="say steps_per_epoch=, or leave out repeat()",
        )
    if length == 0:
        raise PipelineError("the dataset is empty")
    return length
