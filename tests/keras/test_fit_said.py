"""What a run says of where it stands: its lines, the progress bar, the files of CSVLogger."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_run import STEPS, Broken, Journal, data, model

import playhead as ph
from playhead.keras import fit
from playhead.keras.storage import at


def rows(batch: int) -> ph.Dataset:
    x = np.arange(96, dtype=np.float32)[:, None] / 96
    return ph.Dataset.from_tensor_slices((x, x)).batch(batch)


def broken_off(ds: ph.Dataset, where: Path, step: int, **given: Any) -> None:
    given = {"epochs": 2, "save_every": 1, "verbose": 0, **given}
    callbacks = [*given.pop("callbacks", []), Journal(step)]
    with pytest.raises(Broken):
        fit(model(), ds, checkpoint=where, callbacks=callbacks, **given)
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.csv_file.close()  # as the end of a process does


def bars(text: str) -> list[tuple[int, int]]:
    found = re.findall(r"(\d+)/(\d+)\S* \S*[━─]", re.sub(r"\x1b\[[0-9;]*m", "", text))
    return [(int(done), int(total)) for done, total in found]


@pytest.mark.parametrize(
    ("now", "on_change", "total"),
    [(rows(4), "by_record", 20), (rows(16).shuffle(seed=1), "from_here", 10)],
)
def test_the_bar_and_the_first_line_agree_where_an_epoch_goes_on_with_other_batches(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    now: ph.Dataset,
    on_change: Any,
    total: int,
) -> None:
    broken_off(rows(8), tmp_path, 5)
    fit(model(), now, checkpoint=tmp_path, epochs=2, on_change=on_change)
    said = capsys.readouterr().out
    assert f"at epoch 1/2, step 4/{total} (step 4 of the run)" in said
    first, second = (bars(part) for part in said.split("Epoch 2/2"))
    assert first and {of for _, of in first} == {total}
    assert min(done for done, _ in first) == 5 and max(done for done, _ in first) == total
    assert second and {of for _, of in second} == {len(now)}


def test_a_run_that_begins_where_another_left_no_save_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"an earlier attempt began in {tmp_path}/ and ended before its first save (save_every="
    broken_off(data(), tmp_path, 3, save_every="10min", verbose=2)
    assert said not in capsys.readouterr().out
    broken_off(data(), tmp_path, 3, save_every="10min", verbose=2)
    out = capsys.readouterr().out
    assert f"playhead: {said}'10min'): this one begins anew\nplayhead: starting {tmp_path}/" in out
    broken_off(data(), tmp_path, 3, save_every=2, verbose=0)
    assert capsys.readouterr().out == ""
    fit(model(), data(), checkpoint=tmp_path, epochs=2, verbose=2)
    out = capsys.readouterr().out
    assert f"resuming {tmp_path}/ at epoch 1/2, step 2/7" in out and said not in out


def test_on_a_store_only_a_run_that_was_killed_has_begun() -> None:
    root = at(f"memory://{uuid.uuid4().hex}/run")
    assert not root.begun()
    with root.hold():
        assert root.begun()  # as whoever finds it after a kill sees it
    assert not root.begun()


def test_a_finished_run_says_how_many_epochs_it_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(model(), data(), checkpoint=tmp_path, epochs=3, verbose=0)
    fit(model(), data(), checkpoint=tmp_path, epochs=3)
    assert f"{tmp_path}/ is already finished: it trained 3 epochs (21 steps)\n" in (
        capsys.readouterr().out
    )
    fit(model(), data(), checkpoint=tmp_path, epochs=2)
    assert "it trained 3 epochs (21 steps), and epochs=2 asks for no more" in (
        capsys.readouterr().out
    )


def test_a_run_that_a_callback_stopped_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    for verbose in (0, 2):
        fit(
            model(),
            data(),
            checkpoint=tmp_path,
            epochs=9,
            verbose=verbose,
            callbacks=[Enough()],
        )
    assert "it trained 1 epoch (7 steps) of 9, when a callback stopped it" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize(("save_every", "stop"), [(3, STEPS + 1), (3, STEPS + 5), (3, 5)])
def test_the_file_of_a_csv_logger_is_that_of_the_unbroken_run(
    tmp_path: Path, append: bool, save_every: int, stop: int
) -> None:
    def logger(name: str) -> Any:
        return keras.callbacks.CSVLogger(tmp_path / f"{name}.csv", append=append)

    given = {"epochs": 3, "verbose": 0, "save_every": save_every}
    fit(model(), data(), checkpoint=tmp_path / "a", callbacks=[logger("a")], **given)
    broken_off(data(), tmp_path / "b", stop, callbacks=[logger("b")], **given)
    resumed = logger("b")
    fit(model(), data(), checkpoint=tmp_path / "b", callbacks=[resumed], **given)
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    assert resumed.append is append


def test_the_file_of_a_csv_logger_is_not_cut_where_it_is_another(tmp_path: Path) -> None:
    broken_off(
        data(), tmp_path / "run", 3, callbacks=[keras.callbacks.CSVLogger(tmp_path / "a.csv")]
    )
    other = tmp_path / "b.csv"
    other.write_text("epoch,mine\n0,1\n")
    fit(
        model(),
        data(),
        checkpoint=tmp_path / "run",
        epochs=2,
        verbose=0,
        callbacks=[keras.callbacks.CSVLogger(other)],
    )
    assert other.read_text().startswith("epoch,mine\n0,1\n")
