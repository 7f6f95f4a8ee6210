"""Writing TFRecords: TensorFlow reads what was written, and so do we."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from playhead import Dataset, FixedLenFeature, VarLenFeature, write_tfrecords
from playhead.errors import PipelineError
from playhead.sources.tfrecord.encoding import example, varints

tf = pytest.importorskip("tensorflow")


def numbered(count):
    return Dataset.range(count).map(lambda x: {"x": x})


def values_in(paths, compression=""):
    """The int64 "x" of each record, as TensorFlow reads them."""
    found = []
    for record in tf.data.TFRecordDataset(paths, compression_type=compression):
        message = tf.train.Example.FromString(record.numpy())
        found += message.features.feature["x"].int64_list.value
    return found


# --- Examples ---------------------------------------------------------------------------------------

NAMES = st.text(min_size=1, max_size=8)
ARRAYS = st.one_of(
    hnp.arrays(np.int64, st.integers(0, 30)),
    hnp.arrays(np.uint8, st.integers(0, 30)),
    hnp.arrays(np.int16, hnp.array_shapes(max_dims=3, max_side=4)),
    hnp.arrays(np.bool_, st.integers(0, 5)),
    hnp.arrays(np.float32, st.integers(0, 30)),
    hnp.arrays(np.float64, st.integers(0, 5), elements=st.floats(width=32)),
    st.lists(st.binary(max_size=200), max_size=4).map(lambda items: np.array([*items, None])[:-1]),
    st.binary(max_size=200),
    st.text(max_size=20),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(width=32),
)


def as_feature(value):
    """The Feature that TensorFlow's users would build."""
    if isinstance(value, bytes | str):
        items = [value.encode() if isinstance(value, str) else value]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=items))
    array = np.asarray(value).reshape(-1)
    if array.dtype == object:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=array.tolist()))
    if array.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array.tolist()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=array.astype(np.int64).tolist()))


@settings(max_examples=150, deadline=None)
@given(element=st.dictionaries(NAMES, ARRAYS, max_size=5))
def test_tensorflows_own_messages_hold_what_was_written(element):
    written = tf.train.Example.FromString(example(element)).features.feature
    expected = {name: as_feature(value) for name, value in element.items()}
    assert {k: v.SerializeToString() for k, v in written.items()} == {
        k: v.SerializeToString() for k, v in expected.items()
    }


@settings(max_examples=100, deadline=None)
@given(values=hnp.arrays(np.int64, st.integers(0, 60)))
def test_many_integers_are_written_as_one_by_one(values):
    alone = b"".join(varints(values[k : k + 1]) for k in range(len(values)))
    assert varints(values) == alone


def test_what_is_written_comes_back_from_both_readers(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {
            "image": rng.bytes(50),
            "label": np.int64(k),
            "weights": rng.random(3).astype(np.float32),
            "words": np.array([b"w"] * (k % 3) + [None], object)[:-1],
        }
        for k in range(20)
    ]
    (path,) = write_tfrecords(Dataset.from_sequence(rows), tmp_path / "a")
    features = {
        "image": FixedLenFeature((), bytes),
        "label": FixedLenFeature((), np.int64),
        "weights": FixedLenFeature((3,), np.float32),
        "words": VarLenFeature(bytes),
    }
    theirs = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "weights": tf.io.FixedLenFeature([3], tf.float32),
        "words": tf.io.VarLenFeature(tf.string),
    }
    batch = tf.io.parse_example([r.numpy() for r in tf.data.TFRecordDataset(path)], theirs)
    for k, row in enumerate(Dataset.from_tfrecords(path, features=features)):
        assert row["image"] == rows[k]["image"] == batch["image"][k].numpy()
        assert row["label"] == k == batch["label"][k].numpy()
        assert row["weights"].tobytes() == rows[k]["weights"].tobytes()
        assert row["weights"].tobytes() == batch["weights"][k].numpy().tobytes()
        words = tf.sparse.to_dense(batch["words"])[k].numpy()[: k % 3]
        assert row["words"].tolist() == rows[k]["words"].tolist() == words.tolist()


def test_tensors_and_halves_are_written_as_numbers():
    element = {"t": tf.constant([1, 2]), "h": tf.constant([1.5], tf.bfloat16), "f": np.float16(2)}
    written = tf.train.Example.FromString(example(element)).features.feature
    assert list(written["t"].int64_list.value) == [1, 2]
    assert list(written["h"].float_list.value) == [1.5]
    assert list(written["f"].float_list.value) == [2]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"inner": 1},
        np.array([1j]),
        np.array(["2020-01-01"], "M8[D]"),
        [b"a", 1],
        [[1], [2, 3]],
    ],
)
def test_what_no_example_holds_is_refused_by_its_key(value):
    with pytest.raises(PipelineError, match="'bad'"):
        example({"good": 1, "bad": value})


def test_lists_are_written_as_arrays_are():
    assert example({"x": [1, 2**40]}) == example({"x": np.array([1, 2**40])})
    assert example({"x": [b"a\0", "b"]}) == example({"x": np.array([b"a\0", b"b"], object)})
    assert (
        tf.train.Example.FromString(example({"x": []})).features.feature["x"].WhichOneof("kind")
        is None
    )
    assert example({"x": [[1.5], [2.5]]}) == example({"x": np.array([1.5, 2.5], np.float32)})


def test_an_integer_beyond_int64_is_refused():
    assert example({"x": np.uint64(2**63 - 1)}) == example({"x": np.int64(2**63 - 1)})
    with pytest.raises(PipelineError, match="9223372036854775808"):
        example({"x": np.array([2**63], np.uint64)})


