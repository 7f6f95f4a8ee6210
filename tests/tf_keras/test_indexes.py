"""A run's directory holds the indexes of the remote files that it reads."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras

import playhead as ph
from playhead.keras import checkpoint
from playhead.sources.tfrecord import building
from playhead.tf_keras import fit

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

FEATURES = {"x": ph.FixedLenFeature((), np.float32), "y": ph.FixedLenFeature((), np.float32)}


def test_a_fresh_machine_finds_in_the_runs_directory_the_indexes_of_all_that_the_run_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, scanned, build = f"memory://{uuid.uuid4().hex}", [], building.build
    root = MemoryFileSystem._strip_protocol(url)
    system = fsspec.filesystem("memory")
    rows = [{"x": np.float32(k), "y": np.float32(2 * k)} for k in range(8)]
    (path,) = ph.write_tfrecords(rows, tmp_path / "made")
    for name in ("train", "other"):
        system.pipe_file(f"{root}/{name}", Path(path).read_bytes())

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    def counting(path: str, *rest: Any) -> Any:
        scanned.append(path)
        return build(path, *rest)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refused)
    monkeypatch.setattr(building, "build", counting)

    def machine(name: str, epochs: int, *, look: bool = False) -> list[int]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        made = [
            ph.Dataset.from_tfrecords(f"{url}/{part}", features=FEATURES)
            .map(lambda row: (row["x"], row["y"]))
            .batch(4, drop_remainder=True)
            for part in ("train", "other")
        ]
        if look:
            assert [len(ds) for ds in made] == [2, 2]
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
        model.compile("sgd", "mse")
        where, (ds, validation) = tmp_path / "run", made
        history = fit(
            model, ds, checkpoint=where, epochs=epochs, validation_data=validation, verbose=0
        )
        return [int(epoch) for epoch in history.epoch]

    assert machine("first", 1, look=True) == [0]
    assert sorted(scanned) == [f"{url}/other", f"{url}/train"]
    assert machine("second", 2) == [0, 1]
    assert len(scanned) == 2
    assert not (tmp_path / "second" / "playhead").exists()
    assert checkpoint.latest(tmp_path / "run")[1]["step"] == 4
