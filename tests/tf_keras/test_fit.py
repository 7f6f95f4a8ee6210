"""`playhead.tf_keras.fit` in one process: what comes back to the bit, what is refused."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras2_run import STEPS, Broken, Journal, data, digest, model

import playhead as ph
from playhead.errors import (
    CheckpointError,
    PipelineChanged,
    PipelineError,
    PlayheadWarning,
    TrainingChanged,
    TrainingError,
)
from playhead.keras import checkpoint
from playhead.tf_keras import feed, fit

Make = Callable[[], Any]


def run(
    where: Path,
    make: Make = model,
    ds: ph.Dataset | None = None,
    *,
    stop: int | None = None,
    callbacks: list[Any] | None = None,
    **settings: Any,
) -> tuple[list[str], Any]:
    """The lines of a run's journal, and its model; None where it was broken off."""
    made, journal = make(), Journal(stop)
    arguments = {"epochs": 2, "save_every": 3, "verbose": 0, **settings}
    try:
        fit(
            made,
            ds or data(),
            checkpoint=where,
            callbacks=[*(callbacks or []), journal],
            **arguments,
        )
    except Broken:
        return journal.lines, None
    return journal.lines, made


def require_exact(tmp_path: Path, make: Make, stop: int, **settings: Any) -> None:
    """A run that is broken off after `stop` lines, and gone on with, is one that was left alone."""
    whole, expected = run(tmp_path / "whole", make, **settings)
    before, _ = run(tmp_path / "broken", make, stop=stop, **settings)
    state = checkpoint.latest(tmp_path / "broken")[1]
    assert before == whole[:stop] and state["step_in_epoch"]
    after, ended = run(tmp_path / "broken", make, **settings)
    assert after == whole[len(whole) - len(after) :] and len(after) < len(whole)
    assert ended.history.history == expected.history.history
    assert ended.history.epoch == expected.history.epoch
    assert digest(ended) == digest(expected)


def test_a_run_is_the_same_wherever_it_is_broken_off(tmp_path: Path) -> None:
    settings = {"validation_data": data(), "save_every": 1}
    whole, expected = run(tmp_path / "whole", **settings)
    assert len(whole) == 2 * (STEPS + 1)
    at = 0
    for count in (
        1,
        6,
        2,
        3,
    ):  # in the first epoch, after its last step, after its end, in the second
        lines, _ = run(tmp_path / "broken", stop=count, **settings)
        assert lines == whole[at : at + count]
        state = (
            checkpoint.latest(tmp_path / "broken")[1] if at + count > 1 else {"step": 0, "epoch": 0}
        )
        at = state["step"] + state["epoch"]
    lines, ended = run(tmp_path / "broken", **settings)
    assert lines == whole[at:]
    assert ended.history.history == expected.history.history
    assert digest(ended) == digest(expected)


def test_validation_follows_an_epoch_whose_last_step_was_the_last_that_was_taken(
    tmp_path: Path,
) -> None:
    run(tmp_path, stop=STEPS, save_every=STEPS, validation_data=data())
    assert checkpoint.saves(tmp_path) == []
    lines, ended = run(tmp_path, save_every=STEPS, validation_data=data())
    assert len(lines) == 2 * (STEPS + 1) and len(ended.history.history["val_loss"]) == 2
    assert checkpoint.latest(tmp_path)[1]["step"] == 2 * STEPS


def test_each_validation_has_the_worker_processes_of_the_one_before() -> None:
    ds = ph.Dataset.range(8).map(lambda x: os.getpid()).batch(2)
    first_pass = feed.validation(ds.prefetch(2, on="processes", workers=1))
    found = [[row.tolist() for row in first_pass.as_numpy_iterator()] for _ in range(3)]
    assert found == [[[found[0][0][0]] * 2] * 4] * 3 and found[0][0][0] != os.getpid()


