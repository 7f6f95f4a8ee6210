"""Runs in processes of their own that are killed, and runs that are told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras
import pytest
from small_run import STEPS, Journal, data, digest, model

import playhead as ph
from playhead.errors import CheckpointError
from playhead.keras import Preempted, PreemptedError, cadence, checkpoint, fit

LONG = 300.0  # seconds that a wait takes only where the code is wrong
PROGRAM = Path(__file__).with_name("small_run.py")


def start(where: Path, log: Path, **arguments: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(where), str(log), json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def wait_for(log: Path, count: int, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONG
    while len(lines(log)) < count:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.01)


def test_a_process_killed_and_told_to_stop_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    undisturbed = start(tmp_path / "whole", tmp_path / "whole.log")
    log, where, kept = tmp_path / "log", tmp_path / "run", []

    child = start(where, log)  # killed in the first epoch, between two saves
    wait_for(log, 5, child)
    while not any(int(save.name.partition("-")[2]) >= 4 for save in checkpoint.saves(where)):
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.communicate()
    saved = checkpoint.latest(where)[1]["step"]
    assert 4 <= saved <= len(lines(log)) and saved % 2 == 0
    kept += lines(log)[:saved]
    log.unlink()

    child = start(where, log)  # told to stop in the second
    wait_for(log, 7, child)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 143
    child.communicate()
    assert checkpoint.latest(where)[1]["step"] == saved + len(lines(log))
    kept += lines(log)
    log.unlink()

    child = start(where, log)
    out, err = child.communicate(timeout=LONG)
    assert child.returncode == 0, err
    whole, err = undisturbed.communicate(timeout=LONG)
    assert undisturbed.returncode == 0, err
    assert [*kept, *lines(log)] == lines(tmp_path / "whole.log")
    assert json.loads(out) == json.loads(whole)


def test_a_second_run_in_one_directory_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    log, where = tmp_path / "log", tmp_path / "run"
    child = start(where, log, epochs=50)
    wait_for(log, 3, child)
    with pytest.raises(CheckpointError, match=rf"in use by another run \(process {child.pid} on "):
        fit(model(), data(), checkpoint=where, verbose=0)
    assert child.poll() is None  # and goes on saving
    wait_for(log, len(lines(log)) + 3, child)
    child.kill()
    child.communicate()
    step = checkpoint.latest(where)[1]["step"]
    journal = Journal()
    fit(model(), data(), checkpoint=where, epochs=10, verbose=0, callbacks=[journal])
    assert len(journal.lines) == 10 * STEPS - step


class Telling(keras.callbacks.Callback):
    """Sends this process a signal after a step, or in the middle of validation."""

    def __init__(self, step: int | None = None, *, signum: int = signal.SIGTERM) -> None:
        super().__init__()
        self._left, self._signum = step, signum
        self.tested = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._signum)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.tested += 1
        if self._left is None and self.tested == 1:
            os.kill(os.getpid(), self._signum)


def test_a_run_told_to_stop_saves_after_the_step_and_exits_with_143(tmp_path: Path) -> None:
    before, journal = signal.getsignal(signal.SIGTERM), Journal()
    with pytest.raises(Preempted) as raised:
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=3,
            verbose=0,
            callbacks=[Telling(4), journal],
        )
    assert raised.value.code == 143
    assert isinstance(raised.value, SystemExit)
    assert len(journal.lines) == 4
    assert checkpoint.latest(tmp_path)[1]["step"] == 4
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_told_to_stop_in_validation_does_not_finish_it_first(tmp_path: Path) -> None:
    telling = Telling()
    with pytest.raises(Preempted):
        fit(
            model(),
            data(),
            checkpoint=tmp_path / "a",
            epochs=2,
            verbose=0,
            callbacks=[telling],
            validation_data=data(),
        )
    assert telling.tested == 1
    journal = Journal()
    history = fit(
        model(),
        data(),
        checkpoint=tmp_path / "a",
        epochs=2,
        verbose=0,
        callbacks=[journal],
        validation_data=data(),
    )
    whole = fit(
        model(), data(), checkpoint=tmp_path / "b", epochs=2, verbose=0, validation_data=data()
    )
    assert len(journal.lines) == STEPS
    assert history.history == whole.history


def test_raise_is_for_programs_that_catch_errors(tmp_path: Path) -> None:
    with pytest.raises(PreemptedError, match="signal 10") as raised:
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=3,
            verbose=0,
            on_preempt="raise",
            signals=signal.SIGUSR1,
            callbacks=[Telling(4, signum=signal.SIGUSR1)],
        )
    assert isinstance(raised.value, Exception) and isinstance(raised.value, ph.PlayheadError)
    assert checkpoint.latest(tmp_path)[1]["step"] == 4


def test_ignore_leaves_signals_to_the_program(tmp_path: Path) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda signum, frame: told.append(signum))
    try:
        history = fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=1,
            verbose=0,
            on_preempt="ignore",
            signals=[signal.SIGUSR1],
            callbacks=[Telling(4, signum=signal.SIGUSR1)],
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [signal.SIGUSR1] and history.epoch == [0]


def test_fit_in_another_thread_touches_no_handlers(tmp_path: Path) -> None:
    before, ended = signal.getsignal(signal.SIGTERM), []

    def train() -> None:
        ended.append(fit(model(), data(), checkpoint=tmp_path, epochs=1, verbose=0))
        assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert ended[0].epoch == [0]
    assert checkpoint.latest(tmp_path)[1]["step"] == STEPS


@pytest.mark.parametrize("step", [4, STEPS, STEPS + 2])
def test_ctrl_c_saves_after_the_step_and_the_run_goes_on_bit_for_bit(
    tmp_path: Path, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    whole, broken, rest = Journal(), Journal(), Journal()
    trained, resumed = model(), model()
    history = fit(
        trained, data(), checkpoint=tmp_path / "a", epochs=3, verbose=0, callbacks=[whole]
    )
    with pytest.raises(KeyboardInterrupt):
        fit(
            model(),
            data(),
            checkpoint=tmp_path / "b",
            epochs=3,
            verbose=2,
            callbacks=[Telling(step, signum=signal.SIGINT), broken],
        )
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.latest(tmp_path / "b")[1]["step"] == step
    at = f"epoch {(step - 1) // STEPS + 1}/3, step {(step - 1) % STEPS + 1}/{STEPS}"
    assert f"playhead: saved {tmp_path / 'b'}/ at {at}; run the same" in capsys.readouterr().out
    again = fit(resumed, data(), checkpoint=tmp_path / "b", epochs=3, verbose=0, callbacks=[rest])
    assert broken.lines + rest.lines == whole.lines
    assert again.history == history.history
    assert digest(resumed) == digest(trained)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    class Impatient(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(model(), data(), checkpoint=tmp_path, verbose=0, callbacks=[Impatient()])
    assert not checkpoint.saves(tmp_path)


def test_ctrl_c_among_the_signals_preempts_and_with_ignore_is_pythons_own(tmp_path: Path) -> None:
    with pytest.raises(Preempted) as raised:
        fit(
            model(),
            data(),
            checkpoint=tmp_path / "a",
            verbose=0,
            signals=(signal.SIGINT, signal.SIGTERM),
            callbacks=[Telling(3, signum=signal.SIGINT)],
        )
    assert raised.value.code == 130
    with pytest.raises(KeyboardInterrupt):
        fit(
            model(),
            data(),
            checkpoint=tmp_path / "b",
            verbose=0,
            on_preempt="ignore",
            callbacks=[Telling(3, signum=signal.SIGINT)],
        )
    assert not checkpoint.saves(tmp_path / "b")


def test_a_run_told_to_stop_when_it_has_just_ended_saves_and_stops(tmp_path: Path) -> None:
    class AtTheEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted):
        fit(model(), data(), checkpoint=tmp_path, epochs=1, verbose=0, callbacks=[AtTheEnd()])
    assert fit(model(), data(), checkpoint=tmp_path, epochs=1, verbose=0).epoch == [0]


def test_a_run_told_to_stop_says_where_it_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Preempted):
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=6,
            callbacks=[Telling(STEPS + 5)],
        )
    said = (
        f"playhead: saved {tmp_path}/ at epoch 2/6, step 5/7; run the same program again to go on"
    )
    assert said in capsys.readouterr().out.splitlines()


def test_an_epoch_without_a_save_is_saved_at_its_end_also_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now[0] += 1.0
            if now[0] == 2 * STEPS + 2:
                raise ZeroDivisionError

    now = [0.0]
    monkeypatch.setattr(cadence.Cadence.__init__, "__kwdefaults__", {"clock": lambda: now[0]})
    with pytest.raises(ZeroDivisionError):
        fit(model(), data(), checkpoint=tmp_path, epochs=3, verbose=0, callbacks=[Slow()])
    saved = checkpoint.latest(tmp_path)[1]
    assert (saved["epoch"], saved["step_in_epoch"], saved["epoch_complete"]) == (2, 0, False)
