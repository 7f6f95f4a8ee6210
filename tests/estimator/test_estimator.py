"""Training an Estimator goes on in the data where its checkpoints stand."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf
from train_run import EPOCH, estimator, pipeline

import playhead as ph
from playhead.errors import CheckpointError, PipelineChanged, SlowResume

RUN = str(Path(__file__).with_name("train_run.py"))


def batches(ds: ph.Dataset, count: int) -> list[list[int]]:
    with ds.iterator(epochs=None) as iterator:
        return [[int(x) for x in batch] for batch in itertools.islice(iterator, count)]


def noted(log: Path) -> list[list[int]]:
    return [[int(x) for x in line.split()] for line in log.read_text().splitlines()]


def train(tmp_path: Path, ds: ph.Dataset, steps: int, epochs: int | None = None) -> None:
    made = estimator(str(tmp_path / "model"), str(tmp_path / "log"))
    made.train(ph.tensorflow.input_fn(ds, tmp_path / "model", epochs), steps=steps)


def test_two_calls_of_train_see_items_0_to_4_and_5_to_9(tmp_path: Path) -> None:
    train(tmp_path, pipeline(), 5)
    first = noted(tmp_path / "log")
    train(tmp_path, pipeline(), 5)
    assert first == batches(pipeline(), 5)
    assert noted(tmp_path / "log") == batches(pipeline(), 10)
    assert len({tuple(batch) for batch in batches(pipeline(), 2 * EPOCH)}) == 2 * EPOCH


@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
@pytest.mark.parametrize("kind", ["seekable", "stream", "unseeded"])
def test_a_killed_run_goes_on_in_a_fresh_process_at_its_last_checkpoint(
    tmp_path: Path, kind: str
) -> None:
    model, log, mark = tmp_path / "model", tmp_path / "log", tmp_path / "mark"
    command = [sys.executable, RUN, str(model), str(log), kind]
    run = subprocess.Popen([*command, "20", "8", str(mark)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not mark.exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = run.poll() is None
    run.kill()
    _, said = run.communicate()
    assert alive and mark.exists(), said.decode()
    before = noted(log)
    assert len(before) == 8
    log.unlink()
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model)))
    start = int(reader.get_tensor("global_step"))
    assert 0 < start < 8
    again = subprocess.run([*command, "5"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    kept = ph.Position.load(model / "playhead-input.json")
    with pipeline(kind).iterator(epochs=None) as iterator:
        iterator.load_state_dict(kept)
        whole = [[int(x) for x in batch] for batch in itertools.islice(iterator, 15)]
    assert before == whole[:8]
    assert noted(log) == whole[start : start + 5]
    assert float(again.stdout.split()[-1]) == sum(sum(batch) for batch in whole[: start + 5])


def test_a_stream_is_walked_and_says_so(tmp_path: Path) -> None:
    train(tmp_path, pipeline("stream"), 5)
    with pytest.warns(SlowResume, match="walks over 5 elements"):
        train(tmp_path, pipeline("stream"), 2)
    assert noted(tmp_path / "log") == batches(pipeline("stream"), 7)


def test_another_pipeline_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    train(tmp_path, pipeline(), 2)
    with pytest.raises(PipelineChanged, match="size=3"):
        train(tmp_path, pipeline(size=4), 2)
    assert len(noted(tmp_path / "log")) == 2


def test_checkpoints_of_an_unknown_pipeline_are_refused(tmp_path: Path) -> None:
    train(tmp_path, pipeline(), 2)
    (tmp_path / "model" / "playhead-input.json").unlink()
    with pytest.raises(CheckpointError, match="up to step 2"):
        train(tmp_path, pipeline(), 2)


def test_epochs_end_the_training_and_a_later_call_finds_nothing_left(tmp_path: Path) -> None:
    for _ in range(2):
        train(tmp_path, pipeline(), 100, epochs=2)
        assert noted(tmp_path / "log") == batches(pipeline(), 2 * EPOCH)


def test_evaluation_begins_with_the_first_pass_each_time(tmp_path: Path) -> None:
    train(tmp_path, pipeline(), 2)
    made = estimator(str(tmp_path / "model"), str(tmp_path / "log"))
    found = [
        made.evaluate(ph.tensorflow.input_fn(pipeline(), None, 1), name=str(k))["loss"]
        for k in range(2)
    ]
    assert found == [pytest.approx(sum(range(11)) / EPOCH)] * 2


def test_two_calls_in_one_process_take_up_each_other_s_steps_with_an_unseeded_shuffle(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        train(tmp_path, pipeline("unseeded"), EPOCH // 2)
    assert sorted(itertools.chain(*noted(tmp_path / "log"))) == list(range(11))
