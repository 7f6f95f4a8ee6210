"""Models that begin with text: the layers of Keras that read it, as its tutorials put them into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import Broken, Journal, digest

import playhead as ph
from playhead.errors import PipelineError
from playhead.keras import fit

WORDS = np.array(["red", "green", "blue"], object)


def rows(n: int = 44, batch: int = 8) -> ph.Dataset:
    """Dicts of text and numbers, with a short last batch."""
    which = np.arange(n) % 3
    inputs = {"word": WORDS[which], "x": np.linspace(0, 1, n, dtype=np.float32)}
    ds = ph.Dataset.from_tensor_slices((inputs, (which == 1).astype(np.float32)))
    return ds.shuffle(seed=4).batch(batch)


def reader(**compiled: Any) -> Any:
    keras.utils.set_random_seed(1)
    word = keras.Input((1,), dtype="string", name="word")
    x = keras.Input((1,), name="x")
    encoded = keras.layers.StringLookup(vocabulary=list(WORDS), output_mode="one_hot")(word)
    joined = keras.layers.Dropout(0.2)(keras.layers.Concatenate()([encoded, x]))
    made = keras.Model({"word": word, "x": x}, keras.layers.Dense(1)(joined))
    made.compile("adam", "mse", **{"metrics": ["mae"], **compiled})
    return made


def test_a_run_over_text_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, alone = Journal(), reader()
    fit(alone, rows(), checkpoint=tmp_path / "alone", epochs=3, verbose=0, callbacks=[whole])
    first, then, resumed = Journal(stop=9), Journal(), reader()
    with pytest.raises(Broken):
        fit(
            reader(),
            rows(),
            checkpoint=tmp_path / "run",
            epochs=3,
            verbose=0,
            callbacks=[first],
            save_every=7,
        )
    fit(resumed, rows(), checkpoint=tmp_path / "run", epochs=3, verbose=0, callbacks=[then])
    assert digest(resumed) == digest(alone)
    assert then.lines == whole.lines[7:]


@pytest.mark.parametrize("steps", [1, 2])
def test_keras_reads_text_in_each_of_its_loops(steps: int) -> None:
    model, ds = reader(steps_per_execution=steps), rows(n=48)
    model.fit(ds.to_keras(), verbose=0)
    assert model.predict(ds.to_keras(), verbose=0).shape == (48, 1)
    inputs, labels = next(ds.batch(6).unbatch().rebatch(48).iterator())
    text = {"word": keras.ops.convert_to_tensor(inputs["word"].astype(str)), "x": inputs["x"]}
    expected = model.evaluate(text, labels, batch_size=8, verbose=0, return_dict=True)
    assert model.evaluate(ds.to_keras(), verbose=0, return_dict=True) == pytest.approx(
        expected, rel=1e-5
    )


def test_a_layer_for_text_may_stand_alone_before_the_others(tmp_path: Path) -> None:
    vectorize = keras.layers.TextVectorization(output_sequence_length=3)
    words = ph.Dataset.from_tensor_slices(np.array(["a b", "b c d", "c"], object)).batch(2)
    vectorize.adapt(words)
    assert vectorize.get_vocabulary()[2:4] == ["c", "b"]
    model = keras.Sequential(
        [
            vectorize,
            keras.layers.Embedding(8, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    labelled = words.map(lambda text: (text, np.ones(len(text), np.float32)))
    history = fit(model, labelled, checkpoint=tmp_path, validation_data=labelled, verbose=0)
    assert history.history["val_loss"][0] < history.history["loss"][0]


@pytest.mark.parametrize("steps", [1, 2])
def test_text_that_no_layer_of_the_model_reads_is_named(tmp_path: Path, steps: int) -> None:
    text = ph.Dataset.from_tensor_slices((WORDS, np.zeros(3, np.float32))).batch(1).repeat(2)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps)
    with pytest.raises(PipelineError, match=r"element\[0\] holds str, .*\n.*StringLookup"):
        fit(model, text, checkpoint=tmp_path, verbose=0)
    with pytest.raises(PipelineError, match=r"element\[0\] holds str"):
        model.predict(text.to_keras(), verbose=0)


def test_objects_that_are_no_text_are_refused_for_any_model(tmp_path: Path) -> None:
    odd = ph.Dataset.from_sequence([{"word": None, "x": 0.5}] * 4).batch(2)
    with pytest.raises(PipelineError, match=r"element\['word'\] holds NoneType"):
        fit(reader(), odd, checkpoint=tmp_path, verbose=0)
