"""Tar files of samples: WebDataset's grouping, any sample at random, damage named by member and byte."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    PipelineError,
    SlowResume,
    SourceChanged,
    UnparsableRecord,
)
from playhead.sources.files.opening import Opening
from playhead.sources.tar.building import Members
from playhead.sources.tar.index import decode, encode
from playhead.sources.tar.members import split
from playhead.sources.tar.walked import Forwards
from playhead.testing import assert_resumes_exactly, difference


def write(path, members, mode="w", **options):
    """A tar file of (name, bytes), or of (name, the letter of a type)."""
    with tarfile.open(path, mode, **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = data.encode(), "a/0.txt"
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)


def samples(n, start=0):
    return [
        (f"a/{k}.{extension}", f"{extension} {k}".encode())
        for k in range(start, start + n)
        for extension in ("txt", "jpg")
    ]


def elements(n, start=0):
    return [
        {"__key__": f"a/{k}", "txt": f"txt {k}".encode(), "jpg": f"jpg {k}".encode()}
        for k in range(start, start + n)
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b.jpg", ("a/b", "jpg")),
        ("./a/b.seg.PNG", ("./a/b", "seg.png")),
        ("x.y/b.txt", ("x.y/b", "txt")),
        ("b.", ("b", "")),
        ("b", None),
        ("a/.b", None),
        ("a.b/c", None),
        ("__info__/a.txt", None),
        ("__all__", None),
        ("a\nb.txt", ("a\nb", "txt")),
    ],
)
def test_a_name_is_split_at_the_first_dot_of_its_last_part(name, parts):
    assert split(name) == parts


def test_neighbours_of_one_key_are_a_sample_and_the_rest_is_passed_over(tmp_path):
    path = write(
        tmp_path / "a.tar",
        [
            ("a", "5"),
            ("README", b"read me"),
            ("a/0.txt", b"zero"),
            ("a/0.link", "1"),
            ("a/0.sym", "2"),
            ("a/.hidden", b"hidden"),
            ("a/0.CLS", b""),
            ("b/0.txt", b"other"),
        ],
    )
    ds = Dataset.from_tar(path)
    assert list(ds) == [
        {"__key__": "a/0", "txt": b"zero", "cls": b""},
        {"__key__": "b/0", "txt": b"other"},
    ]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_names_that_are_no_ascii_are_read_in_every_format(tmp_path, format):
    long = "d" * 90 + "/" + "e" * 60 if format == tarfile.USTAR_FORMAT else "d/" * 200 + "ü\u4e16"
    path = write(tmp_path / "a.tar", [(f"{long}.txt", b"x"), ("é.txt", b"y")], format=format)
    assert [e["__key__"] for e in Dataset.from_tar(path)] == [long, "é"]
    assert [e["__key__"] for e in Dataset.from_tar(write(path + ".gz", [], "w:gz"))] == []


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shards=st.lists(
        st.lists(
            st.dictionaries(
                st.sampled_from(["txt", "jpg", "a.b"]), st.binary(max_size=1500), min_size=1
            ),
            max_size=5,
        ),
        min_size=1,
        max_size=3,
    ),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    draw=st.data(),
)
def test_samples_come_back_in_any_order_from_files_and_from_compressed_ones(
    tmp_path_factory, shards, format, draw
):
    directory = tmp_path_factory.mktemp("data")
    paths, expected = [], []
    for number, shard in enumerate(shards):
        members = [
            (f"{number}/{k}.{extension}", data)
            for k, sample in enumerate(shard)
            for extension, data in sample.items()
        ]
        members = [(name, data + b"..") for name, data in members]
        paths.append(write(directory / f"{number}.tar", members, format=format))
        expected += [
            {"__key__": f"{number}/{k}", **{e: d + b".." for e, d in sample.items()}}
            for k, sample in enumerate(shard)
        ]
    node = Dataset.from_tar(paths).node
    assert node.cardinality == len(expected)
    count = len(expected)
    index = draw.draw(st.lists(st.integers(0, count - 1), max_size=9)) if count else []
    assert node.gather(np.array(index, np.int64)).rows() == [expected[k] for k in index]
    for path in paths[::2]:
        Path(path).write_bytes(gzip.compress(Path(path).read_bytes(), 1))
    assert list(Dataset.from_tar(paths)) == expected


def test_every_kind_of_order_resumes_exactly(tmp_path):
    for k in range(3):
        write(tmp_path / f"{k}.tar", samples(5, 5 * k))

    def make():
        return Dataset.from_tar(tmp_path / "*.tar")

    assert list(make()) == elements(15)
    assert_resumes_exactly(lambda: make().shuffle(seed=1), every=4)
    assert_resumes_exactly(lambda: make().shuffle(6, seed=1).batch(4))


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_compressed_files_are_walked_and_resume_in_the_middle_of_a_file(tmp_path, mode):
    write(tmp_path / "0.tar", samples(3))
    write(tmp_path / f"1.tar.{mode}", samples(4, 3), f"w:{mode}")
    write(tmp_path / "2.tar", [])
    write(tmp_path / "3.tar", samples(2, 7))

    def make():
        return Dataset.from_tar(tmp_path / "*.tar*")

    assert not make().seekable
    assert list(make()) == elements(9)
    it = make().iterator()
    for _ in range(5):
        next(it)
    assert it.position.cursor == {"epoch": 0, "file": 1, "sample": 2, "index": 5}
    (record,) = it.trace()
    assert (record.file, record.record, record.index) == (str(tmp_path / f"1.tar.{mode}"), 1, 4)
    again = make().iterator()
    again.load_state_dict(it.position)
    with pytest.warns(SlowResume, match="decompresses 2 samples again"):
        assert next(again) == elements(1, 5)[0]
    assert_resumes_exactly(lambda: make().batch(2))


def test_members_are_never_read_backwards_in_a_compressed_file(tmp_path, monkeypatch):
    members = [(f"{k}.bin", bytes(size)) for k, size in enumerate((0, 1, 512, 1024, 70_000, 512))]
    path = write(tmp_path / "a.tar.gz", members, "w:gz")
    places = []
    seek = Forwards.seek
    monkeypatch.setattr(
        Forwards, "seek", lambda file, at: places.append((file.tell(), at)) or seek(file, at)
    )
    found = [len(e["bin"]) for e in Dataset.from_tar(path)]
    assert found == [0, 1, 512, 1024, 70_000, 512]
    assert places and all(before <= at for before, at in places)
    file = Forwards(io.BytesIO(b"abc"))
    file.seek(2)
    with pytest.raises(io.UnsupportedOperation):
        file.seek(1)


def test_the_usual_extensions_are_decoded(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    picture, array, arrays = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pil.fromarray(pixels).save(picture, "png")
    np.save(array, np.arange(3, dtype=np.int16))
    np.savez(arrays, x=np.ones(2), y=np.float64(3))
    gray = io.BytesIO()
    pil.fromarray(pixels[:, :, 0]).save(gray, "png")
    members = {
        "txt": "ü".encode(),
        "cls": b"12\n",
        "json": b'{"a": 1, "b": [0.5, 1], "c": "d"}',
        "npy": array.getvalue(),
        "npz": arrays.getvalue(),
        "png": picture.getvalue(),
        "seg.png": gray.getvalue(),
        "bin": b"\0",
    }
    path = write(tmp_path / "a.tar", [(f"k.{e}", data) for e, data in members.items()])
    found = Dataset.from_tar(path, decode="auto")[0]
    expected = {
        "__key__": "k",
        "txt": "ü",
        "cls": np.int32(12),
        "json": {"a": np.int32(1), "b": np.array([0.5, 1], np.float32), "c": "d"},
        "npy": np.arange(3, dtype=np.int16),
        "npz": {"x": np.ones(2), "y": np.float64(3)},
        "png": pixels,
        "seg.png": np.repeat(pixels[:, :, :1], 3, axis=2),
        "bin": b"\0",
    }
    assert difference(found, expected) is None
    chosen = {"txt": "auto", ".SEG.png": len, "cls": lambda data: np.int64(int(data))}
    found = Dataset.from_tar(path, decode=chosen)[0]
    own = {"txt": "ü", "seg.png": np.int32(len(gray.getvalue())), "cls": np.int64(12)}
    assert difference(found, {"__key__": "k", **members, **own}) is None


def test_what_is_no_way_to_decode_is_refused(tmp_path):
    path = write(tmp_path / "a.tar", samples(1))
    with pytest.raises(PipelineError, match="decode is"):
        Dataset.from_tar(path, decode="all")
    with pytest.raises(PipelineError, match=r"decode\['bin'\]"):
        Dataset.from_tar(path, decode={"bin": "auto"})


@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
def test_what_cannot_be_decoded_is_named_by_file_member_and_byte_and_can_be_left_out(tmp_path):
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    members = [
        ("0.cls", b"1"),
        ("1.cls", b"one"),
        ("2.json", b'{"a": '),
        ("3.npy", pickled.getvalue()),
        ("4.txt", b"\xff"),
        ("5.png", b"no picture"),
        ("6.json", b"3000000000"),
        ("7.cls", b"7"),
    ]
    for path in (
        write(tmp_path / "a.tar", members),
        write(tmp_path / "b.tar.gz", members, "w:gz"),
    ):
        wrong = []
        for start in range(1, 7):
            with pytest.raises(UnparsableRecord) as caught:
                list(Dataset.from_tar(path, decode="auto").skip(start).take(1))
            error = caught.value
            assert error.member == members[error.record][0]
            assert error.file == path
            wrong.append(error.record)
            if path.endswith(".gz"):
                break  # a stream gets no further
            assert error.offset == 512 * (2 * start + 1)
        assert wrong == ([1] if path.endswith(".gz") else [1, 2, 3, 4, 5, 6])

        def make(path=path):
            return Dataset.from_tar(path, decode="auto").ignore_errors()

        it = make().iterator()
        assert [e["__key__"] for e in it] == ["0", "7"]
        assert it.position.cursor["ignored"] == 6
        assert_resumes_exactly(make)


def test_a_second_member_of_an_extension_is_named(tmp_path):
    path = write(tmp_path / "a.tar", [*samples(1), ("a/1.txt", b"xx"), ("a/1.TXT", b"yy")])
    ds = Dataset.from_tar(path)
    with pytest.raises(UnparsableRecord, match=r"a second \.txt of sample 'a/1'") as caught:
        ds[1]
    assert (caught.value.member, caught.value.record) == ("a/1.TXT", 1)
    assert list(ds.ignore_errors()) == elements(1)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_sample_torn_over_two_files_is_refused(tmp_path, compressed):
    whole = samples(4)
    kind = "gz" if compressed else ""
    paths = [
        write(tmp_path / "0.tar", whole[:3], f"w:{kind}"),
        write(tmp_path / "1.tar", [], f"w:{kind}"),
        write(tmp_path / "2.tar", whole[3:], f"w:{kind}"),
    ]
    with pytest.raises(CorruptRecord, match=r"sample 'a/1' has \.txt here and \.jpg in") as caught:
        list(Dataset.from_tar(paths))
    assert caught.value.file == paths[0]
    single = write(tmp_path / "single.tar", samples(1))
    assert list(Dataset.from_tar([single, single])) == elements(1) * 2


def test_members_that_are_not_next_to_their_sample_are_refused(tmp_path):
    members = samples(3)
    path = write(tmp_path / "a.tar", members[::2] + members[1::2])
    with pytest.raises(CorruptRecord, match=r"\.txt here and \.jpg further on"):
        Dataset.from_tar(path)
    path = write(tmp_path / "b.tar", samples(2) + samples(1))
    assert list(Dataset.from_tar(path)) == elements(2) + elements(1)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    data = Path(write(tmp_path / "a.tar", samples(2))).read_bytes()
    end = 4 * 1024  # four members of a block each
    assert data[end:].strip(b"\0") == b"" and data[end - 512 :].strip(b"\0")
    path = tmp_path / "cut.tar"
    for size in [0, 1, 511, 512, 513, 1023, 1024, 1536, 2048, 2050, end - 512, end - 1, end]:
        path.write_bytes(data[:size])
        with pytest.raises(CorruptRecord) as caught:
            Dataset.from_tar(path)
        assert caught.value.file == str(path), size
        assert 0 <= caught.value.offset <= size or size == 0
        zipped = tmp_path / "cut.tar.gz"
        zipped.write_bytes(gzip.compress(data[:size]))
        with pytest.raises(CorruptRecord):
            list(Dataset.from_tar(zipped))
    path.write_bytes(data[: end + 512])
    assert list(Dataset.from_tar(path)) == elements(2)


def test_a_compressed_file_cut_anywhere_gives_what_lies_before_and_an_error(tmp_path):
    rng = np.random.default_rng(0)
    members = [(f"{k}.bin", rng.bytes(3000)) for k in range(20)]
    data = Path(write(tmp_path / "a.tar.gz", members, "w:gz")).read_bytes()
    path = tmp_path / "cut.tar.gz"
    for size in range(100, len(data) - 8, len(data) // 7):
        path.write_bytes(data[:size])
        found = []
        with pytest.raises(CorruptRecord) as caught:
            found.extend(e["bin"] for e in Dataset.from_tar(path))
        assert found == [content for _, content in members[: len(found)]]
        assert caught.value.file == str(path)
        assert len(found) >= size * 20 // len(data) - 3


def test_every_flipped_bit_of_a_header_that_matters_is_noticed(tmp_path):
    data = bytearray(Path(write(tmp_path / "a.tar", samples(3))).read_bytes())
    path = tmp_path / "flipped.tar"
    for place in range(1024, 1024 + 512, 5):
        if place - 1024 in (154, 155):  # what ends the checksum means nothing
            continue
        data[place] ^= 0x02
        path.write_bytes(data)
        data[place] ^= 0x02
        with pytest.raises(CorruptRecord) as caught:
            Dataset.from_tar(path)
        assert (caught.value.offset, caught.value.member) == (1024, "a/0.txt")


def test_a_flipped_bit_beside_a_header_is_another_content(tmp_path):
    big = [("0.bin", bytes(5000)), ("1.bin", bytes(5000))]
    path = Path(write(tmp_path / "a.tar", big))
    said = Dataset.from_tar(path).operations()
    data = bytearray(path.read_bytes())
    for place in (512, 1000, 512 + 4999):
        data[place] ^= 1
        (tmp_path / "b.tar").write_bytes(data)
        data[place] ^= 1
        assert Dataset.from_tar(tmp_path / "b.tar").operations() != said
    moved = tmp_path / "moved.tar"
    moved.write_bytes(path.read_bytes())
    assert Dataset.from_tar(moved).operations() == said


def test_files_joined_by_cat_are_refused(tmp_path):
    one = Path(write(tmp_path / "a.tar", samples(1))).read_bytes()
    path = tmp_path / "joined.tar"
    path.write_bytes(one + one)
    with pytest.raises(CorruptRecord, match="--concatenate"):
        Dataset.from_tar(path)


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs the program tar")
def test_what_the_program_tar_writes_is_read(tmp_path):
    (tmp_path / "in").mkdir()
    for name, data in samples(3):
        (tmp_path / "in" / Path(name).name).write_bytes(data)
    os.link(tmp_path / "in" / "0.txt", tmp_path / "in" / "9.txt")
    for options in (["--format=gnu"], ["--format=pax"], ["--format=ustar"]):
        archive = tmp_path / "a.tar"
        command = ["tar", "--sort=name", *options, "-cf", archive, "-C", tmp_path, "in"]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("another tar than GNU's")
        found = list(Dataset.from_tar(archive))
        assert [e["__key__"] for e in found] == ["in/0", "in/1", "in/2"]
        assert found[2] == {"__key__": "in/2", "jpg": b"jpg 2", "txt": b"txt 2"}


def test_missing_and_unreadable_files_are_named(tmp_path):
    with pytest.raises(MissingSource, match="from_tar was given"):
        Dataset.from_tar([])
    with pytest.raises(MissingSource):
        Dataset.from_tar(tmp_path / "none-*.tar")
    with pytest.raises(MissingSource, match=r"\*\.tar"):
        Dataset.from_tar(tmp_path)


def test_a_file_written_or_cut_during_the_run_is_noticed(tmp_path):
    path = Path(write(tmp_path / "a.tar", samples(30)))
    node = Dataset.from_tar(path).node
    assert node.gather(np.array([3])).rows() == elements(1, 3)
    os.utime(path, ns=(0, 1))
    assert node.gather(np.array([4])).rows() == elements(1, 4)
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(data.replace(b"txt 7", b"TXT 7"))
    os.utime(path, ns=(0, 2))
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([5]))
    assert caught.value.file == str(path)
    zipped = Path(write(tmp_path / "b.tar.gz", samples(3), "w:gz"))
    ds = Dataset.from_tar(zipped)
    write(zipped, samples(3, 1), "w:gz")
    os.utime(zipped, ns=(0, 2))
    with pytest.raises(SourceChanged):
        list(ds)


def test_a_file_replaced_under_its_name_is_read_on_where_it_is_open(tmp_path):
    path = Path(write(tmp_path / "a.tar", samples(3)))
    node = Dataset.from_tar(path).node
    node.gather(np.array([0]))
    os.replace(write(tmp_path / "b", samples(3, 5)), path)
    os.utime(path, ns=(0, 2))
    assert node.gather(np.array([2])).rows() == elements(1, 2)
    with pytest.raises(SourceChanged):
        pickle.loads(pickle.dumps(node)).gather(np.array([2]))


def test_the_index_is_kept_and_a_stale_or_damaged_one_is_built_anew(tmp_path, monkeypatch):
    path = Path(write(tmp_path / "a.tar", samples(3)))
    assert list(Dataset.from_tar(path)) == elements(3)
    kept = tmp_path / "playhead-index" / "a.tar.members"
    built = []
    real = Members.build
    monkeypatch.setattr(Members, "build", lambda *a: built.append(1) or real(*a))
    assert list(Dataset.from_tar(path)) == elements(3) and not built
    blob = kept.read_bytes()
    for place in range(0, len(blob), 11):
        broken = bytearray(blob)
        broken[place] ^= 8
        kept.write_bytes(broken)
        assert list(Dataset.from_tar(path)) == elements(3)
    assert len(built) == len(range(0, len(blob), 11))
    built.clear()
    write(path, samples(3, 4))
    os.utime(path, ns=(0, 2))
    assert list(Dataset.from_tar(path)) == elements(3, 4) and built
    kept.unlink()
    elsewhere = tmp_path / "elsewhere"
    assert list(Dataset.from_tar(path, index=elsewhere)) == elements(3, 4)
    assert not kept.exists() and len(list(elsewhere.iterdir())) == 1


def test_a_source_travels_through_pickle_and_knows_its_records(tmp_path):
    write(tmp_path / "a.tar", samples(5))
    path = write(tmp_path / "b.tar", samples(4, 5))
    ds = Dataset.from_tar(tmp_path / "*.tar")
    (record,) = ds.trace(7)
    assert (record.file, record.record) == (path, 2)
    copy = pickle.loads(pickle.dumps(ds.node))
    assert copy.gather(np.array([8])).rows() == elements(1, 8)
    assert copy.describe() == ds.node.describe()
    for index in (-1, 9):
        with pytest.raises(IndexError, match=f"sample {index} of 9"):
            copy.gather(np.array([index]))


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # it leaves files open
def test_samples_are_those_that_webdataset_gives(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    rng = np.random.default_rng(3)
    members = [("d", "5"), ("d/README", b"read me"), ("__meta__/a.json", b"{}")]
    for k in range(40):
        members += [
            (f"d/{k:03d}.{extension}", rng.bytes(int(rng.integers(2, 3000))))
            for extension in ("jpg", "seg.png", "TXT")[: int(rng.integers(1, 4))]
        ]
    path = write(tmp_path / "a.tar", members)
    theirs = webdataset.WebDataset(path, shardshuffle=False, empty_check=False)
    found = list(Dataset.from_tar(path))
    wanted = [
        {k: v for k, v in sample.items() if k not in ("__url__", "__local_path__")}
        for sample in theirs
    ]
    assert len(found) == len(wanted) == 40
    assert found == wanted


def test_reading_needs_no_pillow_and_decoding_says_that_it_does(tmp_path):
    path = write(tmp_path / "a.tar", [("0.txt", b"one"), ("1.png", b"no picture")])
    code = f"""
