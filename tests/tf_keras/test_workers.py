"""`playhead.tf_keras.fit` under MultiWorkerMirroredStrategy, in two real processes that are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from keras2_run import Journal, data, model

from playhead.errors import PlayheadWarning
from playhead.keras import checkpoint
from playhead.tf_keras import fit

PROGRAM = Path(__file__).with_name("keras2_run.py")
PATIENCE = 240  # seconds


def start(directory: Path, where: Path, **settings: Any) -> list[subprocess.Popen[str]]:
    """Two workers, each with a journal `0.log`, `1.log` and what it says in `directory`."""
    directory.mkdir(exist_ok=True)
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        log = directory / f"{index}.log"
        log.unlink(missing_ok=True)
        given = {"where": str(where), "log": str(log), **settings}
        environment = os.environ | {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        }
        with (
            (directory / f"{index}.out").open("w") as out,
            (directory / f"{index}.err").open("w") as errors,
        ):
            workers.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), json.dumps(given)],
                    stdout=out,
                    stderr=errors,
                    env=environment,
                    text=True,
                )
            )
    return workers


def lines(directory: Path, index: int) -> list[str]:
    log = directory / f"{index}.log"
    return log.read_text().splitlines() if log.exists() else []


def kill_after(workers: list[subprocess.Popen[str]], directory: Path, count: int) -> None:
    """SIGKILL for all, once the first has noted `count` lines."""
    until = time.monotonic() + PATIENCE
    while len(lines(directory, 0)) < count:
        ended = [worker.poll() for worker in workers]
        assert ended == [None, None], (ended, (directory / "0.err").read_text())
        assert time.monotonic() < until
        time.sleep(0.01)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    assert [worker.wait() for worker in workers] == [-signal.SIGKILL] * 2


def ends(workers: list[subprocess.Popen[str]], directory: Path) -> list[dict[str, Any]]:
    """What each worker said at its end."""
    until = time.monotonic() + PATIENCE
    try:
        codes = [worker.wait(max(0.1, until - time.monotonic())) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert codes == [0, 0], [(directory / f"{k}.err").read_text() for k in range(2)]
    return [json.loads((directory / f"{k}.out").read_text()) for k in range(2)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that was killed in the middle of its second epoch and gone on with, and one left alone."""
    root = tmp_path_factory.mktemp("runs")
    kill_after(start(root, root / "run"), root, 12)
    killed = [lines(root, k) for k in range(2)]
    shutil.copytree(root / "run", root / "killed")
    told = ends(start(root, root / "run", whole=str(root / "whole")), root)
    return {"root": root, "killed": killed, "told": told}


def test_two_killed_workers_go_on_to_the_bit(runs: dict[str, Any]) -> None:
    root = runs["root"]
    state = checkpoint.latest(root / "killed")[1]
    assert state["epoch"] == 1 and 0 < state["step_in_epoch"] < 7
    begun = state["step"] + state["epoch"]  # one more line at the epoch's end
    for worker in range(2):
        whole = (root / f"{worker}.log.whole").read_text().splitlines()
        killed = runs["killed"][worker]
        assert len(whole) == 24 and begun <= len(killed) < 16
        assert killed == whole[: len(killed)]
        assert lines(root, worker) == whole[begun:]
    for told in runs["told"]:
        assert told["run"] == told["whole"]


def test_a_finished_run_gives_its_history_and_weights_on_all_workers(runs: dict[str, Any]) -> None:
    for told in runs["told"]:
        assert told["finished"]["history"] == told["run"]["history"]
        assert told["finished"]["digest"] == told["run"]["digest"]


def test_saving_by_the_clock_is_refused_among_several_workers(runs: dict[str, Any]) -> None:
    for told in runs["told"]:
        assert "several workers have to save at the same step" in told["clock"]


def test_a_worker_that_does_not_see_the_checkpoint_is_an_error_on_all(runs: dict[str, Any]) -> None:
    step = checkpoint.latest(runs["root"] / "run")[1]["step"]
    for told in runs["told"]:
        assert f"worker 0 at step {step}, worker 1 at step 0" in told["lost"]


def test_one_process_goes_on_with_the_batches_of_two_workers_and_says_what_differs(
    runs: dict[str, Any],
) -> None:
    state = checkpoint.latest(runs["root"] / "killed")[1]
    journal = Journal()
    with pytest.warns(PlayheadWarning, match=r"trained on 2 replicas, and this is 1 replica:"):
        history = fit(
            model(),
            data(),
            checkpoint=runs["root"] / "killed",
            epochs=3,
            verbose=0,
            callbacks=[journal],
        )
    assert len(journal.lines) == 3 * 7 + 3 - state["step"] - state["epoch"]
    assert history.epoch == [0, 1, 2]