def two_outputs() -> Any:
    """A recurrent functional model, with an optimizer that averages its weights and a schedule."""
    tf_keras.utils.set_random_seed(2)
    given = tf_keras.Input((4,))
    pairs = tf_keras.layers.Reshape((2, 2))(given)
    hidden = tf_keras.layers.LSTM(6, dropout=0.2)(pairs)
    first = tf_keras.layers.Dense(1, name="first")(tf_keras.layers.GaussianNoise(0.1)(hidden))
    second = tf_keras.layers.Dense(1, name="second")(hidden)
    made = tf_keras.Model(given, {"first": first, "second": second})
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    optimizer = tf_keras.optimizers.SGD(
        rate, momentum=0.9, use_ema=True, ema_overwrite_frequency=None
    )
    made.compile(
        optimizer, "mse", metrics={"first": ["mae", tf_keras.metrics.RootMeanSquaredError()]}
    )
    return made


def test_several_outputs_metrics_averaged_weights_and_a_schedule_come_back(tmp_path: Path) -> None:
    ds = data().map(lambda x, y: (x, {"first": y, "second": -y}))
    require_exact(tmp_path, two_outputs, 12, ds=ds)


class Adversary(tf_keras.Model):
    """A model with a step, an optimizer, a metric and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = tf_keras.layers.Dense(1)
        self.noise = tf_keras.layers.Dense(1)
        self.second = tf_keras.optimizers.RMSprop(0.01)
        self.mean = tf_keras.metrics.Mean("mean")
        self.draws = {"of": tf.random.Generator.from_seed(4)}

    def call(self, x: Any) -> Any:
        return self.learned(x) + self.noise(x) * self.draws["of"].normal((1,))

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        for optimizer, layer in ((self.optimizer, self.learned), (self.second, self.noise)):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]


def adversary() -> Any:
    tf_keras.utils.set_random_seed(3)
    made = Adversary()
    made.compile("adam")
    return made


def test_a_model_with_a_step_optimizer_and_generator_of_its_own_comes_back(tmp_path: Path) -> None:
    require_exact(tmp_path, adversary, 12)


def test_steps_per_execution_that_does_not_divide_an_epoch_and_an_older_optimizer_come_back(
    tmp_path: Path,
) -> None:
    def make() -> Any:
        older = tf_keras.optimizers.legacy.Adam(0.01)
        return model(optimizer=older, steps_per_execution=3)

    require_exact(tmp_path, make, 6, class_weight={0: 1.0, 1: 2.0})


def test_an_unbroken_run_is_that_of_tf_keras_itself(tmp_path: Path) -> None:
    weights = {0: 1.0, 1: 3.0}
    made = model(plain=True)
    arguments = {"epochs": 3, "class_weight": weights, "verbose": 0}
    made.fit(data().to_tf(), **arguments)
    _, ours = run(tmp_path, lambda: model(plain=True), **arguments)
    assert ours.history.history == made.history.history
    assert digest(ours) == digest(made)


def test_a_stream_needs_steps_per_epoch_and_goes_on_in_the_middle_of_its_second_pass(
    tmp_path: Path,
) -> None:
    stream = ph.Dataset.range(40).filter(lambda x: x % 3 != 0).shuffle(8, seed=1)
    ds = stream.map(lambda x: (np.full(4, x / 40, np.float32), np.float32([x % 2]))).batch(5)
    with pytest.raises(PipelineError, match="say steps_per_epoch="):
        run(tmp_path / "none", ds=ds)
    require_exact(tmp_path, model, 8, ds=ds, steps_per_epoch=5)


class Counting(tf_keras.callbacks.Callback):
    """A callback of the user's that knows how many batches it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = np.zeros(2)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen = self.seen + 1

    def get_state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def usual(directory: Path) -> list[Any]:
    directory.mkdir(exist_ok=True)
    keras = tf_keras.callbacks
    return [
        keras.EarlyStopping("loss", min_delta=1.0, patience=4, restore_best_weights=True),
        keras.ReduceLROnPlateau("loss", min_delta=1.0, patience=2, factor=0.5, min_lr=1e-6),
        keras.ModelCheckpoint(
            str(directory / "{epoch}-{batch}.weights.h5"), save_freq=5, save_weights_only=True
        ),
        keras.CSVLogger(str(directory / "rows.csv")),
        Counting(),
    ]