# --- files ------------------------------------------------------------------------------------------


def test_contiguous_shards_keep_the_order_and_differ_by_one_at_most(tmp_path):
    paths = write_tfrecords(numbered(11), tmp_path / "train-*.tfrecord", shards=4)
    assert [Path(path).name for path in paths] == [
        f"train-0000{k}-of-00004.tfrecord" for k in range(4)
    ]
    assert values_in(paths) == list(range(11))
    sizes = [len(values_in([path])) for path in paths]
    assert sorted(sizes) == [2, 3, 3, 3]


def test_round_robin_deals_elements_out_in_turn(tmp_path):
    walked = numbered(7).filter(lambda e: e["x"] != 3)
    paths = write_tfrecords(walked, tmp_path / "t", shards=2, order="round_robin")
    assert [values_in([path]) for path in paths] == [[0, 2, 5], [1, 4, 6]]
    with pytest.raises(PipelineError, match="round_robin"):
        write_tfrecords(walked, tmp_path / "u", shards=2)


@pytest.mark.parametrize(
    ("pattern", "shards", "names"),
    [
        ("a", 1, ["a"]),
        ("a", 2, ["a-00000-of-00002", "a-00001-of-00002"]),
        ("a-*", 1, ["a-00000-of-00001"]),
        ("{shard}of{shards}.r", 2, ["0of2.r", "1of2.r"]),
        ("new/directory/a", 1, ["new/directory/a"]),
    ],
)
def test_names_follow_the_pattern(tmp_path, monkeypatch, pattern, shards, names):
    monkeypatch.chdir(tmp_path)
    assert write_tfrecords(numbered(2), pattern, shards=shards) == [
        str(tmp_path / name) for name in names
    ]


@pytest.mark.parametrize(
    ("pattern", "shards"), [("a{other}", 1), ("{shards}", 2), ("*-*", 2), ("gs://b/a", 1), ("a", 0)]
)
def test_a_pattern_that_makes_no_names_is_refused(tmp_path, monkeypatch, pattern, shards):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError):
        write_tfrecords(numbered(2), pattern, shards=shards)
    assert list(tmp_path.iterdir()) == []


def test_more_shards_than_elements_leaves_some_empty(tmp_path):
    paths = write_tfrecords(numbered(2), tmp_path / "a", shards=5)
    assert values_in(paths) == [0, 1]
    assert [x["x"] for x in Dataset.from_tfrecords(paths, features="infer")] == [0, 1]


def test_bytes_are_written_as_they_are_and_any_iterable_will_do(tmp_path):
    records = [b"", b"\0" * 3, b"x" * 300]
    (path,) = write_tfrecords(iter(records), tmp_path / "a")
    assert [r.numpy() for r in tf.data.TFRecordDataset(path)] == records
    assert list(Dataset.from_tfrecords(path)) == records
    with pytest.raises(PipelineError, match="tuple"):
        write_tfrecords([(1, 2)], tmp_path / "b")
    with pytest.raises(PipelineError, match="take"):
        write_tfrecords(numbered(2).repeat(), tmp_path / "b")


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_are_read_by_tensorflow(tmp_path, compression):
    paths = write_tfrecords(numbered(50), tmp_path / "a", shards=2, compression=compression)
    assert values_in(paths, compression) == list(range(50))
    read = Dataset.from_tfrecords(paths, features={"x": FixedLenFeature((), np.int64)})
    assert [int(e["x"]) for e in read] == list(range(50))


def test_files_that_are_there_are_kept_unless_asked_otherwise(tmp_path):
    (path,) = write_tfrecords(numbered(2), tmp_path / "a")
    with pytest.raises(PipelineError, match="overwrite"):
        write_tfrecords(numbered(3), tmp_path / "a")
    assert values_in([path]) == [0, 1]
    write_tfrecords(numbered(3), tmp_path / "a", overwrite=True)
    assert values_in([path]) == [0, 1, 2]


def test_a_failure_leaves_nothing_behind_and_nothing_is_there_before_the_end(tmp_path):
    seen = []

    def failing():
        for k in range(4):
            seen.append([name for name in os.listdir(tmp_path) if not name.startswith(".")])
            yield {"x": k}
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        write_tfrecords(failing(), tmp_path / "a-*", shards=2, order="round_robin")
    assert seen == [[]] * 4
    assert os.listdir(tmp_path) == []


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "i": hnp.arrays(np.int64, 2),
                "f": hnp.arrays(np.float32, st.integers(0, 4)),
                "b": st.binary(max_size=20),
            }
        ),
        max_size=6,
    )
)
def test_our_writer_and_our_reader_agree(tmp_path_factory, rows):
    (path,) = write_tfrecords(rows, tmp_path_factory.mktemp("data") / "a")
    features = {
        "i": FixedLenFeature((2,), np.int64),
        "f": VarLenFeature(np.float32),
        "b": FixedLenFeature((), bytes),
    }
    read = list(Dataset.from_tfrecords(path, features=features))
    assert [(r["i"].tolist(), r["f"].tobytes(), r["b"]) for r in read] == [
        (r["i"].tolist(), r["f"].tobytes(), r["b"]) for r in rows
    ]


def test_lists_whose_parts_are_not_alike_are_refused_as_such(tmp_path):
    for value in ([1, "x"], [[1], [2, 3]], [["a"], ["b", "c"]]):
        with pytest.raises(PipelineError, match="not alike") as caught:
            write_tfrecords([{"a": value}], tmp_path / "a")
        assert caught.value.key == "a"
    with pytest.raises(PipelineError, match=r"^PipelineError.*: compression is"):
        write_tfrecords([b"a"], tmp_path / "a", compression="gzip")
