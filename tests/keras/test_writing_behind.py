"""Training goes on while a save is written, and what was said to be saved is saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, digest, model

from playhead.errors import CheckpointError
from playhead.keras import Preempted, checkpoint, fit
from playhead.keras.writer import Writer

WRITE = checkpoint.write
LONG = 180.0  # seconds that a wait takes only where the code is wrong


class Gate:
    """Holds up writing until it is opened. `waited` says that nobody opened it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._event, self.waited = threading.Event(), False
        self.entered = threading.Event()
        monkeypatch.setattr(checkpoint, "write", self._write)

    def open(self) -> None:
        self._event.set()

    def _write(self, *arguments: Any, **options: Any) -> Any:
        self.entered.set()
        self.waited |= not self._event.wait(LONG)
        return WRITE(*arguments, **options)


class At(keras.callbacks.Callback):
    """Calls a function after a step of the run."""

    def __init__(self, step: int, what: Any) -> None:
        super().__init__()
        self._step, self._what = step, what

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step -= 1
        if self._step == 0:
            self._what()


def train(where: Path, *callbacks: Any, **arguments: Any) -> Any:
    given = {"epochs": 1, "save_every": 2, "verbose": 0, **arguments}
    return fit(model(), data(), checkpoint=where, callbacks=list(callbacks), **given)


def test_steps_are_trained_while_a_save_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    train(tmp_path, At(3, gate.open))  # the save of step 2 waits for the end of step 3
    assert not gate.waited
    assert checkpoint.latest(tmp_path)[1]["step"] == STEPS


def test_each_save_holds_the_weights_of_its_step_however_late_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Weights(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.of: list[list[Any]] = []
            self.mine = np.zeros(1000)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.of.append([np.array(v.numpy()) for v in self.model.variables])
            self.mine += 1  # its own array, changed in place

        def get_state(self) -> Any:
            return self.mine

        def set_state(self, state: Any) -> None:
            raise AssertionError("nothing is restored here")

    def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.05)
        return WRITE(*arguments, **options)

    monkeypatch.setattr(checkpoint, "write", late)
    weights = Weights()
    train(tmp_path, weights, save_every=1, epochs=2, keep=100)
    saves = checkpoint.saves(tmp_path)
    assert len(saves) >= 2 * STEPS
    for directory in saves:
        _, state = checkpoint.latest(directory)
        arrays = checkpoint.read_arrays(directory, state)
        assert (arrays["callbacks"][0][1] == state["step"]).all()
        for (name, value), was in zip(arrays["model"], weights.of[state["step"] - 1], strict=True):
            assert value.tobytes() == was.tobytes(), (state["step"], name)


