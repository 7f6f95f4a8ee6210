"""Parquet files on stores that fsspec knows: as few bytes as are needed, and never those of another file."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import CorruptRecord, MissingSource, SourceChanged, UnparsableRecord
from playhead.sources.arrow import chunks, footers
from playhead.sources.files import remote
from playhead.testing import assert_resumes_exactly, difference

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("cache")


def rows(n, start=0):
    numbers = range(start, start + n)
    return pa.table(
        {
            "x": pa.array(numbers, pa.int64()),
            "s": pa.array([f"text {k}" for k in numbers], pa.string()),
            "image": [{"bytes": b"%d" % k * 200, "path": f"{k}.png"} for k in numbers],
            "l": pa.array([list(range(k % 4)) for k in numbers], pa.list_(pa.int32())),
        }
    )


def made(table, **options):
    data = io.BytesIO()
    pq.write_table(table, data, **{"row_group_size": 5, "compression": "none", **options})
    return data.getvalue()


FILES = {f"{k}.parquet": made(rows(12, 12 * k)) for k in range(3)}


def local(tmp_path):
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return Dataset.from_parquet(tmp_path / "*.parquet")


def taken(asked):
    """How many bytes were asked for."""
    spans = [what.removeprefix("bytes=").split("-") for _, what in asked]
    return sum(int(last) + 1 - int(first) for first, last in spans)


def test_remote_rows_and_their_description_are_those_of_the_same_files_on_disk(tmp_path, memory):
    for name, data in FILES.items():
        memory.pipe(f"/data/{name}", data)
    there, here = Dataset.from_parquet("memory://data/*.parquet"), local(tmp_path)
    assert there.operations() == here.operations()
    order = np.random.default_rng(0).permutation(36)
    assert difference(there.node.gather(order).rows(), here.node.gather(order).rows()) is None
    (record,) = there.trace(13)
    assert (record.file, record.record) == ("memory:///data/1.parquet", 1)
    copy = pickle.loads(pickle.dumps(there.node))
    assert difference(copy.gather(order).rows(), here.node.gather(order).rows()) is None
    mixed = Dataset.from_parquet([tmp_path / "0.parquet", "memory://data/1.parquet"])
    assert [int(row["x"]) for row in mixed.node.gather(np.array([23, 2])).rows()] == [23, 2]
    assert_resumes_exactly(
        lambda: Dataset.from_parquet("memory://data/*", columns=["x", "s"]).shuffle(seed=1).batch(5)
    )
    with pytest.raises(MissingSource):
        Dataset.from_parquet("memory://data/3.parquet")
    with pytest.raises(MissingSource):
        Dataset.from_parquet("memory://other/*.parquet")


def test_only_footers_and_the_chunks_of_chosen_columns_are_asked_for(site, monkeypatch):
    monkeypatch.setattr(footers, "_ENDS", 100)
    monkeypatch.setattr(remote, "GAP", 0)
    site.files.update(FILES)
    urls = [f"{site.url}/{name}" for name in FILES]
    ds = Dataset.from_parquet(urls, columns=["image", "x"])
    asked = site.gets()
    assert len(asked) == 6
    assert taken(asked) == sum(int.from_bytes(d[-8:-4], "little") + 8 for d in FILES.values())
    assert ds[7]["image"]["bytes"] == b"7" * 200
    group = pq.read_metadata(io.BytesIO(FILES["0.parquet"])).row_group(1)
    sizes = {
        group.column(k).path_in_schema: group.column(k).total_compressed_size for k in range(5)
    }
    asked = site.gets()
    assert [path for path, _ in asked] == ["/0.parquet"] * 2  # between them lies "s"
    assert taken(asked) == sizes["x"] + sizes["image.bytes"] + sizes["image.path"]
    assert ds[5]["x"] == 5 and site.gets() == []
    monkeypatch.setattr(remote, "GAP", 1 << 20)
    monkeypatch.setattr(chunks, "_PIECE", 500)
    assert ds[0]["image"]["bytes"] == b"0" * 200
    assert len(site.gets()) == -(-(sizes["x"] + sizes["s"] + sizes["image.bytes"]) // 500)


def test_a_shuffled_batch_asks_for_each_row_group_once_and_for_all_together(site):
    site.files.update(FILES)
    urls = [f"{site.url}/{name}" for name in FILES]
    ds = Dataset.from_parquet(urls, columns=["x", "image"]).shuffle(seed=1).batch(36)
    site.gets()
    site.latency, site.most = 0.02, 0
    assert sorted(ds[0]["x"].tolist()) == list(range(36))
    assert len(site.gets()) == 9
    assert site.most > 2


def test_a_store_may_remember_what_it_told_of_files_looked_at_together(memory, monkeypatch):
    asked = Counter()
    monkeypatch.setattr(
        type(memory), "invalidate_cache", lambda *_: asked.update(["forgotten"]), raising=False
    )
    for name, data in FILES.items():
        memory.pipe(f"/data/{name}", data)
    assert len(Dataset.from_parquet("memory://data/*")) == 36
    assert asked["forgotten"] == 1


def test_threads_that_read_at_once_from_a_busy_server_get_the_right_rows(site, monkeypatch):
    monkeypatch.setattr(footers, "_KEPT", 1)
    site.files.update(FILES)
    urls = [f"{site.url}/{name}" for name in FILES]
    node = Dataset.from_parquet(urls, columns=["x", "s"], cache_bytes=1).node
    site.failures = 4
    orders = [np.random.default_rng(k).integers(0, 36, 20) for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(node.gather, orders))
    for order, block in zip(orders, found, strict=True):
        assert [int(row["x"]) for row in block.rows()] == order.tolist()
        assert [row["s"] for row in block.rows()] == [f"text {k}" for k in order]


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_replaced_between_its_footer_and_a_row_group_is_noticed(site, etags):
    site.etags = etags
    site.files["a"] = made(rows(12, 100), use_dictionary=False)
    other = made(rows(12, 200), use_dictionary=False)
    assert len(other) == len(site.files["a"])
    ds = Dataset.from_parquet(f"{site.url}/a")
    assert ds[0]["x"] == 100
    site.files["a"] = bytes(site.files["a"])
    site.version["a"] += 1
    assert ds[5]["x"] == 105  # written again as it was
    site.files["a"] = other
    site.version["a"] += 1
    with pytest.raises(SourceChanged) as caught:
        ds[11]
    assert caught.value.file == f"{site.url}/a"
    site.files["a"] = other[:200]
    with pytest.raises(SourceChanged):
        ds[11]
    del site.files["a"]
    with pytest.raises(MissingSource):
        ds[11]
    assert ds[6]["x"] == 106  # still in memory


def test_a_file_replaced_while_its_row_group_comes_is_noticed(site, monkeypatch):
    site.files["a"] = made(rows(12, 100), use_dictionary=False)
    other = made(rows(12, 200), use_dictionary=False)
    ds = Dataset.from_parquet(f"{site.url}/a")
    read = remote.Remote.read_all

    def meanwhile(self, wanted):
        found = read(self, wanted)
        site.files["a"] = other
        site.version["a"] += 1
        return found

    monkeypatch.setattr(remote.Remote, "read_all", meanwhile)
    with pytest.raises(SourceChanged):
        ds[0]


def test_a_damaged_row_group_is_named_and_what_is_no_parquet_file_is_told(memory):
    data = bytearray(made(rows(12).select(["s"]), write_page_checksum=True, use_dictionary=False))
    data[data.index(b"text 7")] ^= 1
    memory.pipe("/data/a", bytes(data))
    ds = Dataset.from_parquet("memory://data/a")
    with pytest.raises(CorruptRecord) as caught:
        ds[7]
    facts = (caught.value.file, caught.value.group, caught.value.record)
    assert facts == ("memory://data/a", 1, 5)
    assert [row["s"] for row in ds.ignore_errors()] == [
        f"text {k}" for k in (0, 1, 2, 3, 4, 10, 11)
    ]
    memory.pipe("/data/a", made(pa.table({"x": [1, None]})))
    with pytest.raises(UnparsableRecord) as caught:
        Dataset.from_parquet("memory://data/a")[1]
    assert (caught.value.file, caught.value.record) == ("memory://data/a", 1)
    for short in (b"", b"PAR1", b"PAR1" + bytes(90), bytes(data[:-1])):
        memory.pipe("/data/a", short)
        with pytest.raises(CorruptRecord, match="memory://data/a"):
            Dataset.from_parquet("memory://data/a")


def test_a_damaged_row_group_is_fetched_once_however_many_of_its_rows_are_left_out(site):
    data = bytearray(made(rows(12).select(["s"]), write_page_checksum=True, use_dictionary=False))
    data[data.index(b"text 7")] ^= 1
    site.files["a"] = bytes(data)
    ds = Dataset.from_parquet(f"{site.url}/a", on_error="skip")
    site.gets()
    assert len(list(ds)) == 7
    asked = site.gets()
    assert len(asked) == len(set(asked)) == 3
    site.files["a"] = made(rows(12).select(["s"]), write_page_checksum=True, use_dictionary=False)
    site.version["a"] += 1
    assert len(list(Dataset.from_parquet(f"{site.url}/a", on_error="skip"))) == 12


def test_rows_in_a_bucket_are_read_and_a_replaced_file_is_noticed(bucket):
    for name, data in FILES.items():
        bucket.system.pipe(f"{bucket.url}/{name}", data)
    ds = Dataset.from_parquet(f"{bucket.url}/*.parquet", storage_options=bucket.options)
    assert [int(ds[k]["x"]) for k in (30, 3)] == [30, 3]
    node = pickle.loads(pickle.dumps(ds.node))
    bucket.system.pipe(f"{bucket.url}/1.parquet", made(rows(12, 500)))
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([15]))
    assert caught.value.file == f"{bucket.url}/1.parquet"
