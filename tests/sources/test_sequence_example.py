"""Parsing tf.train.SequenceExample: TensorFlow's parser is the oracle."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import (
    Dataset,
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    write_tfrecords,
)
from playhead.errors import PipelineError, UnparsableRecord
from playhead.plan.block import ArraySpec
from playhead.sources.tfrecord.sequence_example import SequenceParser
from playhead.testing import assert_resumes_exactly

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


def entry(name, inner):
    return part(1, part(1, name) + part(2, inner))


def steps(*features):
    return b"".join(part(1, feature) for feature in features)


def context(*entries):
    return part(1, b"".join(entries))


def lists(*entries):
    return part(2, b"".join(entries))


def of(*features):
    """A record with one sequence."""
    return lists(entry(b"s", steps(*features)))


RECORDS = {
    "integers": of(ints(1), ints(-2), ints(3)),
    "pairs of floats": of(floats(1, 2), floats(3, 4)),
    "bytes": of(strings(b"a"), strings(b"")),
    "no step": of(),
    "no list": lists(),
    "nothing": b"",
    "an empty step": of(ints(1), b""),
    "only an empty step": of(b""),
    "a step of an empty list": of(ints(1), ints()),
    "steps of two kinds": of(ints(1), floats(2)),
    "steps of two lengths": of(ints(1), ints(1, 2)),
    "unpacked integers": of(part(3, b"\x08\x05"), part(3, b"\x08\x06")),
    "two lists of one name": lists(
        entry(b"s", steps(ints(1))), entry(b"s", steps(ints(2), ints(3)))
    ),
    "the second of one name is empty": lists(entry(b"s", steps(ints(1))), entry(b"s", b"")),
    "lists in two messages": of(ints(1)) + of(ints(2)),
    "lists of two names in two messages": of(ints(1)) + lists(entry(b"t", steps(ints(2)))),
    "a context": context(entry(b"c", ints(5))) + of(ints(2)),
    "a context behind the lists": of(ints(2)) + context(entry(b"c", ints(5))),
    "a context of another kind": context(entry(b"c", floats(5))) + of(ints(2)),
    "an unknown field": part(9, b"xx") + of(ints(1)),
    "an unknown field among the steps": lists(entry(b"s", steps(ints(1)) + part(9, b"z"))),
    "a list without a name": lists(part(1, part(2, steps(ints(1))))),
    "a name without a list": lists(part(1, part(1, b"s"))),
    "two names": lists(part(1, part(1, b"x") + part(1, b"s") + part(2, steps(ints(1))))),
    "two lists in an entry": lists(
        part(1, part(1, b"s") + part(2, steps(ints(1))) + part(2, steps(ints(2))))
    ),
    "garbage under another name": lists(entry(b"z", b"\xff\xff"), entry(b"s", steps(ints(1)))),
    "cut short": of(ints(1))[:-1],
    "a step of something else": of(ints(1), part(9, b"x")),
    "no values in any step": of(ints(), ints()),
    "many in a step": of(ints(*range(300)), ints(), ints(7)),
    "words in steps": of(strings(b"a", b"b\0"), strings(), strings(b"")),
    "floats in steps": of(floats(1), floats(), floats(2, 3)),
    "a float cut short": of(floats(1), part(2, part(1, b"abc"))),
}
SEQUENCES = [
    FixedLenSequenceFeature((), I64),
    FixedLenSequenceFeature((), I64, allow_missing=True),
    FixedLenSequenceFeature((2,), F32),
    FixedLenSequenceFeature((), bytes),
]


def theirs(data, sequence):
    feature = tf.io.FixedLenSequenceFeature(
        sequence.shape, TF[sequence.dtype], sequence.allow_missing
    )
    try:
        found, made = tf.io.parse_single_sequence_example(
            data, {"c": tf.io.FixedLenFeature([], tf.int64, -1)}, {"s": feature}
        )
    except tf.errors.InvalidArgumentError:
        return None
    return found["c"].numpy().tolist(), made["s"].numpy().tolist()


def ours(data, sequence):
    parser = SequenceParser({"c": FixedLenFeature((), I64, -1)}, {"s": sequence})
    try:
        ((found, made),) = parser.parse([data]).rows()
    except UnparsableRecord:
        return None
    return found["c"].tolist(), made["s"].tolist()


@pytest.mark.parametrize("name", RECORDS)
def test_what_tensorflow_reads_or_refuses_is_read_or_refused_alike(name):
    for sequence in SEQUENCES:
        assert ours(RECORDS[name], sequence) == theirs(RECORDS[name], sequence)


def ragged(data, feature):
    try:
        _, made = tf.io.parse_single_sequence_example(data, None, {"s": feature})
    except tf.errors.InvalidArgumentError:
        return None
    return made["s"].to_list()


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("dtype", [I64, F32, bytes])
def test_steps_of_any_length_are_the_rows_that_tensorflow_reads(name, dtype):
    data = RECORDS[name]
    expected = ragged(data, tf.io.RaggedFeature(TF[dtype]))
    others = (tf.io.RaggedFeature(TF[dtype]), tf.io.VarLenFeature(TF[dtype]))
    for feature in (VarLenFeature(dtype), *others):
        try:
            ((_, made),) = SequenceParser(None, {"s": feature}).parse([data]).rows()
        except UnparsableRecord:
            assert expected is None
        else:
            assert [step.tolist() for step in made["s"]] == expected
            assert made["s"].shape == (len(expected),)
            assert {step.dtype for step in made["s"]} <= {
                np.dtype(object if dtype is bytes else dtype)
            }


def test_a_ragged_feature_may_name_the_sequence_otherwise():
    feature = tf.io.RaggedFeature(tf.int64, value_key="s")
    data = of(ints(1, 2), ints(3))
    ((_, made),) = SequenceParser(None, {"steps": feature}).parse([data]).rows()
    theirs = tf.io.parse_single_sequence_example(data, None, {"steps": feature})[1]
    assert [step.tolist() for step in made["steps"]] == theirs["steps"].to_list() == [[1, 2], [3]]


def test_a_dataset_of_steps_of_any_length_resumes_and_is_made_into_batches(tmp_path):
    rows = [[[k] * (k % 3), [k]] for k in range(7)]
    records = [of(*(ints(*step) for step in row)) for row in rows]
    (path,) = write_tfrecords(records, tmp_path / "a")

    def make():
        return Dataset.from_tfrecords(path, sequence_features={"s": VarLenFeature(I64)})

    assert make().element_spec == ({}, {"s": ArraySpec((None,), object)})
    assert [[step.tolist() for step in made["s"]] for _, made in make()] == rows
    assert_resumes_exactly(lambda: make().shuffle(seed=1), workers=(0, 2))
    flat = make().map(lambda _, made: np.concatenate(made["s"]))
    padded = next(iter(flat.padded_batch(7)))
    assert padded.tolist() == [[*row[0], *row[1], 0, 0][:3] for row in rows]


@settings(max_examples=60, deadline=None)
@given(
    label=st.integers(-(2**63), 2**63 - 1),
    tokens=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    words=st.lists(st.binary(max_size=5), max_size=5),
    points=st.lists(st.tuples(*[st.floats(width=32, allow_nan=False)] * 2), max_size=5),
)
def test_what_tensorflow_writes_comes_back(label, tokens, words, points):
    train = tf.train

    def listed(kind, name, values):
        return train.FeatureList(feature=[train.Feature(**{name: kind(value=v)}) for v in values])

    message = train.SequenceExample(
        context=train.Features(
            feature={"label": train.Feature(int64_list=train.Int64List(value=[label]))}
        ),
        feature_lists=train.FeatureLists(
            feature_list={
                "tokens": listed(train.Int64List, "int64_list", [[t] for t in tokens]),
                "words": listed(train.BytesList, "bytes_list", [[w] for w in words]),
                "points": listed(train.FloatList, "float_list", points),
            }
        ),
    )
    parser = SequenceParser(
        {"label": FixedLenFeature((), I64)},
        {
            "tokens": FixedLenSequenceFeature((), I64),
            "words": FixedLenSequenceFeature((), bytes),
            "points": FixedLenSequenceFeature((2,), F32),
        },
    )
    ((found, made),) = parser.parse([message.SerializeToString()]).rows()
    assert found["label"] == label
    assert made["tokens"].tolist() == tokens and made["tokens"].dtype == I64
    assert made["words"].tolist() == words
    assert made["points"].tolist() == [list(point) for point in points]
    assert made["points"].shape == (len(points), 2)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_dataset_of_them_resumes_and_names_what_is_wrong(tmp_path, compression):
    records = [context(entry(b"c", ints(k))) + of(*[ints(k)] * (k % 3)) for k in range(9)]
    asked = {
        "context_features": {"c": FixedLenFeature((), I64)},
        "sequence_features": {"s": tf.io.FixedLenSequenceFeature([], tf.int64)},
    }
    (path,) = write_tfrecords(records, tmp_path / "a", compression=compression)
    ds = Dataset.from_tfrecords(path, **asked)
    assert [(int(c["c"]), s["s"].tolist()) for c, s in ds] == [(k, [k] * (k % 3)) for k in range(9)]
    found, made = ds.element_spec
    assert (found["c"].shape, made["s"].shape) == ((), (None,))
    if compression is None:
        assert_resumes_exactly(lambda: Dataset.from_tfrecords(path, **asked).shuffle(seed=1))
    (path,) = write_tfrecords(
        [*records, of(ints(1), ints(1, 2))], tmp_path / "b", compression=compression
    )
    with pytest.raises(UnparsableRecord) as caught:
        list(Dataset.from_tfrecords(path, sequence_features=asked["sequence_features"]))
    assert (caught.value.file, caught.value.record, caught.value.key) == (path, 9, "s")
    assert "step 1" in str(caught.value)


def test_what_is_asked_for_is_part_of_the_description():
    step = FixedLenSequenceFeature((), I64)
    digests = {
        SequenceParser(None, {"s": step}).digest,
        SequenceParser({"c": FixedLenFeature((), I64)}, {"s": step}).digest,
        SequenceParser(None, {"s": FixedLenSequenceFeature((1,), I64)}).digest,
        SequenceParser(None, {"s": FixedLenSequenceFeature((), I64, allow_missing=True)}).digest,
        SequenceParser(None, {"s": VarLenFeature(I64)}).digest,
        SequenceParser(None, {"s": tf.io.RaggedFeature(tf.int64, value_key="t")}).digest,
    }
    assert len(digests) == 6


def test_other_kinds_of_sequences_are_refused(tmp_path):
    lengths = tf.io.RaggedFeature(tf.int64, partitions=[tf.io.RaggedFeature.RowLengths("n")])
    for feature in (FixedLenFeature((), I64), lengths):
        with pytest.raises(PipelineError, match="'s'"):
            SequenceParser(None, {"s": feature})
    (path,) = write_tfrecords([of()], tmp_path / "a")
    with pytest.raises(PipelineError, match="one or the other"):
        Dataset.from_tfrecords(path, features={}, sequence_features={})
    with pytest.raises(PipelineError, match="sequence_features is a dict"):
        Dataset.from_tfrecords(path, sequence_features=["s"])
