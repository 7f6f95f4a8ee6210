"""Files that are there and may not be read are named, by each source, and never taken for empty ones."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest

from playhead import Dataset, write_tfrecords
from playhead.errors import MissingSource

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX users")


@pytest.fixture
def folder():
    """A directory that anybody may look into."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@contextlib.contextmanager
def as_nobody():
    """Root may read everything: be somebody else for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def tar(path, mode="w"):
    with tarfile.open(path, mode) as archive:
        info = tarfile.TarInfo("0.txt")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))


def array_record(path):
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    writer.write(b"x")
    writer.close()


def tfrecord(path):
    write_tfrecords([b"x"], path)


def parquet(path):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"x": [1]}), path)


def text(path):
    path.write_bytes(b"1\n2\n")


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("a", parquet, Dataset.from_parquet),
        ("a.tar", tar, Dataset.from_tar),
        ("a.tar.gz", lambda path: tar(path, "w:gz"), Dataset.from_tar),
        ("a", array_record, Dataset.from_array_records),
        ("a", tfrecord, Dataset.from_tfrecords),
        ("a", tfrecord, functools.partial(Dataset.from_tfrecords, compression_type="")),
        ("a.txt", text, Dataset.from_lines),
        ("a.txt.gz", lambda path: path.write_bytes(gzip.compress(b"1\n")), Dataset.from_lines),
        ("a.jsonl", text, Dataset.from_json_lines),
        ("a.csv", text, Dataset.from_csv),
    ],
)
def test_a_file_that_may_not_be_read_is_named(folder, name, write, read):
    path = folder / name
    write(path)
    whole = read(path)
    path.chmod(0)
    with as_nobody():
        with pytest.raises(MissingSource, match="cannot be read") as caught:
            read(path)
        assert caught.value.file == str(path)
        with pytest.raises(MissingSource, match="cannot be read"):
            list(whole)


def test_pictures_that_may_not_be_read_are_named(folder):
    for number in range(3):
        path = folder / "a" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    ds = Dataset.from_image_folder(folder)
    path.chmod(0)
    with as_nobody():
        assert len(list(ds.take(2))) == 2
        for make in (lambda: ds[2], lambda: Dataset.from_image_folder(folder)):
            with pytest.raises(MissingSource, match="cannot be read") as caught:
                make()
            assert caught.value.file == str(path)
    (folder / "a").chmod(0)
    with as_nobody(), pytest.raises(MissingSource, match="cannot be read"):
        Dataset.from_image_folder(folder)
