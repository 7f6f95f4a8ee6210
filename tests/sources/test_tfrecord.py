"""Reading TFRecord files at random: the right bytes, or an error that names the record."""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset, kernels
from playhead.errors import (
    CorruptRecord,
    IgnoredError,
    MissingSource,
    PipelineError,
    SourceChanged,
    UnparsableRecord,
)
from playhead.plan.block import ArraySpec, Columns, Rows
from playhead.plan.places import Places
from playhead.sources.files import maps
from playhead.sources.files.indexed import ready
from playhead.sources.tfrecord import reading
from playhead.sources.tfrecord.example import FixedLenFeature, VarLenFeature
from playhead.sources.tfrecord.records import tfrecords
from playhead.testing import assert_resumes_exactly

tf = pytest.importorskip("tensorflow")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def examples(values):
    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))}
            )
        ).SerializeToString()
        for value in values
    ]


def read(source, index=None):
    index = np.arange(source.cardinality) if index is None else np.array(index, np.int64)
    return source.gather(index).nest.tolist()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=st.lists(st.lists(st.binary(max_size=40), max_size=6), min_size=1, max_size=4),
    draw=st.data(),
)
def test_records_come_back_in_any_order(tmp_path_factory, files, draw):
    directory = tmp_path_factory.mktemp("data")
    paths = [write(directory / str(k), records) for k, records in enumerate(files)]
    expected = [record for records in files for record in records]
    source = tfrecords(paths)
    assert source.cardinality == len(expected)
    assert read(source) == expected
    if expected:
        index = draw.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20))
        assert read(source, index) == [expected[k] for k in index]


def test_an_explicit_order_is_kept_and_a_pattern_is_sorted(tmp_path):
    for name in ("c", "a", "b"):
        write(tmp_path / f"{name}.tfrecord", [name.encode()])
    a, b, c = (tmp_path / f"{name}.tfrecord" for name in "abc")
    pattern = str(tmp_path / "*.tfrecord")
    assert read(tfrecords([c, str(a), b])) == [b"c", b"a", b"b"]
    assert read(tfrecords(pattern)) == [b"a", b"b", b"c"]
    assert read(tfrecords([c, pattern])) == [b"c", b"a", b"b", b"c"]
    assert read(tfrecords(tmp_path / "[ab].tfrecord")) == [b"a", b"b"]


def test_patterns_never_match_the_index(tmp_path):
    write(tmp_path / "train", [b"1"])
    for pattern in ("*", "train*", "**", "**/*"):
        for _ in range(2):
            assert read(tfrecords(str(tmp_path / pattern))) == [b"1"]


def test_a_name_with_pattern_characters_is_taken_as_it_is_where_it_exists(tmp_path):
    write(tmp_path / "a[1]", [b"brackets"])
    write(tmp_path / "a1", [b"plain"])
    assert read(tfrecords(tmp_path / "a[1]")) == [b"brackets"]


def test_a_pattern_that_matches_nothing_is_named_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingSource) as caught:
        tfrecords("train-*")
    assert "'train-*'" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


def test_relative_paths_survive_a_change_of_directory(tmp_path, monkeypatch):
    write(tmp_path / "a", [b"1"])
    monkeypatch.chdir(tmp_path)
    source = tfrecords("a")
    monkeypatch.chdir("/")
    assert read(source) == [b"1"]


def test_an_empty_dataset_reads_as_nothing(tmp_path):
    source = tfrecords(write(tmp_path / "a", []))
    assert source.cardinality == 0
    assert read(source) == []
    with pytest.raises(IndexError):
        source.gather(np.array([0]))


def test_no_files_at_all_are_missing():
    with pytest.raises(MissingSource, match="empty list"):
        tfrecords([])


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_the_files_is_an_index_error(tmp_path, index):
    with pytest.raises(IndexError, match=f"record {index} of 2"):
        tfrecords(write(tmp_path / "a", [b"1", b"2"])).gather(np.array([0, index]))