import sys
sys.modules["PIL"] = None
import playhead as ph
ds = ph.Dataset.from_tar({path!r}, decode="auto")
assert ds[0]["txt"] == "one"
for make in (lambda: ds[1], lambda: ph.Dataset.from_tar({path!r}, decode={{"png": "auto"}})):
    try:
        make()
    except ph.errors.PipelineError as error:
        print(error.help)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stdout.count("playhead[images]") == 2


def test_json_that_is_no_json_says_so(tmp_path):
    path = write(tmp_path / "a.tar", [("0.json", json.dumps([[1], [2, 3]]).encode())])
    with pytest.raises(UnparsableRecord, match="unequal"):
        Dataset.from_tar(path, decode="auto")[0]
    assert Dataset.from_tar(path, decode={"json": lambda data: {"n": len(json.loads(data))}})[0][
        "json"
    ] == {"n": 2}


def test_an_archive_of_another_size_than_it_had_is_not_indexed(tmp_path):
    path, opening = write(tmp_path / "a.tar", samples(30)), Opening()
    (seen,) = opening.look([path])
    for count in (1, 60):
        write(path, samples(count))
        with pytest.raises(SourceChanged) as caught:
            Members().build(seen, opening)
        assert caught.value.file == path


def test_an_index_whose_numbers_run_over_is_not_believed(tmp_path):
    path, opening = write(tmp_path / "a.tar", samples(2)), Opening()
    shard = Members().build(*opening.look([path]), opening)
    assert decode(encode(shard), path) is not None
    for name in ("ends", "firsts"):
        numbers = getattr(shard, name)
        forged = np.concatenate([numbers[:1], [2**63 - 1, -(2**63), -1], numbers[-1:]])
        if name == "firsts":
            assert (np.diff(forged) > 0).all()  # as int64 has it
        else:
            forged = np.concatenate([forged[:-1], np.arange(len(numbers) - 4), numbers[-1:]])
        assert decode(encode(replace(shard, **{name: forged})), path) is None
