"""Tar files on stores that fsspec knows: indexed by few bytes, read in few requests, replaced ones noticed."""

from __future__ import annotations

import io
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    SlowResume,
    SourceChanged,
    UnparsableRecord,
)
from playhead.sources.files import blocks, remote
from playhead.sources.tar import windows
from playhead.sources.tar.building import Members
from playhead.testing import assert_resumes_exactly, difference

pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("cache")


def archive(members, mode="w", **options):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode, **options) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def samples(n, start=0, size=20):
    return [
        (f"{'d' * (k % 3 * 60)}/{k}.{extension}", (f"{extension} {k} " * size)[:size].encode())
        for k in range(start, start + n)
        for extension in ("txt", "jpg")
    ]


@pytest.fixture
def built(monkeypatch):
    """The files that were looked through."""
    paths, real = [], Members.build

    def counting(self, seen, *rest):
        paths.append(seen.path)
        return real(self, seen, *rest)

    monkeypatch.setattr(Members, "build", counting)
    return paths


def ranges(site):
    """The parts of files that were asked for since the last call."""
    return [(path, what) for path, what in site.gets() if what is not None]


def taken(asked):
    """How many bytes they are."""
    spans = [what.removeprefix("bytes=").split("-") for _, what in asked]
    return sum(int(last) + 1 - int(first) for first, last in spans)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_remote_samples_and_their_description_are_those_of_the_same_files_on_disk(
    tmp_path, memory, format
):
    for k in range(3):
        data = archive([("README", b"x" * 600), *samples(7, 7 * k)], format=format)
        (tmp_path / f"{k}.tar").write_bytes(data)
        memory.pipe(f"/data/{k}.tar", data)
    here, there = (Dataset.from_tar(f"{at}/*.tar") for at in (tmp_path, "memory://data"))
    assert there.operations() == here.operations()
    order = np.random.default_rng(0).permutation(21)
    assert difference(there.node.gather(order).rows(), here.node.gather(order).rows()) is None
    (record,) = there.trace(8)
    assert (record.file, record.record) == ("memory:///data/1.tar", 1)
    copy = pickle.loads(pickle.dumps(there.node))
    assert difference(copy.gather(order).rows(), here.node.gather(order).rows()) is None
    mixed = Dataset.from_tar([tmp_path / "2.tar", "memory://data/0.tar"])
    index = np.array([13, 0, 7, 7])
    expected = here.node.gather(np.array([6, 14, 0, 0])).rows()
    assert difference(mixed.node.gather(index).rows(), expected) is None
    with pytest.raises(IndexError, match="sample 14 of 14"):
        mixed.node.gather(np.array([14]))
    assert_resumes_exactly(lambda: Dataset.from_tar("memory://data/*").shuffle(seed=1).batch(4))


def test_a_file_of_many_small_members_is_indexed_in_few_requests(site):
    site.files["a.tar"] = archive(samples(1000, size=2000))
    ds = Dataset.from_tar(f"{site.url}/a.tar")
    site.gets()
    assert len(ds) == 1000
    size = len(site.files["a.tar"])
    asked = ranges(site)
    assert asked[0] == ("/a.tar", f"bytes=0-{windows.FIRST - 1}")
    assert len(asked) < 12 and taken(asked) < 1.1 * size


def test_an_address_with_a_query_as_stores_sign_it_is_read(site):
    site.files["a.tar?signed=x"] = archive(samples(3))
    site.files["a.tar.gz?signed=z"] = archive(samples(2, 3), "w:gz")
    assert len(Dataset.from_tar(f"{site.url}/a.tar?signed=x")) == 3
    walked = Dataset.from_tar([f"{site.url}/{name}" for name in site.files])
    assert [element["txt"] for element in walked] == [data for _, data in samples(5)[::2]]


def test_of_a_large_member_only_the_ends_are_asked_for(site, monkeypatch):
    monkeypatch.setattr(windows, "NEAR", 50_000)
    monkeypatch.setattr(windows, "FIRST", 4096)
    members = [(f"{k}.bin", bytes([k]) * 300_000) for k in range(20)]
    site.files["a.tar"] = archive(members)
    ds = Dataset.from_tar(f"{site.url}/a.tar")
    site.gets()
    assert len(ds) == 20
    asked = ranges(site)
    assert 20 <= len(asked) <= 23 and taken(asked) < 130_000
    assert ds[7] == {"__key__": "7", "bin": members[7][1]}
    assert len(site.gets()) == 1