def test_a_record_knows_its_file_and_number(tmp_path):
    paths = [
        write(tmp_path / name, records) for name, records in (("a", [b"1"]), ("b", [b"", b"3"]))
    ]
    source = tfrecords(paths)
    record = source.record(4, 2)
    assert (record.file, record.record, record.epoch, record.index) == (paths[1], 1, 4, 2)
    assert source.reader.place(2) == (paths[1], 1, 16)
    located = source.locate(Places(0, np.array([2, 0])))
    assert [r.file for r in located.records()] == paths[::-1]
    assert source.read(located).nest.tolist() == [b"3", b"1"]


def test_describing_tells_content_and_features_but_no_path(tmp_path):
    (tmp_path / "copy").mkdir()
    sources = [tfrecords(write(p, [b"1", b"2"])) for p in (tmp_path / "a", tmp_path / "copy" / "b")]
    assert sources[0].describe() == sources[1].describe()
    assert sources[0].describe()["op"] == "tfrecords"
    assert sources[0].describe()["records"] == 2
    described = [
        tfrecords(tmp_path / "a", features={"x": FixedLenFeature((), dtype)}).describe()
        for dtype in (np.int64, np.int64, np.float32)
    ]
    assert described[0] == described[1] != described[2]
    assert described[0].keys() == {"op", "records", "content", "features"}


def test_features_turn_records_into_columns_or_rows(tmp_path):
    path = write(tmp_path / "a", examples([5, 300, -7]))
    fixed = tfrecords(path, features={"x": tf.io.FixedLenFeature([], tf.int64)})
    block = fixed.gather(np.array([2, 0]))
    assert isinstance(block, Columns)
    assert block.nest["x"].dtype == np.int64
    assert block.nest["x"].tolist() == [-7, 5]
    assert fixed.spec() == {"x": ArraySpec((), np.dtype(np.int64))}
    varying = tfrecords(path, features={"x": VarLenFeature(np.int64)})
    rows = varying.gather(np.array([1]))
    assert isinstance(rows, Rows)
    assert rows.elements[0]["x"].tolist() == [300]
    assert varying.spec() == {"x": ArraySpec((None,), np.dtype(np.int64))}
    assert tfrecords(path).spec() == ArraySpec((), bytes)


def test_an_unparsable_record_is_named_by_file_and_number(tmp_path):
    write(tmp_path / "a", examples([1]))
    path = write(tmp_path / "b", [*examples([2]), b"not an example"])
    source = tfrecords(tmp_path / "[ab]", features={"x": FixedLenFeature((), np.int64)})
    with pytest.raises(UnparsableRecord) as caught:
        source.gather(np.array([2, 0]))
    assert (caught.value.file, caught.value.record) == (path, 1)
    assert f"{path}, record 1 at byte" in str(caught.value)


@pytest.mark.parametrize("verify", ["always", "index", "read", "never"])
def test_every_way_to_verify_reads_the_same_bytes(tmp_path, verify):
    records = [bytes([k]) * k for k in range(50)]
    assert read(tfrecords(write(tmp_path / "a", records), verify=verify)) == records


def test_an_unknown_way_to_verify_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="sometimes"):
        tfrecords(write(tmp_path / "a", []), verify="sometimes")


