"""One run of `fit`: the callback list that leads Keras through it, counts, saves, and stops when told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from playhead.errors import PreemptedError, TrainingError
from playhead.keras import backends, checkpoint, state
from playhead.keras import callbacks as states
from playhead.keras.cadence import Cadence
from playhead.keras.feed import Feed
from playhead.keras.preemption import Preempted, Watch
from playhead.keras.progress import Progress
from playhead.keras.reading import Reading, show
from playhead.keras.storage import Storage
from playhead.keras.writer import Writer


@dataclass(frozen=True)
class Keeping:
    """Where and how often a run is saved, and what goes into each save besides."""

    root: Storage
    writer: Writer
    cadence: Cadence
    keep: int
    fixed: Mapping[str, Any]
    on_preempt: str


@dataclass
class _Snapshot:
    """What training changes, at one moment."""

    callbacks: list[dict[str, Any]]
    arrays: dict[str, checkpoint.Named]
    learning_rate: float | None


class Run(keras.callbacks.CallbackList):  # type: ignore[misc]
    """The callbacks of a fit, with batches counted from the epoch's beginning also after a resume.

    Everything here happens after the callbacks it holds. `restore` is what a resumed run puts back: the
    callbacks' states after their `on_train_begin`, which resets them, and in the middle of an epoch those and
    all arrays once more after their `on_epoch_begin`: Keras has reset the metrics by then, and a callback may
    have set a learning rate that the broken-off epoch had changed since.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        model: Any,
        iterator: Any,
        feed: Feed,
        progress: Progress,
        keeping: Keeping,
        watch: Watch,
        fixed_length: int | None,
        epochs: int,
        verbose: Any,
        restore: Any = None,
    ) -> None:
        self._iterator, self._feed = iterator, feed
        self._progress, self._keeping, self._watch = progress, keeping, watch
        self._fixed_length, self._epochs, self._restore = fixed_length, epochs, restore
        self._draws: checkpoint.Named = []
        self._draws_due = self._testing = False
        self._idle: Callable[[], None] | None = None
        self._saved: tuple[Any, ...] | None = None
        self._ending: _Snapshot | None = None
        self._offset = 0
        self._quiet = verbose == 0
        self._trained = model  # `self.model` has JAX put its values into the variables each time
        if restore is not None:
            restore.cut_back(callbacks)
        super().__init__(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=fixed_length,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        appending = [] if self._restore is None else states.appending(self.callbacks)
        show(Reading(self._iterator, lambda: self._progress.step), self.callbacks)
        super().on_train_begin(logs)
        for callback in appending:
            callback.append = False
        if self._restore is not None:
            self._restore.callbacks(self.callbacks)
        states.capture(self.callbacks)  # what cannot be saved is said now
        state.capture(self.model, self._keeping.writer.expect)
        self._keeping.writer.prepare()
        history = self.model.history
        if self._progress.history_epochs:
            history.history = {
                name: list(values) for name, values in self._progress.history.items()
            }
            history.epoch = list(self._progress.history_epochs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        now = self._progress
        if epoch != now.epoch:
            raise TrainingError(
                f"Keras begins epoch {epoch + 1} where epoch {now.epoch + 1} is due",
                help="something set model._initial_epoch: make the model anew",
            )
        if self._progbar is not None and now.total is not None:
            self._progbar.target = now.total  # that of an epoch resumed with other data is its own
        if self._restore is not None:
            self._restore.generators()
        super().on_epoch_begin(epoch, logs)
        self._keeping.cadence.begin_epoch()
        self._offset = now.step_in_epoch
        if self._restore is not None:
            self._restore.again(self.callbacks)
            self._restore = None
        self._note_draws()
        if self._offset and self._progbar is not None:
            _time_from(self._progbar.progbar, self._offset)
        if now.complete:
            self._idle = _idle_step(self._trained)
            self._feed.begin(0)
        else:
            self._feed.begin(None if now.total is None else now.total - now.step_in_epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._undo_draws()
        if self._idle is None:
            super().on_train_batch_begin(batch + self._offset, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._idle is not None:
            self._idle()
            self._idle = None
            return
        now = self._progress
        before = now.step
        done = batch + 1 + self._offset
        now.step += done - now.step_in_epoch
        now.step_in_epoch = done
        super().on_train_batch_end(done - 1, logs)
        now.complete = (
            done == now.total if now.total is not None else self._feed.ends_after(now.step)
        )
        self._feed.trained(now.step)
        if now.complete:
            now.logs = self._epoch_logs(logs)
            self._note_draws()
        # A run that a callback stops here is saved when it has ended, which is at once.
        if not self._trained.stop_training:
            if self._keeping.cadence.after_steps(before, now.step) or self._watch.noted is not None:
                self._save()
            self._leave_if_told()
        if now.complete and now.total is None:
            self._feed.end()

    def on_test_begin(self, logs: Any = None) -> None:
        self._undo_draws()
        self._testing = True
        super().on_test_begin(logs)

    def on_test_end(self, logs: Any = None) -> None:
        super().on_test_end(logs)
        self._testing = False

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_test_batch_end(batch, logs)
        if self._watch.noted is not None and self._progress.complete:
            self._save()
            self._leave_if_told()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._undo_draws()
        now = self._progress
        if logs is not None:
            # An epoch whose steps were all done before the resume has no training logs of its own.
            merged = {**now.logs, **logs}
            logs.clear()
            logs.update(merged)
        super().on_epoch_end(epoch, logs)
        now.epoch, now.step_in_epoch, now.complete, now.logs = epoch + 1, 0, False, {}
        now.total = self._fixed_length
        if now.epoch >= self._epochs or self.model.stop_training:
            # Keras and its callbacks may now exchange the weights for others, from which nothing goes on.
            self._ending = self._snapshot()
        else:
            if self._keeping.cadence.after_epoch(now.epoch) or self._watch.noted is not None:
                self._save()
            self._leave_if_told()

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)
        self._save(self._ending)
        self._keeping.writer.wait()
        self._leave_if_told()

    def _snapshot(self) -> _Snapshot:
        # Newer versions of Keras run callbacks in threads.
        getattr(self, "_flush_futures", lambda: None)()
        backends.settle(self.model)
        copy = self._keeping.writer.copy
        entries, arrays = states.capture(self.callbacks)
        own = [(name, copy(f"callbacks/{k}", a)) for k, (name, a) in enumerate(arrays)]
        rate = state.learning_rate(self.model)
        taken = state.capture(self.model, copy)
        if self._testing:  # which a resumed run does anew
            taken.update(state.of_generators(self._draws))
        return _Snapshot(entries, {**taken, "callbacks": own}, rate)

    def _note_draws(self) -> None:
        """What Keras draws from torch's generator between steps, for its data loaders, is to be undone.

        How many of them it makes depends on where a run is resumed.
        """
        self._draws, self._draws_due = backends.generators(), True

    def _undo_draws(self) -> None:
        if self._draws_due:
            backends.put_generators(self._draws)
            self._draws_due = False

    def _epoch_logs(self, logs: Any) -> dict[str, Any]:
        """What Keras will take for the epoch's training logs."""
        backends.settle(self.model)
        results = self.model.get_metrics_result()
        same = isinstance(logs, dict) and set(logs) == set(results)
        return {
            name: state.plain(value) for name, value in (results if same else logs or {}).items()
        }

    def _save(self, ending: _Snapshot | None = None) -> None:
        now, keeping = self._progress, self._keeping
        point = (now.step, now.epoch, now.complete, bool(self.model.stop_training))
        if point == self._saved and now.epoch < self._epochs:
            return
        began = keeping.cadence.now()
        taken = ending or self._snapshot()
        if ending is not None:
            taken.arrays[state.FINAL] = state.changed_since(self.model, taken.arrays)
        history = self.model.history
        written = {
            "kind": "playhead.keras",
            **keeping.fixed,
            "position": self._iterator.position_at(now.step).to_dict(),
            "step": now.step,
            "epoch": now.epoch,
            "step_in_epoch": now.step_in_epoch,
            "steps_in_epoch": now.total,
            "epochs": self._epochs,
            "epoch_complete": now.complete,
            "stopped": bool(self.model.stop_training),
            "logs": now.logs,
            "history": state.plain(history.history),
            "history_epochs": [int(epoch) for epoch in history.epoch],
            "learning_rate": taken.learning_rate,
            "callbacks": taken.callbacks,
            "metric_names": state.metric_names(self.model),
            "swapped": states.swaps_averages_for_good(self.callbacks),
        }
        step = now.step
        keeping.writer.write(
            lambda: checkpoint.write(keeping.root, step, written, taken.arrays, keep=keeping.keep)
        )
        keeping.cadence.saved(began)
        self._saved = point

    def _leave_if_told(self) -> None:
        self._keeping.writer.check()
        if self._watch.noted is None:
            return
        self._keeping.writer.wait()
        where = str(self._keeping.root)
        if not self._quiet:
            before = "" if self._progbar is None else "\n"  # the bar has not ended its line
            at = self._progress.where(self._epochs)
            print(
                f"{before}playhead: saved {where}/ at {at}; run the same program again to go on",
                flush=True,
            )
        if self._watch.interrupted:
            raise KeyboardInterrupt
        if self._keeping.on_preempt == "raise":
            raise PreemptedError(
                f"the run was told to stop by signal {self._watch.noted} and is saved in {where}",
                help="run the same command again to go on",
                signum=self._watch.noted,
                checkpoint=where,
            )
        raise Preempted(self._watch.noted, where)


def _idle_step(model: Any) -> Callable[[], None] | None:
    """For an epoch of no steps, where Keras makes one: has that one train nothing and read nothing.

    What comes back is to be called after it. On JAX a step is given the variables, too, and gives them back.
    None on torch, where Keras asks for a batch before it makes a step, and finds none.
    """
    if backends.name() == "torch":
        return None
    train = model.train_function
    model.train_function = lambda *given: {} if len(given) == 1 else ({}, given[0])

    def end() -> None:
        model.train_function = train

    return end


def _time_from(bar: Any, done: int) -> None:
    """Has the progress bar reckon its time per step from the steps of this process alone."""
    estimate = getattr(bar, "_estimate_step_duration", None)
    if estimate is not None:
        bar._estimate_step_duration = lambda step, now: estimate(max(step - done, 0), now)
