"""The index of TFRecord files: what it says, when it is believed, where it lies."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from playhead import kernels, reference
from playhead.errors import CorruptRecord, MissingSource, SourceChanged
from playhead.sources.files import keeping, telling
from playhead.sources.files.keeping import DIRECTORY
from playhead.sources.tfrecord import building
from playhead.sources.tfrecord.building import build, load_or_build
from playhead.sources.tfrecord.index import FileIndex, decode, encode

tf = pytest.importorskip("tensorflow")

RECORDS = [b"", b"a", b"\0\0", b"longer " * 30, b"a"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory


@pytest.fixture
def scans(monkeypatch):
    """The paths that were scanned, in order."""
    seen = []

    def counting(path, *rest):
        seen.append(path)
        return build(path, *rest)

    monkeypatch.setattr(building, "build", counting)
    return seen


def write(path, records=RECORDS):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def index_file(path):
    return Path(path).parent / DIRECTORY / (Path(path).name + ".index")


def lengths_of(index):
    return (np.diff(index.edges) - 16).tolist()


def test_crc32c_gives_the_published_check_values():
    assert kernels.crc32c(b"123456789") == 0xE3069283
    assert kernels.crc32c(bytes(32)) == 0x8A9136AA
    assert kernels.crc32c(memoryview(bytes(32))) == 0x8A9136AA


def test_a_large_buffer_is_checked_in_pieces_with_the_same_result(monkeypatch):
    data = np.random.default_rng(0).bytes(1000)
    whole = reference.crc32c(data)
    monkeypatch.setattr(reference, "_PIECE", 7)
    assert reference.crc32c(memoryview(data)) == whole


def test_scan_finds_the_frames_that_tensorflow_wrote(tmp_path):
    data = Path(write(tmp_path / "a")).read_bytes()
    for buffer in (data, memoryview(data), bytearray(data)):
        scan = kernels.scan(buffer)
        assert scan.damage is None
        assert scan.end == len(data)
        cut = [data[o + 12 : o + 12 + n] for o, n in zip(scan.offsets, scan.lengths, strict=True)]
        assert cut == RECORDS


def test_scanning_piece_by_piece_finds_the_same_frames(tmp_path, monkeypatch):
    path = write(tmp_path / "a", [bytes(n) for n in range(60)])
    whole = build(path)
    monkeypatch.setattr(building, "_STRIDE", 50)
    pieces = build(path)
    assert pieces.edges.tolist() == whole.edges.tolist()
    assert pieces.content == whole.content


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 2**31])
def test_a_huge_length_with_a_valid_crc_is_a_truncation_not_a_memory_error(tmp_path, length):
    path = tmp_path / "a"
    path.write_bytes(kernels.header(length) + b"data")
    with pytest.raises(CorruptRecord) as caught:
        build(str(path))
    assert (caught.value.reason, caught.value.offset, caught.value.record) == ("truncated", 0, 0)


def test_a_file_cut_anywhere_names_the_record_it_ends_in(tmp_path):
    data = Path(write(tmp_path / "a", [b"one", b"", b"three"])).read_bytes()
    borders = {0: 0, 19: 1, 35: 2, 56: 3}
    cut = tmp_path / "cut"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        if size in borders:
            assert load_or_build([str(cut)]).records == borders[size]
            continue
        with pytest.raises(CorruptRecord) as caught:
            load_or_build([str(cut)])
        offset = max(o for o in borders if o <= size)
        assert (caught.value.offset, caught.value.record) == (offset, borders[offset])
        assert (caught.value.reason, caught.value.file) == ("truncated", str(cut))


def test_every_flipped_bit_is_found_when_indexing(tmp_path):
    data = bytearray(Path(write(tmp_path / "a", [b"one", b"", b"three"])).read_bytes())
    path = tmp_path / "flipped"
    for place in range(len(data)):
        for bit in (0, 7):
            data[place] ^= 1 << bit
            path.write_bytes(data)
            data[place] ^= 1 << bit
            with pytest.raises(CorruptRecord, match="S02"):
                load_or_build([str(path)])


def test_never_checks_framing_but_not_data(tmp_path):
    data = bytearray(Path(write(tmp_path / "a", [b"one"])).read_bytes())
    data[12] ^= 1
    path = tmp_path / "flipped"
    path.write_bytes(data)
    assert load_or_build([str(path)], verify="never").records == 1
    with pytest.raises(CorruptRecord) as caught:
        load_or_build([str(path)], verify="index")
    assert caught.value.reason == "data"


def test_a_file_that_is_no_tfrecord_is_told_so(tmp_path):
    path = tmp_path / "a"
    path.write_text("id,name\n1,somebody or other\n")
    with pytest.raises(CorruptRecord, match="not a TFRecord file"):
        load_or_build([str(path)])


def test_the_second_opening_reads_the_index(tmp_path, scans):
    path = write(tmp_path / "a")
    first, second = load_or_build([path]), load_or_build([path])
    assert scans == [path]
    assert first.edges.tolist() == second.edges.tolist()
    assert first.crcs.tolist() == second.crcs.tolist()
    assert first.content == second.content
    assert index_file(path).exists()
    assert [p.name for p in index_file(path).parent.iterdir()] == ["a.index"]


def test_an_unverified_index_is_not_enough_for_a_verified_opening(tmp_path, scans):
    path = write(tmp_path / "a")
    for verify in ("never", "never", "index", "always", "never"):
        load_or_build([path], verify=verify)
    assert len(scans) == 2


def test_a_rewritten_file_of_the_same_size_is_indexed_again(tmp_path, scans):
    path = write(tmp_path / "a", [b"abc", b"defg"])
    before = load_or_build([path])
    write(path, [b"defg", b"abc"])
    os.utime(path, ns=(0, before.mtimes_ns[0] + 1))
    after = load_or_build([path])
    assert len(scans) == 2
    assert lengths_of(after) == [4, 3]
    assert after.content != before.content


def test_a_rewritten_file_of_the_same_size_and_time_is_indexed_again(tmp_path, scans):
    path = write(tmp_path / "a", [b"abc", b"defg", b"hi"])
    before = load_or_build([path])
    write(path, [b"abc", b"dEfg", b"hi"])
    os.utime(path, ns=(0, before.mtimes_ns[0]))
    assert load_or_build([path]).content != before.content
    assert len(scans) == 2


def test_touching_a_file_costs_a_scan_and_changes_nothing(tmp_path, scans):
    path = write(tmp_path / "a")
    before = load_or_build([path])
    os.utime(path, ns=(0, 12345))
    assert load_or_build([path]).content == before.content
    load_or_build([path])
    assert len(scans) == 2


def test_a_file_that_grew_is_indexed_again(tmp_path):
    path = write(tmp_path / "a", [b"one"])
    load_or_build([path])
    write(path, [b"one", b"two"])
    assert load_or_build([path]).records == 2


def test_an_index_cut_anywhere_is_built_again(tmp_path, scans):
    path = write(tmp_path / "a", [b"one", b"two"])
    expected = load_or_build([path])
    blob = index_file(path).read_bytes()
    for size in range(len(blob)):
        index_file(path).write_bytes(blob[:size])
        assert load_or_build([path]).edges.tolist() == expected.edges.tolist()
    assert len(scans) == len(blob) + 1


def test_an_index_with_any_flipped_byte_is_not_believed(tmp_path):
    path = write(tmp_path / "a", [b"one", b"two"])
    blob = bytearray(encode(build(path)))
    assert decode(bytes(blob), path) is not None
    for place in range(len(blob)):
        blob[place] ^= 0x10
        assert decode(bytes(blob), path) is None
        blob[place] ^= 0x10


@pytest.mark.parametrize("garbage", [b"", b"PLAYHIDX", b"x" * 500, bytes(500), b"\xff" * 68])
def test_garbage_in_place_of_an_index_is_replaced(tmp_path, garbage):
    path = write(tmp_path / "a")
    index_file(path).parent.mkdir()
    index_file(path).write_bytes(garbage)
    assert load_or_build([path]).records == len(RECORDS)
    assert decode(index_file(path).read_bytes(), path) is not None


@pytest.mark.parametrize(
    "edges", [[0, 100, 50], [0, 40, 50], [0, 10, 50], [-50, 20, 50], [0, 20, 51]]
)
def test_impossible_offsets_are_refused_even_with_a_valid_checksum(tmp_path, edges):
    path = write(tmp_path / "a", [b"1", b"22"])
    index = build(path)
    forged = FileIndex(
        path, 50, index.mtime_ns, True, np.array(edges, np.int64), index.crcs, index.content
    )
    assert decode(encode(forged), path) is None


@pytest.mark.parametrize("version", [1, 3])
def test_an_index_of_another_layout_is_not_read(tmp_path, version):
    path = write(tmp_path / "a")
    blob = bytearray(encode(build(path)))
    blob[8] = version
    blob[-4:] = struct.pack("<I", kernels.crc32c(bytes(blob[:-4])))
    assert decode(bytes(blob), path) is None


def test_the_layout_is_the_documented_one(tmp_path):
    path = write(tmp_path / "a", [b"one", b"", b"three"])
    load_or_build([path])
    blob, status = index_file(path).read_bytes(), os.stat(path)
    assert blob[:8] == b"PLAYHIDX"
    assert struct.unpack_from("<IIQqQ", blob, 8) == (2, 1, 56, status.st_mtime_ns, 3)
    assert struct.unpack_from("<4q", blob, 56) == (0, 19, 35, 56)
    data = Path(path).read_bytes()
    stored = [data[15:19], data[31:35], data[52:56]]
    assert blob[88:100] == b"".join(stored)
    assert len(blob) == 104
    pairs = zip((3, 0, 5), stored, strict=True)
    digest = hashlib.blake2b(
        b"".join(struct.pack("<q", n) + crc for n, crc in pairs), digest_size=16
    )
    assert blob[40:56] == digest.digest()


def test_the_named_directory_holds_the_index_and_the_data_stays_untouched(tmp_path, scans):
    path = write(tmp_path / "data.tfrecord")
    for _ in range(2):
        load_or_build([path], where=str(tmp_path / "run"))
    assert [p.name[:14] for p in (tmp_path / "run").iterdir()] == ["data.tfrecord-"]
    assert not index_file(path).parent.exists()
    assert len(scans) == 1


def test_files_of_one_name_do_not_share_an_index(tmp_path):
    paths = []
    for name, records in (("x", [b"1"]), ("y", [b"1", b"2"])):
        (tmp_path / name).mkdir()
        paths.append(write(tmp_path / name / "data", records))
    for _ in range(2):
        index = load_or_build(paths, where=str(tmp_path / "run"))
        assert index.counts.tolist() == [1, 2]
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_directory_that_cannot_be_written_sends_the_index_to_the_cache(tmp_path, cache, scans):
    path = write(tmp_path / "a")
    index_file(path).parent.write_text("a file where the directory would be")
    for _ in range(2):
        assert load_or_build([path]).records == len(RECORDS)
    assert len(scans) == 1
    assert len(list((cache / "playhead" / "index").iterdir())) == 1


def test_without_any_place_to_write_the_index_is_kept_in_memory(tmp_path, monkeypatch):
    path = write(tmp_path / "a")

    def refused(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(keeping, "_write", refused)
    assert load_or_build([path]).records == len(RECORDS)


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    path = write(tmp_path / "a")

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    load_or_build([path])
    assert list(index_file(path).parent.iterdir()) == []


def test_two_processes_may_build_the_same_index_at_once(tmp_path):
    path = write(tmp_path / "a", [bytes(n % 90) for n in range(2000)])
    code = (
        "import sys, pathlib\n"
        "from playhead.sources.tfrecord.building import load_or_build\n"
        "for _ in range(20):\n"
        "    index = load_or_build([sys.argv[1]])\n"
        "    assert index.records == 2000\n"
        "    pathlib.Path(sys.argv[2]).unlink(missing_ok=True)\n"
        "print(load_or_build([sys.argv[1]]).content)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, path, index_file(path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=180)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
    assert decode(index_file(path).read_bytes(), path) is not None
    assert len(list(index_file(path).parent.iterdir())) == 1


def test_several_files_are_counted_in_the_given_order(tmp_path):
    b = write(tmp_path / "b", [b"1", b"22"])
    none = write(tmp_path / "none", [])
    a = write(tmp_path / "a", [b"333"])
    index = load_or_build([none, b, none, a, none])
    assert index.counts.tolist() == [0, 2, 0, 1, 0]
    assert index.starts.tolist() == [0, 0, 2, 2, 3]
    assert index.locate(np.arange(3)).tolist() == [1, 1, 3]
    assert index.file(3).edges.tolist() == [0, 19]


def test_content_names_bytes_not_places(tmp_path):
    (tmp_path / "copy").mkdir()
    a, copy = write(tmp_path / "a"), write(tmp_path / "copy" / "elsewhere")
    other = write(tmp_path / "other", [*RECORDS[:-1], b"b"])
    swapped = write(tmp_path / "swapped", RECORDS[::-1])
    contents = [load_or_build([p]).content for p in (a, copy, other, swapped)]
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3


def test_content_does_not_depend_on_how_records_are_spread_over_files(tmp_path):
    whole = write(tmp_path / "whole")
    parts = [write(tmp_path / str(k), RECORDS[2 * k : 2 * k + 2]) for k in range(3)]
    empty = write(tmp_path / "empty", [])
    assert load_or_build([whole]).content == load_or_build([*parts, empty]).content


def test_no_file_and_empty_files_hold_no_record(tmp_path):
    empty = write(tmp_path / "empty", [])
    assert load_or_build([]).records == 0
    assert load_or_build([empty, empty]).records == 0
    assert load_or_build([]).content == load_or_build([empty]).content
    assert load_or_build([empty, empty]).content == load_or_build([empty]).content


def test_a_missing_file_is_named_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingSource) as caught:
        load_or_build(["nowhere.tfrecord"])
    assert "nowhere.tfrecord" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(MissingSource, match="is a directory"):
        load_or_build([str(tmp_path)])


def test_a_record_whose_frame_begins_like_gzip_is_no_gzip(tmp_path):
    path = write(tmp_path / "a", [bytes(0x088B1F)])
    assert Path(path).read_bytes()[:3] == b"\x1f\x8b\x08"
    assert load_or_build([path]).records == 1


def test_a_file_that_is_written_while_it_is_indexed_is_refused(tmp_path):
    path = write(tmp_path / "a")

    def touch(_):
        os.utime(path, ns=(0, 1))

    with pytest.raises(SourceChanged, match="while it was indexed"):
        build(path, True, touch)


def test_a_long_scan_in_front_of_somebody_shows_a_bar(tmp_path, monkeypatch, capfd):
    pytest.importorskip("rich")
    path = write(tmp_path / "a")
    monkeypatch.setattr(telling, "_BAR", 0)
    load_or_build([path])
    assert capfd.readouterr().err == ""
    os.utime(path, ns=(0, 1))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert load_or_build([path]).records == len(RECORDS)
