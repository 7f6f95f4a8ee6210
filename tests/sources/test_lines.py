"""Lines and JSON lines: what a line is, where it lies, what becomes of bad ones, how a run resumes."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import pickle
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset, kernels
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    PipelineError,
    SlowResume,
    SourceChanged,
    SourceError,
    UnequalElements,
    UnparsableRecord,
)
from playhead.plan.block import ArraySpec, as_element, named_leaves, stack
from playhead.sources.files import keeping, maps, opening, spans
from playhead.sources.files.indexed import ready
from playhead.sources.files.opening import Opening
from playhead.sources.text import decoding
from playhead.sources.text.cuts import Lines
from playhead.sources.text.lines import TextLines, lines
from playhead.sources.text.offsets import OffsetsKind, decode, encode
from playhead.testing import assert_resumes_exactly, equal


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory


@pytest.fixture
def scans(monkeypatch):
    """The paths that were looked through, in order."""
    found, build = [], OffsetsKind.build

    def counting(self, seen, *rest):
        found.append(seen.path)
        return build(self, seen, *rest)

    monkeypatch.setattr(OffsetsKind, "build", counting)
    return found


def write(path, data):
    Path(path).write_bytes(data)
    return str(path)


def split(data):
    """Lines as their definition has them, found byte by byte."""
    found = data.split(b"\n")
    if not found[-1]:
        found.pop()
    return [line.removesuffix(b"\r") for line in found]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=st.lists(
        st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b" ", b"\xff", b"\0"])).map(
            b"".join
        ),
        min_size=1,
        max_size=4,
    ),
    skip_blank=st.booleans(),
    stride=st.integers(1, 9),
    draw=st.data(),
)
def test_lines_come_back_in_any_order(tmp_path_factory, files, skip_blank, stride, draw):
    directory = tmp_path_factory.mktemp("data")
    paths = [write(directory / str(k), data) for k, data in enumerate(files)]
    expected = [line for data in files for line in split(data) if line.strip() or not skip_blank]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "_BLOCK", stride)
        source = lines(paths, encoding=None, skip_blank=skip_blank)
    assert source.cardinality == len(expected)
    assert source.gather(np.arange(len(expected))).nest.tolist() == expected
    if expected:
        index = draw.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20))
        found = source.gather(np.array(index, np.int64)).nest.tolist()
        assert found == [expected[k] for k in index]


def test_a_last_line_without_an_end_an_empty_file_and_crlf(tmp_path):
    write(tmp_path / "a.txt", "ä\r\n\r\nlast".encode())
    write(tmp_path / "b.txt", b"")
    write(tmp_path / "c.txt", b"one\rstill one\n")
    ds = Dataset.from_lines(tmp_path / "*.txt")
    assert list(ds) == ["ä", "", "last", "one\rstill one"]
    assert ds.element_spec == ArraySpec((), str)
    assert list(Dataset.from_lines(tmp_path / "*.txt", skip_blank=True))[1] == "last"
    assert list(Dataset.from_lines(tmp_path / "b.txt")) == []


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(
        st.sampled_from(
            ["a", "\r\n", *"\n\n\r\v\f\x1c\x1d\x1e\x85\0\u2028\u2029\ufeffä", "\N{GRINNING FACE}"]
        ),
        max_size=12,
    ),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-7"]),
    draw=st.data(),
)
def test_only_the_byte_10_ends_a_line_of_text(tmp_path_factory, pieces, encoding, draw):
    data = "".join(pieces).encode(encoding)
    expected = [line.decode(encoding) for line in split(data)]
    path = write(tmp_path_factory.mktemp("data") / "a", data)
    source = lines(path, encoding=encoding)
    index = draw.draw(st.permutations(range(len(expected))))
    assert source.gather(np.arange(len(expected))).nest.tolist() == expected
    found = source.gather(np.array(index, np.int64)).nest.tolist()
    assert found == [expected[k] for k in index]


@pytest.mark.parametrize(
    ("errors", "read"),
    [
        ("replace", ["\ufffd", "a\ufffd", "b", "\ufffd"]),
        ("ignore", ["", "a", "b", ""]),
        ("surrogateescape", ["\udce2\udc82", "a\udcff", "b", "\udcf0"]),
    ],
)
def test_bytes_that_are_no_text_never_reach_into_the_next_line(tmp_path, errors, read):
    path = write(tmp_path / "a", b"\xe2\x82\na\xff\r\nb\n\xf0")
    assert lines(path, errors=errors).gather(np.arange(4)).nest.tolist() == read
    for k, at in enumerate((0, 1, None, 0)):
        if at is not None:
            with pytest.raises(UnparsableRecord, match=rf"line {k + 1} at .* its byte {at} "):
                lines(path).gather(np.arange(k, 4))


def test_long_lines_are_read_among_short_ones(tmp_path):
    texts = ["ä" * 3000, "", "b" * 100_000, "c\v"]
    path = write(tmp_path / "a", "\n".join(texts).encode())
    for some in ([0], [1, 3], [1, 1, 3], [3, 2, 1, 0], [0, 1, 2]):
        assert lines(path).gather(np.array(some)).nest.tolist() == [texts[k] for k in some]


def test_a_file_named_twice_is_read_twice_and_a_pattern_is_sorted(tmp_path):
    for name in "ba":
        write(tmp_path / name, name.encode())
    assert list(Dataset.from_lines([tmp_path / "b", tmp_path / "*"])) == ["b", "a", "b"]


def test_other_encodings_and_bytes(tmp_path):
    path = write(tmp_path / "a", "grün\n".encode("latin-1"))
    assert list(Dataset.from_lines(path, encoding="latin-1")) == ["grün"]
    assert list(Dataset.from_lines(path, errors="replace")) == ["gr\ufffdn"]
    assert list(Dataset.from_lines(path, encoding=None)) == [b"gr\xfcn"]
    assert Dataset.from_lines(path, encoding=None).element_spec == ArraySpec((), bytes)
    for encoding in ("utf-16", "utf-32-le", "no-such"):
        with pytest.raises(PipelineError, match=encoding):
            Dataset.from_lines(path, encoding=encoding)


def test_bytes_that_are_no_text_are_named_by_file_line_and_byte(tmp_path):
    write(tmp_path / "a", b"good\n")
    path = write(tmp_path / "b", b"good\ngr\xfcn\ngood\n")
    ds = Dataset.from_lines(tmp_path / "[ab]")
    with pytest.raises(UnparsableRecord) as caught:
        ds.batch(4)[0]
    error = caught.value
    assert (error.file, error.line, error.record, error.offset) == (path, 2, 1, 5)
    assert f"{path}, line 2 at byte 5: its byte 2 (0xfc)" in str(error)
    assert "encoding=" in error.help
    assert list(ds.ignore_errors()) == ["good"] * 3


def test_json_lines_are_elements(tmp_path):
    path = write(
        tmp_path / "a", b'{"a": 1, "b": [1, 2.5], "c": {"d": "x", "e": null}, "f": true}\n\n[1]\n'
    )
    first, second = Dataset.from_json_lines(path)
    assert first["a"].dtype == np.int32 and first["f"].dtype == bool
    assert first["b"].dtype == np.float32 and first["b"].tolist() == [1.0, 2.5]
    assert first["c"] == {"d": "x", "e": None}
    assert second.tolist() == [1]


def test_dtypes_decide_what_json_becomes(tmp_path):
    path = write(
        tmp_path / "a", b'{"id": 3000000000, "x": {"y": null, "z": [[1], []]}, "t": "w"}\n'
    )
    dtypes = {"id": np.int64, "x": {"y": np.float64, "z": object}, "t": bytes}
    (found,) = Dataset.from_json_lines(path, dtypes=dtypes)
    assert found["id"] == np.int64(3_000_000_000) and found["id"].dtype == np.int64
    assert found["x"]["y"].dtype == np.float64 and np.isnan(found["x"]["y"])
    assert found["x"]["z"] == [[1], []] and found["t"] == b"w"
    with pytest.raises(PipelineError, match="no dtype"):
        Dataset.from_json_lines(path, dtypes={"id": "nonsense"})


@pytest.mark.parametrize(
    ("line", "dtypes", "said"),
    [
        (b'{"a": 1', None, "not JSON: "),
        (b"{} {}", None, "not JSON: Extra data at character 3"),
        (b"", None, "not JSON: "),
        (b"[" * 100_000, None, "not JSON"),
        (b'{"a": 3000000000}', None, "dtypes={'a': np.int64}"),
        (b'{"a": {"b": 3000000000}}', None, "dtypes={'a': {'b': np.int64}}"),
        (b'{"a": [[1], []]}', None, "dtypes={'a': object}"),
        (b'{"a": "\\ud800"}', {"a": bytes}, "is no bytes"),
        (b'{"a": [1, 2.5]}', {"a": np.uint64}, "is no uint64"),
        (b'{"a": 1.5}', {"a": np.int32}, "1.5 is no int32"),
        (b'{"a": "1"}', {"a": np.int32}, '"1" is no int32'),
        (b'{"a": null}', {"a": np.int32}, "null is no int32"),
        (b'{"a": 300}', {"a": np.uint8}, "300 is no uint8"),
        (b'{"a": {}}', {"a": np.uint8}, "{} is no uint8"),
        (b'{"a": 1}', {"a": {"b": np.uint8}}, "1 is no dict"),
        (b"7", {"a": np.uint8}, "7 is no dict"),
        (b'{"a": 1}', {"a": str}, "1 is no str"),
        (b'{"a": [[1], []]}', {"a": np.int32}, "[[1], []] is no int32"),
        (b'{"a": "\xff"}', None, "is not utf-8"),
    ],
)
def test_a_line_that_is_not_what_was_asked_for_is_named(tmp_path, line, dtypes, said):
    path = write(tmp_path / "a", b'{"a": null}\n' + line + b"\n{}\n")
    ds = Dataset.from_json_lines(path, dtypes=dtypes, skip_blank=False)
    with pytest.raises(UnparsableRecord) as caught:
        ds[1]
    assert said in str(caught.value)
    assert (caught.value.file, caught.value.line, caught.value.offset) == (path, 2, 12)
    assert ds[2] == {}


def test_the_second_opening_reads_the_index_and_patterns_never_match_it(tmp_path, scans):
    path = write(tmp_path / "a", b"one\n\ntwo")
    for pattern in ("*", "**", "**/*"):
        assert list(Dataset.from_lines(tmp_path / pattern, skip_blank=True)) == ["one", "two"]
    assert scans == [path]
    assert os.listdir(tmp_path / keeping.DIRECTORY) == ["a.lines"]


def test_the_layout_is_the_documented_one(tmp_path):
    path = write(tmp_path / "a", b"one\n \nlast")
    Dataset.from_lines(path)
    blob, status = (tmp_path / keeping.DIRECTORY / "a.lines").read_bytes(), os.stat(path)
    assert blob[:8] == b"PLAYHTXT"
    assert struct.unpack_from("<IIQqQQ", blob, 8) == (1, 0, 10, status.st_mtime_ns, 3, 1)
    assert struct.unpack_from("<4q1q", blob, 96) == (0, 4, 6, 10, 1)
    assert blob[-4:] == struct.pack("<I", kernels.crc32c(blob[:-4]))
    assert len(blob) == 104 + 8 * 3 + 8 * 1 + 4
    assert blob[64:80] == hashlib.sha256(b"one\n \nlast").digest()[:16]


def test_an_index_cut_or_flipped_anywhere_is_not_believed(tmp_path, scans):
    path = write(tmp_path / "a", b"one\n\ntwo")
    blob = bytearray(
        encode(OffsetsKind(Lines()).build(*Opening().look([path]), Opening()), Lines())
    )
    assert decode(bytes(blob), path, Lines()) is not None
    for place in range(len(blob)):
        assert decode(bytes(blob[:place]), path, Lines()) is None
        blob[place] ^= 0x10
        assert decode(bytes(blob), path, Lines()) is None
        blob[place] ^= 0x10
    index = decode(bytes(blob), path, Lines())
    over = np.array([0, 2**63 - 1, -(2**63), -1, 8])  # it ascends, as differences of int64 have it
    assert (np.diff(over) > 0).all()
    for forged in ({"edges": over}, {"edges": np.arange(9), "blank": over[:-1]}):
        assert decode(encode(replace(index, **forged), Lines()), path, Lines()) is None
    kept = tmp_path / keeping.DIRECTORY / "a.lines"
    kept.parent.mkdir()
    kept.write_bytes(b"PLAYHTXT" + bytes(300))
    assert list(Dataset.from_lines(path)) == ["one", "", "two"]
    assert decode(kept.read_bytes(), path, Lines()) is not None


def test_a_rewritten_file_is_indexed_again_even_with_its_size_and_time(tmp_path, scans):
    path = write(tmp_path / "a", b"one\ntwo\n")
    before = Dataset.from_lines(path)
    time = os.stat(path).st_mtime_ns
    write(path, b"onetw\no\n")
    os.utime(path, ns=(time, time))
    after = Dataset.from_lines(path)
    assert list(after) == ["onetw", "o"]
    assert before.operations() != after.operations()
    assert len(scans) == 2


def test_describing_tells_content_and_no_path(tmp_path):
    (tmp_path / "copy").mkdir()
    paths = [write(tmp_path / p, b"one\n") for p in ("a", "copy/b")]
    first, copy = (Dataset.from_lines(path).operations() for path in paths)
    assert first == copy
    assert first[0].keys() == {"op", "records", "content"}
    assert Dataset.from_lines(paths[0], encoding=None).operations() != first
    other = write(tmp_path / "other", b"two\n")
    assert Dataset.from_lines(other).operations() != first
    assert Dataset.from_json_lines(other).operations()[0]["op"] == "json_lines"


def test_a_directory_that_cannot_be_written_sends_the_index_elsewhere(tmp_path, cache):
    path = write(tmp_path / "a", b"1\n")
    (tmp_path / keeping.DIRECTORY).write_text("a file where the directory would be")
    Dataset.from_lines(path)
    assert len(list((cache / "playhead" / "index").iterdir())) == 1
    Dataset.from_lines(write(tmp_path / "b", b"2\n"), index=tmp_path / "run")
    assert [p.suffix for p in (tmp_path / "run").iterdir()] == [".lines"]


def test_missing_files_directories_and_archives_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingSource, match="from_lines was given an empty list"):
        Dataset.from_lines([])
    for name in ("no-*", "nothing"):
        with pytest.raises(MissingSource, match=str(tmp_path)):
            Dataset.from_lines(name)
    with pytest.raises(MissingSource, match="is a directory"):
        Dataset.from_json_lines(tmp_path)
    with pytest.raises(SourceError, match="compressed in a way"):
        Dataset.from_lines(write(tmp_path / "a.zip", b""))


def test_what_happens_to_a_file_while_it_is_read_is_noticed(tmp_path):
    path = write(tmp_path / "a", b"one\ntwo\nsix\n")
    ds = Dataset.from_lines(path)
    assert ds[1] == "two"
    os.utime(path, ns=(0, 1))
    assert ds[1] == "two"
    with open(path, "r+b") as file:
        file.write(b"ONE")
    with pytest.raises(SourceChanged, match="while it was in use"):
        ds[1]
    write(path, b"one\ntwo\n")
    with pytest.raises(SourceChanged) as caught:
        ds[0]
    assert caught.value.file == path
    fresh = Dataset.from_lines(path)
    with open(path, "ab") as file:
        file.write(b"grown\n")
    with pytest.raises(SourceChanged, match="after it was indexed"):
        fresh[0]
    os.remove(path)
    texts = pickle.loads(pickle.dumps(fresh.node.texts))
    with pytest.raises(FileNotFoundError):
        Dataset(TextLines(ready(texts), fresh.node.decoder))[0]


def test_another_file_under_the_same_name_leaves_an_open_one_alone(tmp_path):
    path = write(tmp_path / "a", b"one\n")
    ds = Dataset.from_lines(path)
    assert ds[0] == "one"
    os.replace(write(tmp_path / "b", b"ONE\n"), path)
    assert ds[0] == "one"
    with pytest.raises(SourceChanged):
        pickle.loads(pickle.dumps(ds.node)).gather(np.array([0]))


def test_more_files_than_may_be_open_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "_OPEN_FILES", 2)
    monkeypatch.setattr(spans, "FILES_AT_ONCE", 2)
    paths = [write(tmp_path / f"{k}", f"{k}\n{k}!\n".encode()) for k in range(7)]
    source = lines(paths)
    index = np.random.default_rng(0).permutation(14)
    assert source.gather(index).nest.tolist() == [f"{k // 2}" + "!" * (k % 2) for k in index]
    assert len(source.texts.spans.maps._open) <= 2


def test_a_line_knows_its_file_and_number(tmp_path):
    write(tmp_path / "a", b"0\n")
    path = write(tmp_path / "b", b"1\n\n2\n")
    ds = Dataset.from_lines(tmp_path / "[ab]", skip_blank=True).shuffle(seed=1)
    numbers = {ds[k]: ds.trace(k)[0] for k in range(3)}
    assert (numbers["2"].file, numbers["2"].record) == (path, 2)


OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@pytest.mark.parametrize("suffix", OPENERS)
def test_compressed_files_are_walked_and_resume_exactly(tmp_path, suffix):
    write(tmp_path / "a.txt", b"zero\r\n\none")
    with OPENERS[suffix](tmp_path / f"b{suffix}", "wb") as file:
        file.write(b"two\n \nthree\nfour")
    with OPENERS[suffix](tmp_path / f"c{suffix}", "wb"):
        pass
    write(tmp_path / "d.txt", b"five\n")

    def dataset():
        return Dataset.from_lines(tmp_path / "[abcd].*", skip_blank=True)

    assert list(dataset()) == ["zero", "one", "two", "three", "four", "five"]
    assert not dataset().seekable
    assert_resumes_exactly(dataset)
    assert_resumes_exactly(lambda: dataset().shuffle(3, seed=1).batch(2), every=2)
    with dataset().iterator() as iterator:
        for _ in range(4):
            next(iterator)
        cursor = iterator.position.cursor
        assert cursor == {"epoch": 0, "file": 1, "line": 3, "byte": 12, "index": 4}
        resumed = dataset().iterator()
        resumed.load_state_dict(iterator.position)
        with pytest.warns(SlowResume, match="decompresses 12 bytes"):
            assert next(resumed) == "four"
        (record,) = resumed.trace()
        assert (record.file, record.record) == (str(tmp_path / f"b{suffix}"), 3)
        resumed.close()


def test_a_compressed_file_is_known_by_its_first_bytes(tmp_path):
    path = write(tmp_path / "a.txt", gzip.compress(b'{"x": 1}\n'))
    assert list(Dataset.from_json_lines(path)) == [{"x": 1}]
    assert Dataset.from_json_lines(path).operations()[0]["op"] == "json_lines"


def test_bad_lines_of_compressed_files_are_named_and_can_be_left_out(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(b'{"x": 1}\nnonsense\n{"x": 3}\n'))
    ds = Dataset.from_json_lines(path)
    iterator = ds.iterator()
    assert next(iterator) == {"x": 1}
    with pytest.raises(UnparsableRecord) as caught:
        next(iterator)
    assert (caught.value.file, caught.value.line, caught.value.offset) == (path, 2, 9)
    iterator.close()
    assert [e["x"] for e in ds.ignore_errors()] == [1, 3]
    assert_resumes_exactly(lambda: Dataset.from_json_lines(path).ignore_errors())


@pytest.mark.filterwarnings("ignore:.*left out every element:playhead.errors.IgnoredError")
def test_a_compressed_file_cut_short_or_damaged_is_corrupt(tmp_path):
    data = gzip.compress(b"".join(b"%d\n" % k for k in range(5000)))
    for broken in (data[: len(data) // 2], data[:20] + b"\0\0\0\0" + data[24:], b"plain text"):
        path = write(tmp_path / "a.gz", broken)
        with pytest.raises(CorruptRecord) as caught:
            list(Dataset.from_lines(path))
        assert caught.value.file == path
        kept = list(Dataset.from_lines(path).ignore_errors())
        assert kept == [str(k) for k in range(len(kept))]


def test_a_compressed_file_that_was_replaced_is_noticed(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(b"one\ntwo\n", mtime=1))
    ds = Dataset.from_lines(path)
    os.utime(path, ns=(0, 1))
    assert list(ds) == ["one", "two"]
    write(path, gzip.compress(b"one\nTWO\n", mtime=1))
    with pytest.raises(SourceChanged):
        list(ds)
    assert Dataset.from_lines(path).operations() != ds.operations()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_says_so(tmp_path):
    path = write(tmp_path / "a", b"1\n")
    os.chmod(path, 0)
    with pytest.raises(PermissionError):
        Dataset.from_lines(path)


def test_a_file_that_vanished_is_no_error_of_one_element(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"1\n2\n")
    ds = Dataset.from_lines(path).map(int).ignore_errors()
    path.unlink()
    with pytest.raises(MissingSource, match="no file"):
        list(ds)


def test_lists_of_numbers_are_what_a_python_value_becomes(tmp_path):
    values = [[1, -(2**31), 2**31 - 1], [0.1, 1e30, -0.0], [True, False], [1, 2.5], [[1], [2]], []]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    for got, value in zip(Dataset.from_json_lines(path), values, strict=True):
        wanted = as_element(value)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()


COLUMNS = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int8": st.integers(-128, 127) | st.booleans(),
    "float64": st.floats() | st.integers(-(2**60), 2**60),
    "float32": st.floats(width=32) | st.none(),
    "bool": st.booleans(),
    "list of int16": st.lists(st.integers(-(2**15), 2**15 - 1), max_size=3),
    "list of float32": st.lists(st.floats(width=32) | st.integers(-99, 99), max_size=3),
    "list of lists": st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), max_size=2),
    "str": st.text(max_size=3),
    "bytes": st.text(max_size=3),
    "object": st.none() | st.integers() | st.lists(st.text(max_size=2), max_size=2),
    "untold": st.integers(-(2**31), 2**31 - 1) | st.text(max_size=2) | st.booleans(),
    "float untold": st.floats(width=32),
    "list untold": st.lists(st.integers(-9, 9), max_size=2),
}
DTYPES = {
    **{name: np.dtype(name) for name in ("int64", "uint64", "int8", "float64", "float32", "bool")},
    "list of int16": np.dtype(np.int16),
    "list of float32": np.dtype(np.float32),
    "list of lists": np.dtype(np.int32),
    "str": str,
    "bytes": bytes,
    "object": object,
}


def as_told(value, dtype):
    """What a value of JSON becomes, by the words of `from_json_lines`."""
    if dtype is None:
        return as_element(value)
    if isinstance(dtype, np.dtype):
        return np.array(value, dtype)[()]
    return value.encode() if dtype is bytes else value


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True),
    nested=st.booleans(),
    alike=st.booleans(),
    draw=st.data(),
)
def test_objects_are_read_alike_together_and_alone(tmp_path_factory, names, nested, alike, draw):
    row = {name: COLUMNS[name] for name in names}
    one = st.fixed_dictionaries(row) if alike else st.fixed_dictionaries({}, optional=row)
    rows = draw.draw(st.lists(one, max_size=6))
    written = [json.dumps({"in": row} if nested else row) for row in rows]
    path = write(tmp_path_factory.mktemp("data") / "a", "\n".join(written).encode())
    source = Dataset.from_json_lines(path, dtypes={**DTYPES, "in": DTYPES}).node
    together = source.gather(np.arange(len(rows))).rows()
    alone = [source.gather(np.array([k])).rows()[0] for k in range(len(rows))]
    for found in (together, alone):
        for got, line in zip(found, written, strict=True):
            value = json.loads(line)
            assert list(got) == list(value)
            if nested:
                got, value = got["in"], value["in"]
            wanted = {name: as_told(part, DTYPES.get(name)) for name, part in value.items()}
            assert list(got) == list(wanted) and equal(got, wanted)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True),
    nested=st.booleans(),
    at_once=st.integers(1, 5),
    draw=st.data(),
)
def test_a_batch_of_objects_is_the_stack_of_its_elements(
    tmp_path_factory, names, nested, at_once, draw
):
    one = st.fixed_dictionaries({name: COLUMNS[name] for name in names})
    other = st.fixed_dictionaries({}, optional={name: COLUMNS[name] for name in names})
    rows = draw.draw(st.lists(one, min_size=1, max_size=9))
    rows[3:5] = draw.draw(st.lists(one | other, max_size=2))
    written = [json.dumps({"in": row} if nested else row) for row in rows]
    path = write(tmp_path_factory.mktemp("data") / "a", "\n".join(written).encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decoding, "_AT_ONCE", at_once)
        ds = Dataset.from_json_lines(path, dtypes={**DTYPES, "in": DTYPES})
        order = draw.draw(st.permutations(range(len(rows))))
        block = ds.node.gather(np.array(order))
        alone = [ds.node.gather(np.array([k])).rows()[0] for k in order]
        copy = pickle.loads(pickle.dumps(block))
        for low, high in ((0, len(rows)), (len(rows) // 3, len(rows) // 2 + 1)):
            some = np.arange(low, high)[::-1]
            chosen = [alone[k] for k in some]
            for found, wanted in (
                (block.slice(low, high), alone[low:high]),
                (copy.slice(low, high), alone[low:high]),
                (block.select(some), chosen),
            ):
                assert equal(found.rows(), wanted) and len(found) == len(wanted)
                assert stacked(found.stack) == stacked(lambda wanted=wanted: stack(wanted))


def stacked(make):
    """What comes of it, with the keys in their order, or what is said of why nothing does."""
    try:
        found = list(named_leaves(make()))
        assert all(leaf.dtype.hasobject or leaf.ctypes.data % 64 == 0 for _, leaf in found)
        return [
            (
                name,
                leaf.shape,
                str(leaf.dtype),
                leaf.tolist() if leaf.dtype.hasobject else leaf.tobytes(),
            )
            for name, leaf in found
        ]
    except UnequalElements as error:
        return str(error)


def test_what_is_read_of_json_together_shares_no_memory(tmp_path):
    path = write(tmp_path / "a", b'{"x": [1, 2], "y": {"z": 3}}\n' * 6)
    ds = Dataset.from_json_lines(path)
    for elements in (list(ds), list(ds.batch(2)), list(ds.batch(3).prefetch(workers=1))):
        for element in elements:
            element["x"] += 1
        assert {element["x"].max() for element in elements} == {3}
        arrays = [element["x"] for element in elements]
        assert not any(np.may_share_memory(a, b) for a in arrays for b in arrays if a is not b)


@pytest.mark.parametrize("index", [-1, 6])
def test_an_index_outside_the_lines_is_an_index_error(tmp_path, index):
    source = lines([write(tmp_path / "a", b"1\n2\n3\n"), write(tmp_path / "b", b"4\n5\n6")])
    for some in ([index], [5, index], list(range(3, index + 1)) or [0, index]):
        with pytest.raises(IndexError, match=f"record {index} of 6"):
            source.gather(np.array(some, np.int64))


def test_neighbours_are_read_as_one_part_of_their_file(tmp_path, monkeypatch):
    asked = []
    records = spans.Spans.records

    def noting(self, files, which, starts, stops):
        asked.append(list(zip(starts.tolist(), stops.tolist(), strict=True)))
        return records(self, files, which, starts, stops)

    monkeypatch.setattr(spans.Spans, "records", noting)
    paths = [write(tmp_path / "a", b"1\n2\n\n4\n5\n"), write(tmp_path / "b", b"6\n7\n")]
    source = lines(paths, skip_blank=True)
    for index, parts in (
        ([0, 1], [(0, 4)]),
        ([1, 2, 3], [(2, 4), (5, 9)]),
        ([3, 4, 5], [(7, 9), (0, 4)]),
        ([1, 0, 2], [(2, 4), (0, 2), (5, 7)]),
        ([2, 2], [(5, 7), (5, 7)]),
    ):
        asked.clear()
        found = source.gather(np.array(index)).nest.tolist()
        assert found == [["1", "2", "4", "5", "6", "7"][k] for k in index]
        assert asked == [parts]


F32, I32 = np.float32, np.int32


@pytest.mark.parametrize(
    ("rows", "dtype", "wanted"),
    [
        (["[1]", "[]"], None, [np.array([1], I32), np.array([], F32)]),
        (["[1.0]", "[]", "[2]"], F32, [np.array(v, F32) for v in ([1], [], [2])]),
        (["[true]", "true"], None, [np.array([True]), np.bool_(True)]),
        (["true", "5"], np.bool_, [np.bool_(True), np.bool_(True)]),
        (["1", "2.5"], None, [I32(1), F32(2.5)]),
        (["-0.0", "3"], F32, [F32(-0.0), F32(3)]),
        ([" 1", "2\t"], np.int8, [np.int8(1), np.int8(2)]),
        (['{"a": 1}', '{"a": 2, "c": 3}'], None, [{"a": I32(1)}, {"a": I32(2), "c": I32(3)}]),
        (["{}", '{"c": 3}', "{}"], None, [{}, {"c": I32(3)}, {}]),
        (["1", '"2"'], F32, ["", '"2" is no float32']),
        (["[0.5]", '[0.5, "2"]'], F32, ["", '[0.5, "2"] is no float32']),
        (["[1]", "[true, 1.5]"], I32, ["", "[true, 1.5] is no int32"]),
        (["2147483647", "2147483648"], None, ["", "a whole number that does not fit int32"]),
    ],
)
def test_values_of_several_lines_are_each_what_it_is_alone(tmp_path, rows, dtype, wanted):
    """Where one is none, `wanted` has what is said of it."""
    path = write(tmp_path / "a", "".join(f'{{"v": {row}}}\n' for row in rows).encode())
    for dtypes in ({"v": dtype}, {"v": dtype, "other": str}):
        source = Dataset.from_json_lines(path, dtypes=dtypes).node
        index = np.arange(len(rows))
        if isinstance(wanted[-1], str):
            for some in (index, index[-1:]):
                with pytest.raises(UnparsableRecord) as caught:
                    source.gather(some)
                assert wanted[-1] in caught.value.reason and caught.value.line == len(rows)
            continue
        alone = [source.gather(index[k : k + 1]).rows()[0] for k in index]
        for found in (source.gather(index).rows(), alone):
            assert equal(found, [{"v": value} for value in wanted])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('{"a": 1, "b": 1}\n{"a": "x", "b": "x"}\n', 1, "['b']: 1 is no str"),
        ('{"a": 1, "b": "x"}\n{"a": 300, "b": "x"}\n', 2, "['a']: 300 is no int8"),
        ('{"a": [1], "b": "x"}\n{"a": [1, 300], "b": 1}\n', 2, "['a']: [1, 300] is no int8"),
        ('{"a": 1, "b": []}\n{"a": 1.5, "b": []}\n', 1, "['b']: [] is no str"),
        ('{"a": 1, "c": 1}\n{"a": 1, "c": 3000000000}\n', 2, "['c']: a whole number"),
        ('{"a": 1, "c": {"d": 1}}\n{"a": 1, "c": {"d": [[1], []]}}\n', 2, "['c']['d']: a list"),
        ('{"a": 1, "b": 2}\nnonsense\n', 1, "['b']: 2 is no str"),
        ('{"e": "x", "b": 2}\n{"e": "\\ud800", "b": "x"}\n', 1, "['b']: 2 is no str"),
    ],
)
def test_of_several_bad_lines_the_first_is_named(tmp_path, text, line, said):
    path = write(tmp_path / "a", text.encode())
    ds = Dataset.from_json_lines(path, dtypes={"a": np.int8, "b": str, "e": bytes})
    with pytest.raises(UnparsableRecord) as caught:
        ds.node.gather(np.arange(2))
    assert said in str(caught.value) and caught.value.line == line
    copy = pickle.loads(pickle.dumps(ds.node))
    with pytest.raises(UnparsableRecord, match=f"line {line} at"):
        copy.gather(np.arange(2))


def test_whole_numbers_beyond_int64_and_numpys_own_name_for_text_are_read(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"a": [1, 9223372036854775808], "b": "x"}\n')
    (row,) = Dataset.from_json_lines(path, dtypes={"a": np.uint64, "b": np.dtype(str)})
    assert row["a"].dtype == np.uint64 and row["a"].tolist() == [1, 1 << 63] and row["b"] == "x"
    with pytest.raises(PipelineError, match="is no dtype") as caught:
        Dataset.from_json_lines(path, dtypes={"a": (np.int64, np.int64)})
    assert "name the dtype of its items" in str(caught.value)


def test_what_is_no_line_of_json_says_how_it_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    for text, said in (
        ('\ufeff{"a": 1}\n', "utf-8-sig"),
        ('[\n{"a": 1}\n]\n', "json.load"),
        ('{"a": 18446744073709551616}\n', "{'a': object}"),
        ('{"a": 4294967296}\n', "{'a': np.int64}"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UnparsableRecord) as caught:
            Dataset.from_json_lines(path)[0]
        assert said in caught.value.help


def test_files_come_from_any_iterable_and_what_is_no_path_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    assert list(Dataset.from_lines(sorted(tmp_path.glob("*.txt")))) == ["a", "b"]
    assert list(Dataset.from_lines(tmp_path / f"{name}.txt" for name in "ba")) == ["b", "a"]
    for wrong in (3, None, b"a.txt", [3], [b"a.txt"], [["a.txt"]]):
        for read in (Dataset.from_lines, Dataset.from_tfrecords, Dataset.from_parquet):
            with pytest.raises(PipelineError, match=rf"{read.__name__} was given") as caught:
                read(wrong)
            assert "pathlib.Path" in caught.value.help


def test_a_plain_file_that_is_cut_or_goes_on_while_it_is_walked_is_an_error(tmp_path):
    whole = b"".join(b"%07d\n" % k for k in range(300_000))  # more than is read at once
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"end\n"))
    for size in (len(whole) - 80, len(whole) + 80):
        path = write(tmp_path / "a", whole)
        ds = Dataset.from_lines([path, tmp_path / "b.gz"]).batch(1000)
        with ds.iterator() as iterator:
            assert next(iterator)[0] == "0000000"
            os.truncate(path, size)
            with pytest.raises(SourceChanged) as caught:
                list(iterator)
        assert caught.value.file == path
