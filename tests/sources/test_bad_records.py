"""Bad records of every source: left out, counted, listed, and the same on every resume."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from playhead import Dataset, FixedLenFeature, write_tfrecords
from playhead.errors import (
    CorruptRecord,
    IgnoredError,
    MissingSource,
    PipelineChanged,
    PipelineError,
    SlowResume,
    SourceChanged,
    SourceError,
)
from playhead.sources.files import silence, unpacking
from playhead.sources.tfrecord import building
from playhead.sources.tfrecord.index import decode, encode
from playhead.testing import assert_resumes_exactly

NUMBERS = {"x": FixedLenFeature((), np.int64)}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def frames(tmp_path, records):
    (path,) = write_tfrecords(records, tmp_path / "frames", overwrite=True)
    return Path(path).read_bytes()


def flipped(data, at, bit=1):
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def put(path, data):
    path.write_bytes(data)
    return str(path)


def tarred(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


# --- what each source leaves out ------------------------------------------------------------------------


def plain_tfrecords(tmp_path):
    """Record 1 of a has flipped data, 3 of b is no such Example, c has a broken length, d is cut short."""
    rows = [{"x": k} for k in range(5)]
    size = len(frames(tmp_path, rows[:1]))
    whole = frames(tmp_path, rows)
    odd = frames(tmp_path, [*rows[:3], {"y": 3}, rows[4]])
    paths = [
        put(tmp_path / "a", flipped(whole, size + 14)),
        put(tmp_path / "b", odd),
        put(tmp_path / "c", flipped(whole, 2 * size)),
        put(tmp_path / "d", whole[:-3]),
        put(tmp_path / "e", whole),
    ]
    lost = [(0, 1, size), (1, 3, 3 * size), (2, 2, 2 * size), (3, 4, 4 * size)]
    return (
        lambda: Dataset.from_tfrecords(paths, features=NUMBERS, on_error="skip"),
        [0, 2, 3, 4, 0, 1, 2, 4, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4],
        [(paths[file], record, offset) for file, record, offset in lost],
    )


def packed_tfrecords(tmp_path):
    """The same, compressed, and a file whose compression ends early."""
    _, kept, lost = plain_tfrecords(tmp_path)
    paths = []
    for name in "abcde":
        data = (tmp_path / name).read_bytes()
        paths.append(put(tmp_path / f"{name}.gz", gzip.compress(data)))
    paths.append(put(tmp_path / "f.gz", gzip.compress(data, 0)[: -8 - 3]))  # stored as it is
    lost = [(f"{path}.gz", record, offset) for path, record, offset in lost]
    lost.append((paths[-1], 4, len(data) // 5 * 4))
    make = lambda: Dataset.from_tfrecords(paths, features=NUMBERS, on_error="skip")  # noqa: E731
    return make, [*kept, 0, 1, 2, 3], lost


def lines(tmp_path):
    path = put(tmp_path / "a.txt", b"one\ntwo \xff\nthree\n\xff\n")
    lost = [(path, 1, 4), (path, 3, 16)]
    return lambda: Dataset.from_lines(path, on_error="skip"), ["one", "three"], lost


def json_lines(tmp_path):
    path = put(tmp_path / "a.jsonl", b'{"x": 0}\nno\n{"x": 2}\n{"x": 3000000000}\n{"x": 4}\n')
    lost = [(path, 1, 9), (path, 3, 21)]
    return lambda: Dataset.from_json_lines(path, on_error="skip"), [0, 2, 4], lost


def packed_json_lines(tmp_path):
    """The second file ends before the end of line 3."""
    text = b'{"x": 0}\nno\n{"x": 2}\n{"x": 3000000000}\n{"x": 4}\n'
    paths = [
        put(tmp_path / "a.gz", gzip.compress(text)),
        put(tmp_path / "b.gz", gzip.compress(text, 0)[: -8 - 10]),  # stored as it is
        put(tmp_path / "c.bz2", bz2.compress(text)),
        put(tmp_path / "d.xz", lzma.compress(text)),
        put(tmp_path / "e.jsonl", text),
    ]
    lost = [(path, record, offset) for path in paths for record, offset in ((1, 9), (3, 21))]
    make = lambda: Dataset.from_json_lines(paths, on_error="skip")  # noqa: E731
    return make, [0, 2, 4, 0, 2, *[0, 2, 4] * 3], lost


def rows(tmp_path):
    pytest.importorskip("pyarrow")
    path = put(tmp_path / "a.csv", b"x,y\n0,1\n1,none\n2\n3,4\n")
    lost = [(path, 2, 8), (path, 3, 15)]
    dtypes = {"x": np.int32, "y": np.int32}
    return lambda: Dataset.from_csv(path, dtypes=dtypes, on_error="skip"), [0, 3], lost


def parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = str(tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"x": [0, 1, None, 3, 4, 5]}),
        path,
        row_group_size=2,
        compression=None,
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = Path(path).read_bytes()
    put(Path(path), flipped(data, data.index(struct.pack("<qq", 4, 5))))
    lost = [(path, 2, None), (path, 4, None), (path, 5, None)]
    return lambda: Dataset.from_parquet(path, on_error="skip"), [0, 1, 3], lost


MEMBERS = [("0.cls", b"0"), ("1.cls", b"one"), ("2.cls", b"2"), ("3.cls", b""), ("4.cls", b"4")]


def samples(tmp_path):
    path = put(tmp_path / "a.tar", tarred(MEMBERS))
    lost = [(path, 1, 1536), (path, 3, 3584)]
    make = lambda: Dataset.from_tar(path, decode="auto", on_error="skip")  # noqa: E731
    return make, [0, 2, 4], lost


def packed_samples(tmp_path):
    """The second file ends inside its last sample."""
    data = tarred(MEMBERS)
    paths = [
        put(tmp_path / "a.tar.gz", gzip.compress(data)),
        put(tmp_path / "b.tar.gz", gzip.compress(data[: 9 * 512])),
        put(tmp_path / "c.tar", data),
    ]
    lost = [(path, record, offset) for path in paths for record, offset in ((1, 1536), (3, 3584))]
    lost.insert(4, (paths[1], 4, 4608))
    make = lambda: Dataset.from_tar(paths, decode="auto", on_error="skip")  # noqa: E731
    return make, [0, 2, 4, 0, 2, 0, 2, 4], lost


def pictures(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    (tmp_path / "cat").mkdir()
    for k in range(4):
        pil.fromarray(np.full((2, 2, 3), k, np.uint8)).save(tmp_path / "cat" / f"{k}.png")
    path = put(tmp_path / "cat" / "2.png", b"no picture")
    make = lambda: Dataset.from_image_folder(tmp_path, decode=True, on_error="skip")  # noqa: E731
    return make, [0, 1, 3], [(path, None, None)]


def array_records(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    path = str(tmp_path / "a.array_record")
    writer = module.ArrayRecordWriter(path, "group_size:1,uncompressed")
    for k in range(9):
        writer.write(b"%d" % k * 50)
    writer.close()
    data = Path(path).read_bytes()
    put(Path(path), flipped(data, data.index(b"44444")))
    kept = [b"%d" % k * 50 for k in range(9) if k != 4]
    lost = [(path, 4, ...)]  # the package tells the byte of the chunk
    return lambda: Dataset.from_array_records(path, on_error="skip"), kept, lost


SOURCES = (
    plain_tfrecords,
    packed_tfrecords,
    lines,
    json_lines,
    packed_json_lines,
    rows,
    parquet,
    samples,
    packed_samples,
    pictures,
    array_records,
)


def value(element):
    """What tells an element of those sources from the others."""
    if isinstance(element, dict):
        return int(element["x"] if "x" in element else element["cls"])
    if isinstance(element, tuple):
        return int(element[0][0, 0, 0])
    return element


@pytest.mark.parametrize("source", SOURCES)
def test_bad_records_are_left_out_counted_and_listed_and_the_same_on_every_resume(tmp_path, source):
    make, kept, lost = source(tmp_path)
    iterator = make().iterator(epochs=2)
    assert [value(element) for element in iterator] == kept * 2
    listed = list(make().ignored())
    places = [(said.file, said.record, said.offset) for said in listed]
    assert len(places) == len(lost)
    for place, expected in zip(places, lost, strict=True):
        assert all(e is ... or p == e for p, e in zip(place, expected, strict=True)), place
    assert all(said.error for said in listed)
    later = [(said.file, said.record, said.offset) for said in make().ignored(epoch=1)]
    assert later == places

    def batches():
        return (
            make()
            .map(lambda *parts: value(parts if parts[1:] else parts[0]))
            .shuffle(4, seed=1)
            .batch(3)
        )

    assert_resumes_exactly(make, workers=(0, 2), every=2)
    assert_resumes_exactly(batches, workers=(0, 2), every=2)


@pytest.mark.parametrize("source", SOURCES)
def test_a_position_counts_what_was_left_out_before_it(tmp_path, source):
    make, kept, _ = source(tmp_path)
    iterator = make().iterator()
    counts = []
    for _ in kept:
        next(iterator)
        counts.append(iterator.position.cursor["ignored"])
    lost = len(list(make().ignored()))
    assert counts == sorted(counts) and counts[0] == 0 and lost >= counts[-1] > 0
    assert make().operations()[-1] == {"op": "ignore_errors"}


@pytest.mark.parametrize("source", SOURCES)
def test_without_skip_the_first_bad_record_is_an_error(tmp_path, source):
    make, _, lost = source(tmp_path)
    ds = make()
    node = ds.node.parent
    if source is plain_tfrecords:
        with pytest.raises(CorruptRecord) as caught:
            Dataset.from_tfrecords(tmp_path / "a", features=NUMBERS)
    else:
        with pytest.raises(SourceError) as caught:
            list(Dataset(node))
    assert caught.value.file == lost[0][0]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_pass_of_which_nothing_is_left_says_so_with_its_first_reasons(tmp_path, suffix):
    def warned(text, use):
        name = str(tmp_path / f"a.jsonl{suffix}")
        Path(name).write_bytes(gzip.compress(text) if suffix else text)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use(Dataset.from_json_lines(name, on_error="skip", name="train"))
        said = [w.message for w in caught if isinstance(w.message, IgnoredError)]
        assert len(said) == len([w for w in caught if not isinstance(w.message, SlowResume)])
        return said

    def twice(ds):
        with ds.batch(2).prefetch(2).iterator(epochs=2) as it:
            assert list(it) == []

    first, again = warned(b"{\n" * 5, twice)
    assert str(first).startswith("ignore_errors [train] ")
    assert "left out every element of a pass, 5 in all: UnparsableRecord: " in str(first)
    assert str(first).count("UnparsableRecord") == 3 and str(first).endswith(" ...")
    assert (Path(first.file).name, first.record, first.offset) == (f"a.jsonl{suffix}", 0, 0)
    assert vars(again) == vars(first)
    (short,) = warned(b"[\n", list)
    assert "1 in all" in str(short) and "..." not in str(short)

    def resumed(ds):
        it, again = ds.iterator(), ds.iterator()
        assert next(it)["x"] == 1
        again.load_state_dict(it.state_dict())
        assert list(again) == []

    assert warned(b'{"x": 1}\n{\n{\n', resumed) == []
    assert warned(b'{\n{"x": 1}\n', list) == []
    assert warned(b"", list) == [] and warned(b"{\n", lambda ds: list(ds.take(0))) == []


def test_what_is_left_out_is_warned_of_with_its_place_from_processes_too(tmp_path):
    make, kept, lost = plain_tfrecords(tmp_path)
    source = Dataset(make().node.parent)
    for pool in (lambda ds: ds, lambda ds: ds.prefetch(2, workers=2, on="processes")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", IgnoredError)
            with pool(
                source.ignore_errors(log_warning=True, name="train").batch(4)
            ).iterator() as it:
                found = [int(x) for batch in it for x in batch["x"]]
        assert found == kept
        said = [w.message for w in caught if isinstance(w.message, IgnoredError)]
        assert [(w.file, w.record, w.offset) for w in said] == lost
        assert "[train]" in str(said[0]) and said[0].error.startswith("CorruptRecord: ")
    copy = pickle.loads(pickle.dumps(said[0]))
    assert vars(copy) == vars(said[0]) and str(copy) == str(said[0])


@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
def test_processes_leave_out_and_count_the_same(tmp_path):
    make, kept, _ = plain_tfrecords(tmp_path)
    zipped, zipped_kept, _ = packed_tfrecords(tmp_path)
    mixed = lambda: Dataset.sample_from_datasets(  # noqa: E731
        [make(), zipped()], [0.5, 0.5], seed=1, stop_on_empty_dataset=False
    ).batch(3)
    expected = mixed().iterator()
    texts = [expected.position.to_json()]
    batches, together = [], []
    for batch in expected:
        batches.append(batch["x"].tolist())
        together += batches[-1]
        texts.append(expected.position.to_json())
    assert sorted(together) == sorted([*kept, *zipped_kept])
    with mixed().prefetch(2, workers=2, on="processes").iterator() as iterator:
        for step in (0, 3):
            iterator.load_state_dict(json.loads(texts[step]))
            for k, batch in enumerate(iterator, step):
                assert batch["x"].tolist() == batches[k]
                assert iterator.position.cursor == json.loads(texts[k + 1])["cursor"]


def test_a_mixture_leaves_out_the_same_on_every_resume(tmp_path):
    first, _, lost = plain_tfrecords(tmp_path)
    second, _, also = packed_json_lines(tmp_path)

    def mixture():
        numbers = second().map(lambda element: {"x": np.int64(element["x"])})
        return Dataset.sample_from_datasets([first(), numbers], [0.7, 0.3], seed=3).batch(4)

    assert_resumes_exactly(mixture, workers=(0, 2), every=2)
    assert [said.file for said in mixture().ignored()] == [place[0] for place in (*lost, *also)]


def test_what_is_neither_raise_nor_skip_is_refused(tmp_path):
    path = put(tmp_path / "a.txt", b"one\n")
    with pytest.raises(PipelineError, match="on_error"):
        Dataset.from_lines(path, on_error="ignore")
    (path,) = write_tfrecords([b"one"], tmp_path / "a")
    with pytest.raises(PipelineError, match="verify"):
        Dataset.from_tfrecords(path, verify="index", on_error="skip")


def test_a_missing_or_changed_file_is_never_left_out(tmp_path):
    (path,) = write_tfrecords([b"one", b"two", b"three"], tmp_path / "a")
    zipped = put(tmp_path / "a.gz", gzip.compress(Path(path).read_bytes()))
    text = put(tmp_path / "b.gz", gzip.compress(b"one\ntwo\n"))
    with pytest.raises(MissingSource):
        Dataset.from_tfrecords([path, f"{path}.not"], on_error="skip")
    datasets = {
        path: Dataset.from_tfrecords(path, on_error="skip"),
        zipped: Dataset.from_tfrecords(zipped, on_error="skip"),
        text: Dataset.from_lines(text, on_error="skip"),
    }
    for name, ds in datasets.items():
        data = Path(name).read_bytes()
        put(Path(name), data[:-20] + b"0" * 20)
        with pytest.raises(SourceChanged):
            list(ds)
        Path(name).unlink()
        with pytest.raises(MissingSource):
            list(ds)


# --- broken TFRecord files ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*left out every element:playhead.errors.IgnoredError")
def test_a_file_cut_anywhere_keeps_its_whole_records_and_loses_one(tmp_path):
    records = [b"one", b"", b"three"]
    data = frames(tmp_path, records)
    ends = np.cumsum([0, *(16 + len(record) for record in records)]).tolist()
    for size in range(len(data) + 1):
        path = put(tmp_path / f"{size}", data[:size])
        ds = Dataset.from_tfrecords(path, on_error="skip")
        whole = sum(end <= size for end in ends) - 1
        assert list(ds) == records[:whole]
        listed = [(said.file, said.record, said.offset) for said in ds.ignored()]
        assert listed == ([] if size in ends else [(path, whole, ends[whole])])
        if listed:
            with pytest.raises(CorruptRecord) as caught:
                Dataset(ds.node.parent).batch(9)[0]
            assert caught.value.size == size - ends[whole]
            assert caught.value.reason == "truncated"


def test_the_index_of_a_broken_file_is_kept_and_serves_nobody_who_wants_all(tmp_path, monkeypatch):
    path = put(tmp_path / "a", frames(tmp_path, [b"one", b"two", b"three"])[:-2])
    built = []
    real = building.build
    monkeypatch.setattr(building, "build", lambda *given: built.append(given[0]) or real(*given))

    def make():
        return Dataset.from_tfrecords(path, on_error="skip")

    first = make()
    assert list(first) == list(make()) == [b"one", b"two"]
    assert built == [path]
    kept = tmp_path / "playhead-index" / "a.index"
    index = decode(kept.read_bytes(), path)
    assert index.broken and not index.verified and encode(index) == kept.read_bytes()
    assert index.edges.tolist() == [0, 19, 38, 57]
    with pytest.raises(CorruptRecord) as caught:
        Dataset.from_tfrecords(path, verify="never")
    assert (caught.value.record, caught.value.offset) == (2, 38)
    assert list(make()) == [b"one", b"two"] and built == [path, path]


def test_a_broken_file_that_was_mended_or_broken_anew_is_another(tmp_path):
    data = frames(tmp_path, [b"one", b"two", b"three"])
    path = put(tmp_path / "a", flipped(data, 40))

    def make():
        return Dataset.from_tfrecords(path, on_error="skip")

    position = make().iterator().position
    for other in (flipped(data, 40, 2), data, flipped(data, 40)[:-1]):
        put(Path(path), other)
        with pytest.raises(PipelineChanged):
            make().iterator().load_state_dict(position)
    put(Path(path), flipped(data, 40))
    make().iterator().load_state_dict(position)


@pytest.mark.parametrize("kind", [b"", b"?", b"not a TFRecord file, but text" * 9])
def test_a_file_of_no_frames_at_all_is_one_record(tmp_path, kind):
    (good,) = write_tfrecords([b"one"], tmp_path / "good")
    path = put(tmp_path / "odd", kind)
    ds = Dataset.from_tfrecords([path, good], on_error="skip")
    assert list(ds) == [b"one"]
    listed = list(ds.ignored())
    assert [(said.file, said.record, said.offset) for said in listed] == [(path, 0, 0)] * bool(kind)
    assert all("not a TFRecord file" in said.error for said in listed)


def test_a_remote_broken_file_is_read_as_the_same_bytes_here(tmp_path):
    data = flipped(frames(tmp_path, [b"%d" % k for k in range(9)]), 17 * 4 + 2)
    local = put(tmp_path / "a", data)
    MemoryFileSystem.store.clear()
    MemoryFileSystem().pipe_file("/bad/a", data)
    here = Dataset.from_tfrecords(local, on_error="skip")
    there = Dataset.from_tfrecords("memory://bad/a", on_error="skip")
    assert list(here) == list(there) == [b"0", b"1", b"2", b"3"]
    assert here.operations() == there.operations()
    said, also = list(here.ignored()), list(there.ignored())
    assert [(w.record, w.offset) for w in said] == [(w.record, w.offset) for w in also] == [(4, 68)]
    assert f"{len(data) - 68} bytes" in also[0].error
    MemoryFileSystem.store.clear()


def test_features_are_guessed_from_the_records_that_are_whole(tmp_path, capsys):
    data = frames(tmp_path, [{"x": k} for k in range(5)])
    path = put(tmp_path / "a", flipped(data, 14))
    ds = Dataset.from_tfrecords(path, features="infer", on_error="skip")
    assert [int(element["x"]) for element in ds] == [1, 2, 3, 4]
    assert "FixedLenFeature" in capsys.readouterr().err


# --- broken archives ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*left out every element:playhead.errors.IgnoredError")
def test_an_archive_cut_anywhere_keeps_its_whole_samples_and_loses_the_rest_as_one(tmp_path):
    names = [f"{k}.{extension}" for k in range(3) for extension in ("cls", "txt")]
    data = tarred([(name, name[:1].encode() * 9) for name in names])
    for size in range(0, 6 * 1024 + 1, 256):  # a member is its header and a block
        path = put(tmp_path / f"{size}.tar", data[:size])
        zipped = put(tmp_path / f"{size}.tar.gz", gzip.compress(data[:size]))
        whole = sum(
            2048 * (k + 1) + 512 <= size for k in range(3)
        )  # the next one's header is there
        for name in (path, zipped):

            def make(name=name):
                return Dataset.from_tar(name, on_error="skip")

            assert [element["__key__"] for element in make()] == ["0", "1", "2"][:whole]
            assert [(w.file, w.record) for w in make().ignored()] == [(name, whole)]
        (said,) = Dataset.from_tar(path, on_error="skip").ignored()
        assert said.offset == 2048 * whole
        with pytest.raises(CorruptRecord):
            Dataset.from_tar(path)
    assert_resumes_exactly(lambda: Dataset.from_tar(path, on_error="skip").batch(1), workers=(0, 2))
    both = Dataset.from_tar([path, put(tmp_path / "whole.tar", data)], on_error="skip")
    assert [element["__key__"] for element in both] == ["0", "1", "0", "1", "2"]
    MemoryFileSystem.store.clear()
    MemoryFileSystem().pipe_file("/bad/a.tar", data[:5000])
    there = Dataset.from_tar("memory://bad/a.tar", on_error="skip")
    here = Dataset.from_tar(put(tmp_path / "a.tar", data[:5000]), on_error="skip")
    assert list(there) == list(here) and there.operations() == here.operations()
    MemoryFileSystem.store.clear()


# --- walking on -----------------------------------------------------------------------------------------


def counted(monkeypatch):
    """How many bytes were decompressed, in a list of one."""
    count = [0]
    real = unpacking._Zlib.step

    def step(engine, data):
        made, left = real(engine, data)
        count[0] += len(made)
        return made, left

    monkeypatch.setattr(unpacking._Zlib, "step", step)
    return count


def test_bad_records_of_compressed_files_are_passed_without_decompressing_again(
    tmp_path, monkeypatch
):
    """Opening again behind each would read this 200-fold."""
    text = b"".join(b"%d\n" % k if k % 5 else b"odd %d\n" % k for k in range(1000))
    kept = [k for k in range(1000) if k % 5]
    examples = frames(tmp_path, [{"x": k} if k % 5 else {"y": k} for k in range(1000)])
    members = tarred([(f"{k}.cls", b"%d" % k if k % 5 else b"odd") for k in range(1000)])
    zipped = {
        "text": put(tmp_path / "a.txt.gz", gzip.compress(text)),
        "examples": put(tmp_path / "a.gz", gzip.compress(examples)),
        "members": put(tmp_path / "a.tar.gz", gzip.compress(members)),
    }
    lines = Dataset.from_lines(zipped["text"])
    cases = {
        "JSON": (Dataset.from_json_lines(zipped["text"], on_error="skip"), text),
        "a map": (lines.map(int).ignore_errors(), text),
        "a filter": (lines.filter(lambda line: int(line) >= 0).ignore_errors(), text),
        "maps": (lines.map(lambda line: line).map(int).ignore_errors(), text),
        "Examples": (
            Dataset.from_tfrecords(zipped["examples"], features=NUMBERS, on_error="skip"),
            examples,
        ),
        "tar": (Dataset.from_tar(zipped["members"], decode="auto", on_error="skip"), members),
    }
    count = counted(monkeypatch)
    for name, (ds, whole) in cases.items():
        for pool in (ds, ds.prefetch(2, workers=2)):
            count[0] = 0
            with pool.iterator() as iterator:
                found = [int(x) if isinstance(x, str) else value(x) for x in iterator]
            assert found == kept, name
            assert count[0] == len(whole), name


def test_what_comes_before_damage_does_not_depend_on_where_the_walk_began(tmp_path):
    rng = np.random.default_rng(0)
    text = b"".join(b"%d %s\n" % (k, rng.bytes(400).hex().encode()) for k in range(4000))
    data = gzip.compress(text, 1)
    path = put(tmp_path / "a.gz", data[:1_000_000] + bytes(64) + data[1_000_064:])
    ds = Dataset.from_lines(path, encoding=None, on_error="skip")
    whole = list(ds)
    assert 0 < len(whole) < 4000
    iterator = ds.iterator()
    for _ in range(len(whole) - 40):
        next(iterator)
    position = iterator.position
    again = ds.iterator()
    again.load_state_dict(position)
    with pytest.warns(SlowResume):
        assert list(again) == whole[-40:]
    assert again.position.step == len(whole)


# --- what is no bad record ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_store_that_is_out_of_reach_is_an_error_and_no_bad_records(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(silence, "PATIENCE", 0.1)
    text = b"".join(b"%d\n" % k for k in range(1000)) + bytes(8 << 20) + b"\n"
    data = gzip.compress(text, 0) if suffix else text  # more than one block
    system = MemoryFileSystem()
    system.pipe_file(f"/out/a.txt{suffix}", data)

    def make():
        return Dataset.from_lines(f"memory://out/a.txt{suffix}", encoding=None, on_error="skip")

    def batches():
        return make().map(lambda line: line).ignore_errors().batch(10).iterator()

    whole = list(make())
    with batches() as iterator:
        next(iterator)
        position = iterator.position
    warnings.simplefilter("ignore", SlowResume)
    real = MemoryFileSystem.cat_file

    def refused(system, path, *args, **kwargs):
        if path.startswith("/out/"):
            raise ConnectionError("nobody answers")
        return real(system, path, *args, **kwargs)

    with batches() as again:  # nothing of the file has been read for it yet
        again.load_state_dict(position)
        with monkeypatch.context() as down:
            down.setattr(MemoryFileSystem, "cat_file", refused)
            with pytest.raises(SourceError, match="nobody answers"):
                next(again)
        assert again.position == position and position.cursor["at"]["ignored"] == 0
    with batches() as again:
        again.load_state_dict(position)
        assert [line for batch in again for line in batch] == whole[10:]
    MemoryFileSystem.store.clear()
