"""Saves on object stores: memory://, and a server of this machine that speaks S3."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from small_run import Broken, Journal, data, digest, model

import playhead as ph
from playhead.cli.group import playhead as command
from playhead.errors import CheckpointError, PlayheadWarning
from playhead.keras import checkpoint, fit, remote, storage

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

PROGRAM = Path(__file__).with_name("small_run.py")
ARRAYS = {
    "model": [
        ("dense/kernel", np.arange(6, dtype=np.float32).reshape(2, 3)),
        ("flag", np.array(True)),
    ],
    "optimizer": [("iteration", np.array(2**40, np.int64))],
}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket on a server of this process."""
    server = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "something")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


@pytest.fixture(params=["memory", "s3"])
def where(request: pytest.FixtureRequest) -> str:
    """A URL that nothing is at."""
    base = "memory:/" if request.param == "memory" else request.getfixturevalue("s3")
    return f"{base}/{uuid.uuid4().hex}/run"


@pytest.fixture
def memory() -> str:
    return f"memory://{uuid.uuid4().hex}/run"


def save(root: str, step: int, *, keep: int = 2, **state: Any) -> Any:
    return checkpoint.write(root, step, {"step": step, **state}, ARRAYS, keep=keep)


def names(root: str) -> list[str]:
    """The files under a URL, relative to it."""
    files, path = fsspec.core.url_to_fs(root)
    files.invalidate_cache()
    return sorted(name[len(path) :].lstrip("/") for name in files.find(path))


def step(number: int) -> list[str]:
    return [f"step-{number:010d}/{name}" for name in ("arrays.npz", "manifest.json", "state.json")]


def test_what_is_read_from_a_store_is_what_was_written(where: str) -> None:
    save(where, 1200, logs={"loss": 0.1 + 0.2})
    directory, state = checkpoint.latest(where)
    assert str(directory) == f"{where}/step-0000001200" and directory.name == "step-0000001200"
    assert state["step"] == 1200 and state["logs"]["loss"] == 0.1 + 0.2
    read = checkpoint.read_arrays(directory, state)
    for group, named in ARRAYS.items():
        for (name, value), (read_name, found) in zip(named, read[group], strict=True):
            assert read_name == name and found.dtype == value.dtype
            assert found.shape == value.shape and found.tobytes() == value.tobytes()
    again = checkpoint.read_arrays(*checkpoint.latest(f"{where}/step-0000001200"))
    assert again["model"][0][1].tobytes() == ARRAYS["model"][0][1].tobytes()
    size, when = checkpoint.size_and_time(directory)
    assert size > 1000 and abs(time.time() - when) < 3600


def test_the_newest_saves_are_kept_on_a_store(where: str) -> None:
    for number in (2, 4, 6, 8):
        save(where, number)
    assert [p.name for p in checkpoint.saves(where)] == ["step-0000000006", "step-0000000008"]
    assert names(where) == [*step(6), *step(8)]
    save(where, 7)  # of an abandoned past, which 8 was not
    assert names(where) == [*step(6), *step(7)]
    assert save(where, 7).name == "step-0000000007.1"