def test_windows_give_every_byte_wherever_reading_goes(memory, monkeypatch):
    monkeypatch.setattr(windows, "FIRST", 10)
    monkeypatch.setattr(windows, "NEAR", 20)
    monkeypatch.setattr(windows, "MOST", 300)
    monkeypatch.setattr(windows, "PIECE", 70)
    data = np.random.default_rng(0).bytes(2000)
    memory.pipe("/a", data)
    there = remote.Remote()
    for seed in range(20):
        draw = np.random.default_rng(seed)
        file = windows.Windows(there.look("memory://a"), there)
        at = 0
        for step in draw.choice([0, 1, 15, 40, 400, -30], 60).tolist():
            at = max(0, at + step)
            size = int(draw.integers(0, 90))
            assert file.part(at, at + size) == data[at : at + size]
            file.seek(at)
            found = file.read(size)
            assert found == data[at : at + size] and file.tell() == at + len(found)
            at += len(found)
    assert file.read() == data[at:]


def test_a_shuffled_batch_is_read_at_once_and_neighbours_share_a_request(site, monkeypatch):
    monkeypatch.setattr(blocks, "TOUCHES", 1000)
    for k in range(4):
        site.files[f"{k}.tar"] = archive(samples(10, 10 * k, size=150_000))
    ds = Dataset.from_tar([f"{site.url}/{k}.tar" for k in range(4)]).shuffle(seed=1)
    batches = ds.batch(8)
    assert len(batches) == 5
    site.gets()
    site.latency, site.most = 0.02, 0
    batch = batches[0]
    assert len(batch["__key__"]) == 8
    asked = site.gets()
    assert len(asked) <= 8 and site.most > 2
    assert taken(asked) <= 8 * 302_000  # samples, and the headers between their members


def test_threads_that_read_at_once_from_a_busy_server_get_the_right_samples(site):
    for k in range(4):
        site.files[f"{k}.tar"] = archive(samples(10, 10 * k))
    node = Dataset.from_tar([f"{site.url}/{k}.tar" for k in range(4)]).node
    site.failures = 4
    assert node.cardinality == 40
    site.failures = 4
    orders = [np.random.default_rng(k).integers(0, 40, 20) for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(node.gather, orders))
    texts = [data for _, data in samples(40)[::2]]
    for order, block in zip(orders, found, strict=True):
        assert [row["txt"] for row in block.rows()] == [texts[k] for k in order]


def test_the_index_is_kept_beside_the_data_or_where_it_is_named(tmp_path, memory, cache, built):
    memory.pipe("/data/a.tar", archive(samples(3)))
    url = "memory://data/a.tar"
    ds = Dataset.from_tar(url)
    assert built == []  # until it is needed
    assert len(ds) == 3 and len(Dataset.from_tar(url)) == 3
    assert built == [url] and memory.exists("/data/playhead-index/a.tar.members")
    memory.pipe("/data/a.tar", archive(samples(4)))
    assert len(Dataset.from_tar(url)) == 4 and len(built) == 2
    for where in (tmp_path / "run", "memory://run/index"):
        built.clear()
        for _ in range(2):
            memory.rm("/data/playhead-index", recursive=True)
            assert len(Dataset.from_tar(url, index=where)) == 4
            memory.makedirs("/data/playhead-index", exist_ok=True)
        assert built == [url]
    assert not cache.exists()


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_that_was_replaced_or_removed_is_noticed(site, monkeypatch, etags):
    monkeypatch.setattr(blocks, "PATIENCE", 0)
    site.etags = etags
    site.files["a.tar"] = archive(samples(3))
    ds = Dataset.from_tar(f"{site.url}/a.tar")
    assert ds[0]["txt"] == samples(1)[0][1]
    site.files["a.tar"] = archive(samples(9 if not etags else 3, 3))
    site.version["a.tar"] += 1
    for _ in range(2):
        with pytest.raises(SourceChanged) as caught:
            ds[2]
        assert caught.value.file == f"{site.url}/a.tar"
    del site.files["a.tar"]
    with pytest.raises(MissingSource):
        ds[1]
    with pytest.raises(MissingSource):
        Dataset.from_tar(f"{site.url}/a.tar")


