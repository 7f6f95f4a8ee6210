"""Custom training loops that are killed go on exactly."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import playhead as ph

sys.path.insert(0, str(Path(__file__).parent))  # loop_run is also run as a program

from loop_run import EPOCHS, PRIME, STEPS, batches, noise


def trained(*values: Any) -> list[int]:
    """What the weight is after each of these was mixed in: loop_run's own arithmetic, in Python."""
    weights = itertools.accumulate(values, lambda w, v: (w * 31 + int(v)) % PRIME, initial=0)
    return list(weights)[1:]


def by_epochs() -> list[str]:
    others = iter(noise().iterator(epochs=None))
    sums = [x for b in batches().iterator(epochs=EPOCHS) for x in (b.sum(), next(others))]
    weights = trained(*sums)[1::2]
    return [f"{k // STEPS} {k + 1} {weight}" for k, weight in enumerate(weights)]


def in_graph() -> list[str]:
    weights = trained(*(b.sum() for b in batches().iterator(epochs=EPOCHS)))
    return [f"{k + 1} {weight}" for k, weight in enumerate(weights)][2::3]


def run(loop: str, tmp_path: Path, *stop: str) -> list[str]:
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    script = str(Path(__file__).with_name("loop_run.py"))
    command = [sys.executable, script, loop, str(tmp_path / "saves"), str(log), *stop]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == (-9 if stop else 0), done.stderr
    return log.read_text().splitlines()


def test_the_usual_loop_killed_in_its_second_epoch_goes_on_at_its_last_save(tmp_path: Path) -> None:
    whole = by_epochs()
    assert len(whole) == EPOCHS * STEPS
    assert run("by_epochs", tmp_path, "8") == whole[:8]
    kept = tf.train.get_checkpoint_state(str(tmp_path / "saves")).all_model_checkpoint_paths
    steps = [int(path.rpartition("-")[2]) for path in kept]
    assert len(steps) == 2 and max(steps) in (6, 7)
    assert run("by_epochs", tmp_path) == whole[max(steps) :]


def test_an_asynchronous_save_of_a_loop_in_a_graph_holds_the_position_of_its_moment(
    tmp_path: Path,
) -> None:
    whole = in_graph()
    assert run("in_graph", tmp_path, "4") == whole[:4]
    latest = tf.train.latest_checkpoint(str(tmp_path / "saves"))
    assert latest is not None
    saved = int(latest.rpartition("-")[2])
    assert saved in (3, 6, 9)
    assert run("in_graph", tmp_path) == whole[saved // 3 :]


@pytest.mark.parametrize("in_function", [False, True])
def test_a_loop_over_to_tf_gives_the_next_pass_each_time(in_function: bool) -> None:
    ds = batches()
    data = ds.to_tf()

    def one_pass(data: tf.data.Dataset) -> Any:
        weight = tf.constant(0, tf.int64)
        for batch in data:
            weight = (weight * 31 + tf.reduce_sum(batch)) % PRIME
        return weight

    loop = tf.function(one_pass) if in_function else one_pass
    expected = [trained(*(b.sum() for b in ds.epoch(e)))[-1] for e in range(2)]
    assert [int(loop(data)) for _ in range(2)] == expected and len({*expected}) == 2


def test_a_step_that_was_not_saved_with_the_data_stops_the_loop_before_it_trains(
    tmp_path: Path,
) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    it = ph.tensorflow.iterator(batches(), step=step)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(data=it), str(tmp_path), max_to_keep=1)
    next(it), step.assign_add(1)
    manager.save()
    fresh = tf.Variable(0, dtype=tf.int64)
    again = ph.tensorflow.iterator(batches(), step=fresh)
    restored = tf.train.CheckpointManager(
        tf.train.Checkpoint(data=again), str(tmp_path), max_to_keep=1
    )
    assert restored.restore_or_initialize() is not None
    with pytest.raises(ph.errors.CheckpointError, match="step 0, its data at step 1"):
        next(again)
