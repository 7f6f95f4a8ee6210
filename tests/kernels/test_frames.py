"""TFRecord frames: the kernels find and check exactly what the reference does."""

from __future__ import annotations

import itertools
import mmap
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import kernels, reference
from playhead.kernels import Records

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason="built without the C kernels")


def frame(data: bytes, length: int | None = None) -> bytes:
    said = struct.pack("<Q", len(data) if length is None else length)
    length_crc = struct.pack("<I", reference.masked_crc32c(said))
    return said + length_crc + data + struct.pack("<I", reference.masked_crc32c(data))


HUGE = [2**31, 2**32 - 16, 2**63 - 17, 2**63 - 1, 2**63, 2**64 - 28, 2**64 - 16, 2**64 - 1]
FRAMES = st.binary(max_size=60).map(frame) | st.builds(
    frame, st.binary(max_size=20), st.sampled_from(HUGE) | st.integers(0, 40)
)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2)


@st.composite
def files(draw):
    data = bytearray(b"".join(draw(st.lists(FRAMES, max_size=6))) + draw(st.binary(max_size=30)))
    for place, byte in draw(EDITS):
        if data:
            data[place % len(data)] = byte
    return bytes(data)


def plain(scan: kernels.Scan):
    assert (scan.offsets.dtype, scan.lengths.dtype, scan.crcs.dtype) == (
        np.int64,
        np.int64,
        np.uint32,
    )
    columns = [column.tolist() for column in (scan.offsets, scan.lengths, scan.crcs)]
    return [*columns, scan.end, scan.damage]


@settings(max_examples=500, deadline=None)
@given(files(), st.integers(0, 80), st.none() | st.integers(0, 300), st.booleans())
def test_a_scan_finds_what_the_reference_finds(data, start, stop, check):
    expected = plain(reference.scan(data, start, check, stop))
    assert plain(kernels.scan(data, start, check, stop)) == expected
    assert plain(kernels.scan(memoryview(bytearray(data)), start, check, stop)) == expected


@given(st.binary(max_size=100))
def test_a_scan_of_any_bytes_finds_what_the_reference_finds(data):
    assert plain(kernels.scan(data)) == plain(reference.scan(data))


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("check", [True, False])
def test_a_huge_length_is_a_truncation(length, check):
    data = frame(b"good") + frame(b"data", length)
    scan = kernels.scan(data, 0, check)
    assert scan.damage == kernels.Damage(20, 1, "truncated")
    assert plain(scan) == plain(reference.scan(data, 0, check))


def test_more_frames_than_are_taken_at_once_are_all_found(monkeypatch):
    data = b"".join(frame(bytes(n % 5)) for n in range(50))
    expected = plain(reference.scan(data))
    for room in (1, 7, 49, 50, 51):
        monkeypatch.setattr(kernels, "_FRAMES_AT_ONCE", room)
        assert plain(kernels.scan(data)) == expected
        assert plain(kernels.scan(data[:-1])) == plain(reference.scan(data[:-1]))


def test_a_mapped_file_is_scanned_and_can_be_closed_afterwards(tmp_path):
    (tmp_path / "a").write_bytes(frame(b"one") + frame(b"two"))
    with open(tmp_path / "a", "rb") as file:
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    scan = kernels.scan(buffer)
    records = Records([buffer], np.zeros(2, np.int64), scan.offsets + 12, scan.offsets + 15)
    assert kernels.check(records, scan.crcs) == -1
    assert kernels.slices(records) == [b"one", b"two"]
    buffer.close()


@settings(max_examples=300, deadline=None)
@given(st.data(), files(), files())
def test_a_check_stops_where_the_reference_stops(data, first, second):
    found, buffers = [], [first, second]
    for which, buffer in enumerate(buffers):
        for scan in (reference.scan(buffer, check=False), reference.scan(buffer[:-1], check=False)):
            for offset, length, crc in zip(*plain(scan)[:3], strict=True):
                found.append((which, offset + 12, offset + 12 + length, crc))
    found = data.draw(st.permutations(found))
    which, starts, stops, crcs = (np.array([f[k] for f in found], np.int64) for k in range(4))
    crcs = crcs.astype(np.uint32)
    records = Records(buffers, which, starts, stops)
    assert kernels.check(records, crcs) == reference.check(records, crcs)
    assert kernels.slices(records) == reference.slices(records)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.binary(max_size=300), max_size=4))
def test_records_are_joined_over_arrays_of_any_sizes(data, buffers):
    which, starts, stops = [], [], []
    for _ in range(data.draw(st.integers(0, 9)) if buffers else 0):
        number = data.draw(st.integers(0, len(buffers) - 1))
        ends = st.integers(0, len(buffers[number]))
        start, stop = sorted((data.draw(ends), data.draw(ends)))
        which, starts, stops = [*which, number], [*starts, start], [*stops, stop]
    expected = b"".join(buffers[w][a:b] for w, a, b in zip(which, starts, stops, strict=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(expected)), max_size=4)))
    edges = list(itertools.pairwise([0, *cuts, len(expected)]))
    records = Records(buffers, *(np.array(f, np.int64) for f in (which, starts, stops)))
    for work in (kernels.join, reference.join):
        outs = [np.full(stop - start, 7, np.uint8) for start, stop in edges]
        work(records, *outs)
        assert b"".join(out.tobytes() for out in outs) == expected


