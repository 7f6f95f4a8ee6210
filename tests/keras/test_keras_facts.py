"""What playhead.keras relies on in Keras itself. A failure here says that Keras changed, not playhead."""

from __future__ import annotations

import inspect
import itertools
import sys
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator


class Batches(keras.utils.PyDataset):
    """Batch i is full of i; `asked` notes every index asked for."""

    def __init__(self, length: Any = 2**62) -> None:
        super().__init__(workers=1)
        self.asked: list[int] = []
        self._length = length

    @property
    def num_batches(self) -> Any:
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append(index)
        return np.full((2, 1), index, np.float32), np.zeros((2, 1), np.float32)


class Watching(keras.callbacks.CallbackList):
    def __init__(self, model: Any, *callbacks: Any) -> None:
        self.seen: list[str] = []
        super().__init__(
            list(callbacks), add_history=True, model=model, verbose=0, epochs=3, steps=3
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self.seen.append(
            f"epoch {epoch}, loss counted over {float(self.model.metrics[0].count.numpy())}"
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.seen.append(f"batch {batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.seen.append(f"end {epoch}")


def summing_model() -> Any:
    """A model whose weight is the sum of the numbers of the batches it was trained on."""

    class Summing(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.total = self.add_weight(shape=(), initializer="zeros", name="total")
            self.built = True

        def train_step(self, data: Any) -> dict[str, Any]:
            self.total.assign_add(data[0][0, 0])
            self._loss_tracker.update_state(data[0][0, 0])
            return self.compute_metrics(data[0], data[1], data[1])

        def call(self, x: Any) -> Any:
            return x

    model = Summing()
    model.compile("sgd", "mse")
    return model


def test_fit_takes_a_callback_list_as_it_is_and_begins_epochs_after_resetting_metrics() -> None:
    model = summing_model()
    run = Watching(model)
    history = model.fit(
        Batches(), epochs=2, steps_per_epoch=2, callbacks=run, shuffle=False, verbose=0
    )
    assert run.seen[0] == "epoch 0, loss counted over 0.0"
    assert run.seen[4] == "epoch 1, loss counted over 0.0"
    assert history is model.history and history in run.callbacks


def test_the_logs_an_epoch_ends_with_may_be_changed_in_place() -> None:
    ends: list[Any] = []

    class Changing(Watching):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["extra"] = 1.0
            super().on_epoch_end(epoch, logs)

        def on_train_end(self, logs: Any = None) -> None:
            ends.append(logs)
            super().on_train_end(logs)

    model = summing_model()
    run = Changing(model)
    history = model.fit(
        Batches(), epochs=1, steps_per_epoch=1, callbacks=run, shuffle=False, verbose=0
    )
    assert history.history["extra"] == [1.0]
    assert ends[0]["extra"] == 1.0


def test_batches_of_a_dataset_may_differ_in_length() -> None:
    class Uneven(Batches):
        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            rows = 2 if index < 5 else 1
            return np.ones((rows, 1), np.float32), np.ones((rows, 1), np.float32)

    model = summing_model()
    model.fit(Uneven(), epochs=1, steps_per_epoch=8, shuffle=False, verbose=0)
    assert float(model.total.numpy()) == 8


def test_a_finite_dataset_is_validated_from_its_beginning_every_time() -> None:
    seen: list[float] = []

    class Seeing(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    model, data = summing_model(), Batches(3)
    model.fit(
        Batches(),
        epochs=2,
        steps_per_epoch=1,
        validation_data=data,
        callbacks=[Seeing()],
        verbose=0,
        shuffle=False,
    )
    assert seen == [0, 1, 2, 0, 1, 2]
    assert model.history.history["val_loss"][0] == model.history.history["val_loss"][1]


def test_seed_generators_are_variables_of_the_model_but_not_weights() -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dropout(0.5)])
    assert model.weights == []
    assert [v.name for v in model.variables] == ["seed_generator_state"]


def test_layers_without_a_generator_draw_from_a_global_one_that_can_be_reached() -> None:
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import global_seed_generator

    keras.random.uniform((1,))
    assert global_state.get_global_attribute("global_seed_generator") is global_seed_generator()
    assert tuple(global_seed_generator().state.shape) == (2,)


def test_symbolic_build_creates_all_variables_and_runs_nothing() -> None:
    model = keras.Sequential(
        [
            keras.layers.Dense(3),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    x = np.ones((2, 4), np.float32)
    model._symbolic_build(data_batch=(x, x[:, :1], None))
    assert model.built and model.optimizer.built
    assert len(model.variables) == 2 + 4 + 1 + 2
    assert len(model.optimizer.variables) == 2 + 2 * 6
    assert len([v for m in model.metrics for v in m.variables]) == 2 + 2
    seed = next(v for v in model.variables if v.name == "seed_generator_state")
    assert int(seed.numpy()[1]) == 0


def test_the_compile_settings_can_be_read_back_from_a_model() -> None:
    model = summing_model()
    config = model.get_compile_config()
    assert config["optimizer"]["class_name"] == "SGD"
    assert config["optimizer"]["config"]["learning_rate"] == pytest.approx(0.01)
    assert config["loss"] == "mse"


def test_the_learning_rate_among_the_settings_is_the_one_it_has_now() -> None:
    model = summing_model()
    model.optimizer.learning_rate = 0.5
    assert model.get_compile_config()["optimizer"]["config"]["learning_rate"] == 0.5


class Plain(DataAdapter):
    """Hands out what it was made with, and notes who asks for its length."""

    def __init__(self, iterable: Any, batches: int | None = None) -> None:
        self.iterable, self.batches = iterable, batches
        self.asked: list[tuple[str, bool]] = []

    @property
    def num_batches(self) -> int | None:
        frame = sys._getframe(1)
        own = isinstance(frame.f_locals["self"], EpochIterator)
        self.asked.append((frame.f_code.co_name, own and "class_weight" in frame.f_locals))
        return self.batches

    def get_tf_dataset(self) -> Any:
        return self.iterable


class Ending:
    """Three batches as tensors, and TensorFlow's own end."""

    def __iter__(self) -> Any:
        for k in range(3):
            yield tf.fill((2, 1), float(k)), tf.zeros((2, 1))
        raise tf.errors.OutOfRangeError(None, None, "over")


def test_a_data_adapter_is_taken_as_it_is_and_asked_where_the_arguments_stand() -> None:
    adapter = Plain(Ending())
    assert data_adapters.get_data_adapter(adapter, class_weight={0: 1.0}) is adapter
    model = summing_model()
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(adapter, epochs=1, verbose=0)
    assert adapter.asked[0] == ("__init__", True)
    assert set(adapter.asked[1:]) == {("reset", False)}


def test_on_tensorflow_a_plain_loop_of_tensors_is_trained_on_until_it_says_that_it_is_over() -> (
    None
):
    model = summing_model()
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(Plain(Ending()), epochs=2, verbose=0)
    assert float(model.total.numpy()) == 2 * (0 + 1 + 2)


def test_what_is_set_on_a_reader_decides_how_it_ends() -> None:
    readers: list[Any] = []

    class Setting(Plain):
        def on_epoch_begin(self) -> None:
            reader = sys._getframe(1).f_locals["self"]
            readers.append((reader._num_batches, reader._steps_seen))
            reader._num_batches, reader._interrupted_warning = None, lambda: None

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summing_model().fit(Setting(Ending()), epochs=2, verbose=0)
    # The second epoch would have been cut at the length that Keras took the first for.
    assert [length for length, _ in readers] == [None, 4]


def test_the_length_set_on_a_reader_when_an_epoch_begins_or_after_a_step_is_that_of_the_epoch() -> (
    None
):
    begun: list[int] = []
    readers: list[Any] = []

    class Setting(Plain):
        def on_epoch_begin(self) -> None:
            reader = sys._getframe(1).f_locals["self"]
            reader._num_batches = (2, 3, 2**62)[len(readers)]
            readers.append(reader)

    class Endless:
        def __iter__(self) -> Any:
            begun.append(len(readers))
            return ((tf.fill((2, 1), float(k)), tf.zeros((2, 1))) for k in itertools.count())

    class Ending(Watching):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if len(readers) == 3 and batch == 3:
                readers[-1]._num_batches = readers[-1]._steps_seen

    model = summing_model()
    run = Ending(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(Setting(Endless()), epochs=3, callbacks=run, verbose=0)
    batches = [line for line in run.seen if line.startswith("batch")]
    assert batches == [f"batch {k}" for k in (0, 1, 0, 1, 2, 0, 1, 2, 3)]
    # Each epoch reads from a beginning, and one more is made, and not read, when it has ended.
    assert float(model.total.numpy()) == (0 + 1) + (0 + 1 + 2) + (0 + 1 + 2 + 3)
    assert begun == [1, 1, 2, 2, 3, 3]


def test_the_train_function_may_be_another_for_a_step() -> None:
    class Idle(Watching):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                self.train, self.model.train_function = self.model.train_function, lambda it: {}
            super().on_train_batch_begin(batch, logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if batch == 1:
                self.model.train_function = self.train

    model = summing_model()
    model.fit(Plain(Ending(), 3), epochs=1, callbacks=Idle(model), verbose=0)
    assert float(model.total.numpy()) == 0 + 1  # the second step has read nothing


def test_the_step_functions_can_be_traced_before_they_are_called() -> None:
    model = summing_model()
    for kind in ("train", "test"):
        made = getattr(model, f"make_{kind}_function")
        made()
        inner = inspect.getclosurevars(getattr(model, f"{kind}_function")).nonlocals
        step = inner["one_step_on_data"].__wrapped__
        assert isinstance(step, tf.types.experimental.PolymorphicFunction)
    model.make_predict_function()
    assert isinstance(model.predict_function, tf.types.experimental.PolymorphicFunction)


def test_tensorboard_counts_and_keeps_its_writers_where_they_are_looked_for() -> None:
    board = keras.callbacks.TensorBoard("logs")
    assert (board._global_train_batch, board._global_test_batch) == (0, 0)
    assert board._writers == {} and board.log_dir == "logs"