def test_a_file_replaced_before_or_while_it_is_indexed_is_noticed(site, monkeypatch):
    site.files["a.tar"] = archive(samples(30))
    ds = Dataset.from_tar(f"{site.url}/a.tar")
    site.files["a.tar"] = archive(samples(30, 30))
    site.version["a.tar"] += 1
    with pytest.raises(SourceChanged):
        len(ds)
    ds = Dataset.from_tar(f"{site.url}/a.tar")
    move = windows.Windows._move

    def meanwhile(self, *span):
        move(self, *span)
        site.version["a.tar"] += 1

    monkeypatch.setattr(windows.Windows, "_move", meanwhile)
    with pytest.raises(SourceChanged):
        len(ds)


def test_damage_is_named_by_url_and_member(memory):
    data = archive(samples(3))
    for cut in (0, 700, 512 * 5, len(data) // 2):
        memory.pipe("/a.tar", data[:cut])
        with pytest.raises(CorruptRecord) as caught:
            len(Dataset.from_tar("memory://a.tar"))
        assert caught.value.file == "memory://a.tar"
    memory.pipe("/a.tar", archive([("0.json", b"{}"), ("1.json", b"{"), ("2.json", b"[1]")]))
    ds = Dataset.from_tar("memory://a.tar", decode="auto")
    with pytest.raises(UnparsableRecord) as caught:
        ds[1]
    facts = (caught.value.file, caught.value.record, caught.value.member, caught.value.offset)
    assert facts == ("memory://a.tar", 1, "1.json", 1536)
    assert [element["__key__"] for element in ds.ignore_errors()] == ["0", "2"]
    memory.pipe("/a.tar", archive([("0.txt", b"")]))
    memory.pipe("/b.tar", archive([("0.jpg", b"")]))
    with pytest.raises(CorruptRecord, match=r"in memory://b\.tar"):
        len(Dataset.from_tar(["memory://a.tar", "memory://b.tar"]))


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_compressed_remote_files_are_walked_and_resume_exactly(tmp_path, memory, kind):
    if kind == "zst":
        zstandard = pytest.importorskip("zstandard")
        packed = zstandard.ZstdCompressor().compress(archive(samples(4)))
    else:
        packed = archive(samples(4), f"w:{kind}")
    plain = archive(samples(3, 4))
    memory.pipe(f"/data/a.tar.{kind}", packed)
    memory.pipe("/data/b.tar", plain)
    (tmp_path / f"a.tar.{kind}").write_bytes(packed)
    (tmp_path / "b.tar").write_bytes(plain)
    here, there = (
        Dataset.from_tar([f"{at}/a.tar.{kind}", f"{at}/b.tar"])
        for at in (tmp_path, "memory://data")
    )
    assert not there.seekable and there.operations() == here.operations()
    elements = list(there)
    assert len(elements) == 7 and difference(elements, list(here)) is None
    it = there.iterator()
    for _ in range(2):
        next(it)
    again = here.iterator()
    again.load_state_dict(it.state_dict())
    with pytest.warns(SlowResume, match="decompresses 2 samples"):
        assert next(again) == elements[2]
    assert_resumes_exactly(lambda: there.batch(2))


def test_a_walked_file_that_is_replaced_is_noticed(site):
    site.files["a.tar.gz"] = archive(samples(4), "w:gz")
    ds = Dataset.from_tar(f"{site.url}/a.tar.gz")
    it = ds.iterator()
    next(it)
    site.version["a.tar.gz"] += 1
    with pytest.raises(SourceChanged):
        list(it)
    site.files["a.tar.gz"] = archive(samples(4, 4), "w:gz")
    with pytest.raises(SourceChanged):
        list(ds)


def test_samples_in_a_bucket_are_indexed_read_and_watched(bucket, built):
    for k in range(3):
        bucket.system.pipe(f"{bucket.url}/{k}.tar", archive(samples(5, 5 * k)))
    for _ in range(2):
        ds = Dataset.from_tar(f"{bucket.url}/*.tar", storage_options=bucket.options)
        assert [ds[k]["txt"] for k in (12, 3)] == [samples(1, k)[0][1] for k in (12, 3)]
    assert len(built) == 3
    node = pickle.loads(pickle.dumps(ds.node))
    bucket.system.pipe(f"{bucket.url}/1.tar", archive(samples(5, 50)))
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([6]))
    assert caught.value.file == f"{bucket.url}/1.tar"
