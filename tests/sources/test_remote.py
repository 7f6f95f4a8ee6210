"""TFRecords on stores that fsspec knows: few requests, tried again, and never a wrong record."""

from __future__ import annotations

import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from playhead import Dataset, FixedLenFeature, write_tfrecords
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    SlowResume,
    SourceChanged,
    SourceError,
)
from playhead.sources.files import blocks, remote, silence, telling
from playhead.sources.files.remote import coalesced
from playhead.sources.tfrecord import building
from playhead.sources.tfrecord.records import tfrecords
from playhead.testing import assert_resumes_exactly

fsspec = pytest.importorskip("fsspec")

pytestmark = pytest.mark.usefixtures("cache")

RECORDS = [b"%d" % k * (k % 9) for k in range(300)]


def written(tmp_path, records=RECORDS, **options):
    """The bytes of a file that holds the records."""
    (path,) = write_tfrecords(records, tmp_path / "made", overwrite=True, **options)
    data = Path(path).read_bytes()
    Path(path).unlink()
    return data


def read(source, index=None):
    index = np.arange(source.cardinality) if index is None else np.array(index, np.int64)
    return source.gather(index).nest.tolist()


def indexed(url):
    """A source that has its index."""
    source = tfrecords(url)
    source.indexed.get()
    return source


# --- any store --------------------------------------------------------------------------------------


def test_a_pattern_is_sorted_and_records_come_back_in_any_order(tmp_path, memory):
    for k in (2, 0, 1):
        memory.pipe(f"/data/train-{k}", written(tmp_path, RECORDS[100 * k : 100 * k + 100]))
    memory.pipe("/data/train-3", b"")
    memory.pipe("/data/other", b"")
    memory.pipe("/data/train-4/inside", b"no TFRecord")
    source = tfrecords("memory://data/train-*")
    assert source.cardinality == 300
    order = np.random.default_rng(0).permutation(300)
    assert read(source, order) == [RECORDS[k] for k in order]
    assert read(tfrecords("memory://data/train-[12]")) == RECORDS[100:]
    assert read(tfrecords("memory://data/train-?")) == RECORDS
    local = write_tfrecords(RECORDS, tmp_path / "local")
    mixed = tfrecords([*local, "memory://data/train-0"])
    assert read(mixed, [305, 4, 399, 299]) == [RECORDS[k] for k in (5, 4, 99, 299)]
    assert source.describe() == tfrecords(local).describe()
    assert read(pickle.loads(pickle.dumps(source)), [7]) == [RECORDS[7]]


def test_nothing_there_is_said(memory):
    memory.pipe("/data/train-0", b"")
    for path in ("memory://data/test-*", "memory://data/train-1", "memory://data"):
        with pytest.raises(MissingSource) as caught:
            tfrecords(path)
        assert "memory://" in str(caught.value)
    with pytest.raises(SourceError, match="fsspec"):
        tfrecords("nowhere://data/train-0")


def test_remote_records_resume_exactly(tmp_path, memory):
    rows = [{"x": k} for k in range(20)]
    memory.pipe("/data/a", written(tmp_path, rows))
    features = {"x": FixedLenFeature((), np.int64)}
    assert_resumes_exactly(
        lambda: (
            Dataset.from_tfrecords("memory://data/a", features=features).shuffle(seed=1).batch(3)
        ),
        epochs=2,
        workers=(0, 2),
    )


def test_compressed_remote_files_are_walked(tmp_path, memory):
    memory.pipe("/data/a.gz", written(tmp_path, RECORDS[:200], compression="GZIP"))
    memory.pipe("/data/b", written(tmp_path, RECORDS[200:]))
    ds = Dataset.from_tfrecords(["memory://data/a.gz", "memory://data/b"])
    assert list(ds) == RECORDS
    it = ds.iterator()
    for _ in range(150):
        next(it)
    again = ds.iterator()
    again.load_state_dict(it.state_dict())
    with pytest.warns(SlowResume, match="first 150 records"):
        assert next(again) == RECORDS[150]
    memory.pipe("/data/a.gz", written(tmp_path, RECORDS[::-1], compression="GZIP"))
    with pytest.raises(SourceChanged):
        list(ds)


