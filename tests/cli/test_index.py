"""`playhead index`: indexes before a run, taken up where they were left."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from playhead import Dataset, write_tfrecords
from playhead.cli.group import playhead
from playhead.sources.files.keeping import DIRECTORY
from playhead.sources.tfrecord import building
from playhead.sources.tfrecord.index import decode


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def index(*arguments):
    return CliRunner().invoke(playhead, ["index", *map(str, arguments)])


def shards(tmp_path, count=3):
    records = [bytes(k % 50) for k in range(100 * count)]
    return write_tfrecords(records, tmp_path / "train-*", shards=count)


def index_file(path):
    return Path(path).parent / DIRECTORY / f"{Path(path).name}.index"


def test_every_file_gets_an_index_that_from_tfrecords_takes(tmp_path, monkeypatch):
    paths = shards(tmp_path)
    said = index(tmp_path / "train-*", "--workers", 2)
    assert said.exit_code == 0
    assert re.match(r"indexed 3 files: 300 records, \d+ kB in .* MB/s\)$", said.stdout.strip())
    for path in paths:
        found = decode(index_file(path).read_bytes(), path)
        assert (len(found.crcs), found.verified) == (100, True)
    monkeypatch.setattr(building, "build", None)  # nothing is left to build
    assert building.load_or_build(paths).records == 300


def test_what_was_interrupted_is_taken_up_where_it_was(tmp_path):
    paths = shards(tmp_path)
    index(paths[0])
    index_file(paths[0]).with_suffix(".tmp").write_bytes(b"half")
    said = index(*paths)
    assert "indexed 2 files: 200 records" in said.stdout
    assert said.stdout.strip().endswith("1 had an index")
    assert "indexed 0 files" in index(*paths).stdout
    assert "indexed 3 files" in index(*paths, "--verify").stdout


def test_a_named_directory_holds_the_indexes(tmp_path):
    paths = shards(tmp_path)
    assert index(*paths, "--index", tmp_path / "kept").exit_code == 0
    assert len(list((tmp_path / "kept").iterdir())) == 3
    assert not index_file(paths[0]).exists()


def test_a_damaged_file_is_named_and_the_others_are_indexed(tmp_path):
    paths = shards(tmp_path)
    data = bytearray(Path(paths[1]).read_bytes())
    data[-6] ^= 1
    Path(paths[1]).write_bytes(data)
    said = index(*paths)
    assert said.exit_code == 1
    assert "indexed 2 files" in said.stdout and "1 failed" in said.stdout
    assert f"{paths[1]}, record 99 at byte" in said.stderr
    assert [index_file(path).exists() for path in paths] == [True, False, True]


def test_verify_finds_what_was_damaged_after_it_was_indexed(tmp_path):
    (path,) = write_tfrecords([b"one", b"two"], tmp_path / "a")
    assert index(path).exit_code == 0
    with open(path, "r+b") as file:
        file.seek(-6, 2)
        file.write(b"x")
    assert index(path, "--verify").exit_code == 1


def test_compressed_files_are_passed_over(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(Path(shards(tmp_path, 1)[0]).read_bytes()))
    said = index(tmp_path / "a")
    assert said.exit_code == 0
    assert "1 compressed file passed over" in said.stdout


def test_files_that_are_not_there_are_exit_status_two(tmp_path):
    said = index(tmp_path / "nothing-*")
    assert said.exit_code == 2
    assert "no file matches" in said.stderr


def test_two_at_once_do_no_harm(tmp_path):
    paths = shards(tmp_path, 6)
    command = [sys.executable, "-m", "playhead", "index", *paths, "--verify"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=180)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("600 records" in text for text in said)
    kept = sorted((tmp_path / DIRECTORY).iterdir())
    assert kept == [index_file(path) for path in paths]
    for path in paths:
        assert decode(index_file(path).read_bytes(), path) is not None


def test_indexes_of_urls_are_found_by_the_dataset_that_names_their_directory(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}"
    for path in shards(tmp_path):
        fsspec.filesystem("memory").pipe_file(
            f"/{tmp_path.name}/{Path(path).name}", Path(path).read_bytes()
        )
    said = index(f"{url}/train-*", "--index", tmp_path / "run")
    assert said.exit_code == 0 and "indexed 3 files: 300 records" in said.stdout
    assert len(list((tmp_path / "run").iterdir())) == 3
    assert "3 had an index" in index(f"{url}/train-*", "--index", tmp_path / "run").stdout
    monkeypatch.setattr(building, "build", None)  # nothing is left to build
    assert len(Dataset.from_tfrecords(f"{url}/train-*", index=tmp_path / "run")) == 300
