"""A checkpoint on disk is whole or not there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import playhead as ph
from playhead.errors import CheckpointError, NewerFormat, PlayheadWarning
from playhead.keras import checkpoint, lock, storage

ARRAYS = {
    "model": [
        ("dense/kernel", np.arange(6, dtype=np.float32).reshape(2, 3)),
        ("seed", np.array([7, 2**32 - 1], np.uint32)),
        ("flag", np.array(True)),
    ],
    "optimizer": [("iteration", np.array(2**40, np.int64))],
}


def save(root: Path, step: int, *, keep: int = 2, **state: Any) -> Path:
    directory = checkpoint.write(root, step, {"step": step, **state}, ARRAYS, keep=keep)
    assert isinstance(directory, Path)
    return directory


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    save(tmp_path, 1200, logs={"loss": 0.1 + 0.2})
    directory, state = checkpoint.latest(tmp_path)
    assert directory.name == "step-0000001200"
    assert state["step"] == 1200 and state["logs"]["loss"] == 0.1 + 0.2
    for group, named in ARRAYS.items():
        for (name, value), (read_name, read) in zip(
            named, checkpoint.read_arrays(directory, state)[group], strict=True
        ):
            assert read_name == name
            assert read.dtype == value.dtype and read.shape == value.shape
            assert read.tobytes() == value.tobytes()


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_save_has_the_modes_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        directory = save(tmp_path / "run", 2)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (directory, *directory.iterdir())}
    assert modes.pop(directory.name) == 0o750
    assert set(modes.values()) == {0o640}


def test_the_arrays_are_a_file_that_numpy_reads(tmp_path: Path) -> None:
    with np.load(save(tmp_path, 2) / "arrays.npz", allow_pickle=False) as file:
        assert file["model/00000"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file["optimizer/00000"] == 2**40


def test_a_save_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path, 2)
    with pytest.raises(CheckpointError, match="dtype object"):
        checkpoint.write(tmp_path, 4, {}, {"model": [("a", np.array([{}], object))]}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000002"]


def test_dtypes_from_outside_numpy_survive(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = np.array([[1.5, -2.25]], ml_dtypes.bfloat16)
    scalar = np.array(3.0, ml_dtypes.float8_e4m3fn)
    checkpoint.write(tmp_path, 1, {}, {"model": [("a", halves), ("b", scalar)]}, keep=1)
    (_, a), (_, b) = checkpoint.read_arrays(*checkpoint.latest(tmp_path))["model"]
    assert a.dtype == ml_dtypes.bfloat16 and a.shape == (1, 2) and (a == halves).all()
    assert b.dtype == ml_dtypes.float8_e4m3fn and b.shape == () and b == scalar


def test_the_newest_saves_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save(tmp_path, step, keep=2)
    assert [p.name for p in checkpoint.saves(tmp_path)] == ["step-0000000006", "step-0000000008"]


def test_a_second_save_at_one_step_is_the_newer(tmp_path: Path) -> None:
    save(tmp_path, 5, when="before validation")
    save(tmp_path, 5, when="after it")
    directory, state = checkpoint.latest(tmp_path)
    assert directory.name == "step-0000000005.1"
    assert state["when"] == "after it"


@pytest.mark.parametrize("name", ["state.json", "arrays.npz", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_newest_falls_back_to_the_one_before(
    tmp_path: Path, name: str, damage: str
) -> None:
    save(tmp_path, 2)
    victim = save(tmp_path, 4) / name
    content = bytearray(victim.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0x10
        victim.write_bytes(content)
    elif damage == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    else:
        victim.unlink()
    with pytest.warns(PlayheadWarning, match="step-0000000004"):
        _, state = checkpoint.latest(tmp_path)
    assert state["step"] == 2


def test_saving_after_a_fallback_never_deletes_the_only_whole_save(tmp_path: Path) -> None:
    save(tmp_path, 2, keep=1)
    damaged = save(tmp_path, 9, keep=2)
    (damaged / "state.json").unlink()
    save(tmp_path, 4, keep=1)
    assert checkpoint.latest(tmp_path)[1]["step"] == 4


def test_all_damaged_is_an_error_that_names_each(tmp_path: Path) -> None:
    for step in (2, 4):
        (save(tmp_path, step) / "arrays.npz").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)step-0000000004.*step-0000000002"):
        checkpoint.latest(tmp_path)


def test_an_empty_or_missing_directory_holds_no_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="no checkpoint"):
            checkpoint.latest(path)


def test_a_newer_format_is_refused_rather_than_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 2)
    manifest = save(tmp_path, 4) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "playhead": 99}))
    with pytest.raises(NewerFormat):
        checkpoint.latest(tmp_path)


def test_a_manifest_cannot_point_outside_its_directory(tmp_path: Path) -> None:
    save(tmp_path, 2)
    manifest = save(tmp_path, 4) / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"]["../step-0000000002/state.json"] = content["files"]["state.json"]
    manifest.write_text(json.dumps(content))
    with pytest.warns(PlayheadWarning, match="outside"):
        assert checkpoint.latest(tmp_path)[1]["step"] == 2


def test_arrays_with_pickles_in_them_are_not_read(tmp_path: Path) -> None:
    directory = save(tmp_path, 2)
    np.savez(directory / "arrays.npz", **{"model/00000": np.array([{}], object)}, allow_pickle=True)
    state = {"arrays": {"model": [{"name": "a", "dtype": "float32", "shape": [1]}]}}
    with pytest.raises(ValueError, match="allow_pickle"):
        checkpoint.read_arrays(directory, state)


def left(root: Path, *, hours: float = 0, **of: Any) -> Path:
    """What a process killed while saving leaves, as it would be called if some of its name were other."""
    code = (
        "import sys, os\n"
        "from playhead.keras import checkpoint\n"
        "os.rename = lambda *paths: os._exit(9)\n"
        "checkpoint.write(sys.argv[1], 9, {}, {}, keep=1)"
    )
    before = set(root.iterdir())
    assert subprocess.run([sys.executable, "-c", code, str(root)]).returncode == 9
    (made,) = set(root.iterdir()) - before
    assert made.name.startswith(".writing-")
    found = re.fullmatch(r"\.writing-(?P<pid>\d+)@(?P<host>.+)-(?P<rest>\w+)", made.name)
    assert found is not None
    named = {**found.groupdict(), **of}
    made = made.rename(root / ".writing-{pid}@{host}-{rest}".format(**named))
    for path in (made, *made.iterdir()):
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))
    return made


def test_what_a_killed_save_left_is_swept_away(tmp_path: Path) -> None:
    save(tmp_path, 2)
    left(tmp_path)
    assert [p.name for p in checkpoint.saves(tmp_path)] == ["step-0000000002"]
    storage.at(tmp_path).sweep()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-0000000002"]


def test_what_another_process_may_still_be_writing_stays(tmp_path: Path) -> None:
    elsewhere, mine = left(tmp_path, host="pod-7.1"), left(tmp_path, pid=os.getpid())
    old = left(tmp_path, host="pod-7.1", hours=30)
    storage.at(tmp_path).sweep()
    assert set(tmp_path.iterdir()) == {elsewhere, mine} and not old.exists()
    # Nobody else on this machine is at it: the number is reused.
    storage.at(tmp_path).sweep(alone=True)
    assert set(tmp_path.iterdir()) == {elsewhere}


def test_a_directory_is_held_by_one_run_until_it_ends_in_whatever_way(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from playhead.keras.lock import held\n"
        "with held(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"  # which lives on, as workers do
        "    if not child:\n"
        "        print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    worker = int(holder.stdout.readline())
    try:
        with pytest.raises(
            CheckpointError, match=rf"in use by another run \(process {holder.pid} "
        ):
            lock.held(tmp_path).__enter__()
        holder.kill()
        holder.wait()
        holder.stdout.close()
        os.kill(worker, 0)
        with lock.held(tmp_path) as alone:
            assert alone
            with pytest.raises(CheckpointError, match=f"process {os.getpid()} "):
                lock.held(tmp_path).__enter__()
        with lock.held(tmp_path) as alone:
            assert alone
    finally:
        os.kill(worker, signal.SIGKILL)
        holder.kill()
        holder.wait()


def test_without_locks_of_the_kernel_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    with lock.held(tmp_path) as one, lock.held(tmp_path) as two:
        assert not one and not two
    monkeypatch.setattr(lock, "fcntl", None)
    with lock.held(tmp_path) as one:
        assert not one


def test_one_save_can_be_named_directly(tmp_path: Path) -> None:
    first = save(tmp_path, 2)
    save(tmp_path, 4)
    assert checkpoint.latest(first) == (first, checkpoint.latest(first)[1])
    assert checkpoint.latest(first)[1]["step"] == 2


def test_reading_checkpoints_imports_no_framework() -> None:
    code = (
        "import sys, playhead.keras.checkpoint; print({'keras', 'tensorflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_kill_at_any_moment_of_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys
        import numpy as np
        from playhead.keras import checkpoint
        big = {"model": [("w", np.random.default_rng(0).random(400_000))]}
        for step in range(1, 1_000_000):
            checkpoint.write(sys.argv[1], step, {"step": step}, big, keep=1)
            print(step, flush=True)
        """
    )
    rng = np.random.default_rng(5)
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        assert first
        try:
            child.wait(timeout=float(rng.uniform(0, 0.08)))
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
        said = [int(line) for line in child.stdout.read().split()]
        child.wait()
        child.stdout.close()
        _, state = checkpoint.latest(tmp_path)
        assert state["step"] >= max([1, *said])


def test_the_records_of_a_step_are_told_from_the_run_directory(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(10, dtype=np.float32).reshape(10, 1)

    def data():
        return ph.Dataset.from_tensor_slices((x, x)).shuffle().batch(4)

    trained = data()
    ph.keras.fit(model, trained, checkpoint=tmp_path / "run", epochs=2, verbose=0)
    seen = [r.index for step in (4, 5, 6) for r in ph.trace(tmp_path / "run", data(), step=step)]
    assert sorted(seen) == list(range(10))
    assert seen == [int(v) for batch in trained.epoch(1) for v in batch[0][:, 0]]
