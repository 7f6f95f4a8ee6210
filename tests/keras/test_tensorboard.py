"""Curves of a resumed run are those of an unbroken one, and playhead's TensorBoard adds those of the input."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from small_run import STEPS, Broken, Journal, N, data, model

import playhead.keras
from playhead.errors import PlayheadWarning, TrainingError
from playhead.keras import events, fit

pytest.importorskip("tensorboard")  # with which TensorFlow writes

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

Curves = dict[str, list[tuple[int, float]]]
TIMES = ("records_per_second", "waiting")


def curves(log_dir: Any) -> Curves:
    """Every scalar under `log_dir`, in the order in which TensorBoard reads it."""
    found: Curves = {}
    for part in ("train", "validation"):
        folder = f"{log_dir}/{part}"
        listed = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        names = sorted(name for name in listed if "tfevents" in name)
        for record in tf.data.TFRecordDataset([f"{folder}/{name}" for name in names]):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    tag = f"{part}/{value.tag}"
                    point = (event.step, float(tf.make_ndarray(value.tensor)))
                    found.setdefault(tag, []).append(point)
    return found


def go(where: Path, log_dir: Any, *stops: int | None, board: Any = None, **given: Any) -> None:
    made = board or keras.callbacks.TensorBoard
    for stop in (*stops, None):
        with contextlib.suppress(Broken):
            fit(
                model(),
                data(),
                checkpoint=where,
                verbose=0,
                callbacks=[made(log_dir, **given), Journal(stop)],
                epochs=2,
                save_every=4,
                validation_data=data(),
            )
        if stop is not None:
            torn(Path(log_dir))


def torn(log_dir: Path) -> None:
    """A kill in the middle of a record leaves its beginning."""
    with open(max((log_dir / "train").glob("*tfevents*")), "ab") as file:
        file.write(b"\x18\0\0")


@pytest.mark.parametrize("update_freq", ["epoch", 1])
def test_the_curves_of_a_run_killed_twice_are_those_of_an_unbroken_one(
    tmp_path: Path, update_freq: Any
) -> None:
    go(tmp_path / "a", tmp_path / "whole", update_freq=update_freq)
    # Saved at 4; killed at 7, and again at 6 before the next save; then at 10, in the second epoch.
    go(tmp_path / "b", tmp_path / "broken", 7, 2, 6, update_freq=update_freq)
    whole, broken = curves(tmp_path / "whole"), curves(tmp_path / "broken")
    assert broken == whole
    assert [step for step, _ in whole["train/epoch_loss"]] == [0, 1]
    assert [step for step, _ in whole["validation/epoch_loss"]] == [0, 1]
    if update_freq == 1:
        steps = [step for step, _ in whole["train/batch_loss"]]
        assert steps == list(range(1, 2 * STEPS + 1))
    aside = [p.name for p in (tmp_path / "broken").rglob("*") if "abandoned" in p.name]
    assert aside, "what was begun after a save is still there"


def test_input_curves_say_where_the_run_is_in_its_data(tmp_path: Path) -> None:
    board = playhead.keras.TensorBoard
    go(tmp_path / "a", tmp_path / "whole", board=board, update_freq=2)
    go(tmp_path / "b", tmp_path / "broken", STEPS + 3, board=board, update_freq=2)
    whole, broken = curves(tmp_path / "whole"), curves(tmp_path / "broken")
    assert whole.keys() == broken.keys()
    for tag, points in whole.items():
        if tag.endswith(TIMES):
            assert [step for step, _ in points] == [step for step, _ in broken[tag]]
            assert all(value >= 0 for _, value in points + broken[tag])
        else:
            assert points == broken[tag], tag
    assert whole["train/epoch_input_step"] == [(0, STEPS), (1, 2 * STEPS)]
    assert whole["train/epoch_input_epoch"] == [(0, 0), (1, 1)]
    assert whole["train/epoch_input_records"] == [(0, N), (1, 2 * N)]
    assert whole["train/batch_input_step"] == [(k, k) for k in range(2, 2 * STEPS + 1, 2)]
    assert whole["train/batch_input_records"][:4] == [(2, 16), (4, 32), (6, 48), (8, N + 8)]
    assert all(0 <= share <= 1 for _, share in whole["train/epoch_input_waiting"])


def test_outside_of_playheads_fit_it_says_so_once_and_writes_the_curves_of_keras(
    tmp_path: Path,
) -> None:
    board = playhead.keras.TensorBoard(tmp_path)
    net, batches = model(), data().to_keras()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            net.fit(batches, verbose=0, callbacks=[board])
    of_ours = [str(w.message) for w in said if issubclass(w.category, PlayheadWarning)]
    assert len(of_ours) == 1 and "outside playhead.keras.fit" in of_ours[0]
    found = curves(tmp_path)
    assert "train/epoch_loss" in found and not any("input" in tag for tag in found)


def test_without_what_writes_the_files_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TrainingError, match="by tensorflow and tensorboard, not installed"):
        playhead.keras.TensorBoard("logs")


def test_files_elsewhere_are_cut_back_where_tensorflow_can_write_them() -> None:
    root = "ram://cut/logs"
    for name, content in {"a": b"12345678", "b": b"12", "c": b"xyz"}.items():
        tf.io.gfile.makedirs(f"{root}/train")
        with tf.io.gfile.GFile(f"{root}/train/events.out.tfevents.{name}", "wb") as file:
            file.write(content)
    sizes = {"train/events.out.tfevents.a": 5, "train/events.out.tfevents.b": 2}
    events.cut_back(root, sizes)
    left = {}
    for name in tf.io.gfile.listdir(f"{root}/train"):
        with tf.io.gfile.GFile(f"{root}/train/{name}", "rb") as file:
            left[name] = file.read()
    assert left == {
        "events.out.tfevents.a": b"12345",
        "events.out.tfevents.b": b"12",
        "events.out.abandoned.c": b"xyz",
    }


def test_a_file_that_cannot_be_cut_back_is_named_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train" / "events.out.tfevents.a").mkdir(parents=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        events.cut_back(str(tmp_path), {"train/events.out.tfevents.a": -1})
    assert len(said) == 1 and "events.out.tfevents.a cannot be cut back" in str(said[0].message)