def test_damage_is_named_by_url_and_record(tmp_path, memory):
    data = bytearray(written(tmp_path, [b"one", b"two"]))
    memory.pipe("/data/whole", bytes(data))
    source = tfrecords("memory://data/whole", verify="always")
    assert read(source) == [b"one", b"two"]
    data[19 + 12] ^= 1
    memory.pipe("/data/a", bytes(data))
    with pytest.raises(CorruptRecord) as caught:
        len(Dataset.from_tfrecords("memory://data/a"))
    facts = (caught.value.file, caught.value.record, caught.value.offset)
    assert facts == ("memory://data/a", 1, 19)
    memory.store["/data/whole"].seek(0)
    memory.store["/data/whole"].write(bytes(data))  # behind the store's back
    with pytest.raises(CorruptRecord) as caught:
        read(source)
    assert (caught.value.record, caught.value.reason) == (1, "data")
    memory.pipe("/data/cut", written(tmp_path, [b"one", b"two"])[:-1])
    with pytest.raises(CorruptRecord, match="record 1 at byte 19"):
        len(Dataset.from_tfrecords("memory://data/cut"))


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("change", ["replaced", "shorter", "gone"])
def test_a_file_that_changes_while_it_is_in_use_is_found(tmp_path, memory, change, indexed):
    memory.pipe("/data/a", written(tmp_path, [b"one", b"two"]))
    source = tfrecords("memory://data/a")
    assert not indexed or source.cardinality == 2
    if change == "gone":
        memory.rm("/data/a")
    else:
        memory.pipe("/data/a", written(tmp_path, [b"ONE", b"TWO"][: 1 + (change == "replaced")]))
    with pytest.raises(MissingSource if change == "gone" else SourceChanged) as caught:
        read(source)
    assert caught.value.file == "memory://data/a"


# --- the index --------------------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch):
    """The paths that were scanned."""
    seen, build = [], building.build

    def counting(path, *rest):
        seen.append(path)
        return build(path, *rest)

    monkeypatch.setattr(building, "build", counting)
    return seen


def test_the_index_lies_beside_the_data_and_serves_a_fresh_machine(tmp_path, memory, cache, built):
    memory.pipe("/data/a", written(tmp_path))
    for _ in range(3):
        assert tfrecords("memory://data/a").cardinality == 300
    assert built == ["memory://data/a"]
    assert memory.exists("/data/playhead-index/a.index") and not cache.exists()
    memory.pipe("/data/a", written(tmp_path, RECORDS[:10]))
    assert tfrecords("memory://data/a").cardinality == 10
    assert len(built) == 2


@pytest.mark.parametrize("where", ["a directory", "memory://run/index"])
def test_the_index_may_lie_in_the_runs_own_directory(tmp_path, memory, built, where):
    memory.pipe("/data/a", written(tmp_path))
    where = str(tmp_path / "run") if where == "a directory" else where
    for _ in range(2):
        assert tfrecords("memory://data/a", index=where).cardinality == 300
    assert built == ["memory://data/a"]
    assert not memory.exists("/data/playhead-index")
    local = write_tfrecords(RECORDS, tmp_path / "local")
    for _ in range(2):
        assert tfrecords(local, index=where).cardinality == 300
    assert len(built) == 2