def damaged_later(path, place, flip, source):
    """Flip bits of a file behind the back of `source`, and put its time back."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ flip]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_every_byte_flipped_after_indexing_is_found_at_the_read(tmp_path):
    records = [b"one", b"", b"three"]
    path = write(tmp_path / "a", records)
    source = tfrecords(path)
    assert read(source) == records
    borders = [0, 19, 35, 56]
    for place in range(56):
        damaged_later(path, place, 0x20, source)
        record = max(k for k in range(3) if borders[k] <= place)
        with pytest.raises(CorruptRecord) as caught:
            read(source)
        assert (caught.value.file, caught.value.record) == (path, record)
        assert caught.value.offset == borders[record]
        within = place - borders[record]
        assert caught.value.reason == ("length" if within < 12 else "data")
        untouched = [k for k in range(3) if k != record]
        assert read(source, untouched) == [records[k] for k in untouched]
        damaged_later(path, place, 0x20, source)
    assert read(source) == records


def test_index_and_never_do_not_check_at_the_read(tmp_path):
    path = write(tmp_path / "a", [b"one"])
    for verify in ("index", "never"):
        source = tfrecords(path, verify=verify)
        damaged_later(path, 12, 0x20, source)
        assert read(source) == [b"One"]
        damaged_later(path, 12, 0x20, source)


def test_damage_found_at_the_read_only_can_be_left_out_and_is_left_out_again(tmp_path):
    records = [b"%d" % k for k in range(8)]
    path = write(tmp_path / "a", records)
    data = bytearray(Path(path).read_bytes())
    at = sum(16 + len(record) for record in records[:5]) + 12
    data[at] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(CorruptRecord, match="record 5"):
        tfrecords(path)
    ds = Dataset(tfrecords(path, verify="read"))
    with pytest.raises(CorruptRecord) as caught:
        list(ds)
    assert (caught.value.record, caught.value.offset, caught.value.reason) == (5, at - 12, "data")
    kept = ds.ignore_errors()
    assert list(kept) == records[:5] + records[6:]
    assert_resumes_exactly(lambda: Dataset(tfrecords(path, verify="read")).ignore_errors())
    with pytest.warns(IgnoredError, match="record 5"):
        list(ds.ignore_errors(log_warning=True))


def test_another_valid_file_written_over_the_first_is_found(tmp_path):
    path = write(tmp_path / "a", [b"one", b"two"])
    source = tfrecords(path)
    assert read(source) == [b"one", b"two"]
    other = Path(write(tmp_path / "b", [b"ONE", b"TWO"])).read_bytes()
    with open(path, "r+b") as file:
        file.write(other)
    with pytest.raises(SourceChanged, match="while it was in use"):
        read(source)


def test_another_file_under_the_same_name_leaves_an_open_reader_alone(tmp_path):
    path = write(tmp_path / "a", [b"one", b"two"])
    source = tfrecords(path)
    assert read(source) == [b"one", b"two"]
    os.replace(write(tmp_path / "b", [b"ONE", b"TWO"]), path)
    assert read(source) == [b"one", b"two"]


@pytest.mark.parametrize("verify", ["always", "index", "read", "never"])
@pytest.mark.parametrize("records", [[b"ONE", b"two"], [b"one", b"two", b"three"], [b"one"]])
def test_a_file_replaced_between_indexing_and_opening_is_found(tmp_path, records, verify):
    path = write(tmp_path / "a", [b"one", b"two"])
    source = tfrecords(path, verify=verify)
    os.replace(write(tmp_path / "b", records), path)
    os.utime(path, ns=(0, 1))
    with pytest.raises(SourceChanged) as caught:
        read(source)
    assert caught.value.file == path


@pytest.mark.parametrize("verify", ["always", "index", "read", "never"])
def test_a_touched_file_is_still_the_same(tmp_path, verify):
    path = write(tmp_path / "a", [b"one", b"two"])
    source = tfrecords(path, verify=verify)
    os.utime(path, ns=(0, 1))
    assert read(source) == [b"one", b"two"]


@pytest.mark.parametrize("verify", ["always", "index", "read", "never"])
def test_a_file_that_grows_while_it_is_read_is_found(tmp_path, monkeypatch, verify):
    monkeypatch.setattr(maps, "_PATIENCE", 0.0)
    path = write(tmp_path / "a", [b"one", b"two"])
    source = tfrecords(path, verify=verify)
    assert read(source) == [b"one", b"two"]
    with open(path, "ab") as file:
        file.write(Path(write(tmp_path / "b", [b"three"])).read_bytes())
    with pytest.raises(SourceChanged, match="while it was in use"):
        read(source)
    assert read(tfrecords(path, verify=verify)) == [b"one", b"two", b"three"]


@pytest.mark.skipif(sys.platform == "win32", reason="its files have no holes unless asked for")
def test_records_behind_four_gibibytes_are_read(tmp_path):
    hole = (1 << 32) + 5
    small = Path(write(tmp_path / "small", [b"behind", b"last"])).read_bytes()
    path = str(tmp_path / "large")
    with open(path, "wb") as file:
        file.write(kernels.header(hole))
        file.seek(hole + 4, os.SEEK_CUR)  # zeros that take no room on the disk, and no sound CRC
        file.write(small)
    source = tfrecords(path, verify="never")
    assert source.reader.index.edges.tolist()[1:] == [
        hole + 16,
        hole + 16 + 22,
        hole + 16 + len(small),
    ]
    assert read(source, [2, 1]) == [b"last", b"behind"]
    checked = replace(source, indexed=ready(replace(source.reader, verify="always")))
    assert read(checked, [1, 2]) == [b"behind", b"last"]
    again = tfrecords(path, verify="never")
    assert again.reader.index.edges.tolist() == source.reader.index.edges.tolist()


def test_a_file_that_vanished_is_missing(tmp_path):
    path = write(tmp_path / "a", [b"one"])
    source = tfrecords(path)
    os.remove(path)
    with pytest.raises(MissingSource):
        read(source)


def test_a_source_travels_through_pickle(tmp_path):
    path = write(tmp_path / "a", examples([1, 2]))
    source = tfrecords(path, features={"x": FixedLenFeature((), np.int64)}, verify="index")
    source.gather(np.array([0]))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.describe() == source.describe()
    assert copy.reader.verify == "index"
    assert copy.gather(np.array([1])).nest["x"].tolist() == [2]


def test_threads_may_read_at_once_with_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "_OPEN_FILES", 2)
    records = [str(k).encode() for k in range(60)]
    paths = [write(tmp_path / f"{k:02}", records[3 * k : 3 * k + 3]) for k in range(20)]
    source = tfrecords(paths)
    orders = [np.random.default_rng(k).permutation(60) for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        blocks = list(pool.map(source.gather, orders))
    for order, block in zip(orders, blocks, strict=True):
        assert block.nest.tolist() == [records[k] for k in order]
    assert len(source.reader.spans.maps._open) <= 2


@pytest.mark.parametrize("at_once", [1, 2, 3, 64])
def test_records_of_more_files_than_are_open_at_once_come_back_in_order(
    tmp_path, monkeypatch, at_once
):
    monkeypatch.setattr(maps, "_OPEN_FILES", 2)
    monkeypatch.setattr(reading, "FILES_AT_ONCE", at_once)
    records = examples(range(21))
    paths = [write(tmp_path / str(k), records[3 * k : 3 * k + 3]) for k in range(7)]
    index = np.random.default_rng(0).integers(0, 21, 50)
    assert read(tfrecords(paths), index) == [records[k] for k in index]
    block = tfrecords(paths, features={"x": FixedLenFeature((), np.int64)}).gather(index)
    assert block.nest["x"].tolist() == index.tolist()
    # Damage in one file of several is still named.
    source = tfrecords(paths, features={"x": FixedLenFeature((), np.int64)})
    with open(paths[5], "r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    with pytest.raises((CorruptRecord, SourceChanged)) as caught:
        source.gather(index)
    assert caught.value.file == paths[5]


@pytest.mark.parametrize("at_once", [1, 64])
def test_an_unparsable_record_among_several_files_is_named(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(maps, "_OPEN_FILES", 2)
    monkeypatch.setattr(reading, "FILES_AT_ONCE", at_once)
    paths = [write(tmp_path / name, examples([1, 2])) for name in "ab"]
    paths.append(write(tmp_path / "c", [*examples([3]), b"\x0a\x05"]))
    source = tfrecords(paths, features={"x": FixedLenFeature((), np.int64)})
    with pytest.raises(UnparsableRecord) as caught:
        source.gather(np.array([4, 0, 5, 2]))
    assert (caught.value.file, caught.value.record) == (paths[2], 1)
