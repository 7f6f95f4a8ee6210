"""`playhead demo`: a small one from end to end, and that its comparison is not blind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from playhead.cli.demo import SAVE_EVERY, Demo, Return, draw_kills
from playhead.cli.group import playhead
from playhead.cli.logbook import WEIGHTS, Comparison, Reader, Writer, compare, files, processes

STEPS = 12


def write_run(run: Path, *parts: range) -> None:
    """A run of one process for each part: the same records and losses for the same steps."""
    for part in parts:
        log = Writer(run)
        for step in part:
            log("batch", step=step, records=[step, step + 100], loss=(1 / step).hex())
    np.savez(run / WEIGHTS, kernel=np.arange(6, dtype=np.float32).reshape(2, 3), bias=np.zeros(3))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    write_run(tmp_path / "straight", range(1, 13))
    write_run(tmp_path / "killed", range(1, 6), range(3, 9), range(9, 13))
    return tmp_path / "straight", tmp_path / "killed"


def different(runs: tuple[Path, Path]) -> list[str]:
    traced = {step: [step, step + 100] for step in range(1, STEPS + 1)}
    found = compare(*runs, steps=STEPS, traced=traced)
    return [comparison.what for comparison in found if not comparison.identical]


def change(path: Path, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_equal_runs_are_found_equal(runs: tuple[Path, Path]) -> None:
    assert different(runs) == []


@pytest.mark.parametrize("process", [0, 1, 2])
def test_one_loss_that_differs_in_its_last_bit_is_found(
    runs: tuple[Path, Path], process: int
) -> None:
    def last_bit(lines: list[dict[str, Any]]) -> None:
        loss = float.fromhex(str(lines[1]["loss"]))
        lines[1]["loss"] = float(np.nextafter(loss, 2.0)).hex()

    change(files(runs[1])[process], last_bit)
    assert different(runs) == ["loss of every batch"]


def test_one_other_record_is_found(runs: tuple[Path, Path]) -> None:
    change(files(runs[1])[2], lambda lines: lines[0].update(records=[9, 108]))
    assert different(runs) == ["records of every batch"]


def test_records_in_another_order_are_found(runs: tuple[Path, Path]) -> None:
    change(files(runs[1])[2], lambda lines: lines[0].update(records=[109, 9]))
    assert different(runs) == ["records of every batch"]


def test_a_step_that_only_its_first_time_differed_is_found(runs: tuple[Path, Path]) -> None:
    # Steps 3 to 5 were done by the first process, lost, and done again by the second.
    change(files(runs[1])[0], lambda lines: lines[3].update(records=[0, 0]))
    assert different(runs) == ["records of every batch"]


def test_a_missing_step_is_found(runs: tuple[Path, Path]) -> None:
    change(files(runs[1])[2], lambda lines: lines.pop(1))
    assert "records of every batch" in different(runs)


def test_a_step_too_many_is_found(runs: tuple[Path, Path]) -> None:
    change(files(runs[1])[2], lambda lines: lines.append(lines[-1] | {"step": STEPS + 1}))
    assert "records of every batch" in different(runs)


def test_a_process_that_skips_a_step_another_did_is_found(runs: tuple[Path, Path]) -> None:
    change(files(runs[1])[1], lambda lines: lines.pop(1))  # step 4, which the first process did
    assert different(runs) == ["records of every batch"]


def test_a_trace_that_names_other_records_is_found(runs: tuple[Path, Path]) -> None:
    traced = {step: [step, step + 100] for step in range(1, STEPS + 1)} | {7: [7, 108]}
    found = compare(*runs, steps=STEPS, traced=traced)
    assert [c.what for c in found if not c.identical] == ["records named by trace"]


@pytest.mark.parametrize("how", ["bit", "sign of zero", "dtype", "missing", "no file"])
def test_weights_that_differ_are_found(runs: tuple[Path, Path], how: str) -> None:
    kernel, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(3)
    path = runs[1] / WEIGHTS
    if how == "no file":
        path.unlink()
    elif how == "missing":
        np.savez(path, kernel=kernel)
    elif how == "dtype":
        np.savez(path, kernel=kernel.astype(np.float64), bias=bias)
    elif how == "bit":
        kernel[1, 2] = np.nextafter(kernel[1, 2], np.float32(9))
        np.savez(path, kernel=kernel, bias=bias)
    else:
        np.savez(path, kernel=kernel, bias=-bias)
    assert different(runs) == ["final weights"]


def test_nothing_compared_is_not_identical() -> None:
    assert not Comparison("anything", 0, 0).identical


def test_a_line_that_a_kill_cut_off_is_left_out(runs: tuple[Path, Path]) -> None:
    path = files(runs[1])[0]
    reader = Reader(path)
    assert reader.read().last_step == 5
    with open(path, "ab") as file:
        file.write(b'{"event":"batch","st')
    assert reader.read().last_step == 5
    assert processes(runs[1])[0].last_step == 5


@pytest.mark.parametrize(("kills", "epochs"), [(0, 1), (1, 1), (1, 2), (4, 8), (40, 8), (9, 1)])
def test_kills_are_drawn_in_order_inside_the_training(kills: int, epochs: int) -> None:
    per_epoch = 29
    for seed in range(20):
        drawn = draw_kills(kills, epochs * per_epoch, per_epoch, seed)
        assert drawn == sorted(drawn)
        assert len(drawn) == kills
        assert all(1 < step < epochs * per_epoch for step in drawn)
        assert draw_kills(kills, epochs * per_epoch, per_epoch, seed) == drawn
    if (kills, epochs) == (4, 8):
        assert all(step > SAVE_EVERY and step % per_epoch > 1 for step in drawn)


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    result = CliRunner().invoke(playhead, ["demo", "--directory", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty" in result.stderr
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("module", ["sklearn", "matplotlib"])
def test_a_missing_package_is_one_line_that_names_the_extra(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(playhead, ["demo", "--directory", str(tmp_path)])
    assert result.exit_code == 1
    assert "pip install 'playhead[demo]'" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    directory = tmp_path_factory.mktemp("demo")
    words = ["demo", "--kills", "1", "--epochs", "2", "--directory", str(directory)]
    run = [sys.executable, "-m", "playhead.cli", *words]
    return directory, subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)


def test_a_killed_training_ends_as_one_that_was_not(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    directory, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("58 of 58") == 3
    assert "NO" not in done.stdout
    assert len(files(directory / "killed")) == 2
    assert (directory / "losses.png").read_bytes()[1:4] == b"PNG"


def test_the_records_logged_are_each_epoch_s_records_once(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    (process,) = processes(demo[0] / "straight")
    for epoch in (process.batches[:29], process.batches[29:]):
        assert sorted(r for _, batch in epoch for r in batch.records) == list(range(1797))
    first, second = process.batches[0][1], process.batches[29][1]
    assert first.records != second.records


def test_the_killed_process_did_not_reach_the_end(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    killed, back = processes(demo[0] / "killed")
    assert 0 < killed.last_step < 58
    assert back.batches[0][0] <= killed.last_step + 1
    assert "finished" not in killed.events
    assert "finished" in back.events


@pytest.mark.parametrize("what", ["nothing", "kills", "loss", "records", "weights"])
def test_the_exit_status_is_1_if_anything_differs_or_a_kill_is_missing(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The trainings of the finished demo, one of them tampered with, in place of new ones.
    def train(self: Demo) -> Return:
        shutil.copytree(demo[0], tmp_path, dirs_exist_ok=True)
        killed = tmp_path / "killed"
        if what == "loss":
            change(files(killed)[1], lambda lines: lines[-2].update(loss="0x1.0p-3"))
        elif what == "records":
            change(files(killed)[1], lambda lines: lines[-2]["records"].reverse())
        elif what == "weights":
            with np.load(killed / WEIGHTS) as file:
                arrays: dict[str, Any] = dict(file)
            arrays[min(arrays)].flat[0] += 1
            np.savez(killed / WEIGHTS, **arrays)
        return Return(1, 2.0, 3.0)

    monkeypatch.setattr(Demo, "_train_straight_through", train)
    monkeypatch.setattr(Demo, "_train_and_kill", lambda self, *arguments: None)
    kills = "1" if what == "kills" else "0"  # none is made here
    words = ["demo", "--epochs", "2", "--kills", kills, "--directory", str(tmp_path)]
    result = CliRunner().invoke(playhead, words, catch_exceptions=False)
    assert result.exit_code == (0 if what == "nothing" else 1)
    assert ("NO" in result.output) == (what in ("loss", "records", "weights"))
    assert ("only 0 kills of 1" in result.output) == (what == "kills")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals as POSIX has them")
def test_an_interrupt_ends_the_training_process_too_and_quietly(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "playhead.cli", "demo", "--directory", str(tmp_path / "d")]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        log = tmp_path / "d" / "straight" / "process-001.jsonl"
        until = time.monotonic() + 180
        while not (log.exists() and log.read_text().endswith("\n")):
            assert time.monotonic() < until and parent.poll() is None
            time.sleep(0.02)
        child = json.loads(log.read_text().splitlines()[0])["pid"]
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=180)
    assert parent.returncode == 130
    assert errors == ""
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