def test_an_unwritable_store_sends_the_index_to_the_local_cache(
    tmp_path, memory, cache, built, monkeypatch
):
    memory.pipe("/data/a", written(tmp_path))

    def refused(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(type(memory), "pipe_file", refused)
    for _ in range(2):
        assert tfrecords("memory://data/a").cardinality == 300
    assert built == ["memory://data/a"]
    assert len(list(cache.iterdir())) == 1


def test_garbage_in_place_of_an_index_is_replaced(tmp_path, memory, built):
    memory.pipe("/data/a", written(tmp_path))
    memory.pipe("/data/playhead-index/a.index", b"PLAYHIDX" + bytes(90))
    assert read(tfrecords("memory://data/a")) == RECORDS
    assert read(tfrecords("memory://data/a")) == RECORDS
    assert len(built) == 1


# --- a web server -----------------------------------------------------------------------------------


def test_neighbours_share_a_request_and_far_records_have_their_own(tmp_path, site, monkeypatch):
    monkeypatch.setattr(blocks, "TOUCHES", 1000)
    big = [bytes([k]) * 100_000 for k in range(40)]
    site.files["a"] = written(tmp_path, big)
    source = indexed(f"{site.url}/a")
    site.gets()
    assert read(source, [3, 5, 4]) == [big[3], big[5], big[4]]
    assert len(site.gets()) == 1
    assert read(source, [0, 20, 39]) == [big[0], big[20], big[39]]
    assert len(site.gets()) == 3
    assert read(source, [7, 7]) == [big[7]] * 2
    ((_, what),) = site.gets()
    assert what == f"bytes={7 * 100_016}-{8 * 100_016 - 1}"


def test_requests_go_out_together_but_never_too_many(tmp_path, site, monkeypatch):
    monkeypatch.setattr(remote, "GAP", 0)
    monkeypatch.setattr(blocks, "TOUCHES", 1000)
    site.files["a"] = written(tmp_path)
    source = indexed(f"{site.url}/a")
    site.gets()
    site.latency, site.most = 0.02, 0
    index = np.arange(0, 300, 3)
    assert read(source, index) == [RECORDS[k] for k in index]
    assert len(site.gets()) == 100
    assert 2 <= site.most <= remote.IN_FLIGHT


def test_records_read_one_by_one_in_one_neighbourhood_share_their_block(tmp_path, site):
    big = [bytes([k]) * 10_000 for k in range(250)]
    site.files["a"] = written(tmp_path, big)
    source = indexed(f"{site.url}/a")
    site.gets()
    near = np.random.default_rng(0).permutation(100)
    for k in near.tolist():
        assert read(source, [k]) == [big[k]]
    asked = [what for _, what in site.gets()]
    assert len(asked) == blocks.TOUCHES
    assert asked[-1] == "bytes=0-1048575"


def test_blocks_are_few_and_what_failed_is_not_kept(tmp_path, site, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1000)
    monkeypatch.setattr(blocks, "KEPT", 4)
    monkeypatch.setattr(blocks, "TOUCHES", 1)
    site.files["a"] = written(tmp_path)
    source = tfrecords(f"{site.url}/a")
    order = np.random.default_rng(0).permutation(300)[:50]
    assert [read(source, [k])[0] for k in order.tolist()] == [RECORDS[k] for k in order]
    assert len(source.reader.spans.blocks._kept) <= 4
    monkeypatch.setattr(silence, "PATIENCE", 0.2)
    source = indexed(f"{site.url}/a")
    site.failures = 1000
    with pytest.raises(SourceError, match="503"):
        read(source, [5])
    site.failures = 0
    assert read(source, [5]) == [RECORDS[5]]


def test_threads_that_need_one_block_at_once_ask_for_it_once(tmp_path, site, monkeypatch):
    monkeypatch.setattr(blocks, "TOUCHES", 1)
    site.files["a"] = written(tmp_path)
    source = indexed(f"{site.url}/a")
    site.gets()
    site.latency = 0.05
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: read(source, [k]), range(0, 300, 10)))
    assert found == [[RECORDS[k]] for k in range(0, 300, 10)]
    assert len(site.gets()) == 1


def test_a_server_that_is_busy_for_a_moment_is_asked_again(tmp_path, site, monkeypatch):
    site.files["a"] = written(tmp_path)
    source = indexed(f"{site.url}/a")
    site.failures = 3
    assert read(source, [5]) == [RECORDS[5]]
    monkeypatch.setattr(silence, "PATIENCE", 0.2)
    source = indexed(f"{site.url}/a")
    site.failures = 1000
    with pytest.raises(SourceError, match="503") as caught:
        read(source, [5])
    assert caught.value.file == f"{site.url}/a"


def test_a_redirect_is_followed_and_a_missing_file_is_missing(tmp_path, site):
    site.files["a"] = written(tmp_path)
    assert read(tfrecords(f"{site.url}/moved/a")) == RECORDS
    with pytest.raises(MissingSource):
        tfrecords(f"{site.url}/b")


def test_a_server_without_ranges_is_told_from_a_damaged_file(tmp_path, site):
    site.files["a"] = written(tmp_path)
    source = indexed(f"{site.url}/a")
    site.ranges = False
    with pytest.raises(SourceError, match="sends all of it"):
        read(source, [5])


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_that_was_replaced_or_cut_on_the_server_is_found(tmp_path, site, etags):
    site.etags = etags
    site.files["a"] = written(tmp_path, [b"one", b"two"])
    source = indexed(f"{site.url}/a")
    site.files["a"] = written(tmp_path, [b"ONE", b"TWO"])
    site.version["a"] += 1
    with pytest.raises(SourceChanged):
        read(source)
    assert read(tfrecords(f"{site.url}/a")) == [b"ONE", b"TWO"]
    source = indexed(f"{site.url}/a")
    site.files["a"] = site.files["a"][:19]
    with pytest.raises(SourceChanged):
        read(source, [1])


