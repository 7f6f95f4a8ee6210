"""Lines, JSON lines, CSV and tokens on stores that fsspec knows: what local files give, in few requests."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    PipelineError,
    SlowResume,
    SourceChanged,
    SourceError,
)
from playhead.sources.files import blocks, remote, silence
from playhead.sources.text.offsets import OffsetsKind
from playhead.testing import assert_resumes_exactly

pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("cache")

LINES = "".join(f"line {k} " + "x" * (k % 30) + "\n" for k in range(500)).encode()
JSON = "".join(f'{{"id": {k}, "word": "w{k}"}}\n' for k in range(300)).encode()
CSV = b"x,word\n" + "".join(f'{k},"a\n{k}"\n' for k in range(300)).encode()
TOKENS = np.arange(5000, dtype=np.uint16).tobytes()

# A constructor, the bytes of files for it, and how many elements these hold.
SOURCES = {
    "lines": (Dataset.from_lines, [LINES, b"", b"without an end"], 501),
    "json": (Dataset.from_json_lines, [JSON, JSON[:400]], 317),
    "csv": (Dataset.from_csv, [CSV, b"x,word\r\n7,b\r\n"], 301),
    "tokens": (
        lambda files, **options: Dataset.from_tokens(
            files, np.uint16, length=7, targets=True, **options
        ),
        [TOKENS, TOKENS[:6], TOKENS[:100]],
        721,
    ),
}


@pytest.fixture(params=SOURCES)
def kind(request):
    if request.param == "csv":
        pytest.importorskip("pyarrow")
    return SOURCES[request.param]


@pytest.fixture
def scans(monkeypatch):
    """The paths of files that were read through for an index."""
    found, build = [], OffsetsKind.build

    def counting(self, seen, *rest):
        found.append(seen.path)
        return build(self, seen, *rest)

    monkeypatch.setattr(OffsetsKind, "build", counting)
    return found


def plain(element):
    if isinstance(element, dict):
        return {key: plain(part) for key, part in element.items()}
    if isinstance(element, tuple | list):
        return [plain(part) for part in element]
    return element.tolist() if isinstance(element, np.ndarray | np.generic) else element


def elements(ds, index):
    return [plain(ds[k]) for k in index]


# --- any store --------------------------------------------------------------------------------------


def test_remote_files_give_what_the_same_bytes_give_locally(tmp_path, memory, kind):
    make, files, count = kind
    for k, data in enumerate(files):
        memory.pipe(f"/data/part-{k}", data)
        (tmp_path / f"part-{k}").write_bytes(data)
    memory.pipe("/data/other", b"x")
    local, far = make(str(tmp_path / "part-*")), make("memory://data/part-*")
    assert len(far) == len(local) == count
    order = np.random.default_rng(0).permutation(count)[:50].tolist()
    assert elements(far, order) == elements(local, order)
    assert far.batch(32).iterator().position == local.batch(32).iterator().position
    mixed = make(
        [str(tmp_path / "part-0"), *(f"memory://data/part-{k}" for k in range(1, len(files)))]
    )
    assert elements(mixed, order) == elements(local, order)
    assert mixed.node.describe() == far.node.describe() == local.node.describe()
    assert far.element_spec == local.element_spec
    again = Dataset(pickle.loads(pickle.dumps(far.node)))
    assert elements(again, order[:5]) == elements(local, order[:5])
    record = far.trace(count - 1)[0]
    assert record.file.startswith("memory://") and record.record == local.trace(count - 1)[0].record


def test_remote_files_resume_exactly_and_under_either_roof(tmp_path, memory, kind):
    make, files, _ = kind
    memory.pipe("/data/a", files[0])
    (tmp_path / "a").write_bytes(files[0])
    assert_resumes_exactly(
        lambda: make("memory://data/a").shuffle(seed=1).take(30).batch(7), epochs=2, workers=(0, 2)
    )
    there = make("memory://data/a").shuffle(seed=1).batch(7).iterator()
    for _ in range(5):
        next(there)
    here = make(str(tmp_path / "a")).shuffle(seed=1).batch(7).iterator()
    here.load_state_dict(there.state_dict())
    for _ in range(5):
        assert plain(next(here)) == plain(next(there))


@pytest.mark.parametrize("change", ["replaced", "shorter", "gone"])
def test_a_file_that_changes_while_it_is_in_use_is_found(memory, kind, change):
    make, files, _ = kind
    memory.pipe("/data/a", files[0])
    ds = make("memory://data/a")
    assert len(ds)
    if change == "gone":
        memory.rm("/data/a")
    else:
        other = files[0] if change == "replaced" else files[0][: len(files[0]) // 2]
        memory.pipe("/data/a", other[::-1])
    with pytest.raises(MissingSource if change == "gone" else SourceChanged) as caught:
        ds.batch(8)[0]
    assert caught.value.file.startswith("memory://")


def test_nothing_there_is_said_when_the_dataset_is_made(memory, kind):
    make, files, _ = kind
    memory.pipe("/data/a", files[0])
    for path in (
        "memory://data/b-*",
        "memory://data/b",
        "memory://data",
        ["memory://data/a", "memory://data/b"],
    ):
        with pytest.raises(MissingSource, match="memory://"):
            make(path)
    with pytest.raises(SourceError, match="fsspec"):
        make("nowhere://data/a")


def test_an_index_is_built_when_it_is_needed_and_once(memory, scans):
    memory.pipe("/data/a.csv", CSV)
    memory.pipe("/data/a.jsonl", JSON)
    pytest.importorskip("pyarrow")
    for make, name in ((Dataset.from_csv, "a.csv"), (Dataset.from_json_lines, "a.jsonl")):
        ds = make(f"memory://data/{name}").shuffle(seed=1).batch(8).map(lambda x: x)
        assert scans == []
        assert len(ds) == 38
        assert len(make(f"memory://data/{name}")) == 300
        assert len(make(f"memory://data/{name}", index="memory://elsewhere")) == 300
        assert scans == [f"memory://data/{name}"] or [url.rpartition("/")[2] for url in scans] == [
            name
        ]
        scans.clear()
    assert memory.exists("/data/playhead-index/a.csv.rows")
    assert memory.exists("/data/playhead-index/a.jsonl.lines")


def test_a_file_of_many_blocks_is_indexed_as_a_whole(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK", 37)
    data = LINES + b" \n\n" + LINES
    memory.pipe("/data/a", data)
    ds = Dataset.from_lines("memory://data/a", skip_blank=True, encoding=None)
    assert len(ds) == 1000
    expected = [line for line in data.split(b"\n") if line.strip()]
    assert ds.batch(1000)[0].tolist() == expected


def test_csv_types_are_told_by_rows_that_are_read_without_an_index(memory, scans):
    pytest.importorskip("pyarrow")
    memory.pipe("/data/a", b"x,y\n" + b"1,2\n" * 10)
    memory.pipe("/data/b", b"\nx,y\n" + b"1,2.5\n" * 10)
    ds = Dataset.from_csv(["memory://data/a", "memory://data/b"])
    assert ds.element_spec["x"].dtype == np.int64 and ds.element_spec["y"].dtype == np.float64
    memory.pipe("/data/c", b"y,x\n1,2\n")
    with pytest.raises(PipelineError, match=r"has the columns x, y, and memory://.*data/c y, x"):
        Dataset.from_csv(["memory://data/a", "memory://data/c"])
    memory.pipe("/data/d", b'x,y\n1,a"b\n')
    with pytest.raises(CorruptRecord) as caught:
        Dataset.from_csv("memory://data/d")
    assert caught.value.offset == 7
    assert scans == []


@pytest.mark.parametrize("row", [70_000, 1_500_000])
def test_a_first_row_that_is_longer_than_what_is_read_of_a_file_at_first_is_read_whole(memory, row):
    pytest.importorskip("pyarrow")
    memory.pipe("/data/a", b'x,y\n"' + b"n" * row + b'",2\n')
    ds = Dataset.from_csv("memory://data/a")
    assert ds.element_spec["x"].dtype is str
    assert plain(ds[0]) == {"x": "n" * row, "y": 2}


# --- compressed -------------------------------------------------------------------------------------

OPENERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
try:
    import zstandard

    OPENERS["zst"] = zstandard.ZstdCompressor().compress
except ImportError:
    pass


@pytest.mark.parametrize("suffix", OPENERS)
def test_compressed_remote_files_are_walked_and_resume_exactly(memory, suffix, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK", 100)
    memory.pipe(f"/data/a.{suffix}", OPENERS[suffix](LINES[:500]))
    memory.pipe("/data/b", LINES[500:900])
    expected = LINES[:500].decode().splitlines() + LINES[500:900].decode().splitlines()

    def make():
        return Dataset.from_lines("memory://data/*").batch(3)

    assert [line for batch in make() for line in batch.tolist()] == expected
    assert_resumes_exactly(make, epochs=2, workers=(0, 2))
    it = make().iterator()
    for _ in range(5):
        next(it)
    again = make().iterator()
    again.load_state_dict(it.state_dict())
    with pytest.warns(SlowResume, match="memory://"):
        assert next(again).tolist() == expected[15:18]
    memory.pipe(f"/data/a.{suffix}", OPENERS[suffix](LINES[900:1400]))
    with pytest.raises(SourceChanged):
        list(again.dataset)


def test_positions_in_compressed_files_know_content_not_paths(tmp_path, memory):
    data = gzip.compress(JSON)
    memory.pipe("/data/a.jsonl.gz", data)
    (tmp_path / "b.jsonl.gz").write_bytes(data)
    there = Dataset.from_json_lines("memory://data/a.jsonl.gz").iterator()
    here = Dataset.from_json_lines(tmp_path / "b.jsonl.gz").iterator()
    for _ in range(20):
        assert next(there) == next(here)
    assert there.position == here.position
    with pytest.raises(SourceError, match="from_csv reads rows at random"):
        Dataset.from_csv("memory://data/a.jsonl.gz")
    with pytest.raises(SourceError, match="reads tokens where they lie"):
        Dataset.from_tokens("memory://data/a.jsonl.gz", np.uint16, length=2)


# --- a web server -----------------------------------------------------------------------------------


def looks(site):
    """How many times files were looked at since the last call, and what was got of them."""
    with site.lock:
        asked, site.asked[:] = list(site.asked), []
    return (
        sum(method == "HEAD" for method, _, _ in asked),
        [what for method, _, what in asked if method == "GET"],
    )


def test_a_shuffled_batch_is_read_together_in_few_requests(site, monkeypatch):
    monkeypatch.setattr(blocks, "TOUCHES", 1000)
    lines = [b"%06d" % k + b"y" * 20_000 for k in range(400)]
    site.files["a"] = b"\n".join(lines)
    ds = Dataset.from_lines(f"{site.url}/a", encoding=None).batch(20)
    assert len(ds) == 20
    looks(site)
    site.latency, site.most = 0.02, 0
    assert ds[3].tolist() == lines[60:80]
    assert looks(site) == (1, [f"bytes={60 * 20007}-{80 * 20007 - 1}"])
    index = np.arange(0, 400, 10)
    assert ds.node.parent.gather(index).nest.tolist() == [lines[k] for k in index]
    _, got = looks(site)
    assert len(got) == 40  # 200 KB lie between any two
    assert 2 <= site.most <= remote.IN_FLIGHT


def test_what_was_read_of_small_files_is_kept_and_shuffling_them_asks_for_no_more(site):
    site.files.update({f"{k}.txt": LINES for k in range(4)})
    ds = Dataset.from_lines([f"{site.url}/{k}.txt" for k in range(4)]).shuffle(seed=1).batch(50)
    expected = LINES.decode().splitlines()
    assert len(ds) == 40
    looks(site)
    found = [line for k in range(40) for line in ds[k].tolist()]
    assert sorted(found) == sorted(expected * 4)
    _, got = looks(site)
    assert len(got) == 4 * blocks.TOUCHES


def test_windows_of_tokens_and_their_targets_share_requests(site):
    tokens = np.arange(300_000, dtype=np.uint32)
    site.files["a"] = tokens.tobytes()
    ds = Dataset.from_tokens(f"{site.url}/a", np.uint32, length=100, targets=True).batch(16)
    looks(site)
    inputs, targets = ds[2]
    assert inputs.tolist() == tokens[3200:4800].reshape(16, 100).tolist()
    assert targets.tolist() == tokens[3201:4801].reshape(16, 100).tolist()
    assert looks(site)[1] == [f"bytes={3200 * 4}-{4801 * 4 - 1}"]


def test_npy_files_are_read_behind_their_heads(tmp_path, site):
    np.save(tmp_path / "a.npy", np.arange(50, dtype=">i4"))
    site.files["a.npy"] = (tmp_path / "a.npy").read_bytes()
    ds = Dataset.from_tokens(f"{site.url}/a.npy", ">i4", length=5)
    assert ds[9].tolist() == [45, 46, 47, 48, 49] and ds[9].dtype == np.int32
    assert (
        ds.node.describe()
        == Dataset.from_tokens(tmp_path / "a.npy", ">i4", length=5).node.describe()
    )
    with pytest.raises(PipelineError, match="holds >i4 of shape"):
        Dataset.from_tokens(f"{site.url}/a.npy", np.uint16, length=5)


def test_a_file_is_looked_at_again_behind_each_read_but_not_too_often(site, monkeypatch):
    monkeypatch.setattr(blocks, "TOUCHES", 1000)
    site.files["a"] = LINES
    ds = Dataset.from_lines(f"{site.url}/a")
    assert len(ds) == 500
    monkeypatch.setattr(blocks, "PATIENCE", 1e9)
    looks(site)
    for k in range(5):
        ds[k]
    assert looks(site)[0] == 1
    monkeypatch.setattr(blocks, "PATIENCE", 0.0)
    for k in range(5):
        ds[k]
    assert looks(site)[0] == 5
    site.files["a"] = LINES.replace(b"line", b"LINE")
    site.version["a"] += 1
    for _ in range(2):
        with pytest.raises(SourceChanged) as caught:
            ds[7]
        assert caught.value.file == f"{site.url}/a"


def test_a_file_replaced_while_it_is_walked_is_found_at_its_end(site):
    site.files["a"] = LINES
    site.files["b.gz"] = gzip.compress(b"end\n")
    walk = iter(Dataset.from_lines([f"{site.url}/a", f"{site.url}/b.gz"]))
    assert next(walk) == "line 0 "
    site.version["a"] += 1
    with pytest.raises(SourceChanged):
        list(walk)


def test_only_heads_are_read_of_csv_files_until_they_are_needed(site):
    pytest.importorskip("pyarrow")
    rows = b"".join(b"%d,%s\n" % (k, b"z" * 1000) for k in range(5000))
    site.files.update({f"{k}.csv": b"x,word\n" + rows for k in range(3)})
    ds = Dataset.from_csv([f"{site.url}/{k}.csv" for k in range(3)]).shuffle(seed=1).batch(4)
    heads, got = looks(site)
    assert heads == 3
    assert got == ["bytes=0-65535"] * 3 + ["bytes=65536-1114111"]
    assert len(ds) == 3750
    _, got = looks(site)
    assert [what for what in got if what] == [
        f"bytes=0-{len(rows) + 6}"
    ] * 3  # and asked for indexes


def test_what_a_server_would_compress_for_the_way_is_asked_for_as_it_is(site):
    site.files["a"] = LINES
    site.squeezes = True
    ds = Dataset.from_lines(f"{site.url}/a", storage_options={"headers": {"X-Token": "t"}})
    assert ds[7] == LINES.decode().splitlines()[7]
    assert len(ds) == 500


def test_a_server_that_is_busy_or_knows_no_ranges_is_told_from_a_changed_file(site, monkeypatch):
    site.files["a"] = LINES
    ds = Dataset.from_lines(f"{site.url}/a")
    site.failures = 3
    assert ds[5] == "line 5 xxxxx"
    monkeypatch.setattr(silence, "PATIENCE", 0.2)
    ds = Dataset.from_lines(f"{site.url}/a")
    assert len(ds) == 500
    site.failures = 1000
    with pytest.raises(SourceError, match="503"):
        ds[400]
    site.failures, site.ranges = 0, False
    with pytest.raises(SourceError, match="sends all of it"):
        pickle.loads(pickle.dumps(ds))[300]


# --- an object store --------------------------------------------------------------------------------


def test_an_s3_bucket_is_read_indexed_and_watched(bucket, kind, scans):
    make, files, count = kind
    for k, data in enumerate(files):
        bucket.system.pipe(f"{bucket.url}/part-{k}", data)
    for _ in range(2):
        ds = make(f"{bucket.url}/part-*", storage_options=bucket.options)
        assert len(ds) == count
        ds.batch(16)[0]
    assert len(scans) in (0, len(files))  # tokens need none
    again = pickle.loads(pickle.dumps(ds.node))
    bucket.system.pipe(f"{bucket.url}/part-0", files[0][::-1])
    with pytest.raises(SourceChanged) as caught:
        again.gather(np.arange(16))
    assert caught.value.file == f"{bucket.url}/part-0"
