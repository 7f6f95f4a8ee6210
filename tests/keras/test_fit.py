"""A fit that is broken off and started again is the fit that never was."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, digest, model

import playhead as ph
from playhead.keras import checkpoint, fit, state


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Any, str]:
    """The journal, History and final state of three epochs in one go."""
    return run(model(), data(), tmp_path_factory.mktemp("straight"), validation_data=data())


def run(
    model: Any, ds: ph.Dataset, where: Path, *stops: int, **arguments: Any
) -> tuple[list[str], Any, str]:
    """Trains, breaking off after `stops` steps each time; what survives of the journals, joined."""
    arguments = {"epochs": 3, "save_every": 2, "verbose": 0, **arguments}
    extra = arguments.pop("callbacks", list)
    lines: list[str] = []
    build = model if callable(model) and not isinstance(model, keras.Model) else lambda: model
    for stop in (*stops, None):
        journal, trained = Journal(stop), build()
        with contextlib.suppress(Broken):
            history = fit(trained, ds, checkpoint=where, callbacks=[journal, *extra()], **arguments)
        step = checkpoint.latest(where)[1]["step"] if checkpoint.saves(where) else 0
        lines = [*lines, *journal.lines][:step]
    return lines, history, digest(trained)


def same(one: tuple[list[str], Any, str], other: tuple[list[str], Any, str]) -> None:
    assert one[0] == other[0]
    assert one[1].epoch == other[1].epoch
    assert one[1].history == other[1].history
    assert one[2] == other[2]


@pytest.mark.parametrize(
    ("save_every", "stops"),
    [(1, (1, 1, 1)), (2, (STEPS + 3,)), (3, (2, 2 * STEPS + 4)), ("1 epoch", (STEPS + 2,))],
)
def test_a_run_broken_off_goes_on_bit_for_bit(
    tmp_path: Path, straight: Any, save_every: Any, stops: tuple[int, ...]
) -> None:
    same(
        run(model, data(), tmp_path, *stops, save_every=save_every, validation_data=data()),
        straight,
    )


def test_validation_is_not_skipped_after_a_save_at_the_last_batch(
    tmp_path: Path, straight: Any
) -> None:
    class Unplugged(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            raise Broken

    with pytest.raises(Broken):
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            save_every=STEPS,
            epochs=3,
            verbose=0,
            callbacks=[Unplugged()],
            validation_data=data(),
        )
    saved = checkpoint.latest(tmp_path)[1]
    assert (saved["step"], saved["epoch"], saved["step_in_epoch"]) == (STEPS, 0, STEPS)
    assert saved["epoch_complete"]
    _, history, final = run(model(), data(), tmp_path, validation_data=data())
    assert history.history == straight[1].history
    assert history.epoch == [0, 1, 2]
    assert final == straight[2]


def test_15_items_in_three_epochs_with_a_save_every_two_batches(tmp_path: Path) -> None:
    ds = ph.Dataset.range(15).shuffle(buffer_size=8, seed=5).batch(4)

    def learn(stop: int | None, where: Path) -> list[list[int]]:
        seen: list[list[int]] = []

        class Seeing(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.count = self.add_weight(shape=(), initializer="zeros")
                self.built = True

            def train_step(self, batch: Any) -> dict[str, Any]:
                seen.append([int(v) for v in batch[0]])
                self.count.assign_add(1.0)
                return {"loss": self.count * 0.0}

            def call(self, x: Any) -> Any:
                return x

        made = Seeing()
        made.compile("sgd", "mse", run_eagerly=True)
        try:
            fit(
                made,
                ds,
                checkpoint=where,
                save_every=2,
                epochs=3,
                verbose=0,
                callbacks=[Journal(stop)],
            )
        except Broken:
            return seen
        assert float(made.count.numpy()) == 12
        return seen

    whole = learn(None, tmp_path / "whole")
    before = learn(5, tmp_path / "broken")
    assert checkpoint.latest(tmp_path / "broken")[1]["step"] == 4
    after = learn(None, tmp_path / "broken")
    assert before == whole[:5]
    assert after == whole[4:]
    epochs = [list(itertools.chain(*whole[start : start + 4])) for start in (0, 4, 8)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(15))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_crash_in_epoch_2_batch_3_takes_no_more_optimizer_steps_than_none(tmp_path: Path) -> None:
    ds = data(n=40, batch=8)
    lines, _, _ = run(model, ds, tmp_path, len(ds) + 3, epochs=2, save_every=1)
    trained = model()
    fit(trained, ds, checkpoint=tmp_path, epochs=2, verbose=0)
    assert int(trained.optimizer.iterations.numpy()) == 10 == len(lines)


def test_callbacks_and_the_progress_bar_go_on_in_the_middle_of_the_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Broken):
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=3,
            save_every=1,
            verbose=0,
            callbacks=[Journal(12)],
        )
    journal = Journal(2)
    with pytest.raises(Broken):
        fit(model(), data(), checkpoint=tmp_path, epochs=3, save_every=1, callbacks=[journal])
    assert [line.split(" [")[0] for line in journal.lines] == ["epoch 1 batch 4", "epoch 1 batch 5"]
    said = capsys.readouterr().out
    assert f"resuming {tmp_path}/ at epoch 2/3, step 4/7 (step 11 of the run)" in said
    assert "Epoch 2/3" in said
    assert "5/7" in said
    assert "1/7" not in said


def test_a_finished_run_returns_its_history_and_trains_nothing(tmp_path: Path) -> None:
    first, second = model(), model()
    history = fit(first, data(), checkpoint=tmp_path, epochs=2, verbose=0)
    journal = Journal()
    again = fit(second, data(), checkpoint=tmp_path, epochs=2, verbose=0, callbacks=[journal])
    assert journal.lines == []
    assert again.history == history.history and again.epoch == [0, 1]
    assert second.history is again
    assert digest(first) == digest(second)


@pytest.mark.parametrize("fresh", [True, False])
def test_more_epochs_continue_a_finished_run(tmp_path: Path, straight: Any, fresh: bool) -> None:
    trained = model()
    fit(trained, data(), checkpoint=tmp_path, epochs=1, verbose=0, validation_data=data())
    trained = model() if fresh else trained
    history = fit(trained, data(), checkpoint=tmp_path, epochs=3, verbose=0, validation_data=data())
    assert history.history == straight[1].history
    assert digest(trained) == straight[2]


def test_a_run_stopped_early_is_finished(tmp_path: Path) -> None:
    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    fit(model(), data(), checkpoint=tmp_path, epochs=9, verbose=0, callbacks=[Enough()])
    journal = Journal()
    history = fit(model(), data(), checkpoint=tmp_path, epochs=9, verbose=0, callbacks=[journal])
    assert journal.lines == [] and history.epoch == [0, 1]


def test_steps_per_epoch_may_differ_from_the_data(tmp_path: Path) -> None:
    whole = run(model(), data(), tmp_path / "a", steps_per_epoch=5)
    assert len(whole[0]) == 15
    same(run(model, data(), tmp_path / "b", 4, 5, steps_per_epoch=5), whole)
    assert checkpoint.latest(tmp_path / "b")[1]["position"]["epoch"] == 2
    endless = data().repeat()
    assert len(run(model(), endless, tmp_path / "c", steps_per_epoch=5)[0]) == 15


def test_several_steps_per_execution_are_saved_where_an_execution_ends(tmp_path: Path) -> None:
    def made() -> Any:
        return model(steps_per_execution=2)

    whole = run(made(), data(n=64), tmp_path / "a", save_every=1)
    assert len(whole[0]) == 3 * 4
    broken: list[str] = []
    for stop in (5, None):
        journal, trained = Journal(stop), made()
        try:
            fit(
                trained,
                data(n=64),
                checkpoint=tmp_path / "b",
                epochs=3,
                save_every=3,
                verbose=0,
                callbacks=[journal],
            )
        except Broken:
            assert checkpoint.latest(tmp_path / "b")[1]["step"] == 6
        broken += journal.lines[:3] if stop else journal.lines
    assert broken == whole[0]
    assert digest(trained) == whole[2]


@pytest.mark.parametrize("stops", [(4,), (9, 1)])
def test_a_stream_of_unknown_length_ends_its_epochs_where_its_passes_end(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    # Noise decides what is kept, so each pass has another length.
    def unsettle(x: Any, y: Any, rng: np.random.Generator) -> Any:
        return x + np.float32(rng.normal()), y

    rows = np.random.default_rng(1).random((60, 4), np.float32)
    ds = ph.Dataset.from_tensor_slices((rows, rows[:, :1])).map(unsettle, rng=True, seed=2)
    ds = ds.filter(lambda x, y: x[0] > 1).batch(3)
    assert ds.cardinality() == -2
    passes = [len(list(ds.epoch(e))) for e in range(3)]
    assert len(set(passes)) > 1
    whole = run(model(), ds, tmp_path / "whole", validation_data=data())
    ends = [line.split(" [")[0] for line in whole[0]]
    assert ends == [f"epoch {e} batch {k}" for e in range(3) for k in range(passes[e])]
    same(run(model, ds, tmp_path / "broken", *stops, save_every=1, validation_data=data()), whole)


def test_a_stream_saved_at_the_end_of_a_pass_goes_on_with_the_next(tmp_path: Path) -> None:
    ds = ph.Dataset(data().node.parents[0]).filter(lambda x, y: x[0] > 0.3).batch(8)
    first = len(list(ds.epoch(0)))
    whole = run(model(), ds, tmp_path / "whole", validation_data=data())
    same(
        run(model, ds, tmp_path / "broken", first + 1, save_every=first, validation_data=data()),
        whole,
    )


def test_padded_batches_of_any_length_fit(tmp_path: Path) -> None:
    def grow(n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((max(3, int(n) - 20), 1), np.float32), np.float32([n])

    def made() -> Any:
        keras.utils.set_random_seed(1)
        net = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
        net.compile("sgd", "mse")
        return net

    ds = ph.Dataset.range(40).map(grow).padded_batch(4)
    whole = run(made(), ds, tmp_path / "a", validation_data=ds)
    same(run(made, ds, tmp_path / "b", 7, validation_data=ds), whole)


def test_a_new_run_from_initial_epoch_on_sees_the_data_of_that_epoch(tmp_path: Path) -> None:
    seen = []
    for initial in (0, 2):
        keras.utils.set_random_seed(1)
        net = keras.Sequential([keras.layers.Dense(1)])
        net.compile(keras.optimizers.SGD(0.0), "mse")
        history = fit(
            net,
            data(),
            checkpoint=tmp_path / str(initial),
            epochs=3,
            verbose=0,
            initial_epoch=initial,
        )
        seen.append(history)
    assert seen[1].epoch == [2]
    assert seen[1].history["loss"] == seen[0].history["loss"][2:]


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
def test_a_schedule_by_epoch_is_not_applied_twice(tmp_path: Path) -> None:
    def halving() -> list[Any]:
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]

    whole = run(model(), data(), tmp_path / "a", callbacks=halving)
    same(run(model, data(), tmp_path / "b", STEPS + 2, 2, callbacks=halving), whole)


def test_a_learning_rate_schedule_goes_on(tmp_path: Path) -> None:
    def made() -> Any:
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
        return model(keras.optimizers.SGD(schedule, momentum=0.9))

    whole = run(made(), data(), tmp_path / "a")
    same(run(made, data(), tmp_path / "b", STEPS + 2), whole)


def test_layers_that_draw_from_keras_global_generator_go_on(tmp_path: Path) -> None:
    class Noisy(keras.layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            return x + keras.random.normal(keras.ops.shape(x)) * 0.1

    def made() -> Any:
        keras.utils.set_random_seed(1)
        net = keras.Sequential([Noisy(), keras.layers.Dense(1)])
        net.compile("adam", "mse")
        return net

    whole = run(made(), data(), tmp_path / "a")
    same(run(made, data(), tmp_path / "b", STEPS + 2), whole)


class Drawing(keras.callbacks.Callback):
    """Draws from Keras' global generator at the end of each epoch from some epoch on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch >= self._first:
            logs["drawn"] = float(keras.random.normal(()))


