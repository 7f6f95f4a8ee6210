"""Parsing tf.train.Example: TensorFlow's parser is the oracle."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from playhead.errors import PipelineError, UnparsableRecord
from playhead.plan.block import Columns, Rows
from playhead.sources.tfrecord.encoding import example as encoded
from playhead.sources.tfrecord.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Parser,
    VarLenFeature,
    parse,
)

tf = pytest.importorskip("tensorflow")

F32, I64 = np.float32, np.int64
TF = {F32: tf.float32, I64: tf.int64, bytes: tf.string}


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def part(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def floats(*values):
    return part(2, part(1, struct.pack(f"<{len(values)}f", *values)) if values else b"")


def ints(*values):
    return part(3, part(1, b"".join(map(varint, values))) if values else b"")


def strings(*values):
    return part(1, b"".join(part(1, value) for value in values))


def entry(key, feature):
    return part(1, part(1, key) + part(2, feature))


def record(*entries):
    return part(1, b"".join(entries))


def a(feature):
    return record(entry(b"a", feature))


def unpacked_floats(*values):
    return part(2, b"".join(b"\x0d" + struct.pack("<f", v) for v in values))


def unpacked_ints(*values):
    return part(3, b"".join(b"\x08" + varint(v) for v in values))


def as_tf(feature):
    if isinstance(feature, VarLenFeature):
        return tf.io.VarLenFeature(TF[feature.dtype])
    if isinstance(feature, FixedLenSequenceFeature):
        return tf.io.FixedLenSequenceFeature(
            feature.shape, TF[feature.dtype], feature.allow_missing
        )
    return tf.io.FixedLenFeature(feature.shape, TF[feature.dtype], feature.default_value)


def tensorflow(data, features):
    """What TensorFlow makes of one record: a dict of lists, or None where it refuses."""
    try:
        parsed = tf.io.parse_single_example(data, {k: as_tf(f) for k, f in features.items()})
    except UnicodeDecodeError:
        return None  # TensorFlow's error message quotes the record
    except tf.errors.InvalidArgumentError:
        return None
    values = {k: v.values if hasattr(v, "values") else v for k, v in parsed.items()}
    return {k: plain(v.numpy()) for k, v in values.items()}


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def ours(data, features):
    """What playhead makes of one record, in the same form."""
    try:
        block = parse([data], features)
    except UnparsableRecord:
        return None
    return {k: plain(v) for k, v in block.rows()[0].items()}


# Not among these: shape (0,), with which TensorFlow crashes on unpacked floats.
EVERY = [
    {"a": FixedLenFeature((), F32)},
    {"a": FixedLenFeature((1,), F32)},
    {"a": FixedLenFeature((2,), F32)},
    {"a": FixedLenFeature((), F32, 9.0)},
    {"a": VarLenFeature(F32)},
    {"a": FixedLenFeature((), I64)},
    {"a": FixedLenFeature((2,), I64)},
    {"a": FixedLenFeature((), I64, -9)},
    {"a": VarLenFeature(I64)},
    {"a": FixedLenFeature((), bytes)},
    {"a": FixedLenFeature((2,), bytes)},
    {"a": FixedLenFeature((), bytes, b"d")},
    {"a": VarLenFeature(bytes)},
    {"a": FixedLenSequenceFeature((), F32, allow_missing=True)},
    {"a": FixedLenSequenceFeature((2,), F32, allow_missing=True)},
    {"a": FixedLenSequenceFeature((1, 2), I64, allow_missing=True)},
    {"a": FixedLenSequenceFeature((2,), bytes, allow_missing=True)},
]

READ_ALIKE = {
    "packed floats": a(floats(1, 2)),
    "one float": a(floats(1)),
    "unpacked floats": a(unpacked_floats(1, 2)),
    "one unpacked float": a(unpacked_floats(1)),
    "packed integers": a(ints(1, -2)),
    "unpacked integers": a(unpacked_ints(1, -2)),
    "extreme integers": a(ints(2**63 - 1, -(2**63))),
    "bytes": a(strings(b"x\0", b"")),
    "one bytes": a(strings(b"x" * 300)),
    "the last of two entries": record(entry(b"a", floats(1)), entry(b"a", floats(2))),
    "the last is empty": record(entry(b"a", floats(1)), entry(b"a", b"")),
    "the last is of another kind": record(entry(b"a", floats(1)), entry(b"a", ints(2))),
    "the first is of another kind": record(entry(b"a", ints(1)), entry(b"a", floats(2))),
    "the last has another count": record(entry(b"a", floats(1)), entry(b"a", floats(2, 3))),
    "two Features messages": a(floats(1)) + a(floats(2)),
    "an empty feature": a(b""),
    "an empty float list": a(floats()),
    "an empty integer list": a(ints()),
    "an empty bytes list": a(strings()),
    "an empty packed run": a(part(2, part(1, b""))),
    "feature before name": record(part(1, part(2, floats(1)) + part(1, b"a"))),
    "an unknown field first": varint(9 << 3) + b"\5" + a(floats(1)),
    "an unknown field last": a(floats(1)) + part(9, b"xyz"),
    "unknown fixed-width fields": b"\x4d" + bytes(4) + b"\x49" + bytes(8) + a(floats(1)),
    "an unknown field in the list": a(part(2, part(1, struct.pack("<f", 1)) + b"\x38\x01")),
    "an unknown field in the feature": a(floats(1) + b"\x38\x01"),
    "other names in any order": record(
        entry(b"z", ints(5)), entry(b"a", floats(1)), entry(b"", strings(b"q"))
    ),
    "garbage under another name": record(entry(b"z", b"\xff\xff"), entry(b"a", floats(1))),
    "a long name": record(entry(b"n" * 200, floats(3)), entry(b"a", floats(1))),
    "no entry": record(),
    "no bytes": b"",
    "another name": record(entry(b"b", floats(1))),
    "a varint of ten full bytes": a(part(3, part(1, b"\xff" * 9 + b"\x7f"))),
    "a varint with superfluous bytes": a(part(3, part(1, b"\x81\x80\x00"))),
    "a length with superfluous bytes": a(part(2, b"\x0a\x84\x00" + struct.pack("<f", 1))),
    "features under another wire type": b"\x08\x01" + a(floats(1)),
}

REFUSED_ALIKE = {
    "cut short": a(floats(1))[:-1],
    "a group": b"\x4b\x4c" + a(floats(1)),
    "wire type 6": b"\x4e" + a(floats(1)),
    "two features in one entry": record(part(1, part(1, b"a") + part(2, floats(1)) * 2)),
    "two names in one entry": record(part(1, part(1, b"b") + part(1, b"a") + part(2, floats(1)))),
    "an entry without name": record(part(1, part(2, floats(1)))),
    "an entry without feature": record(part(1, part(1, b"a"))),
    "an empty entry": record(part(1, b"")),
    "a feature of no known kind": a(b"\x38\x01"),
    "a kind under another wire type": a(b"\x08\x01"),
    "a kind with superfluous bytes": a(b"\x92\x00" + floats(1)[1:]),
    "a varint of eleven bytes": a(part(3, part(1, b"\xff" * 10 + b"\x01"))),
    "a varint cut short": a(part(3, part(1, b"\x01\x80"))),
    "a run inside unpacked floats": a(part(2, b"\x0d" + bytes(4) + part(1, bytes(4)))),
    "garbage in the entries": record(part(1, b"\xff\xff"), entry(b"a", floats(1))),
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0f" + a(floats(1)),
    "a length of 63 bits": b"\x0a" + b"\xff" * 8 + b"\x7f" + a(floats(1)),
    "a length of eleven bytes": b"\x0a" + b"\xff" * 10 + b"\x01" + a(floats(1)),
}

REFUSED_HERE = {
    "two packed float runs": a(part(2, part(1, bytes(4)) * 2)),
    "two packed integer runs": a(part(3, part(1, b"\1") + part(1, b"\2"))),
    "a run and a single": a(part(2, part(1, bytes(4)) + b"\x0d" + bytes(4))),
    "two lists of one kind": a(floats(1) + floats(2)),
    "two lists of two kinds": a(floats(1) + ints(2)),
    "a run of three bytes": a(part(2, part(1, b"abc"))),
    "a run of five bytes": a(part(2, part(1, b"abcde"))),
    "a tag with superfluous bytes": b"\x8a\x00" + a(floats(1))[1:],
}


@pytest.mark.parametrize("name", READ_ALIKE)
def test_what_tensorflow_reads_is_read_to_the_same_values(name):
    for features in EVERY:
        assert ours(READ_ALIKE[name], features) == tensorflow(READ_ALIKE[name], features)


@pytest.mark.parametrize("name", REFUSED_ALIKE)
def test_what_tensorflow_refuses_is_refused(name):
    for features in EVERY[:5] if "varint" not in name else EVERY[5:9]:
        assert tensorflow(REFUSED_ALIKE[name], features) is None
        assert ours(REFUSED_ALIKE[name], features) is None


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_what_tensorflow_reads_only_in_part_is_refused(name):
    data = REFUSED_HERE[name]
    assert any(tensorflow(data, features) is not None for features in EVERY)
    for features in EVERY:
        assert ours(data, features) is None


@settings(max_examples=300, deadline=None)
@given(
    data=st.sampled_from([*READ_ALIKE.values(), *REFUSED_ALIKE.values()]),
    edits=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), min_size=1, max_size=3),
    features=st.sampled_from(EVERY),
)
def test_a_damaged_record_is_never_read_to_other_values_than_tensorflow_reads(
    data, edits, features
):
    data = bytearray(data)
    for place, byte in edits:
        if data:
            data[place % len(data)] = byte
    found, expected = ours(bytes(data), features), tensorflow(bytes(data), features)
    if found is not None and expected is not None:
        np.testing.assert_equal(found, expected)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=30), features=st.sampled_from(EVERY))
@example(data=b"\x0a", features=EVERY[0])
@example(data=b"\x0a\x01\x0a", features=EVERY[0])
def test_any_bytes_are_parsed_or_refused(data, features):
    ours(data, features)


def test_every_cut_of_a_record_is_refused_or_reads_as_in_tensorflow():
    data = record(entry(b"a", floats(1)), entry(b"b", strings(b"x", b"yz")), entry(b"c", ints(300)))
    features = {
        "a": FixedLenFeature((), F32),
        "b": VarLenFeature(bytes),
        "c": FixedLenFeature((), I64, 0),
    }
    assert ours(data, features) == tensorflow(data, features)
    for size in range(len(data)):
        assert ours(data[:size], features) is None


NUMBERS = st.lists(
    st.tuples(
        st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        st.lists(st.binary(max_size=200), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(rows=NUMBERS)
def test_what_tensorflow_writes_comes_back(rows):
    def feature(**lists):
        return tf.train.Feature(**lists)

    records = []
    for xs, ns, words, whole in rows:
        chosen = {
            "x": feature(float_list=tf.train.FloatList(value=xs)),
            "n": feature(int64_list=tf.train.Int64List(value=ns)),
            "w": feature(bytes_list=tf.train.BytesList(value=words)),
        }
        if not whole:
            del chosen["n"], chosen["w"]
        records.append(
            tf.train.Example(features=tf.train.Features(feature=chosen)).SerializeToString()
        )
    features = {
        "x": FixedLenFeature((3, 1), F32),
        "n": VarLenFeature(I64),
        "w": VarLenFeature(bytes),
    }
    block = parse(records, features)
    assert isinstance(block, Rows)
    for element, (xs, ns, words, whole) in zip(block.elements, rows, strict=True):
        assert element["x"].dtype == F32
        assert element["x"].tolist() == [[x] for x in xs]
        assert element["n"].dtype == I64
        assert element["n"].tolist() == (ns if whole else [])
        assert element["w"].dtype == object
        assert element["w"].tolist() == (words if whole else [])
        assert element["n"].flags.writeable


def test_fixed_features_become_columns_with_playheads_dtypes():
    records = [
        record(
            entry(b"x", floats(k, -k)), entry(b"n", ints(k - 1)), entry(b"w", strings(b"\0" * k))
        )
        for k in range(5)
    ]
    block = parse(
        records,
        {
            "n": FixedLenFeature((), I64),
            "x": FixedLenFeature((2,), F32),
            "w": FixedLenFeature((), str),
        },
    )
    assert isinstance(block, Columns)
    assert len(block) == 5
    assert list(block.nest) == ["n", "x", "w"]
    assert block.nest["n"].dtype == I64
    assert block.nest["n"].tolist() == [-1, 0, 1, 2, 3]
    assert block.nest["x"].dtype == F32
    assert block.nest["x"].tolist() == [[k, -k] for k in range(5)]
    assert block.nest["w"].tolist() == [b"\0" * k for k in range(5)]
    assert all(column.flags.writeable for column in block.nest.values())
    assert block.nest["x"].ctypes.data % 64 == 0


def test_nan_payloads_survive_bit_for_bit():
    bits = [0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000]
    data = a(part(2, part(1, struct.pack("<4I", *bits))))
    column = parse([data], {"a": FixedLenFeature((4,), F32)}).nest["a"]
    assert column.view(np.uint32).tolist() == [bits]


def test_defaults_fill_the_shape():
    features = {
        "one": FixedLenFeature((2, 2), F32, 1.5),
        "all": FixedLenFeature((2, 2), I64, [[1, -2], [3, 2**40]]),
        "flat": FixedLenFeature((2, 1), I64, [7, 8]),
        "word": FixedLenFeature((2,), bytes, "é"),
        "none": FixedLenFeature((0,), I64, []),
    }
    (row,) = parse([b""], features).rows()
    assert row["one"].tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert row["all"].tolist() == [[1, -2], [3, 2**40]]
    assert row["flat"].tolist() == [[7], [8]]
    assert row["word"].tolist() == ["é".encode()] * 2
    assert row["none"].shape == (0,)


def test_a_shape_without_values_takes_an_empty_list_only():
    features = {"a": FixedLenFeature((0,), F32)}
    assert ours(a(floats()), features) == tensorflow(a(floats()), features) == {"a": []}
    assert ours(a(unpacked_floats(1)), features) is None


def test_no_record_makes_an_empty_block():
    block = parse([], {"x": FixedLenFeature((3,), F32), "w": FixedLenFeature((), bytes)})
    assert block.nest["x"].shape == (0, 3)
    assert block.nest["w"].shape == (0,)
    assert len(parse([], {"x": VarLenFeature(I64)})) == 0


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        (record(entry(b"b", ints(1))), "a", "missing"),
        (a(ints(1)), "a", "holds int64, and float32"),
        (a(floats(1, 2, 3)), "a", r"holds 3 values, and shape \(2,\) takes 2"),
        (a(part(2, part(1, b"abc"))), "a", "cut short"),
        (b"\x0a\x05", None, "not a tf.train.Example"),
    ],
)
def test_an_unparsable_record_names_key_and_position(data, key, said):
    good = a(floats(1, 2))
    with pytest.raises(UnparsableRecord, match=said) as caught:
        parse([good, good, data, good], {"a": FixedLenFeature((2,), F32)})
    assert caught.value.position == 2
    assert caught.value.key == key


@pytest.mark.parametrize("data", [b"\x01\x80", b"\xff" * 10 + b"\x01"])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_broken_integer_is_found_in_the_record_that_holds_it(data, position):
    records = [a(ints(1, 300))] * 4
    records[position] = a(part(3, part(1, data)))
    for feature in (FixedLenFeature((2,), I64), VarLenFeature(I64)):
        with pytest.raises(UnparsableRecord) as caught:
            parse(records, {"a": feature})
        assert caught.value.position == position


@pytest.mark.parametrize(
    "feature",
    [
        FixedLenFeature((), np.float64),
        FixedLenFeature((), np.int32),
        FixedLenFeature((), None),
        FixedLenFeature((None,), F32),
        FixedLenFeature((-1,), F32),
        FixedLenFeature((2,), F32, [1.0, 2.0, 3.0]),
        FixedLenFeature((), I64, 1.5),
        FixedLenFeature((), I64, 2**63),
        FixedLenFeature((), F32, "x"),
        FixedLenFeature((), bytes, 3),
        VarLenFeature(bool),
        FixedLenSequenceFeature((), F32),
        FixedLenSequenceFeature((0,), F32, allow_missing=True),
        FixedLenSequenceFeature((None,), F32, allow_missing=True),
        tf.io.RaggedFeature(tf.int64),
        tf.io.SparseFeature("i", "v", tf.int64, 3),
        "float32",
    ],
)
def test_a_feature_that_no_example_can_hold_is_refused(feature):
    with pytest.raises(PipelineError, match="'a'"):
        Parser({"a": feature})


def test_parts_of_a_shape_come_as_an_array_of_them():
    features = {"a": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True)}
    block = parse([a(floats(1, 2, 3, 4)), b""], features)
    first, second = (row["a"] for row in block.rows())
    assert first.tolist() == [[1, 2], [3, 4]] and second.shape == (0, 2)
    assert first.dtype == second.dtype == F32
    assert Parser(features).spec()["a"].shape == (None, 2)
    with pytest.raises(UnparsableRecord, match="3 values") as caught:
        parse([b"", a(floats(1, 2, 3))], features)
    assert (caught.value.position, caught.value.key) == (1, "a")


def test_features_of_tensorflow_are_taken_as_they_are():
    theirs = Parser(
        {
            "x": tf.io.FixedLenFeature([2], tf.float32, [1.0, 2.0]),
            "n": tf.io.VarLenFeature(tf.int64),
            "w": tf.io.FixedLenFeature(tf.TensorShape([]), tf.string, "z"),
        }
    )
    mine = Parser(
        {
            "w": FixedLenFeature((), bytes, b"z"),
            "x": FixedLenFeature(2, "float32", [1, 2]),
            "n": VarLenFeature(np.dtype(I64)),
        }
    )
    assert theirs.digest == mine.digest
    assert theirs.spec() == mine.spec()
    assert pickle.loads(pickle.dumps(theirs)).digest == mine.digest
    assert (
        Parser({"x": FixedLenFeature(2, F32)}).digest
        != Parser({"x": FixedLenFeature(3, F32)}).digest
    )


def test_a_feature_that_is_missing_or_of_another_kind_is_named_beside_those_that_are_there():
    record = encoded({"id": 1, "name": "x"})
    with pytest.raises(UnparsableRecord, match=r"'idd' is missing.*there are 'id', 'name'"):
        parse([record], {"idd": FixedLenFeature([], np.int64)})
    with pytest.raises(
        UnparsableRecord, match="feature 'id': it holds int64, and float32"
    ) as caught:
        parse([record], {"name": FixedLenFeature([], bytes), "id": FixedLenFeature([], np.float32)})
    assert caught.value.key == "id"


def test_a_bare_dtype_for_a_feature_is_answered_with_how_features_are_said():
    for wrong in (np.float32, "int64", 3, np.dtype("f4")):
        with pytest.raises(PipelineError, match="feature 'x' is") as caught:
            Parser({"x": wrong})
        assert "FixedLenFeature" in caught.value.help