@pytest.mark.parametrize("work", [kernels.join, reference.join], ids=["kernel", "reference"])
def test_records_that_do_not_fill_their_arrays_are_refused(work):
    ends = np.array([4, 9])
    records = Records([b"abcdefghi"], np.zeros(2, np.int64), ends - 4, ends)
    out = np.zeros((2, 2), np.uint16)
    work(records, out)
    assert out.tobytes() == b"abcdfghi"
    for outs in ((), (out[:1],), (out, out[:1]), (out, out)):
        with pytest.raises(ValueError, match="do not fill"):
            work(records, *outs)
    with pytest.raises((ValueError, BufferError)):
        kernels.join(records, np.zeros((2, 4), np.uint16)[:, ::2])
    with pytest.raises((ValueError, BufferError)):
        kernels.join(records, np.frombuffer(bytes(8), np.uint8))
    with pytest.raises(ValueError, match="inside"):
        kernels.join(Records([b"abc"], *(np.array([n]) for n in (0, 0, 8))), out)


INT64 = st.sampled_from([-(2**63), -1, 0, 1, 5, 11, 12, 13, 40, 41, 2**31, 2**63 - 1])


@settings(max_examples=300, deadline=None)
@given(INT64, INT64, INT64)
def test_a_record_outside_its_buffer_is_refused(which, start, stop):
    records = Records([bytes(40), b""], *(np.array([n], np.int64) for n in (which, start, stop)))
    inside = which in (0, 1) and 0 <= start <= stop <= (40, 0)[which]
    if inside:
        assert kernels.slices(records) == [bytes(stop - start)]
    else:
        with pytest.raises(ValueError, match="inside"):
            kernels.slices(records)
    if inside and start >= 12 and stop <= 36:
        assert kernels.check(records, np.zeros(1, np.uint32)) == 0
    else:
        with pytest.raises(ValueError, match="inside"):
            kernels.check(records, np.zeros(1, np.uint32))


@st.composite
def indexes(draw):
    """Numbers of first records, edges and CRCs of some files, of which some are empty; and some records."""
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
    edges = [np.cumsum([draw(st.integers(0, 99)), *[16 + n] * n]) for n in counts]
    firsts = np.cumsum([0, *counts[:-1]])
    crcs = np.arange(sum(counts), dtype=np.uint32) * 7
    record = st.integers(0, max(0, sum(counts) - 1))
    index = draw(st.lists(record, max_size=20 if sum(counts) else 0))
    return np.array(index, np.int64), firsts, np.concatenate(edges), crcs


@given(indexes())
def test_frames_are_found_where_the_reference_finds_them(given):
    names, which, *found = kernels.frames(*given)
    theirs, whose, *expected = reference.frames(*given)
    assert len(set(names.tolist())) == len(names) and sorted(names) == sorted(theirs)
    assert names[which].tolist() == theirs[whose].tolist()
    for ours, other in zip(found, expected, strict=True):
        assert ours.dtype == other.dtype and ours.tolist() == other.tolist()


@pytest.mark.parametrize("work", [kernels.frames, reference.frames], ids=["kernel", "reference"])
def test_frames_of_records_that_do_not_exist_are_refused(work):
    firsts, edges = np.array([0, 2, 2]), np.array([0, 20, 40, 5, 0, 30])
    crcs = np.array([1, 2, 3], np.uint32)
    names, which, starts, stops, found = work(np.array([2, 0]), firsts, edges, crcs)
    assert names[which].tolist() == [2, 0]
    assert (starts.tolist(), stops.tolist(), found.tolist()) == ([12, 12], [26, 16], [3, 1])
    for wrong in (3, -1, 2**62):
        with pytest.raises(IndexError, match=f"record {wrong} of 3"):
            work(np.array([0, wrong]), firsts, edges, crcs)


def test_an_index_whose_arrays_do_not_belong_together_is_refused():
    index, crcs = np.zeros(1, np.int64), np.zeros(2, np.uint32)
    for firsts, edges in ((index, np.zeros(2, np.int64)), (index, np.zeros(4, np.int64))):
        with pytest.raises(ValueError, match="buffer of 3"):
            kernels.frames(index, firsts, edges, crcs)
    with pytest.raises(IndexError):
        kernels.frames(index, index[:0], index[:0], crcs[:0])


def test_arrays_of_wrong_sizes_are_refused():
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    for records in (
        Records([b""], one, two, one),
        Records([b""], one, one, two),
        Records([b""], one.view(np.uint8)[:7], one, one),
    ):
        with pytest.raises(ValueError, match="buffer of"):
            kernels.slices(records)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.slices(Records([b""], np.zeros(4, np.int64)[::2], two, two))
    with pytest.raises(ValueError, match="buffer of"):
        kernels.check(Records([bytes(16)], one, one + 12, one + 12), np.zeros(2, np.uint32))
    unaligned = np.zeros(9, np.uint8)[1:].view(np.int64)
    if unaligned.ctypes.data % 8:
        with pytest.raises(ValueError, match="aligned"):
            kernels.slices(Records([b""], unaligned, one, one))
