"""What fit refuses, before anything is trained, and with which words."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, model

import playhead as ph
from playhead.errors import (
    CheckpointError,
    PipelineChanged,
    PipelineError,
    PlayheadWarning,
    TrainingChanged,
    TrainingError,
)
from playhead.keras import checkpoint, fit
from playhead.keras.cadence import Cadence


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run saved after step 9 of 21. Tests that train on it take a copy."""
    where = tmp_path_factory.mktemp("broken")
    with pytest.raises(Broken):
        fit(
            model(),
            data(),
            checkpoint=where,
            epochs=3,
            save_every=1,
            verbose=0,
            callbacks=[Journal(10)],
        )
    assert checkpoint.latest(where)[1]["step"] == 9
    return where


@pytest.fixture
def copy(broken: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(broken, tmp_path / "copy"))


def test_another_optimizer_is_refused_naming_both(broken: Path) -> None:
    with pytest.raises(TrainingChanged, match=r"optimizer  saved Adam   ->   now SGD"):
        fit(model("sgd"), data(), checkpoint=broken, epochs=3, verbose=0)


def test_another_loss_is_refused(broken: Path) -> None:
    other = model()
    other.compile("adam", "mse", metrics=["accuracy"])
    with pytest.raises(TrainingChanged, match=r"loss  saved binary_crossentropy   ->   now mse"):
        fit(other, data(), checkpoint=broken, epochs=3, verbose=0)


def test_another_learning_rate_is_refused_unless_overridden(copy: Path) -> None:
    slow = model(keras.optimizers.Adam(1e-4))
    with pytest.raises(TrainingChanged, match=r"optimizer\.learning_rate  saved 0\.001") as raised:
        fit(slow, data(), checkpoint=copy, epochs=3, verbose=0)
    assert 'override=["optimizer.learning_rate"]' in str(raised.value)
    journal = Journal()
    fit(
        slow,
        data(),
        checkpoint=copy,
        epochs=3,
        verbose=0,
        callbacks=[journal],
        override=["optimizer.learning_rate"],
    )
    assert len(journal.lines) == 12
    assert float(slow.optimizer.learning_rate.numpy()) == pytest.approx(1e-4)
    assert int(slow.optimizer.iterations.numpy()) == 21
    assert checkpoint.latest(copy)[1]["settings"]["optimizer.learning_rate"] == pytest.approx(1e-4)


def test_a_fresh_optimizer_can_be_asked_for(copy: Path) -> None:
    other = model("sgd")
    fit(other, data(), checkpoint=copy, epochs=3, verbose=0, override="optimizer")
    assert int(other.optimizer.iterations.numpy()) == 12


def test_a_schedule_can_replace_a_learning_rate(copy: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)
    other = model(keras.optimizers.Adam(schedule))
    fit(other, data(), checkpoint=copy, epochs=3, verbose=0, override="optimizer.learning_rate")
    assert int(other.optimizer.iterations.numpy()) == 21


def test_other_layers_are_refused_by_name_before_training(broken: Path) -> None:
    wide, journal = model(width=9), Journal()
    with pytest.raises(TrainingChanged) as raised:
        fit(wide, data(), checkpoint=broken, epochs=3, verbose=0, callbacks=[journal])
    assert (
        "saved sequential/dense/kernel  float32[4, 8]   ->   now sequential/dense/kernel  float32[4, 9]"
        in str(raised.value)
    )
    assert journal.lines == []


def test_an_added_layer_is_named(broken: Path) -> None:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    more = keras.Sequential(
        [
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid"),
            layers.Dense(1, name="head"),
        ]
    )
    more.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    with pytest.raises(TrainingChanged, match="now sequential/head/kernel"):
        fit(more, data(), checkpoint=broken, epochs=3, verbose=0)


def test_names_that_keras_counts_up_are_no_change(broken: Path) -> None:
    for _ in range(2):
        keras.layers.Dense(1), keras.optimizers.Adam(), keras.metrics.MeanSquaredError()
    with pytest.raises(PipelineChanged):  # it got past the model
        fit(model(), data(seed=4), checkpoint=broken, epochs=3, verbose=0)