def test_where_no_checksum_is_compared_a_replaced_file_is_found_by_its_version(tmp_path, site):
    site.files["a"] = written(tmp_path, [b"one", b"two"])
    source = tfrecords(f"{site.url}/a", verify="never")
    assert source.cardinality == 2
    site.files["a"] = written(tmp_path, [b"ONE", b"TWO"])
    site.version["a"] += 1
    with pytest.raises(SourceChanged):
        read(source)


def test_no_index_is_ever_sent_to_a_web_server(tmp_path, site, cache):
    site.files["a"] = written(tmp_path)
    for _ in range(2):
        indexed(f"{site.url}/a")
    assert {method for method, _, _ in site.asked} == {"GET", "HEAD"}
    assert len(list(cache.iterdir())) == 1


# --- ranges -----------------------------------------------------------------------------------------


def test_ranges_cover_every_part_and_join_only_neighbours(monkeypatch):
    monkeypatch.setattr(remote, "GAP", 10)
    monkeypatch.setattr(remote, "MOST", 100)
    starts = np.array([50, 0, 20, 75, 500, 60, 1000])
    stops = np.array([60, 10, 30, 140, 900, 70, 1001])
    spans, which = coalesced(starts, stops)
    assert spans == [(0, 30), (50, 140), (500, 900), (1000, 1001)]
    for k, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        begin, end = spans[which[k]]
        assert begin <= start and stop <= end


def test_a_long_scan_says_first_what_it_will_take(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(telling, "_SAID", 0)
    monkeypatch.setattr(telling, "_KNOWN", 0)
    paths = write_tfrecords(RECORDS, tmp_path / "a", shards=3)
    tfrecords(paths)
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"playhead: indexing 0.0 GB of TFRecords in 3 files, once: about \d+ s\n", said
    )
    tfrecords(paths)
    assert capsys.readouterr().err == ""


# --- an object store --------------------------------------------------------------------------------


def test_an_s3_bucket_is_read_indexed_and_watched(tmp_path, built, bucket):
    for k in range(3):
        data = written(tmp_path, RECORDS[100 * k : 100 * k + 100])
        bucket.system.pipe(f"{bucket.url}/train-{k}", data)
    for _ in range(2):
        source = tfrecords(f"{bucket.url}/train-*", storage_options=bucket.options)
        assert read(source, [250, 3, 150]) == [RECORDS[k] for k in (250, 3, 150)]
    assert sorted(built) == [f"{bucket.url}/train-{k}" for k in range(3)]
    assert bucket.system.exists(f"{bucket.url}/playhead-index/train-0.index")
    source = pickle.loads(pickle.dumps(source))
    bucket.system.pipe(f"{bucket.url}/train-1", written(tmp_path, RECORDS[::-1]))
    with pytest.raises(SourceChanged) as caught:
        read(source, [150])
    assert caught.value.file == f"{bucket.url}/train-1"


def test_files_of_several_hosts_are_looked_at_anew(memory):
    """A store that is a host remembers what it said of its files until it is told to forget."""

    class Hosted(fsspec.get_filesystem_class("memory")):
        protocol = "hosted"

        def __init__(self, host, **options):
            super().__init__(**options)
            self.said = {}

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.rpartition("://")[2].lstrip("/")

        @staticmethod
        def _get_kwargs_from_urls(url):
            return {"host": url.split("/")[2]}

        def info(self, path, **options):
            return self.said.setdefault(path, super().info(path, **options))

        def invalidate_cache(self, path=None):
            self.said.clear()

    fsspec.register_implementation("hosted", Hosted, clobber=True)
    urls = ["hosted://one/a", "hosted://two/a", "hosted://two/b"]
    for size in (3, 4):
        for url in urls:
            memory.pipe_file(Hosted._strip_protocol(url), bytes(size))
        looked = remote.Remote().look_all(urls)
        assert [(seen.path, seen.size) for seen in looked] == [(url, size) for url in urls]
