"""Parsing Examples: the kernels against the parser in Python and TensorFlow's."""

from __future__ import annotations

import itertools
import struct
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from playhead import kernels, reference
from playhead.errors import UnparsableRecord
from playhead.kernels import Records
from playhead.plan.block import Columns
from playhead.sources.tfrecord import wire
from playhead.sources.tfrecord.example import FixedLenFeature, Parser, VarLenFeature

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason="built without the C kernels")

F32, I64 = np.float32, np.int64
LISTS = {bytes: 1, F32: 2, I64: 3}


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def part(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def packed(dtype, values):
    if dtype is bytes:
        return b"".join(part(1, value) for value in values)
    if dtype is F32:
        return part(1, struct.pack(f"<{len(values)}f", *values))
    return part(1, b"".join(map(varint, values)))


def unpacked(dtype, values):
    if dtype is bytes:
        return packed(dtype, values)
    if dtype is F32:
        return b"".join(b"\x0d" + struct.pack("<f", value) for value in values)
    return b"".join(b"\x08" + varint(value) for value in values)


VALUES = {
    bytes: st.binary(max_size=150),
    F32: st.floats(width=32, allow_nan=False),
    I64: st.integers(-(2**63), 2**63 - 1),
}
NAMES = st.sampled_from(["a", "b", "c", "", "é", "n" * 130])
UNKNOWN = st.sampled_from([b"", b"", b"", b"\x48\x05", b"\x4d" + bytes(4), b"\x49" + bytes(8)])
COUNTS = st.sampled_from([0, 1, 1, 2, 3])


@st.composite
def features_of(draw):
    """A dict of features to ask for."""
    asked = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        dtype = draw(st.sampled_from([bytes, F32, I64]))
        if draw(st.booleans()):
            asked[name] = VarLenFeature(dtype)
            continue
        shape = draw(st.sampled_from([(), (1,), (2,), (1, 2), (0,)]))
        default = draw(st.sampled_from([None, 1, 1])) and (b"d" if dtype is bytes else dtype(-3))
        asked[name] = FixedLenFeature(shape, dtype, None if shape == (0,) else default)
    return asked


@st.composite
def records_for(draw, asked):
    """An Example that mostly holds what is asked for, in one of the ways to write it."""
    entries = []
    names = [name for name in asked if draw(st.integers(0, 5))] + draw(st.lists(NAMES, max_size=1))
    for name in draw(st.permutations(names)):
        feature = asked.get(name, VarLenFeature(I64))
        dtype = bytes if feature.dtype is bytes else feature.dtype
        if not draw(st.integers(0, 15)):
            dtype = draw(st.sampled_from([bytes, F32, I64]))
        count = draw(COUNTS)
        if isinstance(feature, FixedLenFeature) and draw(st.integers(0, 15)):
            count = int(np.prod(feature.shape))
        values = draw(st.lists(VALUES[dtype], min_size=count, max_size=count))
        write = draw(st.sampled_from([packed, packed, unpacked]))
        value = part(LISTS[dtype], write(dtype, values) + draw(UNKNOWN)) + draw(UNKNOWN)
        inner = [part(1, name.encode()), part(2, value if draw(st.integers(0, 15)) else b"")]
        if not draw(st.integers(0, 5)):
            inner.reverse()
        entries.append(part(1, b"".join(inner) + draw(UNKNOWN)) + draw(UNKNOWN))
    return draw(UNKNOWN) + part(1, b"".join(entries)) + draw(UNKNOWN)


@st.composite
def batches(draw, damaged):
    asked = draw(features_of())
    records = draw(st.lists(records_for(asked), max_size=4))
    if damaged and records:
        data = bytearray(records[draw(st.integers(0, len(records) - 1))])
        for _ in range(draw(st.integers(1, 3))):
            place = draw(st.integers(0, max(0, len(data) - 1)))
            cut = draw(st.sampled_from([place, place + 1, place + 3]))
            byte = draw(
                st.sampled_from([0, 1, 2, 8, 10, 18, 26, 127, 128, 255]) | st.integers(0, 255)
            )
            data[place:cut] = bytes([byte])
        records[draw(st.integers(0, len(records) - 1))] = bytes(data)
    return asked, records


def parts(records):
    """The records as parts of two buffers, with other bytes around them."""
    buffers, which, starts = [b"\xff" * 3, b"\x0a" * 12], [], []
    for position, record in enumerate(records):
        which.append(position % 2)
        starts.append(len(buffers[position % 2]))
        buffers[position % 2] += record + b"\x0a\x7f"
    starts = np.array(starts, np.int64)
    sizes = np.array([len(record) for record in records], np.int64)
    return Records(buffers, np.array(which, np.int64), starts, starts + sizes)


def plain(nest):
    if isinstance(nest, dict):
        return {key: plain(value) for key, value in nest.items()}
    if isinstance(nest, np.ndarray):
        return nest.dtype, nest.shape, nest.tobytes() if nest.dtype != object else nest.tolist()
    return type(nest), nest if isinstance(nest, bytes) else nest.tobytes()


def in_python(parser, records):
    """What the parser in Python makes of the records: rows, or None."""
    try:
        made = wire.parse(parser.fields, records)
    except UnparsableRecord:
        return None
    return [plain({k: v[i] for k, v in made.items()}) for i in range(len(records))]


def in_c(parser, records):
    blocks = parser.parse_apart(parts(records), [len(records)])
    return None if blocks is None else [plain(row) for row in blocks[0].rows()]


@settings(max_examples=200, deadline=None)
@given(batches(damaged=False), st.data())
def test_parts_are_read_as_they_are_alone_into_memory_of_their_own(batch, data):
    parser, records = Parser(batch[0]), batch[1]
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=4))
    ends = [*sorted(cuts), len(records)]
    blocks = parser.parse_apart(parts(records), ends)
    alone = [in_c(parser, records[a:b]) for a, b in itertools.pairwise([0, *ends])]
    if None in alone:
        assert blocks is None
        return
    assert [[plain(row) for row in block.rows()] for block in blocks] == alone
    columns = [c for b in blocks if isinstance(b, Columns) for c in b.nest.values() if c.size]
    for k, column in enumerate(columns):
        assert not any(np.shares_memory(column, other) for other in columns[:k])


