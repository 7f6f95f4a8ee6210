"""A checkpoint put back into a model and its callbacks, where it fits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from playhead.errors import TrainingChanged, TrainingError
from playhead.keras import architecture, backends, settings, state
from playhead.keras import callbacks as states
from playhead.keras import checkpoint as store
from playhead.keras.feed import Feed
from playhead.keras.progress import Progress
from playhead.keras.storage import Place


class Restore:
    """Puts a checkpoint back into a model and its callbacks, in the parts that `Run` asks for."""

    def __init__(
        self, model: Any, directory: Place, saved: Mapping[str, Any], override: tuple[str, ...]
    ) -> None:
        self._model, self._saved, self._override = model, saved, override
        self._entries = saved.get("callbacks", [])
        self._stopped = bool(saved["stopped"])
        self._arrays = store.read_arrays(directory, dict(saved))
        self._mid_epoch = saved["step_in_epoch"] > 0
        # Keras begins an epoch by resetting the metrics.
        left_out = set() if self._mid_epoch else {"metrics"}
        left_out |= {"optimizer"} & set(override)
        self._groups = [group for group in state.GROUPS if group not in left_out]
        rate = settings.overridden("optimizer.learning_rate", override)
        self._without = ("learning_rate",) if rate else ()

    def first(self, feed: Feed, layers: Any) -> None:
        """Before training: builds what is not built yet, compares, restores. `layers` are those of now."""
        model, arrays, groups, without = self._model, self._arrays, self._groups, self._without
        state.build_for(model, arrays, feed.first, groups, without=without)
        state.require_same_variables(model, arrays, groups, without=without)
        state.warn_of_other_replicas(model, arrays)
        state.restore(model, arrays, groups, without=without)
        if "model" not in self._override:
            architecture.require_same(self._saved.get("layers"), layers)

    def rename(self, progress: Progress) -> None:
        """Logs and History by the names that the metrics have now."""
        names = self._saved.get("metric_names", []), state.metric_names(self._model)
        progress.logs = state.renamed(progress.logs, *names)
        progress.history = state.renamed(progress.history, *names)

    def generators(self) -> None:
        """Before the first epoch begins: what was drawn since the model was restored is drawn again."""
        state.put_generators(self._arrays)

    def final(self) -> None:
        """Of a run that is over: the weights it ended with."""
        state.put_final(self._model, self._arrays)

    def cut_back(self, callbacks: Sequence[Any]) -> None:
        """Before they are told of the model; see `playhead.keras.callbacks.cut_back`."""
        states.cut_back(callbacks, self._entries)

    def callbacks(self, callbacks: Sequence[Any]) -> None:
        """After they were told that training begins."""
        arrays = self._arrays.get("callbacks", [])
        states.OWN.restore(callbacks, self._entries, arrays, anew=self._stopped)

    def again(self, callbacks: Sequence[Any]) -> None:
        """After the epoch has begun, where it is resumed in the middle."""
        if self._mid_epoch:
            self.callbacks(callbacks)
            state.restore(self._model, self._arrays, self._groups, without=self._without)


def require_same(
    saved: Mapping[str, Any] | None, now: Mapping[str, Any], override: Sequence[str], position: Any
) -> None:
    """Raises `TrainingChanged` where a checkpoint was trained otherwise, but for what is in `override`.

    now, position: the settings and the pipeline that a name in `override` may be of. Raises ValueError where it
    is of neither.
    """
    if saved is None:
        settings.require_known(override, now, [position])
        return
    settings.require_known(override, [*now, *saved["settings"]], [position, saved["position"]])
    _require_backend(saved)
    settings.require_same(saved["settings"], now, override, rate=saved.get("learning_rate"))


def _require_backend(saved: Mapping[str, Any]) -> None:
    """Raises `TrainingChanged` where the checkpoint was written on another backend of Keras."""
    before, now = saved["versions"]["backend"], backends.name()
    if before != now:
        raise TrainingChanged(
            f"the checkpoint was written on Keras' backend {before}, and this is {now}: dropout and every "
            "other random layer would draw other numbers, and the weights would come out otherwise",
            help=f"set KERAS_BACKEND={before}, or start a run of its own in another directory",
            differences=[f"backend  saved {before}   ->   now {now}"],
        )


def require_unswapped(saved: Mapping[str, Any], epochs: int) -> None:
    """Raises `TrainingError` where the run has ended with weights from which nothing goes on."""
    if saved.get("swapped") and saved["epochs"] <= saved["epoch"] < epochs:
        raise TrainingError(
            "SwapEMAWeights(swap_on_epoch=True) has put the averages in place of the trained weights when "
            f"its last epoch, {saved['epochs']}, ended: no epoch can follow",
            help=f"say epochs={epochs} from the beginning, in another directory, or leave swap_on_epoch out",
        )