def test_a_save_that_comes_due_meanwhile_waits_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = [0], [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        made = WRITE(*arguments, **options)
        at_once[0] -= 1
        return made

    monkeypatch.setattr(checkpoint, "write", counted)
    train(tmp_path, save_every=1, keep=100)
    assert most == [1]
    steps = {checkpoint.latest(directory)[1]["step"] for directory in checkpoint.saves(tmp_path)}
    assert steps == set(range(1, STEPS + 1))


def put_a_file_in_its_place(where: Path) -> None:
    """One rename, so that a thread that still writes there is not met half-way."""
    where.rename(where.with_name("moved"))
    where.write_text("not a directory")


def test_a_save_that_fails_ends_the_run_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, written = tmp_path / "run", threading.Event()

    def write(*arguments: Any, **options: Any) -> Any:
        made = WRITE(*arguments, **options)
        written.set()
        return made

    def in_the_way() -> None:
        assert written.wait(LONG)  # the save of step 2 is not the one to fail
        put_a_file_in_its_place(where)

    monkeypatch.setattr(checkpoint, "write", write)

    journal = Journal()
    with pytest.raises(CheckpointError, match=r"could not be written to .*run") as raised:
        train(
            where,
            journal,
            At(3, in_the_way),
            At(5, lambda: time.sleep(0.5)),  # the thread has failed by then
            epochs=5,
        )
    assert isinstance(raised.value.__cause__, OSError)
    assert 4 <= len(journal.lines) <= 6  # and not all 35


def test_a_failure_at_the_last_save_is_raised_rather_than_a_history_returned(
    tmp_path: Path,
) -> None:
    where = tmp_path / "run"

    class InTheWay(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            put_a_file_in_its_place(where)

    with pytest.raises(CheckpointError, match="could not be written"):
        train(where, InTheWay(), save_every=1000)


def test_an_error_in_the_loop_waits_for_the_save_and_keeps_its_failure_as_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return WRITE(*arguments, **options)

    monkeypatch.setattr(checkpoint, "write", late)
    with pytest.raises(Broken):
        train(tmp_path / "a", Journal(stop=3))
    assert checkpoint.latest(tmp_path / "a")[1]["step"] == 2

    def fails(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", fails)
    with pytest.raises(Broken) as raised:
        train(tmp_path / "b", Journal(stop=3))
    assert "No space left on device" in raised.value.__notes__[0]


def test_a_run_told_to_stop_ends_when_its_save_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return WRITE(*arguments, **options)

    monkeypatch.setattr(checkpoint, "write", late)
    with pytest.raises(Preempted):
        train(tmp_path, At(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert checkpoint.latest(tmp_path)[1]["step"] == 3
    rest = Journal()
    resumed, whole = model(), model()
    again = fit(resumed, data(), checkpoint=tmp_path, verbose=0, callbacks=[rest])
    history = fit(whole, data(), checkpoint=tmp_path / "whole", verbose=0)
    assert len(rest.lines) == STEPS - 3
    assert again.history == history.history and digest(resumed) == digest(whole)


def test_a_process_that_is_told_twice_leaves_a_save_that_hangs_behind(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import os, signal, sys, time
        from small_run import data, model
        import keras
        from playhead.keras import checkpoint, fit

        def hangs(*arguments, **options):
            while True:
                time.sleep(1)

        class Impatient(keras.callbacks.Callback):
            steps = 0
            def on_train_batch_end(self, batch, logs=None):
                self.steps += 1
                if self.steps == 3:  # the save of step 2 hangs
                    os.kill(os.getpid(), signal.SIGINT)
                    os.kill(os.getpid(), signal.SIGINT)

        checkpoint.write = hangs
        try:
            fit(model(), data(), checkpoint=sys.argv[1], save_every=2, verbose=0,
                callbacks=[Impatient()])
        except KeyboardInterrupt:
            print("out")
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["out"]


def test_copies_of_one_name_go_to_one_memory_as_long_as_they_fit() -> None:
    writer = Writer()
    first, second = np.arange(6.0).reshape(2, 3), -np.arange(6.0).reshape(2, 3)
    copied = writer.copy("a", first)
    assert copied is not first and (copied == first).all()
    assert writer.copy("b", first) is not copied
    assert writer.copy("a", second) is copied and (copied == second).all()
    assert first[1, 2] == 5
    other = writer.copy("a", np.arange(3, dtype=np.int8))
    assert other.tolist() == [0, 1, 2] and (copied == second).all()


def test_memory_that_was_prepared_is_what_is_copied_into() -> None:
    value = np.arange(6, dtype=np.float32)
    with Writer() as writer:
        assert writer.expect("a", value) is value
        writer.prepare()
        copied = writer.copy("a", value)  # not before it was touched
        assert (copied == value).all()


def test_a_failure_is_raised_once_and_the_thread_goes_on() -> None:
    done = []

    def fails() -> None:
        raise ValueError("of its own")

    with Writer(where="run") as writer:
        writer.write(fails)
        with pytest.raises(CheckpointError, match=r"written to run \(of its own\)"):
            writer.wait()
        writer.check()
        writer.write(lambda: done.append(1))
        writer.wait()
    assert done == [1]


def test_the_beat_goes_on_while_nothing_is_written_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats, third = [], threading.Event()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            third.set()
        raise OSError("the network is down")

    monkeypatch.setattr("playhead.keras.writer._BEAT", 0.01)
    with Writer(beat) as writer:
        assert third.wait(LONG)
        done: list[int] = []
        writer.write(lambda: done.append(1))
        writer.wait()
    assert done == [1]