def test_many_parts_of_many_bytes_are_read_in_one_call():
    # So many that the kernel goes through them in several shares.
    rng = np.random.default_rng(0)
    values = [rng.bytes(int(n)) for n in rng.integers(0, 9000, 600)]
    entries = [
        part(1, part(1, b"a") + part(2, part(1, packed(bytes, [value]))))
        + (part(1, part(1, b"n") + part(2, part(3, packed(I64, [k])))) if k % 3 else b"")
        + (
            part(1, part(1, b"b") + part(2, part(1, packed(bytes, [value[::-2]]))))
            if k % 4
            else b""
        )
        for k, value in enumerate(values)
    ]
    asked = {"a": (bytes,), "b": (bytes, b"none"), "n": (I64, -1)}
    parser = Parser({name: FixedLenFeature((), *said) for name, said in asked.items()})
    ends = [1, 1, 7, 300, 301, 555, 600]
    blocks = parser.parse_apart(parts([part(1, entry) for entry in entries]), ends)
    for block, (start, stop) in zip(blocks, itertools.pairwise([0, *ends]), strict=True):
        assert block.nest["a"].tolist() == values[start:stop]
        assert block.nest["b"].tolist() == [
            values[k][::-2] if k % 4 else b"none" for k in range(start, stop)
        ]
        assert block.nest["n"].tolist() == [k if k % 3 else -1 for k in range(start, stop)]


@settings(max_examples=500, deadline=None)
@given(batches(damaged=False))
def test_what_python_reads_is_read_to_the_same_values_and_nothing_else(batch):
    parser = Parser(batch[0])
    assert in_c(parser, batch[1]) == in_python(parser, batch[1])


@settings(max_examples=200, deadline=None)
@given(batches(damaged=False), st.data())
def test_entries_in_the_order_of_the_record_before_or_in_another_are_read_alike(batch, data):
    parser = Parser(batch[0])
    records = data.draw(st.lists(st.sampled_from(batch[1] or [b""]), max_size=12))
    assert in_c(parser, records) == in_python(parser, records)


