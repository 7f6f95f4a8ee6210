"""Where indexes are kept, and when they are made."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import uuid
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from playhead import Dataset, FixedLenFeature, write_tfrecords
from playhead.errors import MissingSource, PipelineError, SourceChanged
from playhead.indexes import kept_in, settle
from playhead.sources.files import keeping, silence
from playhead.sources.files.shelf import Shelf
from playhead.sources.tfrecord import building

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

RECORDS = [b"%d" % k * (k % 9) for k in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where this machine keeps what it cannot keep elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "playhead" / "index"


@pytest.fixture
def scanned(monkeypatch):
    """The files that were scanned."""
    seen, build = [], building.build

    def counting(path, *rest):
        seen.append(path)
        return build(path, *rest)

    monkeypatch.setattr(building, "build", counting)
    return seen


@pytest.fixture
def store():
    """A place on a store that others do not use."""
    return f"memory://{uuid.uuid4().hex}"


def put(url, data):
    fsspec.filesystem("memory").pipe_file(MemoryFileSystem._strip_protocol(url), data)


def written(tmp_path, records=RECORDS):
    (path,) = write_tfrecords(records, tmp_path / "made", overwrite=True)
    data = Path(path).read_bytes()
    Path(path).unlink()
    return data


def held(url):
    """The names of the files in a directory of the store."""
    system = fsspec.filesystem("memory")
    path = MemoryFileSystem._strip_protocol(url)
    return [name.rpartition("/")[2] for name in system.find(path)] if system.exists(path) else []


@pytest.fixture
def read_only(monkeypatch):
    """Gives what makes a place of the store one that takes nothing any more."""
    pipe, refusing = MemoryFileSystem.pipe_file, []

    def guarded(self, path, value, **options):
        if any(path.startswith(root) for root in refusing):
            raise PermissionError("read-only")
        return pipe(self, path, value, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", guarded)
    return lambda url: refusing.append(MemoryFileSystem._strip_protocol(url))


# --- when -------------------------------------------------------------------------------------------


def test_a_remote_set_is_scanned_when_somebody_asks_what_only_its_index_tells(
    tmp_path, store, scanned
):
    put(f"{store}/a", written(tmp_path, [{"x": k} for k in range(20)]))
    ds = Dataset.from_tfrecords(f"{store}/a", features={"x": FixedLenFeature((), np.int64)})
    shuffled = ds.map(lambda row: row["x"]).shuffle(seed=1)
    made = Dataset.zip(shuffled, shuffled.concatenate(ds.take(3).map(lambda row: row["x"])))
    made = made.repeat(3).skip(1).shard(2, 0).batch(4).prefetch()
    assert ds.batch(4).element_spec["x"].shape == (None,)
    assert scanned == []
    assert len(made) == 8
    assert len(ds) == 20 and scanned == [f"{store}/a"]


def test_what_is_wrong_with_files_or_arguments_is_told_when_the_dataset_is_made(
    tmp_path, store, scanned
):
    put(f"{store}/a", written(tmp_path))
    with pytest.raises(MissingSource):
        Dataset.from_tfrecords([f"{store}/a", f"{store}/b"])
    with pytest.raises(PipelineError):
        Dataset.from_tfrecords(f"{store}/a", verify="sometimes")
    with pytest.raises(PipelineError):
        Dataset.from_tfrecords(f"{store}/a", features=3)
    assert scanned == []


def test_features_are_guessed_without_an_index(tmp_path, store, scanned):
    put(f"{store}/empty", b"")
    put(f"{store}/full", written(tmp_path, [{"x": k} for k in range(20)]))
    ds = Dataset.from_tfrecords([f"{store}/empty", f"{store}/full"], features="infer")
    assert ds.element_spec["x"].dtype == np.int64
    assert scanned == []
    assert [int(row["x"]) for row in ds] == list(range(20))


def test_a_file_replaced_before_it_is_scanned_is_not_taken_for_the_one_that_was_there(
    tmp_path, store
):
    put(f"{store}/a", written(tmp_path))
    ds = Dataset.from_tfrecords(f"{store}/a")
    put(f"{store}/a", written(tmp_path, RECORDS[:7]))
    with pytest.raises(SourceChanged) as caught:
        len(ds)
    assert caught.value.file == f"{store}/a"
    assert len(Dataset.from_tfrecords(f"{store}/a")) == 7


def test_the_copy_that_another_process_gets_carries_the_index(tmp_path, store, scanned):
    put(f"{store}/a", written(tmp_path))
    copy = pickle.loads(pickle.dumps(Dataset.from_tfrecords(f"{store}/a").shuffle(seed=1).node))
    assert scanned == [f"{store}/a"]
    assert Dataset(copy)[0] in RECORDS
    assert len(scanned) == 1


# --- where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "url"])
def test_the_directory_of_a_run_serves_a_fresh_machine(
    tmp_path, store, read_only, scanned, cache, kind
):
    put(f"{store}/data/a", written(tmp_path))
    read_only(f"{store}/data")
    run = str(tmp_path / "run") if kind == "directory" else f"{store}/run/"
    for _ in range(2):
        with kept_in(run):
            assert list(Dataset.from_tfrecords(f"{store}/data/a")) == RECORDS
    assert scanned == [f"{store}/data/a"]
    names = os.listdir(tmp_path / "run" / "index") if kind == "directory" else held(f"{run}index")
    assert [name[:2] for name in names] == ["a-"] and not cache.exists()
    assert list(Dataset.from_tfrecords(f"{store}/data/a")) == RECORDS  # the run is over
    assert len(scanned) == 2 and cache.exists()


def tar(members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize(
    ("read", "data", "count"),
    [
        (Dataset.from_lines, b"one\ntwo\n", 2),
        (Dataset.from_json_lines, b'{"x": 1}\n', 1),
        (Dataset.from_csv, b"x,y\n1,2\n3,4\n5,6\n", 3),
        (Dataset.from_tar, tar({"0.txt": b"zero", "1.txt": b"one"}), 2),
    ],
    ids=["lines", "json_lines", "csv", "tar"],
)
def test_every_kind_of_index_is_made_late_and_kept_for_the_run(
    store, read_only, monkeypatch, cache, read, data, count
):
    made, add = [], Shelf.add

    def counting(self, seen, advance):
        made.append(seen.path)
        return add(self, seen, advance)

    monkeypatch.setattr(Shelf, "add", counting)
    put(f"{store}/data/a", data)
    read_only(f"{store}/data")
    for _ in range(2):
        ds = read(f"{store}/data/a").shuffle(seed=1)
        assert len(made) == len(held(f"{store}/run"))
        with kept_in(f"{store}/run"):
            settle(ds)
        assert len(list(ds)) == count
    assert made == [f"{store}/data/a"] and not cache.exists()


def test_a_run_comes_before_the_data_and_what_the_caller_names_before_both(tmp_path, store):
    put(f"{store}/data/a", written(tmp_path))
    with kept_in(f"{store}/run"):
        len(Dataset.from_tfrecords(f"{store}/data/a", index=f"{store}/named"))
        assert len(held(f"{store}/named")) == 1
        len(Dataset.from_tfrecords(f"{store}/data/a"))
    assert len(held(f"{store}/run")) == 1
    assert held(f"{store}/data") == ["a"]
    len(Dataset.from_tfrecords(f"{store}/data/a"))
    assert held(f"{store}/data") == ["a", "a.index"]


def test_local_files_keep_theirs_beside_them_and_in_the_runs_directory_where_that_cannot_be_written(
    tmp_path, scanned, cache
):
    (path,) = write_tfrecords(RECORDS, tmp_path / "data" / "a")
    with kept_in(str(tmp_path / "run")):
        assert len(Dataset.from_tfrecords(path)) == 60
    assert (tmp_path / "data" / keeping.DIRECTORY / "a.index").exists()
    (path,) = write_tfrecords(RECORDS, tmp_path / "full" / "a")
    (tmp_path / "full" / keeping.DIRECTORY).write_text("a file where the directory would be")
    for _ in range(2):
        with kept_in(str(tmp_path / "run")):
            assert len(Dataset.from_tfrecords(path)) == 60
    assert scanned == [str(tmp_path / "data" / "a"), path]
    assert len(os.listdir(tmp_path / "run" / "index")) == 1 and not cache.exists()


def test_what_only_this_machine_has_is_copied_into_the_directory_of_the_run(
    tmp_path, store, read_only, scanned, cache
):
    put(f"{store}/data/a", written(tmp_path))
    read_only(f"{store}/data")
    ds = Dataset.from_tfrecords(f"{store}/data/a").shuffle(seed=1)
    len(ds)
    (blob,) = [path.read_bytes() for path in cache.iterdir()]
    with kept_in(str(tmp_path / "run")):
        settle(ds)
    (copied,) = (tmp_path / "run" / "index").iterdir()
    assert copied.read_bytes() == blob
    copied.write_bytes(blob[:-1])  # as a run that was killed never leaves it
    with kept_in(str(tmp_path / "run")):
        settle(Dataset.from_tfrecords(f"{store}/data/a"))
    assert copied.read_bytes() == blob and len(scanned) == 1
    system, times = fsspec.filesystem("memory"), []
    for _ in range(2):
        with kept_in(f"{store}/run"):
            settle(Dataset.from_tfrecords(f"{store}/data/a"))
        (name,) = held(f"{store}/run/index")
        times.append(system.created(MemoryFileSystem._strip_protocol(f"{store}/run/index/{name}")))
    assert times[0] == times[1]  # it was not written again


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("where", ["a directory", "a store"])
def test_an_index_of_the_data_as_they_once_were_is_none_that_is_there(
    tmp_path, store, read_only, scanned, cache, where, settled
):
    run = f"{store}/run" if where == "a store" else str(tmp_path / "run")
    put(f"{store}/data/a", written(tmp_path))
    with kept_in(run):
        settle(Dataset.from_tfrecords(f"{store}/data/a"))
    put(f"{store}/data/a", written(tmp_path, [bytes(reversed(record)) for record in RECORDS]))
    read_only(f"{store}/data")
    ds = Dataset.from_tfrecords(f"{store}/data/a")
    assert len(ds) == 60 and len(scanned) == 2  # outside of the run: into this machine's cache
    with kept_in(run):
        if settled:
            settle(ds)
        else:
            len(Dataset.from_tfrecords(f"{store}/data/a"))
    for path in cache.iterdir():  # as on the machine that comes after this one
        path.unlink()
    with kept_in(run):
        assert len(Dataset.from_tfrecords(f"{store}/data/a")) == 60
    assert len(scanned) == 2


def test_what_only_this_machine_has_is_copied_to_where_the_caller_names(
    tmp_path, store, read_only, scanned, cache
):
    put(f"{store}/data/a", written(tmp_path))
    read_only(f"{store}/data")
    assert len(Dataset.from_tfrecords(f"{store}/data/a")) == 60
    (blob,) = [path.read_bytes() for path in cache.iterdir()]
    for _ in range(2):
        assert len(Dataset.from_tfrecords(f"{store}/data/a", index=tmp_path / "kept")) == 60
        (copied,) = (tmp_path / "kept").iterdir()
        assert copied.read_bytes() == blob and len(scanned) == 1
        for path in cache.iterdir():  # as on the machine that comes after this one
            path.unlink()


def test_an_index_that_could_be_kept_nowhere_is_kept_when_the_run_begins(
    tmp_path, store, read_only, scanned, cache
):
    put(f"{store}/data/a", written(tmp_path))
    put(f"{store}/data/b", written(tmp_path, RECORDS[:7]))
    read_only(f"{store}/data")
    cache.parent.parent.write_text("a file where the directory would be")
    ds = Dataset.from_tfrecords([f"{store}/data/a", f"{store}/data/b"])
    assert len(ds) == 67
    for _ in range(2):
        with kept_in(f"{store}/run"):
            settle(ds)
    assert len(held(f"{store}/run")) == 2
    with kept_in(f"{store}/run"):
        assert len(Dataset.from_tfrecords([f"{store}/data/a", f"{store}/data/b"])) == 67
    assert len(scanned) == 2


def test_an_index_beside_the_data_is_not_copied(tmp_path, store, scanned):
    put(f"{store}/data/a", written(tmp_path))
    ds = Dataset.from_tfrecords(f"{store}/data/a")
    len(ds)
    with kept_in(f"{store}/run"):
        settle(ds)
        settle(Dataset.from_tfrecords(f"{store}/data/a"))
    assert held(f"{store}/run") == [] and len(scanned) == 1


def test_a_damaged_index_in_the_directory_of_a_run_is_replaced(tmp_path, store, scanned):
    put(f"{store}/data/a", written(tmp_path))
    for _ in range(3):
        with kept_in(f"{store}/run"):
            assert list(Dataset.from_tfrecords(f"{store}/data/a")) == RECORDS
        if len(scanned) == 1:
            (name,) = held(f"{store}/run/index")
            put(f"{store}/run/index/{name}", b"PLAYHIDX" + bytes(90))
    assert len(scanned) == 2


def test_a_store_that_is_busy_for_a_moment_is_asked_again_before_a_set_is_scanned(
    tmp_path, store, scanned, monkeypatch
):
    put(f"{store}/data/a", written(tmp_path))
    asked = Counter()

    def busy_at_first(call):
        def called(self, path, *rest, **options):
            asked[path] += 1
            if "/run/" in path and asked[path] % 2:
                raise ConnectionResetError("busy")
            return call(self, path, *rest, **options)

        return called

    monkeypatch.setattr(silence, "_FIRST_PAUSE", 0.001)
    for name in ("cat_file", "pipe_file"):
        call = getattr(MemoryFileSystem, name)
        monkeypatch.setattr(MemoryFileSystem, name, busy_at_first(call))
    for _ in range(2):
        with kept_in(f"{store}/run"):
            assert len(Dataset.from_tfrecords(f"{store}/data/a")) == 60
    assert scanned == [f"{store}/data/a"]
    assert len(held(f"{store}/run")) == 1


def test_files_that_the_run_meets_on_its_way_are_scanned_once_for_all_machines(
    tmp_path, store, read_only, scanned, cache
):
    urls = [f"{store}/data/{k}" for k in range(4)]
    for k, url in enumerate(urls):
        put(url, written(tmp_path, RECORDS[15 * k : 15 * k + 15]))
    read_only(f"{store}/data")
    for _ in range(2):
        found = Dataset.from_tensor_slices(np.array(urls, object)).flat_map(Dataset.from_tfrecords)
        with kept_in(f"{store}/run"):
            assert list(found.prefetch(workers=2)) == RECORDS
    assert scanned == urls and not cache.exists()


def test_of_two_runs_at_once_each_ends_alone(tmp_path, store, read_only):
    put(f"{store}/data/a", written(tmp_path))
    put(f"{store}/data/b", written(tmp_path))
    read_only(f"{store}/data")
    first, second = kept_in(f"{store}/first"), kept_in(f"{store}/second")
    first.__enter__()
    second.__enter__()
    len(Dataset.from_tfrecords(f"{store}/data/a"))
    first.__exit__(None, None, None)
    len(Dataset.from_tfrecords(f"{store}/data/b"))
    second.__exit__(None, None, None)
    assert [name[0] for name in held(f"{store}/second")] == ["a", "b"]
    assert held(f"{store}/first") == []


def test_a_source_that_a_plan_reaches_in_many_ways_is_settled_once(tmp_path, store, monkeypatch):
    put(f"{store}/a", written(tmp_path))
    ds, settled = Dataset.from_tfrecords(f"{store}/a"), []
    assert len(ds) == len(RECORDS)
    for _ in range(4):
        ds = ds.concatenate(ds)
    spread = Shelf.spread
    monkeypatch.setattr(Shelf, "spread", lambda *given: settled.append(given) or spread(*given))
    settle(ds)
    assert len(settled) == 1
