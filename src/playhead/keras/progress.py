"""Where a run stands: at its beginning, where a checkpoint says, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from playhead.errors import TrainingError
from playhead.iterator import Iterator, OnChange
from playhead.keras import settings
from playhead.keras.arguments import Arguments


@dataclass
class Progress:
    """Where a run stands. Keras' epoch and the data's are counted apart.

    `complete`: all steps of `epoch` are done, with the training metrics in `logs`, but not what follows them
    (validation, the epoch's callbacks). `total`: steps of this epoch, None where only its end will tell.
    """

    step: int
    epoch: int = 0
    step_in_epoch: int = 0
    total: int | None = None
    complete: bool = False
    logs: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=dict)
    history_epochs: list[int] = field(default_factory=list)

    def where(self, epochs: int) -> str:
        """`epoch 2/6, step 5/16`"""
        if self.epoch >= epochs:
            return f"the end of epoch {self.epoch}"
        of = "" if self.total is None else f"/{self.total}"
        return f"epoch {self.epoch + 1}/{epochs}, step {self.step_in_epoch}{of}"


def begin(
    iterator: Iterator,
    saved: Mapping[str, Any] | None,
    length: int | None,
    arguments: Arguments,
    *,
    on_change: OnChange,
    override: Sequence[str],
) -> Progress:
    """Moves `iterator` to where the run begins or goes on, and returns that place."""
    if saved is not None:
        operations = [name for name in override if not settings.is_setting(name)]
        iterator.load_state_dict(saved["position"], on_change=on_change, override=operations)
        return _resumed(saved, iterator, length, arguments)
    if arguments.initial_epoch:
        return _skipped_ahead(iterator, length, arguments)
    return Progress(step=0, total=length)


def _resumed(
    saved: Mapping[str, Any], iterator: Iterator, length: int | None, arguments: Arguments
) -> Progress:
    position = iterator.position
    progress = Progress(
        step=position.step,
        epoch=saved["epoch"],
        step_in_epoch=saved["step_in_epoch"],
        total=length,
        complete=saved["epoch_complete"],
        logs=saved["logs"],
        history=saved["history"],
        history_epochs=saved["history_epochs"],
    )
    if arguments.initial_epoch > progress.epoch:
        raise TrainingError(
            f"initial_epoch={arguments.initial_epoch}, but the checkpoint stands in epoch {progress.epoch}",
            help="leave initial_epoch as it was when the run began: the checkpoint knows how far it is",
        )
    if progress.step_in_epoch and not progress.complete and length is not None:
        left = length - progress.step_in_epoch
        if arguments.steps_per_epoch is None and position.epoch_length is not None:
            # The data may be cut otherwise now.
            left = position.epoch_length - position.step_in_epoch
        progress.total = progress.step_in_epoch + max(left, 0)
        if left <= 0:
            progress.complete = True
    return progress


def _skipped_ahead(iterator: Iterator, length: int | None, arguments: Arguments) -> Progress:
    epochs = arguments.initial_epoch
    if epochs >= arguments.epochs:
        raise ValueError(
            f"initial_epoch={epochs} of a new run with epochs={arguments.epochs} leaves nothing to train: "
            "epochs= is the number of the last epoch, not how many follow"
        )
    if length is None or not iterator.dataset.seekable:
        raise TrainingError(
            f"initial_epoch={epochs} of a new run over a stream, which cannot skip what came before",
            help="leave initial_epoch out: the data begins at its beginning",
        )
    iterator.seek(epochs * length)
    return Progress(step=epochs * length, epoch=epochs, total=length)


def is_finished(saved: Mapping[str, Any], progress: Progress, epochs: int) -> bool:
    """Whether nothing is left to train, or a callback had stopped the run and no more epochs are asked for."""
    return progress.epoch >= epochs or (saved["stopped"] and epochs <= saved["epochs"])


def ended(saved: Mapping[str, Any], progress: Progress, asked: int) -> str:
    """How a finished run has ended, where `asked` epochs are asked for now."""
    epochs = progress.epoch + bool(progress.step_in_epoch)
    text = f"it trained {_count(epochs, 'epoch')} ({_count(progress.step, 'step')})"
    if epochs > asked:
        text += f", and epochs={asked} asks for no more"
    elif epochs < asked and saved["stopped"]:
        text += f" of {asked}, when a callback stopped it"
    return text


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
