"""Windows over token files: which tokens they hold, and that opening costs nothing."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import CorruptRecord, MissingSource, PipelineError, SourceChanged, SourceError
from playhead.plan.block import ArraySpec
from playhead.sources.files import maps
from playhead.testing import assert_resumes_exactly


def write(path, tokens, dtype=np.uint16):
    np.asarray(tokens, dtype).tofile(path)
    return str(path)


def windows(stretches, length, stride, targets):
    """The windows as a list says them."""
    found = []
    for stretch in stretches:
        begin = 0
        while begin + length + targets <= len(stretch):
            window = stretch[begin : begin + length]
            found.append((window, stretch[begin + 1 : begin + length + 1]) if targets else window)
            begin += stride
    return found


def plain(element):
    return tuple(map(plain, element)) if isinstance(element, tuple) else element.tolist()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    length=st.integers(1, 6),
    stride=st.one_of(st.none(), st.integers(1, 7)),
    targets=st.booleans(),
    draw=st.data(),
)
def test_windows_hold_the_tokens_that_a_list_says(
    tmp_path_factory, sizes, length, stride, targets, draw
):
    directory = tmp_path_factory.mktemp("data")
    row = list(range(sum(sizes)))
    starts = np.cumsum([0, *sizes])
    files = [row[a:b] for a, b in itertools.pairwise(starts)]
    paths = [write(directory / str(k), part) for k, part in enumerate(files)]
    begins = sorted(draw.draw(st.lists(st.integers(0, len(row)), max_size=5)))
    cut = [row[a:b] for a, b in itertools.pairwise([*begins, len(row)])]
    for documents, stretches in ((None, [row]), ("files", files), (begins, cut)):
        ds = Dataset.from_tokens(
            paths, np.uint16, length=length, stride=stride, targets=targets, documents=documents
        )
        expected = windows(stretches, length, stride or length, targets)
        assert len(ds) == len(expected)
        assert [plain(ds[k]) for k in range(len(ds))] == expected
        order = draw.draw(st.permutations(range(len(ds))))
        ends = [*sorted(draw.draw(st.lists(st.integers(0, len(ds)), max_size=3))), len(ds)]
        apart = ds.node.gather_apart(np.array(order, np.int64), ends)
        read = [plain(row) for block in apart for row in block.rows()]
        assert read == [expected[k] for k in order]
        assert [len(block) for block in apart] == np.diff([0, *ends]).tolist()
        if expected:
            assert plain(ds.batch(99)[0]) == plain(next(iter(ds.batch(99))))


def test_tokens_of_npy_files_and_of_any_byte_order_are_read(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5, dtype=np.int32))
    np.save(tmp_path / "b.npy", np.arange(5, 9, dtype=np.int32))
    ds = Dataset.from_tokens(tmp_path / "*.npy", np.int32, length=3)
    assert [e.tolist() for e in ds] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert ds.element_spec == ArraySpec((3,), np.dtype(np.int32))
    path = write(tmp_path / "big.bin", [1, 2], ">u4")
    (found,) = Dataset.from_tokens(path, ">u4", length=2)
    assert found.tolist() == [1, 2] and found.dtype == np.uint32 and found.dtype.isnative


def test_windows_of_many_files_of_another_byte_order_are_read_at_once(tmp_path):
    # More files than are held open at once, and windows that begin in one and end in the third.
    paths = [write(tmp_path / f"{k:03}", range(5 * k, 5 * k + 5), ">u2") for k in range(100)]
    ds = Dataset.from_tokens(paths, ">u2", length=11, stride=3, targets=True).shuffle(seed=1)
    assert len(ds) == 163
    ((inputs, targets),) = ds.batch(200)
    assert inputs.dtype == targets.dtype == np.dtype("=u2")
    assert sorted(inputs.tolist()) == [list(range(3 * k, 3 * k + 11)) for k in range(163)]
    assert (targets == inputs + 1).all()


def test_memory_maps_are_read_by_the_other_constructors(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12).reshape(4, 3))
    table = np.load(tmp_path / "a.npy", mmap_mode="r")
    for make in (Dataset.from_tensor_slices, Dataset.from_sequence):
        assert make(table)[2].tolist() == [6, 7, 8]
        assert_resumes_exactly(lambda make=make: make(table).shuffle(seed=1).batch(2), every=2)


def test_inputs_and_targets_are_memory_of_their_own(tmp_path):
    path = write(tmp_path / "a", range(9))
    inputs, targets = Dataset.from_tokens(path, np.uint16, length=4, targets=True).batch(2)[0]
    inputs[:] = 77
    assert targets.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert np.fromfile(path, np.uint16).tolist() == list(range(9))


def test_a_hundred_thousand_million_tokens_open_and_read_at_once(tmp_path):
    path = tmp_path / "big.bin"
    with open(path, "wb") as file:
        file.truncate(2 * 10**11)
        file.seek(2 * (7 * 10**10))
        file.write(np.arange(2048, dtype=np.uint16).tobytes())
    ds = Dataset.from_tokens(path, np.uint16, length=1000, targets=True).shuffle(seed=1)
    assert len(ds) == 99_999_999
    plain = Dataset.from_tokens(path, np.uint16, length=1000)
    assert plain[70_000_000][:3].tolist() == [0, 1, 2]
    with ds.batch(4).iterator() as iterator:
        iterator.seek(20_000_000)
        assert next(iterator)[0].shape == (4, 1000)
        assert len(iterator.position.to_json()) < 1024


def test_more_files_than_may_be_open_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "_OPEN_FILES", 2)
    paths = [write(tmp_path / f"{k}", range(4 * k, 4 * k + 4)) for k in range(8)]
    ds = Dataset.from_tokens(paths, np.uint16, length=10, stride=1)
    assert ds.batch(30)[0].tolist() == [list(range(k, k + 10)) for k in range(23)]
    assert len(ds.node.store._spans.maps._open) <= 2


def test_a_window_knows_its_file_and_first_token(tmp_path):
    paths = [write(tmp_path / "a", range(5)), write(tmp_path / "b", range(5))]
    (record,) = Dataset.from_tokens(paths, np.uint16, length=3, stride=1).trace(6)
    assert (record.file, record.record) == (paths[1], 1)


def test_describing_tells_all_that_moves_windows_and_no_path(tmp_path):
    (tmp_path / "copy").mkdir()
    a, b = (write(tmp_path / p, range(100)) for p in ("a", "copy/b"))
    other = write(tmp_path / "other", [*range(99), 0])

    def said(path, **options):
        return Dataset.from_tokens(path, np.uint16, **{"length": 4, **options}).operations()

    assert said(a) == said(b) == said(a, stride=4)
    variants = [said(a), said(other), said(a, length=5), said(a, stride=2), said(a, targets=True)]
    variants += [said(a, documents=[0, 50]), said(a, documents=[0, 51])]
    assert len({str(v) for v in variants}) == len(variants)


def test_a_file_that_changed_is_noticed(tmp_path):
    path = write(tmp_path / "a", range(100))
    ds = Dataset.from_tokens(path, np.uint16, length=4)
    again = pickle.loads(pickle.dumps(ds.node))
    os.utime(path, ns=(0, 1))
    assert ds[1].tolist() == [4, 5, 6, 7]
    with open(path, "r+b") as file:
        file.write(b"zz")
    with pytest.raises(SourceChanged, match="while it was in use"):
        ds[1]
    with pytest.raises(SourceChanged, match="after it was indexed"):
        again.gather(np.array([0]))
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(SourceChanged):
        ds[0]


def test_what_makes_no_windows_is_refused(tmp_path):
    path = write(tmp_path / "a", range(9))
    make = Dataset.from_tokens
    for options in ({"length": 0}, {"length": 2, "stride": 0}):
        with pytest.raises(PipelineError, match="at least 1"):
            make(path, np.uint16, **options)
    with pytest.raises(PipelineError, match="tokens are numbers"):
        make(path, str, length=2)
    for documents in ("lines", [3, 1], [0.5], [[1]]):
        with pytest.raises(PipelineError, match="documents"):
            make(path, np.uint16, length=2, documents=documents)
    with pytest.raises(PipelineError, match="there are 9 tokens"):
        make(path, np.uint16, length=2, documents=[0, 18])
    with pytest.raises(MissingSource):
        make(tmp_path / "no-*", np.uint16, length=2)
    assert len(make(path, np.uint16, length=10)) == 0
    assert len(make(write(tmp_path / "empty", []), np.uint16, length=1)) == 0


def test_files_cut_short_or_of_another_dtype_are_told(tmp_path):
    odd = tmp_path / "odd"
    odd.write_bytes(b"123")
    with pytest.raises(CorruptRecord, match="no whole number of uint16"):
        Dataset.from_tokens(odd, np.uint16, length=1)
    np.save(tmp_path / "a.npy", np.arange(50, dtype=np.int32))
    with pytest.raises(PipelineError, match="dtype='int32'"):
        Dataset.from_tokens(tmp_path / "a.npy", np.uint16, length=1)
    data = (tmp_path / "a.npy").read_bytes()
    for broken in (data[:-4], data[:30], b"nothing"):
        (tmp_path / "b.npy").write_bytes(broken)
        with pytest.raises(CorruptRecord) as caught:
            Dataset.from_tokens(tmp_path / "b.npy", np.int32, length=1)
        assert caught.value.file == str(tmp_path / "b.npy")
    np.save(tmp_path / "c.npy", np.zeros((2, 3), np.int32))
    with pytest.raises(PipelineError, match="from_tensor_slices"):
        Dataset.from_tokens(tmp_path / "c.npy", np.int32, length=1)


def test_arguments_that_are_no_whole_numbers_are_refused(tmp_path):
    path = write(tmp_path / "a.bin", range(10))
    for wrong in ({"length": "4"}, {"length": 4.0}, {"length": True}, {"length": 4, "stride": 1.5}):
        with pytest.raises(PipelineError, match="a whole number"):
            Dataset.from_tokens(path, np.uint16, **wrong)
    assert len(Dataset.from_tokens(path, np.uint16, length=np.int64(5))) == 2
    with pytest.raises(PipelineError, match="ascending numbers"):
        Dataset.from_tokens(path, np.uint16, length=2, documents=[[0, 1], [2]])


def test_compressed_files_are_not_taken_for_tokens(tmp_path):
    path = tmp_path / "a.bin.gz"
    path.write_bytes(gzip.compress(bytes(16)))
    with pytest.raises(SourceError, match="compressed"):
        Dataset.from_tokens(path, np.uint8, length=2)
