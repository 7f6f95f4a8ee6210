"""One run of `fit`: the callback list that leads tf_keras through it, counts, and saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tf_keras

from playhead.errors import TrainingError
from playhead.keras import checkpoint
from playhead.keras.cadence import Cadence
from playhead.keras.storage import Storage
from playhead.keras.writer import Writer
from playhead.tensorflow.dataset_fn import DatasetFn
from playhead.tf_keras import callbacks as states
from playhead.tf_keras.settings import learning_rate, plain
from playhead.tf_keras.variables import GROUPS, REPLICAS, Variables

KIND = "playhead.tf_keras"
# The weights after the run, where its end exchanged them for averages or the best, and those of replicas.
FINAL = {"final": "model", "final_replicas": REPLICAS}


@dataclass
class Progress:
    """Where a run stands. `int()` of it is how many steps have been trained."""

    total: int
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    history: dict[str, list[Any]] = field(default_factory=dict)
    history_epochs: list[int] = field(default_factory=list)

    def __int__(self) -> int:
        return self.step

    def where(self, epochs: int) -> str:
        """`epoch 2/6, step 5/16`"""
        if self.epoch >= epochs:
            return f"the end of epoch {self.epoch}"
        return f"epoch {self.epoch + 1}/{epochs}, step {self.step_in_epoch}/{self.total}"


@dataclass(frozen=True)
class Keeping:
    """Where and how often a run is saved, and what goes into each save besides.

    writer: None in a process that leaves writing to another.
    """

    root: Storage
    writer: Writer | None
    cadence: Cadence
    keep: int
    fixed: Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that a run goes on from."""

    state: Mapping[str, Any]
    arrays: Mapping[str, checkpoint.Named]


class Start:
    """Says to tf_keras, which asks it as it asks its own backup, where a fit begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return self._progress.epoch, self._progress.step_in_epoch


class Run(tf_keras.callbacks.CallbackList):  # type: ignore[misc]
    """The callbacks of a fit; what happens here happens after the callbacks it holds.

    A save that is due at the last step of an epoch is made when the epoch has ended, validation and all.
    What a resumed run puts back comes after what resets it: the callbacks' states after `on_train_begin`, and
    in the middle of an epoch all once more when that has begun.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        model: Any,
        variables: Variables,
        data: DatasetFn,
        progress: Progress,
        keeping: Keeping,
        epochs: int,
        verbose: Any,
        saved: Saved | None,
    ) -> None:
        self._variables, self._data = variables, data
        self._progress, self._keeping = progress, keeping
        self._epochs, self._saved = epochs, saved
        self._due = False
        self._ending: tuple[Any, ...] | None = None
        super().__init__(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=progress.total,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        self.model._train_counter.assign(self._progress.step)
        entries = [] if self._saved is None else self._saved.state["callbacks"]
        appending = states.append_again(self.callbacks, entries)
        super().on_train_begin(logs)
        for callback in appending:
            callback.append = False
        self._restore_callbacks()
        states.capture(self.callbacks)  # what cannot be saved is said now
        history, now = self.model.history, self._progress
        history.history = {name: list(values) for name, values in now.history.items()}
        history.epoch = list(now.history_epochs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != self._progress.epoch:
            raise TrainingError(
                f"tf_keras begins epoch {epoch + 1} where epoch {self._progress.epoch + 1} is due",
                help="leave model._training_state alone while fit runs",
            )
        super().on_epoch_begin(epoch, logs)
        self._keeping.cadence.begin_epoch()
        if self._saved is not None and self._progress.step_in_epoch:
            self._variables.restore(self._saved.arrays)
            self._restore_callbacks()
        self._saved = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        now = self._progress
        before = now.step
        now.step += batch + 1 - now.step_in_epoch
        now.step_in_epoch = batch + 1
        if self._keeping.writer is not None:
            self._keeping.writer.check()
        self._due |= self._keeping.cadence.after_steps(before, now.step)
        if self._due and now.step_in_epoch < now.total and not self.model.stop_training:
            self._save(self._taken())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        now = self._progress
        now.epoch, now.step_in_epoch = epoch + 1, 0
        if now.epoch >= self._epochs or self.model.stop_training:
            # tf_keras and its callbacks may now exchange the weights for others, from which nothing goes on.
            self._ending = self._taken()
        elif self._keeping.cadence.after_epoch(now.epoch) or self._due:
            self._save(self._taken())

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)
        if self._ending is not None:
            entries, arrays = self._ending
            after = self._variables.capture(("model",))
            final = {name: after[group] for name, group in FINAL.items()}
            self._save((entries, {**arrays, **final}))
        if self._keeping.writer is not None:
            self._keeping.writer.wait()

    def _restore_callbacks(self) -> None:
        if self._saved is not None:
            state, arrays = self._saved.state, self._saved.arrays
            entries = state["callbacks"]
            states.OWN.restore(self.callbacks, entries, arrays["callbacks"], anew=state["stopped"])

    def _taken(self) -> tuple[list[dict[str, Any]], dict[str, checkpoint.Named]]:
        """The callbacks' states and all arrays. All workers come here together."""
        entries, arrays = states.capture(self.callbacks)
        return entries, {**self._variables.capture(GROUPS), "callbacks": arrays}

    def _save(self, taken: tuple[list[dict[str, Any]], dict[str, checkpoint.Named]]) -> None:
        self._due = False
        began = self._keeping.cadence.now()
        keeping, now, writer = self._keeping, self._progress, self._keeping.writer
        if writer is not None:
            entries, arrays = taken
            history = self.model.history
            state = {
                "kind": KIND,
                **keeping.fixed,
                "position": self._data.position.to_dict(),
                "step": now.step,
                "epoch": now.epoch,
                "step_in_epoch": now.step_in_epoch,
                "steps_in_epoch": now.total,
                "epochs": self._epochs,
                "stopped": bool(self.model.stop_training),
                "metric_names": [metric.name for metric in self.model.metrics],
                "history": plain(history.history),
                "history_epochs": [int(epoch) for epoch in history.epoch],
                "learning_rate": learning_rate(self.model),
                "callbacks": entries,
            }
            step = now.step
            writer.write(
                lambda: checkpoint.write(keeping.root, step, state, arrays, keep=keeping.keep)
            )
        keeping.cadence.saved(began)
