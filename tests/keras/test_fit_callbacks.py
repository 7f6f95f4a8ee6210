"""What callbacks know survives a break, and so do weights that the end of a run exchanges."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, digest, model

from playhead.errors import TrainingError
from playhead.keras import callbacks as states
from playhead.keras import checkpoint, fit

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


def judges(where: Path) -> list[Any]:
    """Callbacks that decide by what they have seen in earlier epochs."""
    return [
        keras.callbacks.EarlyStopping(
            "val_loss", min_delta=10, patience=3, restore_best_weights=True
        ),
        keras.callbacks.ReduceLROnPlateau(
            "val_loss", min_delta=10, patience=1, factor=0.5, cooldown=1
        ),
        keras.callbacks.ModelCheckpoint(
            where / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=5
        ),
    ]


def train(where: Path, *stops: int, epochs: int = 8, save_every: Any = 1) -> tuple[Any, str, Any]:
    files = where.with_name(where.name + "-files")
    for stop in (*stops, None):
        net, callbacks = model(), judges(files)
        with contextlib.suppress(Broken):
            history = fit(
                net,
                data(),
                checkpoint=where,
                epochs=epochs,
                save_every=save_every,
                verbose=0,
                validation_data=data(),
                callbacks=[*callbacks, Journal(stop)],
            )
    return history, digest(net), (sorted(p.name for p in files.iterdir()), callbacks[0].best_epoch)


@pytest.mark.parametrize("stops", [(STEPS * 2 + 3,), (STEPS + 1, STEPS)])
def test_a_broken_run_stops_early_and_lowers_its_rate_where_the_whole_one_does(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    whole, broken = train(tmp_path / "whole"), train(tmp_path / "broken", *stops)
    assert whole[0].epoch == [0, 1, 2, 3]  # patience is over
    rates = whole[0].history["learning_rate"]
    assert len(set(rates)) > 1
    assert broken[0].epoch == whole[0].epoch
    assert broken[0].history == whole[0].history
    assert broken[1:] == whole[1:]


def test_a_run_saved_between_epochs_keeps_the_patience_of_its_callbacks(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    broken = train(tmp_path / "broken", 2 * STEPS + 2, save_every="1 epoch")
    assert broken[0].history == whole[0].history and broken[1] == whole[1]


def test_a_run_with_best_weights_goes_on_from_its_last_and_not_its_best(tmp_path: Path) -> None:
    def part(where: Path, epochs: int) -> tuple[Any, str]:
        net = model()
        best = keras.callbacks.EarlyStopping(
            "val_loss", mode="max", patience=9, restore_best_weights=True
        )
        history = fit(
            net,
            data(),
            checkpoint=where,
            epochs=epochs,
            verbose=0,
            validation_data=data(),
            callbacks=[best],
        )
        return history, digest(net)

    straight = part(tmp_path / "straight", 4)
    part(tmp_path / "parts", 2)
    parts = part(tmp_path / "parts", 4)
    assert parts[0].history == straight[0].history and parts[1] == straight[1]


def test_a_stopped_run_that_goes_on_has_new_patience(tmp_path: Path) -> None:
    assert train(tmp_path / "run")[0].epoch == [0, 1, 2, 3]
    assert train(tmp_path / "run", epochs=20)[0].epoch == [0, 1, 2, 3, 4, 5, 6]


def averaging() -> Any:
    return model(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9))


def test_averages_of_an_optimizer_do_not_replace_what_training_goes_on_from(tmp_path: Path) -> None:
    straight, parts, again = averaging(), averaging(), averaging()
    whole = fit(straight, data(), checkpoint=tmp_path / "a", epochs=4, verbose=0)
    fit(averaging(), data(), checkpoint=tmp_path / "b", epochs=2, verbose=0)
    history = fit(parts, data(), checkpoint=tmp_path / "b", epochs=4, verbose=0)
    assert history.history == whole.history
    assert digest(parts) == digest(straight)
    fit(again, data(), checkpoint=tmp_path / "b", epochs=4, verbose=0)  # it is finished
    for one, other in zip(straight.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_averages_that_are_swapped_in_for_validation_are_swapped_out_again(tmp_path: Path) -> None:
    def go(where: Path, *stops: int) -> tuple[Any, str]:
        for stop in (*stops, None):
            net = averaging()
            with contextlib.suppress(Broken):
                history = fit(
                    net,
                    data(),
                    checkpoint=where,
                    epochs=4,
                    save_every="1 epoch",
                    verbose=0,
                    validation_data=data(),
                    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True), Journal(stop)],
                )
        return history, digest(net)

    whole, broken = go(tmp_path / "a"), go(tmp_path / "b", 2 * STEPS + 2)
    assert broken[0].history == whole[0].history and broken[1] == whole[1]
    with pytest.raises(TrainingError, match="SwapEMAWeights"):
        fit(averaging(), data(), checkpoint=tmp_path / "a", epochs=5, verbose=0)


class Counting(keras.callbacks.Callback):
    """One that joins."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = {"steps": 0, "sums": [np.zeros(2), None]}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen = {"steps": self.seen["steps"] + 1, "sums": [self.seen["sums"][0] + batch, None]}

    def get_state(self) -> Any:
        return self.seen

    def set_state(self, state: Any) -> None:
        self.seen = state


