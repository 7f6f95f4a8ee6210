"""Parquet files: any row at random, row groups read once, damage and change noticed."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    PipelineError,
    SourceChanged,
    UnparsableRecord,
)
from playhead.testing import assert_resumes_exactly, difference

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def rows(n, start=0):
    numbers = range(start, start + n)
    return pa.table(
        {
            "x": pa.array(numbers, pa.int64()),
            "s": pa.array([f"text {k}" for k in numbers], pa.string()),
            "f": pa.array([[k, -k] for k in numbers], pa.list_(pa.float32(), 2)),
            "l": pa.array([list(range(k % 4)) for k in numbers], pa.list_(pa.int32())),
        }
    )


def write(path, table, **options):
    pq.write_table(table, path, **{"row_group_size": 4, **options})
    return str(path)


def plain(element):
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in element.items()}


@pytest.fixture
def decoded(monkeypatch):
    """The row groups that were decoded, in order."""
    from playhead.sources.arrow.parquet import Groups

    seen = []
    real = Groups._decoded

    def counting(self, group):
        seen.append(group)
        return real(self, group)

    monkeypatch.setattr(Groups, "_decoded", counting)
    return seen


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    group=st.integers(1, 6),
    columns=st.sampled_from([["x"], ["s", "x"], ["x", "f"], ["l", "x", "s"]]),
    cache=st.sampled_from([1, 1 << 20]),
    neighbours_first=st.booleans(),
    draw=st.data(),
)
def test_rows_come_back_in_any_order(
    tmp_path_factory, sizes, group, columns, cache, neighbours_first, draw
):
    directory = tmp_path_factory.mktemp("data")
    starts = np.cumsum([0, *sizes])
    paths = [
        write(directory / f"{k}.parquet", rows(n, int(starts[k])), row_group_size=group)
        for k, n in enumerate(sizes)
    ]
    count = int(starts[-1])
    expected = rows(count).select(columns).to_pylist()
    node = Dataset.from_parquet(paths, columns=columns, cache_bytes=cache).node
    assert node.cardinality == count
    if neighbours_first:
        assert [plain(e) for e in node.gather(np.arange(count)).rows()] == expected
    index = draw.draw(st.lists(st.integers(0, count - 1), max_size=30)) if count else []
    found = node.gather(np.array(index, np.int64)).rows()
    assert [plain(e) for e in found] == [expected[k] for k in index]
    assert [plain(e) for e in node.gather(np.arange(count)).rows()] == expected


def test_every_kind_of_order_resumes_exactly(tmp_path):
    for k in range(3):
        write(tmp_path / f"{k}.parquet", rows(5, 5 * k))

    def make(**options):
        return Dataset.from_parquet(tmp_path / "*.parquet", **options)

    assert [int(e["x"]) for e in make(columns=["x"])] == list(range(15))
    assert_resumes_exactly(lambda: make().shuffle(seed=1), every=4)
    assert_resumes_exactly(lambda: make(columns=["x", "s"]).shuffle(6, seed=1).batch(4))


def test_a_row_group_is_decoded_once_for_neighbours_and_threads(tmp_path, decoded):
    path = write(tmp_path / "a.parquet", rows(12))
    ds = Dataset.from_parquet(path)
    for _ in ds:
        pass
    assert decoded == [0, 1, 2]
    ds = Dataset.from_parquet(path)
    decoded.clear()
    with ThreadPoolExecutor(4) as pool:
        orders = [np.random.default_rng(k).permutation(12) for k in range(20)]
        found = list(pool.map(ds.node.gather, orders))
    for order, block in zip(orders, found, strict=True):
        assert [int(row["x"]) for row in block.rows()] == order.tolist()
    assert sorted(decoded) == [0, 1, 2]


def test_row_groups_kept_in_memory_are_bounded(tmp_path, decoded):
    path = write(tmp_path / "a.parquet", rows(40))
    ds = Dataset.from_parquet(path, cache_bytes=1)
    for k in (0, 20, 1, 21):
        ds[k]
    assert decoded == [0, 5, 0, 5]
    assert len(ds.node.groups._kept) == 1


def test_a_row_knows_its_file_and_number(tmp_path):
    write(tmp_path / "a.parquet", rows(5))
    path = write(tmp_path / "b.parquet", rows(9))
    (record,) = Dataset.from_parquet(tmp_path / "*.parquet").trace(11)
    assert (record.file, record.record) == (path, 6)


def test_describing_tells_content_and_columns_and_no_path(tmp_path):
    (tmp_path / "copy").mkdir()
    a = write(tmp_path / "a", rows(9))
    copy = tmp_path / "copy" / "b"
    copy.write_bytes(Path(a).read_bytes())
    other = write(tmp_path / "other", rows(9, 1))
    said = [Dataset.from_parquet(p).operations() for p in (a, copy, other)]
    assert said[0] == said[1] != said[2]
    assert said[0][0].keys() == {"op", "records", "schema", "content"}
    chosen = [Dataset.from_parquet(a, columns=c).operations() for c in (["x"], ["x", "s"])]
    assert len({str(s) for s in [said[0], *chosen]}) == 3


def test_a_null_is_named_by_file_row_and_column(tmp_path):
    table = pa.table({"x": [1, 2, None, 4], "y": [1.0, None, 3.0, 4.0]})
    path = write(tmp_path / "a", table, row_group_size=3)
    ds = Dataset.from_parquet(path)
    assert np.isnan(ds[1]["y"]) and ds[3]["x"] == 4
    with pytest.raises(UnparsableRecord) as caught:
        ds.shuffle(seed=1).batch(4)[0]
    assert (caught.value.file, caught.value.record, caught.value.column) == (path, 2, "x")
    assert [e["x"] for e in ds.ignore_errors()] == [1, 2, 4]
    assert [e["x"] for e in Dataset.from_parquet(path, fill={"x": 0})] == [1, 2, 0, 4]
    narrow = Dataset.from_parquet(path, fill={"x": 300}, dtypes={"x": np.int16})
    assert narrow[2]["x"] == 300 and narrow[2]["x"].dtype == np.int16


def test_columns_of_every_width_with_nulls_in_some_row_groups_come_back_in_any_order(tmp_path):
    numbers = list(range(24))
    words = ["", "a\0", "日本", "word"] * 6
    table = pa.table(
        {
            "": pa.array(numbers, pa.int8()),
            "i": pa.array([k << 40 for k in numbers], pa.int64()),
            "f0": pa.array([k / 4 for k in numbers], pa.float16()),
            "some": pa.array([None if k == 9 else k for k in numbers], pa.uint16()),
            "few": pa.array([None if k in (2, 20) else k for k in numbers], pa.float64()),
            "day": pa.array(numbers, pa.date32()),
            "word": pa.array(words, pa.string()),
            "data": pa.array([word.encode() for word in words], pa.large_binary()),
            "said": pa.array([None if k == 9 else words[k] for k in numbers], pa.string()),
        }
    )
    path = write(tmp_path / "a", table, row_group_size=5)
    ds = Dataset.from_parquet(path, fill={"some": 99, "said": "none"})
    dtypes = {"": "i1", "i": "i8", "f0": "f2", "some": "u2", "few": "f8", "day": "M8[D]"}
    expected = {
        **{name: np.array(numbers).astype(dtype) for name, dtype in dtypes.items()},
        "i": np.array(numbers, np.int64) << 40,
        "f0": np.array(numbers, np.float16) / np.float16(4),
        **{name: np.array(words, object) for name in ("word", "said")},
        "data": np.array([word.encode() for word in words], object),
    }
    expected["some"][9], expected["said"][9] = 99, "none"
    expected["few"][[2, 20]] = np.nan
    random = np.random.default_rng(0)
    orders = [np.arange(24), np.arange(24)[::-1], np.arange(3, 13), np.array([7, 5, 9])]
    for index in [*orders, *(random.integers(0, 24, n) for n in (1, 2, 7, 40))]:
        found = ds.node.gather(index.astype(np.int64)).nest
        assert list(found) == table.column_names
        assert difference(found, {name: expected[name][index] for name in found}) is None


def test_text_that_is_no_utf8_in_one_of_several_row_groups_is_named(tmp_path):
    values = [b"ok"] * 12
    values[7] = b"\xff"
    path = write(tmp_path / "a", pa.table({"x": range(12), "s": pa.array(values, pa.binary())}))
    ds = Dataset.from_parquet(path, dtypes={"s": str})
    with pytest.raises(UnparsableRecord) as caught:
        ds.shuffle(seed=1).batch(12)[0]
    assert (caught.value.file, caught.value.record, caught.value.column) == (path, 7, "s")
    assert len(list(ds.shuffle(seed=1).ignore_errors())) == 11
    raw = Dataset.from_parquet(path).shuffle(seed=1).batch(12)[0]
    assert sorted(raw["s"].tolist()) == sorted(values) and sorted(raw["x"].tolist()) == list(
        range(12)
    )


def test_text_kept_as_views_is_filled_and_read_from_files_that_are_not_alike(tmp_path):
    for name, values, nullable in (("a", ["x", None, "z"], True), ("b", ["u", "v", "w"], False)):
        field = pa.field("s", pa.string_view(), nullable=nullable)
        write(tmp_path / name, pa.table([pa.array(values, field.type)], pa.schema([field])))
    ds = Dataset.from_parquet([tmp_path / "a", tmp_path / "b"], fill={"s": "y"})
    assert ds.node.gather(np.arange(6)[::-1]).nest["s"].tolist() == list("wvuzyx")
    assert ds.element_spec["s"].dtype is str


def test_no_column_is_kept_twice(tmp_path, decoded):
    table = pa.table({"x": range(800), "y": [float(k) for k in range(800)], "s": ["word"] * 800})
    path = write(tmp_path / "a", table, row_group_size=100)
    group = table.slice(0, 100).combine_chunks()
    room = sum(column.nbytes for column in group.columns)
    ds = Dataset.from_parquet(path, cache_bytes=int(2.5 * room))
    for k in (0, 100, 1, 101, 200, 201, 102, 2):
        ds[k]
    assert decoded == [0, 1, 2, 0]


def test_files_of_unlike_columns_are_refused(tmp_path):
    a = write(tmp_path / "a", pa.table({"x": [1], "y": [1]}))
    b = write(tmp_path / "b", pa.table({"x": ["1"]}))
    with pytest.raises(PipelineError, match="'x' is int64") as caught:
        Dataset.from_parquet([a, b], columns=["x"])
    assert b in str(caught.value)
    with pytest.raises(PipelineError, match="no such column"):
        Dataset.from_parquet([a, b], columns=["y"])


def test_what_is_no_whole_parquet_file_is_told(tmp_path):
    path = write(tmp_path / "a", rows(9))
    data = Path(path).read_bytes()
    (tmp_path / "cut").write_bytes(b"")
    for size in (0, 4, 11, 100, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(CorruptRecord) as caught:
            Dataset.from_parquet(tmp_path / "cut")
        assert caught.value.file == str(tmp_path / "cut")
    length = int.from_bytes(data[-8:-4], "little")
    (tmp_path / "cut").write_bytes(data[: -8 - length] + b"\xff" * length + data[-8:])
    with pytest.raises(CorruptRecord):
        Dataset.from_parquet(tmp_path / "cut")
    with pytest.raises(MissingSource, match="from_parquet was given"):
        Dataset.from_parquet([])
    with pytest.raises(MissingSource, match=r"\*\.parquet"):
        Dataset.from_parquet(tmp_path)


def test_every_flipped_byte_of_the_data_is_found_where_pages_have_checksums(tmp_path):
    path = write(
        tmp_path / "a",
        rows(40).select(["x", "s"]),
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        row_group_size=40,
    )
    expected = [plain(e) for e in Dataset.from_parquet(path)]
    metadata = pq.read_metadata(path).row_group(0)
    end = max(
        metadata.column(k).data_page_offset + metadata.column(k).total_compressed_size
        for k in range(2)
    )
    data = bytearray(Path(path).read_bytes())
    flipped = tmp_path / "flipped"
    found = 0
    for place in range(4, end, 7):
        data[place] ^= 0x04
        flipped.write_bytes(data)
        data[place] ^= 0x04
        try:
            rows_of = [plain(e) for e in Dataset.from_parquet(flipped)]
        except (CorruptRecord, UnparsableRecord) as error:
            found += error.file == str(flipped)
        else:
            assert rows_of == expected  # a bit that means nothing, in a page's header
    assert found > 0.8 * len(range(4, end, 7))


def test_a_file_replaced_or_cut_during_the_run_is_noticed(tmp_path):
    path = write(tmp_path / "a", rows(12))
    node = Dataset.from_parquet(path).node
    before = node.gather(np.array([0])).rows()
    os.utime(path, ns=(0, 1))
    assert difference(node.gather(np.array([5])).rows()[0]["x"], np.int64(5)) is None
    write(path, rows(12, 1))
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([9]))
    assert caught.value.file == path
    assert difference(node.gather(np.array([0])).rows(), before) is None  # still in memory
    os.truncate(path, 300)
    with pytest.raises((SourceChanged, CorruptRecord)):
        node.gather(np.array([9]))
    os.remove(path)
    with pytest.raises(FileNotFoundError):
        node.gather(np.array([9]))


def test_a_source_travels_through_pickle(tmp_path):
    node = Dataset.from_parquet(write(tmp_path / "a", rows(9)), fill={"x": 1}).node
    node.gather(np.array([0]))
    copy = pickle.loads(pickle.dumps(node))
    assert copy.describe() == node.describe()
    assert difference(copy.gather(np.array([8])).rows(), node.gather(np.array([8])).rows()) is None


def test_neighbours_and_single_rows_are_read_by_several_threads(tmp_path):
    path = write(tmp_path / "a", rows(400), row_group_size=100)
    expected = rows(400).select(["x", "s"]).to_pylist()
    for _ in range(20):
        node = Dataset.from_parquet(path, columns=["x", "s"]).node
        orders = [np.arange(400), np.random.default_rng(0).permutation(400), np.arange(50, 250)]
        with ThreadPoolExecutor(6) as pool:
            for order, block in zip(orders * 2, pool.map(node.gather, orders * 2), strict=True):
                assert [plain(e) for e in block.rows()] == [expected[k] for k in order]


def test_rows_are_light_to_read_until_a_function_of_the_users_comes_in(tmp_path):
    ds = Dataset.from_parquet(write(tmp_path / "a", rows(9)))
    assert ds.shuffle(seed=1).batch(2).node.light
    assert not ds.map(lambda row: row["x"]).batch(2).node.light


@pytest.mark.parametrize("index", [-1, 9])
def test_an_index_outside_the_files_is_an_index_error(tmp_path, index):
    node = Dataset.from_parquet(write(tmp_path / "a", rows(9))).node
    with pytest.raises(IndexError, match=f"row {index} of 9"):
        node.gather(np.array([0, index]))


def test_what_an_element_holds_is_the_consumers(tmp_path):
    ds = Dataset.from_parquet(write(tmp_path / "a", rows(4)), columns=["x", "f"])
    for batches in (ds.batch(4), ds.shuffle(seed=1).batch(4)):
        batches[0]["x"][...] = 99
        batches[0]["f"][...] = 99
        assert batches[0]["x"].max() == 3 and batches[0]["f"].max() == 3


def test_files_that_differ_in_a_columns_type_are_read_in_the_dtype_that_is_named(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "s": ["a", "b"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1.5, 1e300], "s": ["c", "d"]}), tmp_path / "b.parquet")
    pattern = tmp_path / "*.parquet"
    with pytest.raises(PipelineError, match="double") as caught:
        Dataset.from_parquet(pattern)
    assert "dtypes={'x': ...}" in caught.value.help
    ds = Dataset.from_parquet(pattern, dtypes={"x": np.float64})
    assert [(e["x"], e["s"]) for e in ds] == [(1, "a"), (2, "b"), (1.5, "c"), (1e300, "d")]
    mixed = Dataset.from_parquet(pattern, dtypes={"x": np.float64}).shuffle(seed=1).batch(4)[0]
    assert sorted(mixed["x"].tolist()) == [1, 1.5, 2, 1e300]
    whole = Dataset.from_parquet(pattern, dtypes={"x": np.int64})
    assert [e["x"] for e in whole.ignore_errors()] == [1, 2]
    with pytest.raises(UnparsableRecord) as caught:
        whole.batch(4)[0]
    assert (Path(caught.value.file).name, caught.value.record) == ("b.parquet", 0)


def test_a_file_that_is_replaced_just_before_it_is_opened_is_not_taken_for_the_one_it_was(
    tmp_path, monkeypatch
):
    path, other = write(tmp_path / "a", rows(8)), write(tmp_path / "b", rows(8, start=100))
    ds = Dataset.from_parquet(path, columns=["x"])
    real = pq.ParquetFile

    def late(source, **options):
        os.replace(other, path)
        return real(source, **options)

    monkeypatch.setattr(pq, "ParquetFile", late)
    with pytest.raises(SourceChanged) as caught:
        ds[0]
    assert caught.value.file == path