def test_another_pipeline_is_refused(broken: Path) -> None:
    with pytest.raises(PipelineChanged, match="shuffle"):
        fit(model(), data(seed=4), checkpoint=broken, epochs=3, verbose=0)


def test_other_class_weights_or_steps_are_refused(broken: Path) -> None:
    with pytest.raises(TrainingChanged, match=r"fit\.class_weight\.1"):
        fit(model(), data(), checkpoint=broken, epochs=3, verbose=0, class_weight={0: 1.0, 1: 2.0})
    with pytest.raises(TrainingChanged, match=r"fit\.steps_per_epoch  saved None   ->   now 5"):
        fit(model(), data(), checkpoint=broken, epochs=3, verbose=0, steps_per_epoch=5)


def test_steps_per_epoch_can_be_overridden(copy: Path) -> None:
    journal = Journal()
    fit(
        model(),
        data(),
        checkpoint=copy,
        epochs=3,
        verbose=0,
        callbacks=[journal],
        steps_per_epoch=4,
        override="fit.steps_per_epoch",
    )
    assert [line.split(" [")[0] for line in journal.lines] == [
        "epoch 1 batch 2",
        "epoch 1 batch 3",
        *(f"epoch 2 batch {k}" for k in range(4)),
    ]


def test_must_and_never_ask_for_what_is_there(tmp_path: Path, broken: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        fit(model(), data(), checkpoint=tmp_path, resume="must", verbose=0)
    with pytest.raises(CheckpointError, match="holds a run already"):
        fit(model(), data(), checkpoint=broken, resume="never", verbose=0)


def test_a_damaged_newest_save_costs_the_steps_since_the_one_before(copy: Path) -> None:
    (checkpoint.saves(copy)[-1] / "arrays.npz").write_bytes(b"")
    journal = Journal()
    with pytest.warns(PlayheadWarning, match="step-0000000009") as said:
        fit(model(), data(), checkpoint=copy, epochs=3, verbose=0, callbacks=[journal])
    assert [warning.filename for warning in said] == [__file__]
    assert len(journal.lines) == 3 * STEPS - 8


@pytest.mark.parametrize("initial", [2, 5])
def test_a_new_run_whose_initial_epoch_leaves_nothing_to_train_is_refused(
    tmp_path: Path, initial: int
) -> None:
    with pytest.raises(ValueError, match=f"initial_epoch={initial} .* leaves nothing to train"):
        fit(model(), data(), checkpoint=tmp_path, epochs=2, initial_epoch=initial, verbose=0)
    assert not checkpoint.saves(tmp_path)


def test_initial_epoch_beyond_the_checkpoint_is_refused(broken: Path) -> None:
    with pytest.raises(TrainingError, match="initial_epoch=2"):
        fit(model(), data(), checkpoint=broken, epochs=3, initial_epoch=2, verbose=0)


@pytest.mark.parametrize(
    "argument", ["y", "batch_size", "shuffle", "validation_split", "sample_weight"]
)
def test_arguments_that_belong_to_the_pipeline_are_refused(tmp_path: Path, argument: str) -> None:
    with pytest.raises(TypeError, match=f"{argument}= is refused: "):
        fit(model(), data(), checkpoint=tmp_path, **{argument: 1})


def test_data_that_are_given_as_keras_takes_them_are_refused_with_what_to_write(
    tmp_path: Path,
) -> None:
    x, y = np.ones((4, 2), np.float32), np.ones(4, np.float32)
    called: Any = fit
    with pytest.raises(TypeError, match="x= is refused: the dataset is the second argument"):
        called(model(), x=data(), checkpoint=tmp_path)
    with pytest.raises(TypeError, match=r"several arguments in its place: .*slices\(\(x, y\)\)"):
        called(model(), x, y, checkpoint=tmp_path)
    with pytest.raises(TypeError, match=r'by place, .*fit\(model, ds, checkpoint="run"'):
        called(model(), data(), tmp_path)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'ds'"):
        called(model(), checkpoint=tmp_path)
    assert list(inspect.signature(fit).parameters)[:2] == ["model", "ds"]


def test_backup_and_restore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="BackupAndRestore"):
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "x")],
        )