def test_a_callback_with_get_state_and_set_state_goes_on(tmp_path: Path) -> None:
    for stop in (STEPS + 4, None):
        counting = Counting()
        with contextlib.suppress(Broken):
            fit(
                model(),
                data(),
                checkpoint=tmp_path,
                epochs=3,
                save_every=2,
                verbose=0,
                callbacks=[counting, Journal(stop)],
            )
    assert counting.seen["steps"] == 3 * STEPS
    np.testing.assert_array_equal(counting.seen["sums"][0], np.full(2, 3.0 * sum(range(STEPS))))
    assert counting.seen["sums"][1] is None


def test_a_state_that_no_checkpoint_can_hold_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    counting, journal = Counting(), Journal()
    counting.seen = {"steps": {1, 2}}
    with pytest.raises(TrainingError, match="state of Counting holds a set"):
        fit(model(), data(), checkpoint=tmp_path, verbose=0, callbacks=[counting, journal])
    assert journal.lines == []


def test_states_find_their_callbacks_when_others_come_and_go() -> None:
    one, two = (keras.callbacks.EarlyStopping(patience=k) for k in (1, 2))
    one.wait, two.wait, two.best = 3, 4, np.float32(0.5)
    entries, arrays = states.capture([one, keras.callbacks.History(), two])
    new = [keras.callbacks.EarlyStopping(), Counting(), keras.callbacks.EarlyStopping()]
    states.OWN.restore(new, entries, arrays)
    assert [new[0].wait, new[2].wait] == [3, 4]
    assert new[2].best == np.float32(0.5) and new[2].best.dtype == np.float32
    assert new[1].seen["steps"] == 0


def test_the_time_per_step_of_a_resumed_epoch_is_that_of_the_steps_done_here(
    tmp_path: Path,
) -> None:
    logger = keras.callbacks.ProgbarLogger()
    for stop, callbacks in ((4, []), (3, [logger])):
        with pytest.raises(Broken):
            fit(
                model(),
                data(),
                checkpoint=tmp_path,
                save_every=1,
                verbose=1,
                callbacks=[*callbacks, Journal(stop)],
            )
    assert checkpoint.latest(tmp_path)[1]["step"] == 5
    bar = logger.progbar  # it has seen steps 4 and 5; the first of a process is not counted
    assert bar._estimate_step_duration(6, bar._time_after_first_step + 10.0) == 5.0


def test_every_callback_of_keras_is_decided_about_and_on_the_page() -> None:
    """A class that Keras adds shows here: what does it know, and does it come back?"""
    public = {
        name
        for name, value in vars(keras.callbacks).items()
        if isinstance(value, type) and not name.startswith("_")
    }
    assert public == set(states.KNOWN)
    page = (Path(__file__).parents[2] / "docs" / "keras.md").read_text()
    assert [name for name in sorted(public) if f"| `{name}` |" not in page] == []


class Patient(keras.callbacks.EarlyStopping):
    """One of Keras' with something of its own."""

    def __init__(self) -> None:
        super().__init__("loss", patience=9)
        self.seen = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.seen += 1

    def get_state(self) -> Any:
        return {"seen": self.seen}

    def set_state(self, state: Any) -> None:
        self.seen = state["seen"]


def test_a_class_derived_from_one_of_keras_keeps_both_states() -> None:
    one, other = Patient(), Patient()
    one.wait, one.best, one.seen = 3, 0.5, 7
    entries, arrays = states.capture([one])
    states.OWN.restore([other], entries, arrays)
    assert (other.wait, other.best, other.seen) == (3, 0.5, 7)


class Asking(keras.callbacks.Callback):
    """A user's own: notes the position at each step's end, and the last it noted is what it would save."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[Any] = []

    def set_reading(self, reading: Any) -> None:
        self.reading = reading

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.positions.append(self.reading.position)


def test_a_position_asked_for_in_a_step_counts_what_that_step_has_learned(tmp_path: Path) -> None:
    asking = Asking()
    ds = data(n=64)  # 8 batches
    fit(
        model(steps_per_execution=4),
        ds,
        checkpoint=tmp_path,
        epochs=2,
        verbose=0,
        callbacks=[asking],
    )
    assert [position.step for position in asking.positions] == [4, 8, 12, 16]
    assert [(p.epoch, p.step_in_epoch) for p in asking.positions] == [
        (0, 4),
        (0, 8),
        (1, 4),
        (1, 8),
    ]
    elsewhere = data(n=64).iterator(epochs=2)
    elsewhere.load_state_dict(asking.positions[0])
    np.testing.assert_array_equal(next(elsewhere)[0], ds[4][0])


def test_a_run_that_nan_has_ended_is_ended(tmp_path: Path) -> None:
    def go() -> Any:
        net = model(keras.optimizers.SGD(float("inf")))
        nan = keras.callbacks.TerminateOnNaN()
        return fit(net, data(), checkpoint=tmp_path, epochs=5, verbose=0, callbacks=[nan])

    first = go()
    assert first.epoch == [0] and np.isnan(first.history["loss"][0])
    assert go().epoch == [0]


def test_a_dataset_that_was_read_before_is_read_from_its_first_pass(tmp_path: Path) -> None:
    fresh, used = data(), data()
    list(used), list(used)
    histories = [
        fit(model(), ds, checkpoint=tmp_path / name, epochs=epochs, verbose=0).history
        for ds, name, epochs in [(fresh, "a", 3), (used, "b", 1), (used, "b", 3)]
    ]
    assert histories[2] == histories[0] and histories[1]["loss"] == histories[0]["loss"][:1]
