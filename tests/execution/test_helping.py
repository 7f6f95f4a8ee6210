"""Which pipelines the consumer helps to read: those whose work leaves Python's lock and asks no store."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from playhead import Dataset, FixedLenFeature, kernels, write_tfrecords

ROWS = np.arange(40).reshape(20, 2)
FEATURES = {"x": FixedLenFeature((), np.int64)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Where the same few records lie as Examples, CSV, lines and tokens."""
    root = tmp_path_factory.mktemp("files")
    rows = Dataset.from_tensor_slices({"x": np.arange(20)})
    write_tfrecords(rows, root / "a.tfrecord")
    (root / "a.tfrecord.gz").write_bytes(gzip.compress((root / "a.tfrecord").read_bytes()))
    (root / "a.csv").write_text("x\n" + "".join(f"{k}\n" for k in range(20)))
    np.arange(400, dtype=np.uint16).tofile(root / "a.bin")
    return root


def far(path):
    """The same file in memory that stands for a store."""
    import fsspec

    there = fsspec.filesystem("memory")
    there.pipe("/helping/" + path.name, path.read_bytes())
    return "memory://helping/" + path.name


def examples(path, **options):
    return Dataset.from_tfrecords(str(path), features=FEATURES, **options)


def tokens(path):
    return Dataset.from_tokens(str(path), np.uint16, length=10)


def unlocked(dataset):
    return dataset.batch(4).prefetch().node.unlocked


def test_arrays_and_local_files_read_by_kernels_are_read_by_who_waits(files):
    native = kernels.NATIVE
    assert unlocked(Dataset.from_tensor_slices(ROWS))
    assert unlocked(examples(files / "a.tfrecord")) == native
    assert unlocked(tokens(files / "a.bin")) == native
    assert unlocked(Dataset.from_csv(files / "a.csv"))
    rows = Dataset.from_tensor_slices(ROWS)
    assert unlocked(rows.shuffle(seed=1).repeat(2).shard(2, 0).take(9).skip(1))
    assert unlocked(Dataset.zip(rows.shuffle(seed=1), Dataset.from_csv(files / "a.csv")))


def test_what_is_far_or_holds_pythons_lock_or_calls_a_function_is_not(files):
    rows = Dataset.from_tensor_slices(ROWS)
    for dataset in (
        examples(far(files / "a.tfrecord")),
        tokens(far(files / "a.bin")),
        Dataset.from_csv(far(files / "a.csv")),
        Dataset.from_tfrecords(str(files / "a.tfrecord")),
        examples(files / "a.tfrecord.gz"),
        Dataset.from_lines(files / "a.csv"),
        Dataset.from_sequence(list(range(9))),
        Dataset.from_tensor_slices(np.array(["a", "b"])),
        Dataset.list_files(str(files / "*")),
        rows.map(lambda row: row),
        rows.cache(),
        Dataset.zip(rows, Dataset.from_sequence(list(range(9)))),
    ):
        assert not unlocked(dataset), dataset
    assert not rows.batch(2).map(lambda row: row).prefetch().node.unlocked
    assert not rows.padded_batch(4, padded_shapes=(3,)).prefetch().node.unlocked
    assert not examples(files / "a.tfrecord").map(lambda row: row["x"]).batch(2).node.unlocked


@pytest.mark.skipif(not kernels.NATIVE, reason="built without the C kernels")
def test_the_reference_kernels_hold_the_lock(files, monkeypatch):
    monkeypatch.setattr(kernels, "NATIVE", False)
    assert not unlocked(examples(files / "a.tfrecord"))
    assert not unlocked(tokens(files / "a.bin"))