def test_what_the_usual_callbacks_know_comes_back(tmp_path: Path) -> None:
    kept = []
    for name, stops in (("whole", ()), ("broken", (9, 20))):
        for stop in (*stops, None):
            callbacks = usual(tmp_path / f"{name}-files")
            _, ended = run(tmp_path / name, stop=stop, callbacks=callbacks, epochs=9, save_every=2)
        stopping, plateau, _, _, counting = callbacks
        files = sorted(file.name for file in (tmp_path / f"{name}-files").iterdir())
        known = [stopping.wait, stopping.best, stopping.stopped_epoch, plateau.wait, plateau.best]
        best = [weight.tolist() for weight in stopping.best_weights]
        rows = (tmp_path / f"{name}-files" / "rows.csv").read_text().splitlines()
        kept.append([known, best, files, counting.seen.tolist(), ended.history.history, rows])
    assert kept[0] == kept[1]
    assert kept[0][0][2] == 4 and kept[0][3] == [5 * STEPS] * 2
    assert kept[0][4]["lr"][0] > kept[0][4]["lr"][-1] and len(kept[0][5]) == 1 + 5


def test_a_run_that_ended_gives_its_history_and_larger_epochs_continues_it(tmp_path: Path) -> None:
    whole, expected = run(tmp_path / "whole", epochs=3)
    run(tmp_path / "run", epochs=2)
    lines, ended = run(tmp_path / "run", epochs=2)
    assert lines == [] and ended.history.epoch == [0, 1]
    lines, ended = run(tmp_path / "run", epochs=3)
    assert lines == whole[2 * (STEPS + 1) :]
    assert ended.history.history == expected.history.history
    assert digest(ended) == digest(expected)


def test_a_run_that_a_callback_stopped_is_over_until_epochs_is_larger(tmp_path: Path) -> None:
    def stopping() -> list[Any]:
        return [tf_keras.callbacks.EarlyStopping("loss", patience=2, min_delta=1.0)]

    _, ended = run(tmp_path, callbacks=stopping(), epochs=5)
    assert ended.history.epoch == [0, 1, 2]
    assert run(tmp_path, callbacks=stopping(), epochs=5)[0] == []
    _, ended = run(tmp_path, callbacks=stopping(), epochs=6)
    assert ended.history.epoch == [0, 1, 2, 3, 4]


def test_the_history_of_a_metric_that_this_process_calls_otherwise_goes_on(tmp_path: Path) -> None:
    def make() -> Any:
        return model(plain=True, metrics=[tf_keras.metrics.AUC()])

    run(tmp_path, make, epochs=1)
    _, ended = run(tmp_path, make, epochs=2)
    (name,) = [metric.name for metric in ended.metrics if metric.name != "loss"]
    assert name != "auc"
    assert {key: len(values) for key, values in ended.history.history.items()} == {
        "loss": 2,
        name: 2,
    }


def test_seeds_that_were_drawn_are_those_of_the_saved_run(tmp_path: Path) -> None:
    run(tmp_path / "run", ds=data(seed=None), stop=5)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    lines, _ = run(tmp_path / "run", ds=data(seed=None))
    assert run(tmp_path / "copy", ds=data(seed=None))[0] == lines


def test_dropout_from_a_kernel_s_memory_is_refused_with_the_call_that_helps(tmp_path: Path) -> None:
    tf_keras.backend.experimental.disable_tf_random_generator()
    with pytest.raises(TrainingError, match=r"RandomUniform \(.*dropout") as raised:
        run(tmp_path)
    assert "enable_tf_random_generator() before the model is made" in str(raised.value)
    lines, _ = run(tmp_path, lambda: model(plain=True))
    assert len(lines) == 2 * (STEPS + 1)


