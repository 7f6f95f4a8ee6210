"""`playhead inspect`: a position or a run, in words and as JSON, without any framework."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import playhead as ph
from playhead.cli.group import playhead
from playhead.keras import checkpoint


def inspect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(playhead, ["inspect", *map(str, arguments)])


def an_iterator() -> ph.Iterator:
    """13 of 25 batches of the second pass, of 100 records each."""
    ds = ph.Dataset.range(2_450).shuffle(seed=7).map(np.sqrt).batch(100).prefetch(2)
    it = ds.iterator(epochs=3)
    it.seek(25 + 13)
    return it


def save_run(
    root: Path,
    *,
    step: int = 38,
    epoch: int = 1,
    step_in_epoch: int = 13,
    losses: Sequence[float] = (0.5,),
) -> Path:
    state = {
        "kind": "playhead.keras",
        "settings": {},
        "versions": {"playhead": "0.1.0", "keras": "3.15.1", "backend": "tensorflow"},
        "position": an_iterator().position_at(step).to_dict(),
        "step": step,
        "epoch": epoch,
        "step_in_epoch": step_in_epoch,
        "steps_in_epoch": 25,
        "epochs": 3,
        "epoch_complete": False,
        "stopped": False,
        "logs": {},
        "history": {"loss": list(losses)},
        "history_epochs": list(range(epoch)),
        "learning_rate": 0.001,
    }
    arrays = {"model": [("w", np.arange(3.0))], "optimizer": [], "metrics": [], "seeds": []}
    return checkpoint.write(root, step, state, arrays, keep=2)


@pytest.fixture
def position_file(tmp_path: Path) -> Path:
    path = tmp_path / "position.json"
    an_iterator().position.save(path)
    return path


def test_a_position_file_is_said_in_words(position_file: Path) -> None:
    result = inspect(position_file)
    assert result.exit_code == 0
    assert "38 batches delivered" in result.output
    assert "pass 2, step 13 of 25 (52.0 %)" in result.output
    assert "3,750 records seen" in result.output  # a short pass of 2,450, then 13 batches of 100
    lines = [line.split() for line in result.output.splitlines()]
    operations = [
        line[0] for line in lines if line and line[0] in ("range", "shuffle", "map", "batch")
    ]
    assert operations == ["range", "shuffle", "map", "batch"]


def test_the_json_of_a_position_has_the_documented_keys(position_file: Path) -> None:
    said = json.loads(inspect(position_file, "--json").output)
    position = json.loads(position_file.read_text())
    assert said["kind"] == "position"
    assert (said["step"], said["epoch"], said["step_in_epoch"], said["epoch_length"]) == (
        38,
        1,
        13,
        25,
    )
    assert (said["percent_of_epoch"], said["records"]) == (52.0, 3750)
    assert said["bytes"] == {"position": len(position_file.read_bytes()) - 1, "checkpoint": None}
    assert said["run"] is None
    assert said["position"] == position
    text = inspect("--help").output
    assert all(key in text for key in said)


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    def fails(x: Any) -> Any:
        if x % 4 == 0:
            raise ValueError
        return x

    def kept() -> ph.Dataset:
        return ph.Dataset.range(30).map(fails).ignore_errors()

    mixed = ph.Dataset.zip(kept().batch(3), kept().map(lambda x: x + 1).ignore_errors())
    it = mixed.iterator()
    next(it)
    next(it)  # of the first 1 2 3 5 6 7, of the second 1 2, and 2 + 1 + 0 before these
    it.position.save(tmp_path / "p.json")
    assert json.loads(inspect(tmp_path / "p.json", "--json").output)["ignored"] == 3
    assert "3 elements of this pass" in inspect(tmp_path / "p.json").output


def test_a_run_is_said_by_its_directory_and_by_one_checkpoint_in_it(tmp_path: Path) -> None:
    save_run(tmp_path / "run", step=30, step_in_epoch=5)
    newest = save_run(tmp_path / "run")
    for path in (tmp_path / "run", newest):
        result = inspect(path)
        assert result.exit_code == 0
        assert "epoch 2 of 3, step 13 of 25 (52.0 %)" in result.output
        assert "loss 0.5" in result.output
    said = json.loads(inspect(tmp_path / "run", "--json").output)
    assert said["kind"] == "checkpoint"
    assert said["path"] == str(newest)
    assert said["checkpoints"] == ["step-0000000030", "step-0000000038"]
    assert said["bytes"]["checkpoint"] == sum(file.stat().st_size for file in newest.iterdir())
    assert said["run"]["finished"] is False
    assert said["complaints"] == []


def test_a_finished_run_is_said_to_be_finished(tmp_path: Path) -> None:
    save_run(tmp_path, step=75, epoch=3, step_in_epoch=0)
    assert "finished: 3 epochs of 3" in inspect(tmp_path).output


def test_the_json_is_json_also_when_a_loss_was_not_a_number(tmp_path: Path) -> None:
    save_run(tmp_path, losses=[0.5, float("nan")])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    said = json.loads(inspect(tmp_path, "--json").output, parse_constant=refuse)
    assert said["run"]["history"] == {"loss": [0.5, None]}
    assert "loss nan" in inspect(tmp_path).output


def test_a_run_that_removes_old_checkpoints_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = save_run(tmp_path, step=30, step_in_epoch=5)
    read = checkpoint.latest

    def overtaken(path: Path) -> tuple[Path, dict[str, Any]]:
        found = read(path)
        if old.exists():
            save_run(tmp_path)
            shutil.rmtree(old)
        return found

    monkeypatch.setattr(checkpoint, "latest", overtaken)
    result = inspect(tmp_path)
    assert result.exit_code == 0
    assert "38 batches delivered" in result.output


def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_is_shown(tmp_path: Path) -> None:
    save_run(tmp_path, step=30, step_in_epoch=5)
    newest = save_run(tmp_path)
    (newest / "arrays.npz").write_bytes(b"not what was written")
    result = inspect(tmp_path)
    assert result.exit_code == 0
    assert "damaged" in result.output
    assert "arrays.npz" in result.output
    assert "30 batches delivered" in result.output
    said = json.loads(inspect(tmp_path, "--json").output)
    assert said["step"] == 30
    assert len(said["complaints"]) == 1


def test_a_run_without_a_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    (save_run(tmp_path) / "state.json").unlink()
    result = inspect(tmp_path)
    assert result.exit_code == 1
    assert "every checkpoint is damaged" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "not a position"),
        (b'{"step": 3}', "not a position"),
    ],
)
def test_what_is_neither_gets_one_clear_line_and_status_2(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "something"
    if content is not None:
        path.write_bytes(content)
    result = inspect(path)
    assert result.exit_code == 2
    assert said in result.stderr
    assert str(path) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_directory_without_a_checkpoint_gets_status_2(tmp_path: Path) -> None:
    result = inspect(tmp_path)
    assert result.exit_code == 2
    assert "without a checkpoint" in result.stderr


def test_a_damaged_position_and_a_newer_one_get_status_1(position_file: Path) -> None:
    said = json.loads(position_file.read_text())
    for change, message in (({"step": -1}, "damaged"), ({"playhead": 99}, "upgrade playhead")):
        position_file.write_text(json.dumps(said | change))
        result = inspect(position_file)
        assert result.exit_code == 1
        assert message in result.stderr


def test_a_pipeline_that_was_changed_on_the_way_is_told(tmp_path: Path) -> None:
    old = an_iterator().position
    now = ph.Dataset.range(50).batch(5).iterator()
    now.load_state_dict(old, on_change="from_here")
    now.position.save(tmp_path / "p.json")
    output = inspect(tmp_path / "p.json").output
    assert "until step 38" in output
    assert "entered after step 38" in output


def test_a_terminal_is_not_told_what_to_do_by_a_file(position_file: Path) -> None:
    said = json.loads(position_file.read_text())
    said["pipeline"]["operations"].append({"op": "map", "fn": "\x1b]0;owned\x07[bold]"})
    position_file.write_text(json.dumps(said))
    output = inspect(position_file).output
    assert "\x1b" not in output
    assert "\\x1b]0;owned\\x07[bold]" in output


def test_no_framework_is_imported(tmp_path: Path) -> None:
    save_run(tmp_path)
    code = (
        "import sys\n"
        "from playhead.cli import main\n"
        "try: main(['inspect', sys.argv[1]])\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "heavy = {'tensorflow', 'keras', 'torch', 'jax', 'matplotlib', 'sklearn'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "38 batches delivered" in done.stdout


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_package_is_one_line_that_names_the_extra(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from playhead.cli import main; main(['inspect', 'x'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"playhead: the command line needs {package}: pip install 'playhead[cli]'"
    )