def seeded() -> Any:
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.layers.Dense(1)])
    net.compile("adam", "mse")
    return net


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("before", [0, 3])
def test_draws_that_a_program_makes_before_fit_change_nothing_after_the_resume(
    tmp_path: Path, first: int, before: int
) -> None:
    # The program has drawn from the generator before it resumes or not, the run before its save or not.
    def made() -> Any:
        return seeded(), [keras.random.normal((2,)) for _ in range(before)]

    def drawing() -> list[Any]:
        return [Drawing(first)]

    whole = run(seeded(), data(), tmp_path / "a", callbacks=drawing)
    same(
        run(
            lambda: made()[0] if checkpoint.saves(tmp_path / "b") else seeded(),
            data(),
            tmp_path / "b",
            STEPS + 3,
            callbacks=drawing,
        ),
        whole,
    )


def test_a_save_without_a_global_generator_leaves_none() -> None:
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    without = state.capture(net)
    assert without["seeds"] == []
    keras.random.normal((2,))
    with_one = state.capture(net)
    state.restore(net, without)
    assert state.capture(net)["seeds"] == []
    before = random.getstate()
    state.restore(net, with_one)
    assert random.getstate() == before
    assert (state.capture(net)["seeds"][0][1] == with_one["seeds"][0][1]).all()


