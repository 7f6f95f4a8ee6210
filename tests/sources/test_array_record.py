"""ArrayRecord files: any record at random, by the package that writes them; damage and change noticed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset, FixedLenFeature
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    SourceChanged,
    SourceError,
    UnparsableRecord,
)
from playhead.testing import assert_resumes_exactly

module = pytest.importorskip("array_record.python.array_record_module")


def write(path, records, options="group_size:1"):
    writer = module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def records(n, start=0):
    return [b"%d" % k * (k % 7) for k in range(start, start + n)]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=st.lists(st.lists(st.binary(max_size=40), max_size=12), min_size=1, max_size=3),
    options=st.sampled_from(["group_size:1", "group_size:5", "group_size:3,uncompressed"]),
    draw=st.data(),
)
def test_records_come_back_in_any_order(tmp_path_factory, files, options, draw):
    directory = tmp_path_factory.mktemp("data")
    paths = [write(directory / f"{k}", found, options) for k, found in enumerate(files)]
    expected = [record for found in files for record in found]
    node = Dataset.from_array_records(paths).node
    assert node.cardinality == len(expected)
    count = len(expected)
    index = draw.draw(st.lists(st.integers(0, count - 1), max_size=20)) if count else []
    assert node.gather(np.array(index, np.int64)).rows() == [expected[k] for k in index]
    assert node.gather(np.arange(count)).rows() == expected


def test_every_kind_of_order_resumes_exactly(tmp_path):
    for k in range(3):
        write(tmp_path / f"{k}.array_record", records(5, 5 * k))

    def make():
        return Dataset.from_array_records(tmp_path / "*.array_record")

    assert list(make()) == records(15)
    assert_resumes_exactly(lambda: make().shuffle(seed=1), every=4)
    assert_resumes_exactly(lambda: make().shuffle(6, seed=1).batch(4).prefetch(2, workers=2))


def test_records_are_those_that_the_packages_own_source_gives(tmp_path):
    theirs = pytest.importorskip("array_record.python.array_record_data_source")
    paths = [
        write(tmp_path / "a", records(50)),
        write(tmp_path / "b", records(70, 50), "group_size:20"),
    ]
    source = theirs.ArrayRecordDataSource(paths)
    order = np.random.default_rng(0).permutation(120)
    found = Dataset.from_array_records(paths).node.gather(order).rows()
    assert found == source.__getitems__(order.tolist())


def test_features_are_parsed_and_what_does_not_fit_is_named(tmp_path):
    good = bytes.fromhex("0a0c0a0a0a01781205 1a030a0103")  # an Example of x = 3
    bad = b"\xff\xff"
    path = write(tmp_path / "a", [good, good, bad])
    ds = Dataset.from_array_records(path, features={"x": FixedLenFeature((), np.int64)})
    assert ds.batch(2)[0]["x"].tolist() == [3, 3]
    with pytest.raises(UnparsableRecord) as caught:
        ds.shuffle(seed=1).batch(3)[0]
    assert (caught.value.file, caught.value.record) == (path, 2)
    assert len(list(ds.ignore_errors())) == 2


def test_a_flipped_bit_in_a_record_is_named_and_can_be_left_out(tmp_path):
    path = write(tmp_path / "a", records(400), "group_size:1,uncompressed")
    data = bytearray(Path(path).read_bytes())
    data[data.index(b"394394")] ^= 4
    Path(path).write_bytes(data)
    ds = Dataset.from_array_records(path)
    with pytest.raises(CorruptRecord, match="mismatch") as caught:
        ds.batch(400)[0]
    assert (caught.value.file, caught.value.record) == (path, 394)
    assert 0 < caught.value.offset < len(data)

    def make():
        return Dataset.from_array_records(path).ignore_errors()

    it = make().iterator()
    assert list(it) == [record for k, record in enumerate(records(400)) if k != 394]
    assert it.position.cursor["ignored"] == 1
    assert_resumes_exactly(make, every=150)


def test_what_is_no_whole_file_is_told(tmp_path):
    data = Path(write(tmp_path / "a", records(400))).read_bytes()
    path = tmp_path / "cut"
    for cut in (b"", data[:10], data[: len(data) // 2], data[:-1], data + b"x", b"text\n" * 99):
        path.write_bytes(cut)
        with pytest.raises(CorruptRecord) as caught:
            Dataset.from_array_records(path)
        assert caught.value.file == str(path)
    assert list(Dataset.from_array_records(write(tmp_path / "none", []))) == []
    with pytest.raises(MissingSource, match="from_array_records was given"):
        Dataset.from_array_records([])
    with pytest.raises(MissingSource):
        Dataset.from_array_records(tmp_path / "nothing")
    with pytest.raises(MissingSource, match=r"\*\.array_record"):
        Dataset.from_array_records(tmp_path)


def test_a_url_is_refused_with_what_to_do_instead(tmp_path):
    path = write(tmp_path / "a", records(3))
    with pytest.raises(SourceError, match="local ones only") as caught:
        Dataset.from_array_records([path, "gs://bucket/train/*.array_record"])
    assert caught.value.file == "gs://bucket/train/*.array_record"
    assert "mount" in caught.value.help and "copy" in caught.value.help
    assert list(Dataset.from_array_records(f"file://{path}")) == records(3)


def test_a_file_written_or_cut_during_the_run_is_noticed(tmp_path):
    path = Path(write(tmp_path / "a", records(3000)))
    node = Dataset.from_array_records(path).node
    assert node.gather(np.array([3])).rows() == records(1, 3)
    os.utime(path, ns=(0, 1))
    assert node.gather(np.array([4])).rows() == records(1, 4)
    whole = path.read_bytes()
    os.truncate(path, 1000)
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([2900]))
    assert caught.value.file == str(path)
    path.write_bytes(whole)
    fresh = Dataset.from_array_records(path).node
    path.unlink()
    write(path, records(3000, 1))
    os.utime(path, ns=(0, 2))
    with pytest.raises(SourceChanged):
        fresh.gather(np.array([0]))


def test_a_file_replaced_under_its_name_is_read_on_where_it_is_open(tmp_path):
    path = Path(write(tmp_path / "a", records(30)))
    node = Dataset.from_array_records(path).node
    node.gather(np.array([0]))
    os.replace(write(tmp_path / "b", records(30, 5)), path)
    os.utime(path, ns=(0, 2))
    assert node.gather(np.array([29])).rows() == records(1, 29)
    with pytest.raises(SourceChanged):
        pickle.loads(pickle.dumps(node)).gather(np.array([2]))


def test_threads_read_at_once_with_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr("playhead.sources.array_record._OPEN_FILES", 2)
    paths = [write(tmp_path / f"{k}", records(40, 40 * k)) for k in range(6)]
    node = Dataset.from_array_records(paths).node
    orders = [np.random.default_rng(k).permutation(240) for k in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(node.gather, orders))
    expected = records(240)
    for order, block in zip(orders, found, strict=True):
        assert block.rows() == [expected[k] for k in order]
    assert len(node.readers._open) == 2


def test_describing_tells_content_and_no_path(tmp_path):
    a = Path(write(tmp_path / "a", records(300)))
    copy = tmp_path / "copy"
    copy.write_bytes(a.read_bytes())
    other = write(tmp_path / "other", records(300, 1))
    said = [Dataset.from_array_records(path).operations() for path in (a, copy, other)]
    assert said[0] == said[1] != said[2]
    (record,) = Dataset.from_array_records([copy, other]).trace(301)
    assert (record.file, record.record) == (other, 1)


@pytest.mark.parametrize("index", [-1, 9])
def test_an_index_outside_the_files_is_an_index_error(tmp_path, index):
    node = Dataset.from_array_records(write(tmp_path / "a", records(9))).node
    with pytest.raises(IndexError, match=f"record {index} of 9"):
        node.gather(np.array([0, index]))


def test_without_the_package_the_error_says_what_to_install():
    code = """
import sys
sys.modules["array_record"] = None
import playhead as ph
try:
    ph.Dataset.from_array_records("a")
except ph.errors.PipelineError as error:
    print(error.help)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert "playhead[array-record]" in ran.stdout


def test_files_that_grain_carries_are_read_to_what_its_own_sources_give(tmp_path):
    """Its test data, written by others: ten records of digits in two files, and a small TFRecord file."""
    grain = pytest.importorskip("grain")
    data = Path(grain.__file__).parent / "_src" / "python" / "testdata"
    paths = sorted(map(str, data.glob("digits.array_record-*")))
    if not paths:
        pytest.skip("this version of grain carries no test data")
    theirs = grain.sources.ArrayRecordDataSource(paths)
    ds = Dataset.from_array_records(paths)
    assert len(ds) == len(theirs) > 0
    assert list(ds) == [theirs[k] for k in range(len(theirs))]
    for path in map(str, data.glob("*.tfrecord")):
        found = list(Dataset.from_tfrecords(path, index=tmp_path))
        assert found == list(grain.experimental.TFRecordIterDataset(path)) and found