@settings(max_examples=400, deadline=None)
@given(batches(damaged=True))
def test_of_damaged_records_the_same_are_read(batch):
    parser = Parser(batch[0])
    assert in_c(parser, batch[1]) == in_python(parser, batch[1])


@settings(max_examples=300, deadline=None)
@given(features_of(), st.lists(st.binary(max_size=40), max_size=3))
@example({"a": VarLenFeature(I64)}, [b"\x0a"])
def test_of_any_bytes_the_same_are_read(asked, records):
    assert in_c(Parser(asked), records) == in_python(Parser(asked), records)


@settings(max_examples=80, deadline=None)
@given(batches(damaged=False))
def test_what_tensorflow_reads_is_read_to_the_same_values(batch):
    tf = pytest.importorskip("tensorflow")
    kinds = {F32: tf.float32, I64: tf.int64, bytes: tf.string}
    asked, records = batch
    # TensorFlow crashes on unpacked floats for a shape without values.
    asked = {k: f for k, f in asked.items() if getattr(f, "shape", ()) != (0,)}
    if not asked:
        return
    theirs = {
        k: tf.io.VarLenFeature(kinds[f.dtype])
        if isinstance(f, VarLenFeature)
        else tf.io.FixedLenFeature(f.shape, kinds[f.dtype], f.default_value)
        for k, f in asked.items()
    }
    for record in records:
        found = Parser(asked).parse_apart(parts([record]), [1])
        try:
            expected = tf.io.parse_single_example(record, theirs)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            continue  # it refuses unknown fields in a list of bytes
        assert found is not None
        (row,) = found[0].rows()
        for name, value in expected.items():
            value = value.values if isinstance(value, tf.SparseTensor) else value
            np.testing.assert_array_equal(row[name], value.numpy())


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("where", ["length", "length CRC", "data", "data CRC", "index"])
def test_a_damaged_frame_is_not_parsed(position, where):
    record = part(1, part(1, part(1, b"a") + part(2, part(3, packed(I64, [5])))))
    crc = reference.masked_crc32c(record)
    framed = kernels.header(len(record)) + record + struct.pack("<I", crc)
    starts = np.arange(3) * len(framed) + 12
    crcs = np.full(3, crc, np.uint32)
    parser = Parser({"a": FixedLenFeature((), I64)})

    def parse(data):
        whole = Records([bytes(data)], np.zeros(3, np.int64), starts, starts + len(record))
        blocks = parser.parse_apart(whole, [3], crcs)
        return blocks and blocks[0]

    data = bytearray(framed * 3)
    assert parse(data).nest["a"].tolist() == [5, 5, 5]
    if where == "index":
        crcs[position] ^= 1
    else:
        offset = {"length": 0, "length CRC": 9, "data": 13, "data CRC": len(framed) - 1}[where]
        data[position * len(framed) + offset] ^= 1
    assert parse(data) is None


def test_lists_that_changed_since_they_were_found_are_noticed():
    # As where a file is overwritten between the two looks at it.
    lists = [bytearray(packed(I64, [1, 300])), bytearray(packed(I64, [2]))]
    ends = np.array([len(item) for item in lists])
    found = Records(lists, np.arange(2), np.zeros(2, np.int64), ends)
    out = np.empty(3, np.int64)
    assert kernels.values(wire.INT64, found, np.array([2, 1]), out)
    assert out.tolist() == [1, 300, 2]
    for counts in ([1, 2], [3, 0], [2, 2], [2, 0], [2**63 - 1, 1], [-1, 1]):
        assert not kernels.values(wire.INT64, found, np.array(counts), out)
    lists[0][-1] = 0x80
    assert not kernels.values(wire.INT64, found, np.array([2, 1]), out)