def test_elements_that_no_model_learns_from_are_named(tmp_path: Path) -> None:
    rows = ph.Dataset.from_tensor_slices(
        {"x": np.ones((4, 2), np.float32), "label": ["a", "b", "c", "d"]}
    )
    with pytest.raises(PipelineError, match=r"element\['label'\] holds str"):
        fit(model(), rows.batch(2), checkpoint=tmp_path, verbose=0)
    with pytest.raises(
        PipelineError, match=r"element\[1\] is one float32, where fit needs .* batch axis"
    ):
        fit(
            model(),
            ph.Dataset.from_tensor_slices((np.ones((4, 2), np.float32), np.ones(4, np.float32))),
            checkpoint=tmp_path,
            verbose=0,
        )


def test_an_endless_or_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="steps_per_epoch="):
        fit(model(), data().repeat(), checkpoint=tmp_path, verbose=0)
    with pytest.raises(PipelineError, match="empty"):
        fit(model(), data().take(0), checkpoint=tmp_path, verbose=0)


def test_steps_per_execution_must_divide_the_epoch(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match="steps_per_execution=2 does not divide an epoch of 7 steps"
    ):
        fit(model(steps_per_execution=2), data(), checkpoint=tmp_path, verbose=0)


def test_a_model_that_is_not_compiled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compile"):
        fit(keras.Sequential([keras.layers.Dense(1)]), data(), checkpoint=tmp_path)


@pytest.mark.parametrize(
    "every",
    ["soon", "10 fortnights", 0, -1, "0s", "0 epoch", "-1 epoch", True, 1.5, "1.5 epochs", None],
)
def test_save_every_is_understood_or_refused(every: Any) -> None:
    with pytest.raises(ValueError, match="save_every="):
        Cadence(every)


def test_saves_fall_due_by_steps_time_and_epochs() -> None:
    now = [0.0]
    steps, timed, epochs = Cadence(500), Cadence("2min", clock=lambda: now[0]), Cadence("2 epochs")
    assert [s for s in range(100, 2000, 100) if steps.after_steps(s - 100, s)] == [500, 1000, 1500]
    assert not timed.after_steps(0, 1)
    now[0] = 120.0
    assert timed.after_steps(1, 2)
    timed.saved()
    assert not timed.after_steps(2, 3)
    assert [e for e in range(1, 7) if epochs.after_epoch(e)] == [2, 4, 6]
    assert not epochs.after_steps(0, 10**6) and not steps.after_epoch(1)


def test_the_end_of_an_epoch_is_saved_by_the_clock_where_that_is_not_too_often() -> None:
    now = [0.0]
    timed = Cadence("10min", clock=lambda: now[0])

    def epoch_of(seconds: float, *, saved_within: bool = False, saving: float = 0.1) -> bool:
        timed.begin_epoch()
        if saved_within:
            timed.saved()
        now[0] += seconds
        due = timed.after_epoch(1)
        if due:
            began = timed.now()
            now[0] += saving
            timed.saved(began)
        return due

    assert [epoch_of(2) for _ in range(6)] == [False, False, True, False, False, True]
    assert not epoch_of(60, saved_within=True)
    assert epoch_of(60, saving=3)  # 20 times what a save took must have passed since
    assert [epoch_of(25) for _ in range(3)] == [False, False, True]
    assert not Cadence("10min").after_epoch(1)


def test_a_refused_run_leaves_its_checkpoint_as_it_was(broken: Path) -> None:
    before = sorted(str(p) for p in broken.rglob("*"))
    with pytest.raises(TrainingChanged):
        fit(model("sgd"), data(), checkpoint=broken, epochs=3, verbose=0)
    assert sorted(str(p) for p in broken.rglob("*")) == before


