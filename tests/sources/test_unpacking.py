"""Decompressing from the beginning: members in a row, and what comes out of files that are cut or damaged."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import CorruptRecord, SourceError
from playhead.sources.files.unpacking import Broken, packing_of, unpacked
from playhead.testing import assert_resumes_exactly

try:
    import zstandard
except ImportError:
    zstandard = None

needs_zstd = pytest.mark.skipif(zstandard is None, reason="zstandard is not installed")


def zstd(data, **options):
    """One frame, with its checksum, in a window that only some readers allow where so told."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, write_checksum=True, **options)
    engine = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return engine.compress(data) + engine.flush()


PACK = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": functools.partial(bz2.compress, compresslevel=1),
    "xz": functools.partial(lzma.compress, preset=0),
    **({} if zstandard is None else {"zstd": zstd}),
}


def out_of(data, packing, size=1 << 20):
    """What comes out of blocks of `size`, and whether the end was found."""
    found = []
    try:
        for part in unpacked((data[k : k + size] for k in range(0, len(data), size)), packing):
            found.append(part)
    except Broken:
        return b"".join(found), False
    return b"".join(found), True


@pytest.mark.parametrize("packing", PACK)
@settings(max_examples=30, deadline=None)
@given(
    members=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    size=st.integers(1, 200),
    padded=st.booleans(),
)
def test_members_in_a_row_are_one_file_however_they_are_cut(packing, members, size, padded):
    data = b"".join(PACK[packing](member) for member in members) + bytes(512 * padded)
    assert out_of(data, packing, size) == (b"".join(members), True)


@pytest.mark.parametrize("packing", PACK)
def test_much_comes_out_of_little_in_pieces(packing):
    data = bytes(20 << 20)
    sizes = [len(part) for part in unpacked([PACK[packing](data)], packing)]
    assert sum(sizes) == len(data)
    assert max(sizes) <= (2 << 20 if packing == "zstd" else 1 << 20)


@pytest.mark.parametrize("packing", PACK)
def test_what_is_before_the_damage_comes_out_and_the_same_of_any_blocks(packing):
    text = b"".join(b"%d\n" % (k * k) for k in range(100_000))
    whole = PACK[packing](text)
    assert out_of(b"", packing) == (b"", True)
    for data in (whole[: len(whole) // 2], whole[:-1], whole + b"other"):
        found, ended = out_of(data, packing)
        assert not ended and text.startswith(found)
        assert out_of(data, packing, 8 << 20) == out_of(data, packing, 256 << 10) == (found, False)
    assert out_of(whole[: len(whole) // 2], packing)[0]
    flipped = bytearray(whole)
    flipped[-3] ^= 1  # in the checksum
    assert not out_of(bytes(flipped), packing)[1]


def test_a_file_is_told_by_its_name_then_by_its_first_bytes():
    assert packing_of("a.GZ", b"") == packing_of("a", gzip.compress(b"x")) == "gzip"
    assert packing_of("https://host/a.bz2?part=1.txt", b"") == "bz2"
    assert packing_of("a", lzma.compress(b"x")) == "xz"
    assert packing_of("a.txt", b"BZh is how this text begins") is None
    assert packing_of("a", b"") is None
    with pytest.raises(SourceError, match="compressed in a way"):
        packing_of("s3://bucket/a.zip", b"")


def test_zstd_without_its_package_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SourceError) as caught:
        Dataset.from_json_lines(tmp_path / "a.jsonl.zst")
    assert "playhead[zstd]" in caught.value.help


@needs_zstd
def test_zstd_lines_of_several_frames_are_walked_and_resume_exactly(tmp_path):
    skipped = bytes.fromhex("502a4d18") + (3).to_bytes(4, "little") + b"abc"
    data = skipped + zstd(b"zero\non") + zstd(b"e\n", window_log=30, enable_ldm=True) + zstd(b"two")
    (tmp_path / "told_by_its_bytes").write_bytes(data)
    (tmp_path / "told_by_its_name.zst").write_bytes(zstd(b"three\nfour\n"))
    (tmp_path / "told_by_no_frame").write_bytes(b"five\n")

    def make():
        return Dataset.from_lines(tmp_path / "told*").batch(2)

    expected = ["zero", "one", "two", "three", "four", "five"]
    assert [line for batch in make() for line in batch.tolist()] == expected
    assert_resumes_exactly(make, epochs=2, workers=(0, 2))


@needs_zstd
def test_a_zstd_file_that_is_cut_or_damaged_is_named(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    whole = zstd(b'{"x": 1}\n' * 3)
    for data in (whole[:-1], whole[:-5] + b"\0" + whole[-4:]):
        path.write_bytes(data)
        with pytest.raises(CorruptRecord) as caught:
            list(Dataset.from_json_lines(path))
        assert caught.value.file == str(path)