def test_bfloat16_variables_go_on(tmp_path: Path) -> None:
    def made() -> Any:
        keras.utils.set_random_seed(1)
        net = keras.Sequential([keras.layers.Dense(8, dtype="bfloat16"), keras.layers.Dense(1)])
        net.compile("adam", "mse")
        return net

    whole = run(made(), data(), tmp_path / "a")
    same(run(made, data(), tmp_path / "b", STEPS + 2), whole)


def test_a_seed_that_was_drawn_is_taken_over(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        fit(
            model(),
            data(None),
            checkpoint=tmp_path,
            epochs=2,
            save_every=1,
            verbose=0,
            callbacks=[Journal(4)],
        )
    before = checkpoint.latest(tmp_path)[1]["position"]["pipeline"]
    fit(model(), data(None), checkpoint=tmp_path, epochs=2, verbose=0)
    after = checkpoint.latest(tmp_path)[1]["position"]["pipeline"]
    assert before == after


def test_weights_of_samples_and_classes_are_kerass_own(tmp_path: Path) -> None:
    weighted = data().map(lambda x, y: (x, y, np.ones(len(y), np.float32)))
    plain = run(model(), data(), tmp_path / "a")
    assert run(model(), weighted, tmp_path / "b")[2] == plain[2]
    heavy = run(model(), data(), tmp_path / "c", class_weight={0: 1.0, 1: 5.0})
    assert heavy[2] != plain[2]
    same(run(model, data(), tmp_path / "d", 4, class_weight={0: 1.0, 1: 5.0}), heavy)


def test_a_pipeline_with_prefetch_of_its_own_gives_the_same(tmp_path: Path, straight: Any) -> None:
    ahead = data().prefetch(4, workers=3)
    same(run(model, ahead, tmp_path, STEPS + 2, validation_data=data()), straight)


def test_training_is_that_of_keras_itself(tmp_path: Path, straight: Any) -> None:
    class Epochs(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__()
            self.epochs = [list(data().epoch(e)) for e in range(3)]

        def __len__(self) -> int:
            return 3 * STEPS

        def __getitem__(self, k: int) -> Any:
            return self.epochs[k // STEPS][k % STEPS]

    net = model()
    net.fit(Epochs(), epochs=3, steps_per_epoch=STEPS, shuffle=False, verbose=0)
    assert digest(net) == straight[2]


def test_a_batch_size_may_change_by_record(tmp_path: Path) -> None:
    rows = ph.Dataset.from_tensor_slices(
        (np.arange(48, dtype=np.float32)[:, None], np.zeros((48, 1), np.float32))
    )
    with pytest.raises(Broken):
        fit(
            model(),
            rows.batch(8),
            checkpoint=tmp_path,
            epochs=2,
            save_every=1,
            verbose=0,
            callbacks=[Journal(5)],
        )
    with pytest.raises(ph.errors.PipelineChanged):
        fit(model(), rows.batch(4), checkpoint=tmp_path, epochs=2, verbose=0)
    journal = Journal()
    fit(
        model(),
        rows.batch(4),
        checkpoint=tmp_path,
        epochs=2,
        verbose=0,
        callbacks=[journal],
        on_change="by_record",
    )
    # 4 batches of 8 were saved, so 16 records are left: 4 batches of 4, and 12 in the next epoch.
    assert [line.split(" [")[0] for line in journal.lines] == [
        *(f"epoch 0 batch {k}" for k in range(4, 8)),
        *(f"epoch 1 batch {k}" for k in range(12)),
    ]


def test_another_pipeline_may_take_over_from_here(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=2,
            save_every=1,
            verbose=0,
            callbacks=[Journal(4)],
        )
    journal = Journal()
    fit(
        model(),
        data(seed=8, n=40),
        checkpoint=tmp_path,
        epochs=2,
        verbose=0,
        callbacks=[journal],
        on_change="from_here",
    )
    assert [line.split(" [")[0] for line in journal.lines] == [
        *(f"epoch 0 batch {k}" for k in range(3, 8)),
        *(f"epoch 1 batch {k}" for k in range(5)),
    ]


def test_a_train_step_of_its_own_with_two_optimizers_goes_on(tmp_path: Path) -> None:
    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = keras.layers.Dense(1), keras.layers.Dense(1)
            self.mean = keras.metrics.Mean(name="both")

        def compile(self, one: Any, two: Any) -> None:
            super().compile()
            self.first_optimizer, self.second_optimizer = one, two

        def call(self, x: Any) -> Any:
            return self.one(x), self.two(x)

        def train_step(self, batch: Any) -> dict[str, Any]:
            import tensorflow as tf

            x, y = batch
            for layer, optimizer in (
                (self.one, self.first_optimizer),
                (self.two, self.second_optimizer),
            ):
                with tf.GradientTape() as tape:
                    loss = keras.ops.mean((layer(x) - y) ** 2)
                weights = layer.trainable_weights
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
                self.mean.update_state(loss)
            return {"both": self.mean.result()}

    def made() -> Any:
        keras.utils.set_random_seed(1)
        pair = Pair()
        pair.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9))
        return pair

    whole = run(made(), data(), tmp_path / "a")
    same(run(made, data(), tmp_path / "b", 3, STEPS), whole)
    faster = made()
    faster.second_optimizer.learning_rate = 0.2
    with pytest.raises(
        ph.errors.TrainingChanged, match=r"optimizers\.second_optimizer\.learning_rate"
    ):
        fit(faster, data(), checkpoint=tmp_path / "b", epochs=4, verbose=0)
