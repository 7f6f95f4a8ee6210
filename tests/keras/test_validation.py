"""Validation reads the first pass each time, to its end, whatever the data and wherever a run resumes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, digest, model

import playhead as ph
from playhead.errors import PipelineError
from playhead.keras import fit
from playhead.keras.to_keras import FirstPass

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


def stream() -> ph.Dataset:
    """Another choice of rows in each pass, of a length that nobody knows."""
    return data(n=40).unbatch().filter(lambda x, y: x[0] > 0.3).batch(8)


def go(where: Path, *stops: int, net: Any = model, **given: Any) -> tuple[Any, str, list[str]]:
    """History, the final weights, and every step and batch of validation of the last of the fits."""
    for stop in (*stops, None):
        made, seen = net(), Seen()
        with contextlib.suppress(Broken):
            history = fit(
                made,
                data(),
                checkpoint=where,
                **{"epochs": 2, "verbose": 0, "callbacks": [seen, Journal(stop)], **given},
            )
    return history.history, digest(made), seen.tested


class Seen(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.tested: list[int] = []

    def on_test_begin(self, logs: Any = None) -> None:
        self.tested.append(0)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.tested[-1] += 1


def test_validation_on_processes_has_the_same_workers_after_each_epoch_of_either_fit(
    tmp_path: Path,
) -> None:
    pytest.importorskip("loky")
    zero = np.float32([0])
    train = ph.Dataset.range(6).map(lambda x: (zero, zero)).batch(3)
    made_by = ph.Dataset.range(12).map(lambda x: (zero, np.float32([os.getpid() % 65536]))).batch(3)
    validation = made_by.prefetch(on="processes", workers=1)
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    whom = keras.metrics.MeanMetricWrapper(lambda y_true, y_pred: y_true, name="pid")
    net.compile("sgd", "mse", metrics=[whom])
    ours = fit(
        net, train, checkpoint=tmp_path, epochs=3, verbose=0, validation_data=validation
    ).history["val_pid"]
    for steps in (None, 2):
        theirs = net.fit(
            train.to_keras(),
            epochs=2,
            verbose=0,
            validation_data=validation.to_keras(),
            validation_steps=steps,
        ).history["val_pid"]
        assert theirs == [ours[0]] * 2
    assert ours == [ours[0]] * 3 and 0 < ours[0] != os.getpid() % 65536


def still() -> Any:
    """A model that does not learn: what its validation says differs with the data alone."""
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    made.compile(keras.optimizers.SGD(0.0), "binary_crossentropy")
    return made


def test_a_stream_is_validated_over_its_first_pass_each_time(tmp_path: Path) -> None:
    history, _, tested = go(tmp_path / "a", net=still, epochs=3, validation_data=stream())
    first = list(stream().epoch(0))
    assert tested == [len(first)] * 3
    assert len(set(history["val_loss"])) == 1
    x, y = (np.concatenate(column) for column in zip(*first, strict=True))
    by_hand = still().evaluate(x, y, batch_size=8, verbose=0)
    assert history["val_loss"][0] == pytest.approx(by_hand, rel=1e-5)
    x, y = (np.concatenate(column) for column in zip(*stream().epoch(1), strict=True))
    other = still().evaluate(x, y, batch_size=8, verbose=0)
    assert history["val_loss"][0] != pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("stops", [(STEPS + 3,), (STEPS,)])
def test_a_run_with_a_stream_for_validation_goes_on_bit_for_bit(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    given = {"validation_data": stream(), "save_every": 1}
    whole = go(tmp_path / "whole", **given)
    # Broken off after a save of the step before, which for the second is the epoch's last but one.
    broken = go(tmp_path / "broken", *stops, **given)
    assert broken[:2] == whole[:2]
    assert len(broken[0]["val_loss"]) == 2


class InValidation(keras.callbacks.Callback):
    """Breaks off in the middle of the first validation."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        raise Broken


def test_a_save_at_the_last_batch_of_an_epoch_does_not_leave_out_validation(tmp_path: Path) -> None:
    given = {"validation_data": stream(), "save_every": STEPS}
    whole = go(tmp_path / "whole", **given)
    with pytest.raises(Broken):
        fit(
            model(),
            data(),
            checkpoint=tmp_path / "broken",
            epochs=2,
            verbose=0,
            callbacks=[InValidation()],
            **given,
        )
    broken = go(tmp_path / "broken", **given)
    assert broken == whole


def test_arrays_are_validated_as_keras_takes_them(tmp_path: Path) -> None:
    x, y = (np.concatenate(column) for column in zip(*data(n=40).epoch(0), strict=True))
    history, _, tested = go(
        tmp_path / "a", net=still, validation_data=(x, y), validation_batch_size=16
    )
    assert tested == [3, 3]
    by_hand = still().evaluate(x, y, batch_size=16, verbose=0)
    assert history["val_loss"] == pytest.approx([by_hand] * 2, rel=1e-5)


@pytest.mark.parametrize("kind", ["seekable", "stream", "to_keras", "endless"])
def test_validation_steps_and_frequency_mean_what_they_mean_to_keras(
    tmp_path: Path, kind: str
) -> None:
    given: Any = {
        "seekable": data(),
        "stream": stream(),
        "to_keras": data().to_keras(),
        "endless": data().repeat(),
    }[kind]
    history, _, tested = go(
        tmp_path,
        net=still,
        epochs=4,
        validation_data=given,
        validation_steps=2,
        validation_freq=2,
    )
    assert tested == [2, 2]
    assert len(set(history["val_loss"])) == 1


def test_what_says_nothing_about_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="validation_batch_size= is refused"):
        go(tmp_path, validation_data=data(), validation_batch_size=4)
    with pytest.raises(PipelineError, match="no end") as raised:
        go(tmp_path, validation_data=data().repeat())
    assert "validation_steps=" in str(raised.value)


def test_a_pass_that_was_broken_off_ends_where_fit_does_though_somebody_holds_it() -> None:
    validation = FirstPass(stream().repeat())
    whole, held = validation.get_numpy_iterator(), validation.get_numpy_iterator()
    next(whole)
    next(held)
    validation.close()
    assert next(whole, None) is None and next(held, None) is None
    validation.close()
