"""fit on JAX and torch, on two replicas and two devices: broken off and resumed, as if left alone."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_run import data, model

from playhead.keras import checkpoint, fit

PROGRAM = Path(__file__).with_name("backend_run.py")
BACKENDS = ("tensorflow", "jax", "torch")


def start(backend: str, compiled: Path, *arguments: object) -> subprocess.Popen[str]:
    """The program, with what JAX compiles kept in the directory `compiled`: many fits are alike."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def ended(child: subprocess.Popen[str]) -> Any:
    out, err = child.communicate(timeout=600)
    assert child.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def require(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")


class Results(dict[str, Any]):
    """What each backend's cases went through, run when they are first asked for."""

    def __init__(self, where: Path) -> None:
        super().__init__()
        self._where, self.compiled = where, where / "compiled"

    def __missing__(self, backend: str) -> Any:
        require(backend)
        written = self._where / "of tensorflow"
        if not written.exists():
            fit(model(), data(), checkpoint=written, epochs=1, verbose=0)
        self[backend] = ended(
            start(backend, self.compiled, "cases", self._where / backend, written)
        )
        return self[backend]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("backends"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_broken_off_goes_on_bit_for_bit_on_every_backend(
    results: Results, backend: str
) -> None:
    compared = {
        name: case
        for name, case in results[backend].items()
        if isinstance(case, dict) and "whole" in case
    }
    assert len(compared) >= 5
    for name, case in compared.items():
        for whole, broken in zip(case["whole"], case["broken"], strict=True):
            assert whole == broken, name
        assert len(case["whole"][0]) >= 2, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_four_batches_accumulated_are_one_step_of_the_optimizer(
    results: Results, backend: str
) -> None:
    assert results[backend]["optimizer steps"]["broken"][-1] == 21 // 4


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_epochs_of_a_stream_end_where_its_passes_end(results: Results, backend: str) -> None:
    kept = sum(1 for x, _ in data().unbatch() if x[0] > 0.3)
    lines = results[backend]["a stream"]["whole"][0]
    first = [line for line in lines if line.startswith("epoch 0 ")]
    assert len(first) == -(-kept // 8)
    assert [line.split()[1] for line in lines] == sorted(line.split()[1] for line in lines)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_process_killed_goes_on_as_one_that_was_left_alone(
    tmp_path: Path, results: Results, backend: str
) -> None:
    whole = results[backend]["left alone"]
    log, where = tmp_path / "log", tmp_path / "run"
    child = start(backend, results.compiled, "run", where, log)
    while not log.exists() or len(log.read_text().splitlines()) < 10:
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.communicate()
    saved = checkpoint.latest(where)[1]["step"]
    lines = log.read_text().splitlines()
    # The save of a step is written while the next ones run.
    assert 4 <= saved <= len(lines) and saved % 2 == 0
    log.unlink()
    assert ended(start(backend, results.compiled, "run", where, log)) == whole[1:]
    assert lines[:saved] + log.read_text().splitlines() == whole[0]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_checkpoint_of_another_backend_is_refused_naming_both(
    results: Results, backend: str
) -> None:
    kind, said = results[backend]["another backend"]
    assert kind == "TrainingChanged"
    assert f"written on Keras' backend tensorflow, and this is {backend}" in said
    assert "set KERAS_BACKEND=tensorflow" in said


def test_what_keras_cannot_do_on_a_backend_is_said_by_keras(results: Results) -> None:
    kind, said = results["torch"]["four steps at once"]
    assert kind == "ValueError" and "`steps_per_execution` must be 1" in said


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_steps_per_execution_must_divide_the_epoch_on_every_backend(
    results: Results, backend: str
) -> None:
    kind, said = results[backend]["three into eight"]
    assert kind == "TrainingError" and "does not divide an epoch of 8 steps" in said


def test_another_number_of_replicas_goes_on_at_the_step_and_says_what_is_not_exact(
    results: Results,
) -> None:
    steps, said = results["tensorflow"]["another number of replicas"]
    assert steps == [5, 3]  # the fifth was not saved
    assert len(said) == 1 and "trained on 2 replicas, and this is 1" in said[0]


def test_strategies_under_which_nothing_can_be_promised_are_refused(results: Results) -> None:
    kind, said = results["tensorflow"]["many workers"]
    assert kind == "TrainingError" and "playhead.tensorflow.iterator(ds, strategy=...)" in said
    kind, said = results["tensorflow"]["a server"]
    assert kind == "TrainingError" and "CentralStorage" in said


def test_keras_on_replicas_is_as_fit_takes_it_to_be(results: Results) -> None:
    found = results["tensorflow"]
    # Batch statistics and metrics are each replica's own, so all of them are saved.
    assert found["facts"] == {
        "moving_mean": False,
        "total": False,
        "kernel": True,
        "seed_generator_state": True,
    }
    # Keras' global generator belongs to a thread, and a replica has one of its own: nothing to be saved.
    assert "singleton tf.Variables" in found["two replicas, the global generator"][1]
    assert "`merge_call` called" in found["two replicas, accumulating"][1]


def test_keras_on_jax_is_as_fit_takes_it_to_be(results: Results) -> None:
    assert results["jax"]["facts"] == {
        "variables are empty until synchronised": [True, False],
        "what an epoch begins with": 0.0,
        "an epoch of no steps": "fails",
        "synchronised in each step": False,
    }


def test_keras_on_torch_is_as_fit_takes_it_to_be(results: Results) -> None:
    assert results["torch"]["facts"] == {
        "making a reader draws": True,
        "a step draws nothing": True,
        "reading draws nothing": True,
    }