def test_an_error_in_the_pipeline_arrives_as_it_was_raised(tmp_path: Path) -> None:
    def careless(x: Any, y: Any) -> Any:
        if x[0] > 0.97:
            raise ZeroDivisionError("one row is too much")
        return x, y

    rows = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    ds = ph.Dataset.from_tensor_slices((rows, rows)).map(careless, form="python").batch(4)
    with pytest.raises(ZeroDivisionError, match="one row is too much"):
        fit(model(), ds, checkpoint=tmp_path, verbose=0, save_every=1)


@pytest.mark.parametrize(
    "given",
    [
        {"keep": 0},
        {"keep": -1},
        {"keep": True},
        {"keep": 1.5},
        {"keep": "2"},
        {"save_every": 0},
        {"save_every": "0 epoch"},
        {"save_every": "-1 epoch"},
        {"epochs": 0},
        {"epochs": 2.5},
        {"epochs": True},
        {"epochs": "3"},
        {"initial_epoch": -1},
        {"initial_epoch": 0.5},
        {"steps_per_epoch": 0},
        {"steps_per_epoch": 2.0},
        {"resume": "yes"},
        {"on_preempt": "stop"},
        {"on_change": "ignore"},
        {"checkpoint": ""},
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        fit(model(), data(), **{"checkpoint": tmp_path / "run", "verbose": 0, **given})
    assert not (tmp_path / "run").exists()


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path: Path) -> None:
    history = fit(
        model(), data(), checkpoint=tmp_path, verbose=0, epochs=np.int64(1), keep=np.int32(1)
    )
    assert history.epoch == [0]


def test_a_filter_that_keeps_nothing_is_said_to(tmp_path: Path) -> None:
    ds = data().filter(lambda x, y: False)
    for net in (model(), keras.models.clone_model(model())):
        net.compile("sgd", "mse")
        with pytest.raises(PipelineError, match="pass 1 over the dataset gave no element"):
            fit(net, ds, checkpoint=tmp_path, epochs=2, verbose=0)


def fading(*, batches: int) -> ph.Dataset:
    """A stream whose first pass has that many batches, and whose later ones have none."""
    rows = np.ones((4 * batches, 4), np.float32)
    ds = ph.Dataset.from_tensor_slices((rows, rows[:, :1]))
    kept = 4 * batches

    def keep(x: Any, y: Any) -> bool:
        nonlocal kept
        kept -= 1
        return kept >= 0

    return ds.filter(keep).batch(4)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_later_pass_that_is_empty_fails_only_when_an_epoch_needs_it(
    tmp_path: Path, batches: int
) -> None:
    history = fit(
        model(),
        fading(batches=batches),
        checkpoint=tmp_path / "one",
        epochs=1,
        verbose=0,
        validation_data=data(),
    )
    assert history.epoch == [0] and "val_loss" in history.history
    with pytest.raises(PipelineError, match="pass 2 over the dataset gave no element"):
        fit(
            model(),
            fading(batches=batches),
            checkpoint=tmp_path / "two",
            epochs=3,
            save_every="1 epoch",
            verbose=0,
            validation_data=data(),
        )
    saved = checkpoint.latest(tmp_path / "two")[1]
    assert saved["epoch"] == 1 and "val_loss" in saved["history"]


def test_an_error_of_the_program_is_not_taken_for_one_of_the_data(tmp_path: Path) -> None:
    class Careless(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise ZeroDivisionError("of its own")

    with pytest.raises(ZeroDivisionError, match="of its own"):
        fit(
            model(),
            fading(batches=2),
            checkpoint=tmp_path,
            epochs=2,
            verbose=0,
            callbacks=[Careless()],
        )


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere://bucket/run", "nowhere://bucket/run cannot be used: Protocol not known"),
        (Path("s3://bucket/run"), "made one slash of two"),
    ],
)
def test_a_checkpoint_url_that_cannot_be_used_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, why: str
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    journal = Journal()
    with pytest.raises(CheckpointError, match=why):
        fit(model(), data(), checkpoint=path, verbose=0, callbacks=[journal])
    assert journal.lines == [] and not list(tmp_path.iterdir())


