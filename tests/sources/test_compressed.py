"""Compressed TFRecord files: walked, resumed to the record, and never trusted."""

from __future__ import annotations

import gzip
import pickle
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from playhead import Dataset, FixedLenFeature, VarLenFeature, write_tfrecords
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    PipelineChanged,
    PipelineError,
    SlowResume,
    SourceChanged,
    UnparsableRecord,
)
from playhead.sources.tfrecord.records import tfrecords
from playhead.testing import assert_resumes_exactly

PACK = {"GZIP": gzip.compress, "ZLIB": zlib.compress, "": bytes}
RECORDS = [b"%d" % k * (k % 7) for k in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def frames(tmp_path, records):
    (path,) = write_tfrecords(records, tmp_path / "plain", overwrite=True)
    data = Path(path).read_bytes()
    Path(path).unlink()
    return data


def write(path, records, compression="GZIP"):
    write_tfrecords(records, path, compression=compression, overwrite=True)
    return str(path)


def shards(tmp_path, kinds=("GZIP", "ZLIB", "")):
    """The records in files of several kinds, and one of none."""
    size = len(RECORDS) // len(kinds)
    paths = [write(tmp_path / "none", [])]
    for k, kind in enumerate(kinds):
        paths.append(write(tmp_path / str(k), RECORDS[k * size : (k + 1) * size], kind))
    return paths


def quietly(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowResume)
        return function()


@pytest.mark.parametrize("kinds", [("GZIP",), ("ZLIB",), ("GZIP", "ZLIB", ""), ("", "GZIP")])
def test_files_are_told_by_their_first_bytes_and_resume_exactly(tmp_path, kinds):
    paths = shards(tmp_path, kinds)
    assert list(Dataset.from_tfrecords(paths)) == RECORDS
    assert not Dataset.from_tfrecords(paths).seekable
    quietly(
        lambda: assert_resumes_exactly(
            lambda: Dataset.from_tfrecords(paths).batch(7), epochs=2, workers=(0, 2)
        )
    )


def test_the_compression_may_be_said_outright(tmp_path):
    zipped, plain = write(tmp_path / "a", RECORDS), write(tmp_path / "b", RECORDS, "")
    assert list(Dataset.from_tfrecords(zipped, compression_type="GZIP")) == RECORDS
    assert Dataset.from_tfrecords(plain, compression_type="").seekable
    for path, kind in ((plain, "GZIP"), (zipped, "ZLIB"), (zipped, "")):
        with pytest.raises(CorruptRecord) as caught:
            list(Dataset.from_tfrecords(path, compression_type=kind))
        assert (caught.value.file, caught.value.record) == (path, 0)
    with pytest.raises(PipelineError, match="compression_type"):
        Dataset.from_tfrecords(zipped, compression_type="gzip")


def test_files_written_one_behind_the_other_are_one(tmp_path):
    path = tmp_path / "a"
    parts = [RECORDS[:20], [], RECORDS[20:]]
    path.write_bytes(b"".join(gzip.compress(frames(tmp_path, part)) for part in parts) + bytes(9))
    assert list(Dataset.from_tfrecords(path)) == RECORDS


def test_records_longer_than_what_is_read_at_once_come_whole(tmp_path):
    rng = np.random.default_rng(0)
    records = [rng.bytes(3_000_000), b"small", bytes(5_000_000), rng.bytes(10)]
    assert list(Dataset.from_tfrecords(write(tmp_path / "a", records))) == records


def test_resuming_says_what_it_costs_and_reads_no_file_before(tmp_path):
    paths = shards(tmp_path)
    it = Dataset.from_tfrecords(paths).iterator()
    for _ in range(25):
        next(it)
    state = it.state_dict()
    for path in paths[:2]:
        Path(path).write_bytes(Path(path).read_bytes())  # touched: the same
    again = Dataset.from_tfrecords(paths).iterator()
    again.load_state_dict(state)
    assert again.position.cursor == {"epoch": 0, "file": 2, "record": 5, "index": 25}
    Path(paths[1]).unlink()
    with pytest.warns(SlowResume, match="first 5 records"):
        assert next(again) == RECORDS[25]
    assert list(again) == RECORDS[26:]


def test_shards_are_interleaved_shuffled_and_traced_like_any_stream(tmp_path):
    paths = [write(tmp_path / str(k), RECORDS[20 * k : 20 * k + 20]) for k in range(3)]
    turns = Dataset.from_tensor_slices(np.array(paths, object)).interleave(
        lambda path: Dataset.from_tfrecords(path), cycle_length=3
    )
    assert list(turns) == [RECORDS[20 * k + n] for n in range(20) for k in range(3)]
    whole = Dataset.from_tfrecords(paths)
    mixed = list(whole.shuffle(16, seed=1))
    assert sorted(mixed) == sorted(RECORDS) and mixed != RECORDS
    it = whole.iterator()
    for _ in range(30):
        next(it)
    (record,) = it.trace()
    assert (record.file, record.record, record.index) == (paths[1], 9, 29)


def test_features_are_parsed_as_from_plain_files(tmp_path):
    rows = [{"x": k, "v": list(range(k % 4))} for k in range(40)]
    features = {"x": FixedLenFeature((), np.int64), "v": VarLenFeature(np.int64)}
    zipped, plain = write(tmp_path / "a", rows), write(tmp_path / "b", rows, "")
    ours, same = (Dataset.from_tfrecords(p, features=features) for p in (zipped, plain))
    assert [(e["x"], e["v"].tolist()) for e in ours] == [(e["x"], e["v"].tolist()) for e in same]
    assert ours.element_spec == same.element_spec
    fixed = {"x": FixedLenFeature((), np.int64)}
    batches = Dataset.from_tfrecords(zipped, features=fixed).batch(16)
    assert [b["x"].tolist() for b in batches] == [[*range(16)], [*range(16, 32)], [*range(32, 40)]]


def test_a_record_that_does_not_parse_is_named_and_can_be_left_out(tmp_path):
    rows = [{"x": 0}, {"x": 1}, {"y": 2}, {"x": 3}]
    path = write(tmp_path / "a", rows)
    ds = Dataset.from_tfrecords(path, features={"x": FixedLenFeature((), np.int64)})
    it = ds.iterator()
    assert [next(it)["x"], next(it)["x"]] == [0, 1]
    with pytest.raises(UnparsableRecord) as caught:
        next(it)
    assert (caught.value.file, caught.value.record, caught.value.key) == (path, 2, "x")
    kept = quietly(lambda: [e["x"] for e in ds.ignore_errors()])
    assert kept == [0, 1, 3]
    quietly(lambda: assert_resumes_exactly(lambda: ds.ignore_errors(), workers=(0,)))


def test_a_flipped_byte_of_data_is_found_and_can_be_left_out(tmp_path):
    data = bytearray(frames(tmp_path, [b"one", b"two", b"three"]))
    data[19 + 12] ^= 1
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(bytes(data)))
    with pytest.raises(CorruptRecord) as caught:
        list(Dataset.from_tfrecords(path))
    facts = (caught.value.file, caught.value.record, caught.value.offset, caught.value.reason)
    assert facts == (str(path), 1, 19, "data")
    assert list(Dataset.from_tfrecords(path, verify="never")) == [b"one", b"uwo", b"three"]
    kept = quietly(lambda: list(Dataset.from_tfrecords(path).ignore_errors()))
    assert kept == [b"one", b"three"]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_file_cut_anywhere_gives_its_whole_records_and_then_an_error(tmp_path, pack):
    data = pack(frames(tmp_path, [b"one", b"two", b"three"] * 3))
    path = tmp_path / "a"
    for size in range(12, len(data)):
        path.write_bytes(data[:size])
        read = []
        with pytest.raises(CorruptRecord) as caught:
            read.extend(iter(Dataset.from_tfrecords(path)))
        assert caught.value.file == str(path)
        assert 0 <= caught.value.record <= 9