@pytest.mark.parametrize("name", ["state.json", "arrays.npz", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_newest_on_a_store_falls_back_to_the_one_before(
    where: str, name: str, damage: str
) -> None:
    save(where, 2)
    save(where, 4)
    files, path = fsspec.core.url_to_fs(f"{where}/step-0000000004/{name}")
    content = bytearray(files.cat_file(path))
    content[len(content) // 2] ^= 0x10
    if damage == "flip":
        files.pipe_file(path, bytes(content))
    elif damage == "truncate":
        files.pipe_file(path, bytes(content[: len(content) // 2]))
    else:
        files.rm_file(path)
    if (name, damage) == ("manifest.json", "remove"):  # it is not there, which is no damage
        assert checkpoint.latest(where)[1]["step"] == 2
        return
    with pytest.warns(PlayheadWarning, match="step-0000000004"):
        assert checkpoint.latest(where)[1]["step"] == 2


def test_a_store_without_saves_holds_no_checkpoint(where: str) -> None:
    assert checkpoint.saves(where) == []
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.latest(where)


def left(root: str, number: int, *, hours: float = 0) -> None:
    """What a process that was killed while it uploaded leaves in memory://."""
    for name in ("arrays.npz", "state.json"):
        path = f"{root}/step-{number:010d}/{name}".removeprefix("memory:/")
        MemoryFileSystem().pipe_file(path, b"some of it")
        ago = datetime.timedelta(hours=hours)
        MemoryFileSystem.store[path].modified -= ago


def test_a_save_without_a_manifest_is_not_there_and_is_swept_when_it_is_old(memory: str) -> None:
    save(memory, 2)
    left(memory, 4)
    left(memory, 3, hours=30)
    assert [p.name for p in checkpoint.saves(memory)] == ["step-0000000002"]
    assert checkpoint.latest(memory)[1]["step"] == 2
    storage.at(memory).sweep()
    assert {name.split("/")[0] for name in names(memory)} == {
        "step-0000000002",
        "step-0000000004",
    }
    assert save(memory, 4).name == "step-0000000004.1"  # into no other's files
    assert checkpoint.latest(memory)[1]["step"] == 4


def test_where_a_store_tells_no_times_nothing_is_taken_for_old(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold(self: Any, path: str) -> Any:
        raise NotImplementedError

    left(memory, 3, hours=30)
    monkeypatch.setattr(MemoryFileSystem, "modified", untold)
    storage.at(memory).sweep()
    assert len(names(memory)) == 2
    monkeypatch.undo()
    storage.at(memory).sweep()
    assert names(memory) == []


def test_what_a_process_of_this_machine_left_that_is_no_more_is_swept_at_once(memory: str) -> None:
    save(memory, 2)
    left(memory, 4)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = f"{memory}/run.lock.json".removeprefix("memory:/")
    root = storage.at(memory)
    with root.hold():
        said = {**json.loads(MemoryFileSystem().cat_file(path)), "pid": gone.pid}
    MemoryFileSystem().pipe_file(path, json.dumps(said).encode())
    with root.hold() as alone:
        assert alone
        root.sweep(alone=alone)
    assert names(memory) == step(2)


def test_a_kill_while_a_save_is_removed_leaves_nothing_that_looks_like_one(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    remove = MemoryFileSystem.rm_file

    def until(self: Any, path: str) -> None:
        remove(self, path)
        if "step-" in path:
            raise Killed

    save(memory, 2, keep=1)
    monkeypatch.setattr(MemoryFileSystem, "rm_file", until)
    with pytest.raises(Killed):
        save(memory, 4, keep=1)
    assert len(names(memory)) == 2 + 3
    assert [p.name for p in checkpoint.saves(memory)] == ["step-0000000004"]


class Failing:
    """Has memory:// fail at opening files for writing: `times` times, with `error`."""

    def __init__(self, patch: pytest.MonkeyPatch, error: Exception, *, times: int) -> None:
        self.tries, opened = 0, MemoryFileSystem._open

        def open_(fs: Any, path: str, mode: str = "rb", **options: Any) -> Any:
            if mode != "rb":
                self.tries += 1
                if self.tries <= times:
                    raise error
            return opened(fs, path, mode, **options)

        patch.setattr(MemoryFileSystem, "_open", open_)
        patch.setattr(remote, "PAUSES", (0.0, 0.0, 0.0))


class TooMany(Exception):
    """As a store's library may raise it."""

    status = 429


@pytest.mark.parametrize(
    "error", [OSError(errno.EBUSY, "slow down"), TimeoutError("timed out"), TooMany("too many")]
)
def test_an_upload_is_tried_again_where_the_error_may_pass(
    memory: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing = Failing(monkeypatch, error, times=3)
    save(memory, 2)
    assert failing.tries == 3 + 3  # files
    directory, state = checkpoint.latest(memory)
    assert checkpoint.read_arrays(directory, state)["optimizer"][0][1] == 2**40


def test_an_upload_that_fails_again_and_again_is_an_error_and_leaves_nothing(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(memory, 2)
    failing = Failing(monkeypatch, OSError(errno.EBUSY, "slow down"), times=1000)
    with pytest.raises(OSError, match="slow down"):
        save(memory, 4)
    assert failing.tries == 4
    assert names(memory) == step(2)


def test_what_will_not_pass_is_not_tried_again(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(monkeypatch, PermissionError(errno.EACCES, "no"), times=1000)
    with pytest.raises(PermissionError):
        save(memory, 2)
    assert failing.tries == 1


def test_a_store_that_cannot_be_reached_is_no_reason_to_go_back_to_an_older_save(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(memory, 2)
    save(memory, 4)

    def unreachable(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    monkeypatch.setattr(MemoryFileSystem, "_open", unreachable)
    with pytest.raises(CheckpointError, match=r"cannot be read \(.*reset by peer"):
        checkpoint.latest(memory)


def test_the_lock_says_who_writes_and_another_that_lives_is_warned_of(memory: str) -> None:
    path = f"{memory}/run.lock.json".removeprefix("memory:/")
    files = MemoryFileSystem()
    with storage.at(memory).hold() as alone:
        assert not alone  # nobody knows that
        said = json.loads(files.cat_file(path))
        assert said["pid"] == os.getpid() and abs(time.time() - said["time"]) < 60
    assert not files.exists(path)
    other = {**said, "host": "pod-7", "machine": "pod-7.1", "pid": 41}
    files.pipe_file(path, json.dumps({**other, "time": time.time() - 20}).encode())
    with (
        pytest.warns(PlayheadWarning, match=r"2\d s ago by process 41 on pod-7"),
        storage.at(memory).hold(),
    ):
        pass
    files.pipe_file(path, json.dumps({**other, "time": time.time() - 3600}).encode())
    with storage.at(memory).hold():  # which warns of nothing
        assert json.loads(files.cat_file(path))["pid"] == os.getpid()
        files.pipe_file(path, json.dumps(other).encode())  # who came later
    assert json.loads(files.cat_file(path)) == other
    files.pipe_file(path, b"[")
    with storage.at(memory).hold():
        pass


def test_a_bucket_that_is_not_there_is_refused_and_not_made(s3: str) -> None:
    journal = Journal()
    with pytest.raises(CheckpointError, match=r"cannot be written .*bucket does not exist"):
        fit(model(), data(), checkpoint="s3://elsewhere/run", verbose=0, callbacks=[journal])
    assert journal.lines == []
    assert "elsewhere" not in fsspec.filesystem("s3").ls("")


def test_a_url_that_nothing_here_can_open_says_what_to_install() -> None:
    with pytest.raises(
        CheckpointError, match=r"nowhere://b/run cannot be used: Protocol not known"
    ):
        storage.at("nowhere://b/run")
    with pytest.raises(CheckpointError, match="made one slash of two"):
        storage.at(Path("s3://bucket/run"))
    code = (
        "import sys\n"
        "sys.modules['fsspec'] = None\n"
        "from playhead.errors import CheckpointError\n"
        "from playhead.keras import storage\n"
        "try:\n"
        "    storage.at('s3://bucket/run')\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fsspec, which reads and writes there, is not installed" in done.stdout
    assert 'pip install "playhead[remote]"' in done.stdout


def test_file_urls_are_directories_of_this_machine(tmp_path: Path) -> None:
    assert storage.at(f"file://{tmp_path}/run") == storage.at(tmp_path / "run")


def test_a_run_on_a_store_goes_on_bit_for_bit(where: str, capsys: Any) -> None:
    whole, trained = Journal(), model()
    history = fit(trained, data(), checkpoint=f"{where}-a", epochs=2, verbose=0, callbacks=[whole])
    lines: list[str] = []
    for saved_at in (4, 8):
        journal = Journal(5)
        with pytest.raises(Broken):
            fit(
                model(),
                data(),
                checkpoint=where,
                epochs=2,
                save_every=2,
                verbose=0,
                callbacks=[journal],
            )
        saved = checkpoint.latest(where)[1]["step"]
        lines = [*lines, *journal.lines][:saved]
        assert saved == saved_at
    rest, resumed = Journal(), model()
    again = fit(resumed, data(), checkpoint=where, epochs=2, verbose=2, callbacks=[rest])
    assert f"playhead: resuming {where}/ at epoch 2/2, step 1/7" in capsys.readouterr().out
    assert lines + rest.lines == whole.lines
    assert again.history == history.history and digest(resumed) == digest(trained)
    assert "run.lock.json" not in names(where)
    finished = fit(model(), data(), checkpoint=where, epochs=2, verbose=0, resume="must")
    assert finished.history == history.history
    with pytest.raises(CheckpointError, match='holds a run already, and resume="never"'):
        fit(model(), data(), checkpoint=where, verbose=0, resume="never")


def test_a_training_process_killed_while_it_uploads_goes_on_exactly(
    s3: str, tmp_path: Path
) -> None:
    from moto.s3.models import s3_backends

    def start(root: str, log: Path) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), root, str(log)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def uploaded() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for key in list(bucket.keys):
            if key.startswith("killed/step-"):
                _, directory, name = key.split("/")
                found.setdefault(directory, set()).add(name)
        return found

    bucket = next(iter(s3_backends.values()))["aws"].buckets["bucket"]
    undisturbed = start(f"{s3}/whole", tmp_path / "whole.log")
    log, kept = tmp_path / "log", []
    for _ in range(2):
        child = start(f"{s3}/killed", log)
        seen = set(uploaded())
        half: list[str] = []
        while not half:
            assert child.poll() is None, child.communicate()
            half = [
                name
                for name, files in uploaded().items()
                if name not in seen and "manifest.json" not in files and len(uploaded()) > 1
            ]
            time.sleep(0.0005)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        child.communicate()
        saved = checkpoint.latest(f"{s3}/killed")[1]["step"]
        trained = log.read_text().splitlines()
        kept += trained[: saved - len(kept)]
        assert len(kept) == saved
        log.unlink()
    child = start(f"{s3}/killed", log)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    whole, err = undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0, err
    assert [*kept, *log.read_text().splitlines()] == (
        tmp_path / "whole.log"
    ).read_text().splitlines()
    assert json.loads(out) == json.loads(whole)


def test_a_run_copied_from_a_store_to_a_disk_goes_on_there(where: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        fit(
            model(),
            data(),
            checkpoint=where,
            epochs=2,
            save_every=2,
            verbose=0,
            callbacks=[Journal(9)],
        )
    files, path = fsspec.core.url_to_fs(where)
    files.get(path, f"{tmp_path / 'run'}", recursive=True)
    rest, resumed, trained = Journal(), model(), model()
    again = fit(resumed, data(), checkpoint=tmp_path / "run", epochs=2, verbose=0, callbacks=[rest])
    history = fit(trained, data(), checkpoint=tmp_path / "whole", epochs=2, verbose=0)
    assert len(rest.lines) == 14 - 8
    assert again.history == history.history and digest(resumed) == digest(trained)


def test_inspect_reads_a_run_on_a_store(where: str) -> None:
    fit(model(), data(), checkpoint=where, epochs=1, verbose=0)
    assert [r.index for r in ph.trace(where, data(), step=2)] == [r.index for r in data().trace(1)]
    said = json.loads(CliRunner().invoke(command, ["inspect", where, "--json"]).output)
    assert said["path"] == f"{where}/step-0000000007" and said["step"] == 7
    assert said["checkpoints"] == ["step-0000000007"]
    assert said["bytes"]["checkpoint"] == checkpoint.size_and_time(said["path"])[0]
    assert "finished: 1 epoch of 1" in CliRunner().invoke(command, ["inspect", where]).output
    nothing = CliRunner().invoke(command, ["inspect", f"{where}/nothing"])
    assert nothing.exit_code == 2 and "without a checkpoint in it" in nothing.output
    unknown = CliRunner().invoke(command, ["inspect", "nowhere://run"])
    assert unknown.exit_code == 1 and "Protocol not known" in unknown.output