def test_a_checkpoint_path_that_is_no_directory_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    journal = Journal()
    for path, why in [
        ("file", "is a file"),
        ("file/run", r"cannot be written \(Not a directory\)"),
    ]:
        with pytest.raises(CheckpointError, match=why):
            fit(model(), data(), checkpoint=tmp_path / path, verbose=0, callbacks=[journal])
    assert journal.lines == [] and (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    journal = Journal()
    monkeypatch.setattr(Path, "mkdir", refuse)  # tests may run as root, who may write anywhere
    with pytest.raises(CheckpointError, match=r"cannot be written \(Permission denied\)"):
        fit(model(), data(), checkpoint=tmp_path / "run", verbose=0, callbacks=[journal])
    assert journal.lines == []


def test_a_model_made_outside_the_scope_that_fit_is_called_in_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    net = model()
    with (
        tf.distribute.MirroredStrategy(["/cpu:0"]).scope(),
        pytest.raises(
            TrainingError, match="scope of a MirroredStrategy, and the model was made outside"
        ),
    ):
        fit(net, data(), checkpoint=tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def test_a_backend_that_does_not_train_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with pytest.raises(
        TrainingError, match="Keras runs on the backend numpy, which does not train"
    ):
        fit(model(), data(), checkpoint=tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def test_jax_in_several_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(TrainingError, match="2 processes, each of which would write"):
        fit(model(), data(), checkpoint=tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


def test_what_is_no_playhead_dataset_is_refused_with_what_to_write(tmp_path: Path) -> None:
    def refused(*given: Any) -> str:
        with pytest.raises(TypeError) as raised:
            fit(*given, checkpoint=tmp_path / "run", verbose=0)
        assert not (tmp_path / "run").exists()
        return str(raised.value)

    for ds in (data().to_tf(), data().to_tf().prefetch(2)):
        said = refused(model(), ds)
        assert "a tf.data.Dataset" in said and "give ds itself" in said
        assert "playhead.Dataset.from_tfrecords(files)" in said and "from_generator" in said
    for iterator in (data().iterator(), ph.tensorflow.iterator(data())):
        assert "an iterator: give the playhead.Dataset" in refused(model(), iterator)
    assert "the model is the first argument" in refused(data(), model())
    assert "the model is the first argument" in refused(data(), data())
    assert "from_tensor_slices((x, y))" in refused(model(), np.ones((3, 2)))


def test_what_a_strategy_has_split_is_refused_naming_the_whole_dataset(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    whole = data().to_tf()
    spread = strategy.experimental_distribute_dataset(whole)
    made = strategy.distribute_datasets_from_function(lambda context: whole)
    for given in (spread, made, iter(spread)):
        with pytest.raises(TypeError, match=r"give the dataset that was split, of whole batches"):
            fit(model(), given, checkpoint=tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["lol", "learning_rate"])
def test_an_unknown_name_in_override_is_refused_with_the_known_ones(
    broken: Path, tmp_path: Path, name: str
) -> None:
    journal = Journal()
    for where in (tmp_path / "new", broken):
        with pytest.raises(ValueError, match=rf"override= names '{name}'") as raised:
            fit(
                model(),
                data(),
                checkpoint=where,
                epochs=3,
                verbose=0,
                override=[name],
                callbacks=[journal],
            )
        said = str(raised.value)
        for known in ("optimizer.learning_rate", "model", "shuffle", "loss", "fit"):
            assert known in said.split("; known are ")[1].split(", ")
        assert ("meant: 'optimizer.learning_rate'" in said) == (name == "learning_rate")
    assert journal.lines == []
