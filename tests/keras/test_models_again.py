"""The same model built again, under other names or another way, and one that only looks the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, digest

from playhead.errors import TrainingChanged
from playhead.keras import architecture, checkpoint, fit

L = keras.layers


@pytest.fixture
def mixed() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def small(
    optimizer: Any = "adam",
    *,
    activation: str = "relu",
    rate: float = 0.1,
    name: str | None = None,
    **compiled: Any,
) -> Any:
    keras.utils.set_random_seed(1)
    made = keras.Sequential(
        [
            L.Dense(8, activation=activation, name=name),
            L.Dropout(rate),
            L.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )
    made.compile(optimizer, "binary_crossentropy", **compiled)
    return made


def branched(*, rate: float = 0.1) -> Any:
    keras.utils.set_random_seed(1)
    entry = keras.Input((4,))
    one, other = L.Dense(4)(entry), L.Dense(4, "tanh")(entry)
    one = L.Dropout(rate)(one)
    inner = keras.Sequential([L.Dense(3), L.Dense(2)])
    made = keras.Model(entry, L.Dense(1)(inner(L.Add()([one, other]))))
    made.compile("adam", "mse")
    return made


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.Sequential([L.Dense(4), L.BatchNormalization()])
        self.last = L.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.first(x, training=training))


def subclassed() -> Any:
    keras.utils.set_random_seed(1)
    made = Subclassed()
    made.compile("adam", "mse")
    return made


def scaled() -> Any:
    return small(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=64.0))


def averaged() -> Any:
    return small(keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2))


def broken_off(build: Callable[[], Any], where: Path, *, step: int = STEPS + 3) -> None:
    with pytest.raises(Broken):
        fit(
            build(),
            data(),
            checkpoint=where,
            epochs=3,
            save_every=1,
            verbose=0,
            callbacks=[Journal(step)],
        )


def resumes_exactly(build: Callable[[], Any], where: Path, again: Any = None) -> None:
    whole, journal = build(), Journal()
    history = fit(
        whole, data(), checkpoint=where / "a", epochs=3, verbose=0, callbacks=[journal]
    ).history
    broken_off(build, where / "b")
    trained, rest = (again or build)(), Journal()
    resumed = fit(trained, data(), checkpoint=where / "b", epochs=3, verbose=0, callbacks=[rest])
    assert rest.lines == journal.lines[STEPS + 2 :]
    assert list(resumed.history.values()) == list(history.values())
    assert digest(trained) == digest(whole)


@pytest.mark.usefixtures("mixed")
def test_a_mixed_float16_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    resumes_exactly(small, tmp_path)
    assert type(small().optimizer).__name__ == "LossScaleOptimizer"


@pytest.mark.parametrize("build", [scaled, averaged, subclassed, branched])
def test_a_model_rebuilt_in_one_process_goes_on_bit_for_bit(
    tmp_path: Path, build: Callable[[], Any]
) -> None:
    resumes_exactly(build, tmp_path)


def test_layers_that_are_only_renamed_are_no_change(tmp_path: Path) -> None:
    resumes_exactly(small, tmp_path, lambda: small(name="my_encoder_2"))


def test_the_learning_rate_inside_a_loss_scale_can_be_overridden(tmp_path: Path) -> None:
    broken_off(scaled, tmp_path)
    slow = small(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-4), initial_scale=64.0)
    )
    with pytest.raises(TrainingChanged, match="learning_rate"):
        fit(slow, data(), checkpoint=tmp_path, epochs=3, verbose=0)
    fit(
        slow,
        data(),
        checkpoint=tmp_path,
        epochs=3,
        verbose=0,
        override=["optimizer.learning_rate"],
    )
    assert float(slow.optimizer.learning_rate) == pytest.approx(1e-4)


def test_other_layers_with_equal_variables_are_refused_naming_layer_and_field(
    tmp_path: Path,
) -> None:
    broken_off(small, tmp_path)
    other = small(activation="tanh", rate=0.5)
    with pytest.raises(TrainingChanged) as raised:
        fit(other, data(), checkpoint=tmp_path, epochs=3, verbose=0)
    said = str(raised.value)
    dense, dropout = other.layers[0].name, other.layers[1].name
    assert f"{dense}.activation (layers[0])  saved relu   ->   now tanh" in said
    assert f"{dropout}.rate (layers[1])  saved 0.1   ->   now 0.5" in said
    assert 'override=["model"]' in said
    fit(other, data(), checkpoint=tmp_path, epochs=3, verbose=0, override=["model"])
    assert checkpoint.latest(tmp_path)[1]["layers"]["layers[1].rate"] == 0.5


def test_a_graph_wired_otherwise_is_another_model() -> None:
    def skipping(first: bool) -> Any:
        entry = keras.Input((4,))
        one = L.Dense(4)(entry)
        other = L.Dense(4)(one)
        return architecture.of(keras.Model(entry, L.Add()([entry if first else one, other])))

    architecture.require_same(skipping(True), skipping(True))
    with pytest.raises(TrainingChanged, match=r"inputs \(layers\[3\]\)"):
        architecture.require_same(skipping(True), skipping(False))
    architecture.require_same(architecture.of(branched()), architecture.of(branched()))
    with pytest.raises(TrainingChanged, match=r"rate .*saved 0.1   ->   now 0.2"):
        architecture.require_same(architecture.of(branched()), architecture.of(branched(rate=0.2)))


def test_a_layer_of_another_kind_is_named_once() -> None:
    before = keras.Sequential([L.Dropout(0.1)])
    after = keras.Sequential([L.GaussianNoise(0.1)])
    with pytest.raises(TrainingChanged) as raised:
        architecture.require_same(architecture.of(before), architecture.of(after))
    assert len(raised.value.differences) == 1
    assert "saved Dropout   ->   now GaussianNoise" in raised.value.differences[0]


def test_building_a_model_does_not_make_it_another_one() -> None:
    net = keras.Sequential([L.Dense(3), keras.Sequential([L.Lambda(lambda x: x), L.Dense(2)])])
    before = architecture.of(net)
    net(np.ones((2, 4), np.float32))
    assert before == architecture.of(net) is not None


def test_a_model_without_a_config_is_not_compared() -> None:
    class Opaque(keras.Model):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

    assert architecture.of(Opaque(object())) is None
    architecture.require_same(None, architecture.of(small()))


def test_history_keeps_its_names_where_keras_numbers_a_metric_anew(tmp_path: Path) -> None:
    def run(where: Path, stop: int | None) -> Any:
        net = small(metrics=[keras.metrics.AUC(), "accuracy"])
        journal = Journal(stop)
        return fit(
            net,
            data(),
            checkpoint=where,
            epochs=3,
            save_every=1,
            verbose=0,
            callbacks=[journal],
            validation_data=data(),
        )

    whole = run(tmp_path / "a", None)
    for stop in (STEPS + 3, STEPS):
        with pytest.raises(Broken):
            run(tmp_path / "b", stop)
    resumed = run(tmp_path / "b", None)
    assert {len(values) for values in resumed.history.values()} == {3}
    assert list(resumed.history.values()) == list(whole.history.values())
    names = [name for name in resumed.history if "auc" in name]
    assert len(names) == 2 and names != [name for name in whole.history if "auc" in name]