def test_a_model_that_runs_eagerly_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="runs eagerly"):
        run(tmp_path, lambda: model(run_eagerly=True))


def test_a_variable_that_the_model_does_not_lead_to_is_named(tmp_path: Path) -> None:
    scale = tf.Variable(2.0, name="scale_of_nobody")

    def make() -> Any:
        def loss(y: Any, found: Any) -> Any:
            return tf.reduce_mean((y - found) ** 2) * scale

        made = model()
        made.compile("sgd", loss)
        return made

    with pytest.warns(PlayheadWarning, match="not saved: scale_of_nobody:0"):
        run(tmp_path, make, epochs=1)


def test_what_was_saved_with_another_model_optimizer_or_data_is_refused(tmp_path: Path) -> None:
    run(tmp_path, stop=5)

    def wider() -> Any:
        made = model()
        other = tf_keras.Sequential([tf_keras.layers.Dense(9), *made.layers[1:]])
        other.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return other

    with pytest.raises(
        TrainingChanged, match=r"kernel  saved float32\[4, 8\]   ->   now float32\[4, 9\]"
    ):
        run(tmp_path, wider)
    faster = tf_keras.optimizers.Adam(0.5)
    with pytest.raises(
        TrainingChanged, match=r"optimizer.learning_rate  saved 0.001\d*   ->   now 0.5"
    ):
        run(tmp_path, lambda: model(optimizer=faster))
    with pytest.raises(TrainingChanged, match=r"fit.steps_per_epoch  saved 7   ->   now 5"):
        run(tmp_path, steps_per_epoch=5)
    with pytest.raises(PipelineChanged):
        run(tmp_path, ds=data(seed=8))
    lines, _ = run(tmp_path)
    assert len(lines) == 2 * (STEPS + 1) - 3


def test_resume_says_whether_there_has_to_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        run(tmp_path, resume="must")
    run(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match="holds a run already"):
        run(tmp_path, resume="never")


def test_the_directory_of_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, {"kind": "playhead.keras"}, {}, keep=1)
    with pytest.raises(CheckpointError, match=r"written by playhead\.keras\.fit"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", 1),
        ("y", 1),
        ("sample_weight", 1),
        ("batch_size", 8),
        ("shuffle", True),
        ("validation_split", 0.1),
        ("initial_epoch", 1),
    ],
)
def test_arguments_that_the_pipeline_or_the_checkpoint_says_are_refused(
    name: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"{name}= is refused"):
        run(tmp_path, **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_arrays_in_place_of_a_dataset_are_refused_with_what_to_write(tmp_path: Path) -> None:
    x, y = np.ones((4, 2), np.float32), np.ones(4, np.float32)
    called: Any = fit
    with pytest.raises(TypeError, match="x= is refused: the dataset is the second argument"):
        called(model(), x=data(), checkpoint=tmp_path)
    with pytest.raises(TypeError, match=r"several arguments in its place: .*slices\(\(x, y\)\)"):
        called(model(), x, y, checkpoint=tmp_path)


def test_a_run_that_begins_where_another_left_no_save_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, stop=2)
    run(tmp_path, stop=5, verbose=2)
    said = "began in .*/ and ended before its first save .save_every=3.: this one begins anew\n"
    assert re.search(said + "playhead: starting ", capsys.readouterr().out)
    run(tmp_path, verbose=2)
    out = capsys.readouterr().out
    assert "playhead: resuming " in out and "first save" not in out


def test_what_is_no_model_or_callback_of_tf_keras_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"takes a tf_keras\.Model, not object"):
        fit(object(), data(), checkpoint=tmp_path)
    with pytest.raises(TypeError, match=r"takes a playhead\.Dataset, not range"):
        fit(model(), range(3), checkpoint=tmp_path)
    with pytest.raises(TypeError, match=r"builtins\.object is no callback of tf_keras"):
        run(tmp_path, callbacks=[object()])
    backup = tf_keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(TrainingError, match="BackupAndRestore is among the callbacks"):
        run(tmp_path, callbacks=[backup])