def test_every_flipped_byte_of_a_compressed_file_is_an_error_or_changes_nothing(tmp_path):
    records = [b"one", b"two", b"three"] * 3
    data = gzip.compress(frames(tmp_path, records), mtime=0)
    path = tmp_path / "a"
    found = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            assert list(Dataset.from_tfrecords(path)) == records
        except CorruptRecord as error:
            found += error.file == str(path)
    # Of gzip's header six bytes say nothing, and of the last one before its trailer some bits.
    assert found >= len(data) - 7


def test_frames_that_end_early_inside_a_sound_file_are_found(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(frames(tmp_path, [b"one", b"two"])[:-5]))
    it = Dataset.from_tfrecords(path).iterator()
    assert next(it) == b"one"
    with pytest.raises(CorruptRecord) as caught:
        next(it)
    assert (caught.value.record, caught.value.offset) == (1, 19)
    assert caught.value.reason == "truncated"


def test_a_file_replaced_after_the_dataset_was_made_is_found(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    ds = Dataset.from_tfrecords(path)
    write(path, RECORDS[::-1])
    with pytest.raises(SourceChanged) as caught:
        list(ds)
    assert caught.value.file == path
    Path(path).unlink()
    with pytest.raises(MissingSource):
        list(ds)


def test_a_position_of_other_files_does_not_fit(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    it = Dataset.from_tfrecords(path).iterator()
    next(it)
    other = Dataset.from_tfrecords(write(tmp_path / "b", RECORDS[::-1])).iterator()
    with pytest.raises(PipelineChanged):
        other.load_state_dict(it.state_dict())


def test_a_source_travels_through_pickle(tmp_path):
    node = tfrecords(shards(tmp_path))
    copy = pickle.loads(pickle.dumps(node))
    assert list(Dataset(copy)) == RECORDS
    assert copy.describe() == node.describe()