def test_arguments_that_do_not_fit_are_refused():
    whole = Records([b""], *np.zeros((3, 2), np.int64))
    spans = np.empty((1, 3, 2), np.int64)

    def ask(kind=0x12, count=2, out=None, default=None, spans=spans[:0], crcs=None, ends=(2,)):
        counts, outs = np.array([count], np.int64), out if isinstance(out, tuple) else (out,)
        return kernels.examples(
            whole, crcs, (b"a",), bytes([kind]), counts, np.array(ends), outs, (default,), spans
        )

    good = np.empty((2, 2), F32)
    assert ask(out=good, default=np.ones(2, F32)) == -1
    assert good.tolist() == [[1, 1], [1, 1]]
    apart = good[:1], np.empty((0, 2), F32), good[1:]
    assert ask(out=apart, default=np.full(2, 2, F32), ends=(1, 1, 2)) == -1
    assert good.tolist() == [[2, 2], [2, 2]]
    for wrong in (
        {"out": np.empty((2, 1), F32)},
        {"out": np.empty((2, 2), F32), "default": np.ones(3, F32)},
        {"out": None},
        {"out": good, "count": -1},
        {"out": good, "count": 2**61},
        {"out": good, "count": 2**63 - 1},
        {"out": good, "kind": 0x0A},
        {"kind": 0x22, "count": -1, "spans": spans},
        {"count": -1},
        {"count": -1, "spans": spans[:, :2].copy()},
        {"kind": 0x0A, "count": 2},
        {"out": good, "spans": spans},
        {"out": good, "crcs": np.zeros(3, np.uint32)},
        {"out": good, "ends": ()},
        {"out": good, "ends": (1,)},
        {"out": good, "ends": (3,)},
        {"out": (good, good), "ends": (1, 2)},
        {"out": (good[:1], good[:1]), "ends": (1,)},
        {"out": (good[:1], good[:1], good[:1]), "ends": (1, 2)},
        {"out": (good, good[:0]), "ends": (2, 1)},
        {"out": (good[:0], good), "ends": (-1, 2)},
        {"out": np.empty((2, 1), object)},
        {"kind": 0x0A, "count": 1},
        {"kind": 0x0A, "count": 1, "out": good},
        {"kind": 0x0A, "count": 1, "out": np.empty(3, object)},
        {"kind": 0x0A, "count": 1, "out": np.empty(2, object), "default": np.ones(2, F32)},
    ):
        with pytest.raises(ValueError):
            ask(**wrong)
    read_only = good.copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        ask(out=read_only)


def test_values_are_held_by_the_array_alone_and_a_default_by_each_that_has_it():
    default, place = bytes(bytearray(b"not immortal")), np.zeros(2, np.int64)
    record = part(1, part(1, part(1, b"a") + part(2, part(1, packed(bytes, [b"new bytes"])))))
    spans, lent = np.empty((0, 3, 2), np.int64), sys.getrefcount(default)
    records = Records([record], place, place, np.array([0, len(record)]))
    counts, kind = np.ones(1, np.int64), bytes([wire.BYTES])

    def read(ends, *columns):
        asked = (b"a",), kind, counts, np.array(ends), columns, (default,), spans
        return kernels.examples(records, None, *asked)

    column = np.empty(2, object)
    assert read([2], column) == -1 and column.tolist() == [default, b"new bytes"]
    assert (sys.getrefcount(default), sys.getrefcount(column[1])) == (lent + 1, 2)
    with pytest.raises(ValueError, match="without any"):
        read([2], column)
    both = np.empty(1, object)
    with pytest.raises(
        ValueError, match="without any"
    ):  # the second would replace what is not filled
        read([1, 2], both, both)
    assert both.tolist() == [default]
    del column, both
    assert sys.getrefcount(default) == lent


@given(
    st.binary(max_size=60)
    | st.lists(st.integers(0, 2**64 - 1)).map(lambda ns: b"".join(map(varint, ns)))
)
@example(b"\xff" * 9 + b"\x7f")
@example(b"\xff" * 30 + b"\x01\x05")
@example(b"")
def test_numbers_are_those_of_the_reference(data):
    for ours, theirs in zip(kernels.varints(data), reference.varints(data), strict=True):
        assert ours.dtype == theirs.dtype == np.int64
        assert ours.tolist() == theirs.tolist()
