"""One row per operation and source: each resumes exactly, and gives what a list says it gives.

A row builds a pipeline and, where its order is known without playhead, says what `epochs` passes over it
give: `expected(e)` is pass e as a list of plain Python values.
"""

import functools
import gzip
import importlib
import io
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from playhead import Dataset, FixedLenFeature, write_tfrecords
from playhead.testing import assert_resumes_exactly

# Some of these pipelines have no element left.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*left out every element:playhead.errors.IgnoredError"
)


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], Dataset]
    expected: Callable[[int], list[Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def row(name, make, expected=None, **options):
    return Row(name, make, expected, {"workers": (0, 1, 4), **options})


def same(values):
    return lambda epoch: list(values)


def batched(values, size, drop=False):
    cut = [list(values[k : k + size]) for k in range(0, len(values), size)]
    return [batch for batch in cut if len(batch) == size or not drop]


def source(n=7):
    return Dataset.range(n)


def count_up(n=5):
    for number in range(n):
        yield number * 10


def count_from(n=5, start=0):
    for number in range(start, n):
        yield number * 10


def walked(n=7):
    """A stream over something seekable: 0, 1, 3, 4, 6, 7, ... without each third number from 2 on."""
    return Dataset.range(n * 3 // 2 + 1).filter(lambda x: x % 3 != 2)


def survivors(n=7):
    return [x for x in range(n * 3 // 2 + 1) if x % 3 != 2]


def generated(n=5):
    """A stream over nothing that can jump."""
    return Dataset.from_generator(count_from, args=(n,))


GENERATED = [0, 10, 20, 30, 40]


def from_tf_data(n):
    return importlib.import_module("tensorflow").data.Dataset.range(n)


def noisy(x, rng):
    return x + rng.random()


def ragged(x):
    return np.arange(x, dtype=np.int32)


def padded(values, fill=0):
    longest = max(map(len, values))
    return [list(v) + [fill] * (longest - len(v)) for v in values]


@functools.cache
def directory():
    return tempfile.TemporaryDirectory()


def in_file(name, data):
    """A file of that name that holds `data`."""
    path = Path(directory().name, name)
    if not path.exists():
        path.write_bytes(data)
    return path


def in_records(name, compression=None):
    """A TFRecord file of Examples with an "x"."""
    path = Path(directory().name, name)
    if not path.exists():
        write_tfrecords([{"x": k} for k in range(7)], path, compression=compression)
    return path


def needing_arrow(make):
    pytest.importorskip("pyarrow")
    return make()


def as_table():
    return importlib.import_module("pyarrow").table(
        {"x": range(7), "y": [[1.5] * (k % 3) for k in range(7)]}
    )


def in_parquet():
    """Two row groups in a file of rows of unequal length."""
    path = Path(directory().name, "a.parquet")
    if not path.exists():
        importlib.import_module("pyarrow.parquet").write_table(as_table(), path, row_group_size=4)
    return path


def in_tar(name, mode="w"):
    """Five samples, of which each has a text and some have a number."""
    path = Path(directory().name, name)
    if not path.exists():
        with tarfile.open(path, mode) as tar:
            for k in range(5):
                for extension in ("txt", "cls")[: 1 + k % 2]:
                    info = tarfile.TarInfo(f"a/{k}.{extension}")
                    info.size = 1
                    tar.addfile(info, io.BytesIO(b"%d" % k))
    return path


def in_array_record():
    """Files of four records and of three."""
    module = pytest.importorskip("array_record.python.array_record_module")
    for name, numbers in (("a.array_record", range(4)), ("b.array_record", range(4, 7))):
        path = Path(directory().name, name)
        if not path.exists():
            writer = module.ArrayRecordWriter(str(path), "group_size:2")
            for number in numbers:
                writer.write(b"%d" % number)
            writer.close()
    return Path(directory().name, "*.array_record")


def in_folder():
    """Two files of one class and one of another."""
    for name in ("pictures/b/0.png", "pictures/a/1.png", "pictures/a/0.jpg"):
        path = Path(directory().name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(name[9:].encode())
    return Path(directory().name, "pictures")


class Remembering:
    """The tens up to 60, by an iterator that knows its own place."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return self.at * 10

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


SOURCES = [
    row("range", lambda: Dataset.range(5), same(range(5))),
    row("range with a start and a step", lambda: Dataset.range(9, 1, -3), same([9, 6, 3])),
    row("range of nothing", lambda: Dataset.range(0), same([])),
    row("range of floats", lambda: Dataset.range(3, output_type=np.float32), same([0.0, 1.0, 2.0])),
    row(
        "tensor_slices",
        lambda: Dataset.from_tensor_slices(np.arange(6).reshape(3, 2)),
        same([[0, 1], [2, 3], [4, 5]]),
    ),
    row(
        "tensor_slices of a nest",
        lambda: Dataset.from_tensor_slices({"x": [1.5, 2.5], "y": (["a", "b\0"], [b"c", b"\0d"])}),
        same([{"x": 1.5, "y": ("a", b"c")}, {"x": 2.5, "y": ("b\0", b"\0d")}]),
    ),
    row(
        "tensor_slices of no rows",
        lambda: Dataset.from_tensor_slices(np.empty((0, 3), np.float32)),
        same([]),
    ),
    row(
        "tensors",
        lambda: Dataset.from_tensors(([1, 2], "word")),
        same([([1, 2], "word")]),
    ),
    row(
        "sequence",
        lambda: Dataset.from_sequence(["a", 2, (3.5, b"\0"), None]),
        same(["a", 2, (3.5, b"\0"), None]),
    ),
    row(
        "sequence of arrays",
        lambda: Dataset.from_sequence([np.arange(2), np.arange(4)], thread_safe=True),
        same([[0, 1], [0, 1, 2, 3]]),
    ),
    row("sequence of nothing", lambda: Dataset.from_sequence([]), same([])),
    row("generator", lambda: Dataset.from_generator(count_up), same(GENERATED)),
    row("generator with start=", generated, same(GENERATED)),
    row(
        "generator that has a state",
        lambda: Dataset.from_generator(Remembering),
        same([10, 20, 30, 40, 50, 60]),
    ),
    row(
        "generator that has a state, saved now and then",
        lambda: Dataset.from_generator(Remembering, state_every=4).shuffle(3, seed=1).repeat(2),
    ),
    row("generator of nothing", lambda: Dataset.from_generator(lambda: iter(())), same([])),
    row(
        "generator of a known length",
        lambda: Dataset.from_generator(count_up, length=5),
        same(GENERATED),
    ),
    row("tf.data pipeline", lambda: Dataset.from_tf(from_tf_data(3).batch(2)), same([[0, 1], [2]])),
]

FILES = [
    row("lines", lambda: Dataset.from_lines(in_file("a.txt", b"x\r\n\ny")), same(["x", "", "y"])),
    row("lines of an empty file", lambda: Dataset.from_lines(in_file("b.txt", b"")), same([])),
    row(
        "lines of which some are compressed",
        lambda: Dataset.from_lines(
            [in_file("c.txt", b"u\nv\n"), in_file("d.gz", gzip.compress(b"x\n\ny", mtime=0))],
            skip_blank=True,
        ),
        same(["u", "v", "x", "y"]),
    ),
    row(
        "json lines",
        lambda: Dataset.from_json_lines(in_file("a.jsonl", b'{"x": 1, "y": [2]}\n{"x": null}\n')),
        same([{"x": 1, "y": [2]}, {"x": None}]),
    ),
    row(
        "csv, shuffled and repeated",
        lambda: needing_arrow(
            lambda: (
                Dataset.from_csv(in_file("a.csv", b'x,y\n1,"a\nb"\n2,c\n3,d\n'))
                .shuffle(seed=1)
                .repeat(2)
                .batch(2)
            )
        ),
    ),
    row(
        "parquet",
        lambda: needing_arrow(lambda: Dataset.from_parquet(in_parquet())),
        same([{"x": k, "y": [1.5] * (k % 3)} for k in range(7)]),
    ),
    row(
        "parquet, shuffled in windows",
        lambda: needing_arrow(
            lambda: Dataset.from_parquet(in_parquet(), columns=["x"]).shuffle(3, seed=1).batch(2)
        ),
    ),
    row(
        "frame",
        lambda: needing_arrow(lambda: Dataset.from_frame(as_table())),
        same([{"x": k, "y": [1.5] * (k % 3)} for k in range(7)]),
    ),
    row(
        "tfrecords",
        lambda: Dataset.from_tfrecords(
            [in_records("a"), in_records("b")], features={"x": FixedLenFeature((), np.int64)}
        ),
        same([{"x": k % 7} for k in range(14)]),
    ),
    row(
        "tfrecords shuffled and batched",
        lambda: Dataset.from_tfrecords(in_records("a")).shuffle(seed=1).batch(3),
    ),
    row(
        "tfrecords of which one file is compressed",
        lambda: Dataset.from_tfrecords(
            [in_records("a"), in_records("a.gz", "GZIP")],
            features={"x": FixedLenFeature((), np.int64)},
        ),
        same([{"x": k % 7} for k in range(14)]),
    ),
    row(
        "compressed tfrecords, shuffled and repeated",
        lambda: (
            Dataset.from_tfrecords(in_records("a.zz", "ZLIB")).shuffle(4, seed=1).repeat(2).batch(3)
        ),
    ),
    row(
        "tar",
        lambda: Dataset.from_tar(in_tar("a.tar"), decode={"cls": int}),
        same(
            [
                {"__key__": f"a/{k}", "txt": b"%d" % k, **({"cls": k} if k % 2 else {})}
                for k in range(5)
            ]
        ),
    ),
    row(
        "tar, shuffled and repeated",
        lambda: Dataset.from_tar([in_tar("a.tar")] * 2).shuffle(seed=1).repeat(2),
        every=3,
    ),
    row(
        "tar of which some are compressed",
        lambda: Dataset.from_tar([in_tar("a.tar"), in_tar("b.tar.gz", "w:gz")]).map(
            lambda sample: sample["txt"]
        ),
        same([b"%d" % k for k in range(5)] * 2),
    ),
    row(
        "array records",
        lambda: Dataset.from_array_records(in_array_record()),
        same([b"%d" % k for k in range(7)]),
    ),
    row(
        "array records, shuffled and repeated",
        lambda: Dataset.from_array_records(in_array_record()).shuffle(seed=1).repeat(2).batch(4),
    ),
    row(
        "image folder",
        lambda: Dataset.from_image_folder(in_folder()),
        same([(b"a/0.jpg", 0), (b"a/1.png", 0), (b"b/0.png", 1)]),
    ),
    row(
        "tokens",
        lambda: Dataset.from_tokens(
            in_file("a.bin", bytes(range(9))), np.uint8, length=3, stride=2, targets=True
        ),
        same([([k, k + 1, k + 2], [k + 1, k + 2, k + 3]) for k in (0, 2, 4)]),
    ),
    row(
        "tokens of documents, shuffled and repeated",
        lambda: (
            Dataset.from_tokens(
                in_file("b.bin", bytes(range(20))), np.uint8, length=3, documents=[0, 7, 8]
            )
            .shuffle(seed=1)
            .repeat(2)
            .batch(4)
        ),
    ),
]

ORDER = [
    row("shuffle", lambda: source().shuffle(seed=1)),
    row("shuffle without a seed", lambda: source().shuffle()),
    row("shuffle in windows", lambda: source(23).shuffle(4, seed=1), every=3),
    row("shuffle in a window larger than the dataset", lambda: source().shuffle(100, seed=1)),
    row("shuffle with a window of one", lambda: source().shuffle(1, seed=1), same(range(7))),
    row(
        "shuffle the same in each epoch",
        lambda: source().shuffle(seed=1, reshuffle_each_iteration=False),
    ),
    row("shuffle twice", lambda: source().shuffle(seed=1).shuffle(seed=1)),
    row(
        "shuffle an endless dataset in windows",
        lambda: source(3).repeat().shuffle(4, seed=1),
        steps=11,
    ),
    row("shuffle nothing", lambda: source(0).shuffle(seed=1), same([])),
    row("shuffle one element", lambda: source(1).shuffle(seed=1), same([0])),
    row("shuffle by sorting and by a network", lambda: source(5000).shuffle(seed=1).batch(1250)),
    row("repeat", lambda: source(3).repeat(2), same([0, 1, 2, 0, 1, 2])),
    row("repeat no times", lambda: source(3).repeat(0), same([])),
    row("repeat once", lambda: source(3).repeat(1), same([0, 1, 2])),
    row("repeat nothing", lambda: source(0).repeat(3), same([])),
    row("repeat nothing without end", lambda: source(0).repeat(), same([])),
    row(
        "repeat without end",
        lambda: source(3).repeat(),
        lambda e: [0, 1, 2, 0, 1],
        epochs=1,
        steps=5,
    ),
    row("repeat without end, then take", lambda: source(3).repeat().take(5), same([0, 1, 2, 0, 1])),
    row(
        "repeat without end, take, repeat",
        lambda: source(10).repeat().take(3).repeat(2),
        same([0, 1, 2, 0, 1, 2]),
    ),
    row("repeat a repeat", lambda: source(2).repeat(2).repeat(2), same([0, 1] * 4)),
    row("repeat a shuffle", lambda: source(4).shuffle(seed=1).repeat(2)),
    row("shuffle a repeat", lambda: source(4).repeat(2).shuffle(seed=1)),
    row("endless epochs", lambda: source(3), lambda e: [0, 1, 2], epochs=None, steps=8),
    row(
        "endless epochs of an endless shuffle",
        lambda: source(3).shuffle(seed=1).repeat(),
        epochs=None,
        steps=8,
    ),
    row("take", lambda: source().take(3), same([0, 1, 2])),
    row("take more than there are", lambda: source(3).take(9), same([0, 1, 2])),
    row("take none", lambda: source(3).take(0), same([])),
    row("take all", lambda: source(3).take(-1), same([0, 1, 2])),
    row("skip", lambda: source().skip(4), same([4, 5, 6])),
    row("skip none", lambda: source(3).skip(0), same([0, 1, 2])),
    row("skip more than there are", lambda: source(3).skip(9), same([])),
    row("skip all", lambda: source(3).skip(-1), same([])),
    row("shard", lambda: source().shard(3, 1), same([1, 4])),
    row("shard with nothing left", lambda: source(2).shard(5, 4), same([])),
    row("shard by one", lambda: source(3).shard(1, 0), same([0, 1, 2])),
    row("concatenate", lambda: source(2).concatenate(Dataset.range(5, 8)), same([0, 1, 5, 6, 7])),
    row("concatenate with nothing", lambda: source(0).concatenate(source(2)), same([0, 1])),
    row("concatenate nothing", lambda: source(2).concatenate(source(0)), same([0, 1])),
    row(
        "concatenate other shapes",
        lambda: source(2).map(ragged).concatenate(source(3).map(ragged)),
        same([[], [0], [], [0], [0, 1]]),
    ),
    row(
        "concatenate with an endless dataset",
        lambda: source(2).concatenate(source(3).repeat()).take(6),
        same([0, 1, 0, 1, 2, 0]),
    ),
    row(
        "concatenate two shuffles",
        lambda: source(3).shuffle(seed=1).concatenate(source(4).shuffle(seed=2)),
    ),
    row("zip", lambda: Dataset.zip(source(3), Dataset.range(5, 9)), same([(0, 5), (1, 6), (2, 7)])),
    row(
        "zip into a dict",
        lambda: Dataset.zip({"a": source(2), "b": (source(3), source(4).skip(1))}),
        same([{"a": 0, "b": (0, 1)}, {"a": 1, "b": (1, 2)}]),
    ),
    row(
        "zip one dataset with itself",
        lambda: _with_itself(source(3)),
        same([(0, 0), (1, 1), (2, 2)]),
    ),
    row(
        "zip with an endless dataset",
        lambda: Dataset.zip(source(3), source(2).repeat()),
        same([(0, 0), (1, 1), (2, 0)]),
    ),
    row("zip with nothing", lambda: Dataset.zip(source(3), source(0)), same([])),
    row(
        "zip two shuffles",
        lambda: Dataset.zip(source(5).shuffle(seed=1), source(5).shuffle(seed=2)),
    ),
]

ELEMENTS = [
    row("map", lambda: source(4).map(lambda x: x * 2 + 1), same([1, 3, 5, 7])),
    row("map a tuple", lambda: source(3).enumerate().map(lambda k, x: k + x), same([0, 2, 4])),
    row("map a dict", lambda: _dicts().map(lambda d: d["a"] * 2), same([0, 2, 4])),
    row(
        "map to a nest",
        lambda: source(2).map(lambda x: (x, {"s": str(x)})),
        same([(0, {"s": "0"}), (1, {"s": "1"})]),
    ),
    row("map to ragged arrays", lambda: source(4).map(ragged), same([[], [0], [0, 1], [0, 1, 2]])),
    row("map in place", lambda: _rows().map(_double_in_place), same([[0, 2], [4, 6], [8, 10]])),
    row("map with random numbers", lambda: source(5).map(noisy, rng=True, seed=1)),
    row("map with random numbers without a seed", lambda: source(5).map(noisy, rng=True)),
    row(
        "map with random numbers after repeat",
        lambda: source(3).repeat(2).map(noisy, rng=True, seed=1),
    ),
    row(
        "map with random numbers before repeat",
        lambda: source(3).map(noisy, rng=True, seed=1).repeat(2),
    ),
    row(
        "map with random numbers twice", lambda: source(3).map(noisy, rng=True).map(noisy, rng=True)
    ),
    row("enumerate", lambda: source(3).skip(1).enumerate(start=5), same([(5, 1), (6, 2)])),
    row(
        "enumerate a repeat",
        lambda: source(2).repeat(2).enumerate(),
        same([(0, 0), (1, 1), (2, 0), (3, 1)]),
    ),
    row("filter", walked, same(survivors())),
    row("filter nothing out", lambda: source(3).filter(lambda x: True), same([0, 1, 2])),
    row("filter everything out", lambda: source(3).filter(lambda x: False), same([])),
    row("filter the end out", lambda: source(9).filter(lambda x: x < 3), same([0, 1, 2])),
    row("filter nothing", lambda: source(0).filter(lambda x: True), same([])),
    row(
        "filter a filter",
        lambda: walked(9).filter(lambda x: x % 2 == 0),
        same([x for x in survivors(9) if x % 2 == 0]),
    ),
    row("filter a shuffle", lambda: source().shuffle(seed=1).filter(lambda x: x % 3 != 2)),
    row(
        "filter batches",
        lambda: source(9).batch(2).filter(lambda b: b.sum() % 3 != 1),
        same([b for b in batched(range(9), 2) if sum(b) % 3 != 1]),
    ),
    row("filter a generator", lambda: generated().filter(lambda x: x % 20 == 0), same([0, 20, 40])),
]

BATCHES = [
    row("batch", lambda: source(7).batch(3), same(batched(range(7), 3))),
    row("batch evenly", lambda: source(6).batch(3), same(batched(range(6), 3))),
    row(
        "batch without remainder",
        lambda: source(7).batch(3, True),
        same(batched(range(7), 3, True)),
    ),
    row("batch larger than the dataset", lambda: source(2).batch(5), same([[0, 1]])),
    row(
        "batch larger than the dataset without remainder",
        lambda: source(2).batch(5, True),
        same([]),
    ),
    row("batch nothing", lambda: source(0).batch(5), same([])),
    row("batch by one", lambda: source(3).batch(1), same([[0], [1], [2]])),
    row(
        "batch across passes",
        lambda: source(4).repeat(2).batch(3),
        same([[0, 1, 2], [3, 0, 1], [2, 3]]),
    ),
    row("batch in each pass", lambda: source(4).batch(3).repeat(2), same([[0, 1, 2], [3]] * 2)),
    row(
        "batch batches",
        lambda: source(9).batch(2, True).batch(3),
        same([[[0, 1], [2, 3], [4, 5]], [[6, 7]]]),
    ),
    row(
        "batch words",
        lambda: Dataset.from_tensor_slices(["a", "b\0", "c"]).batch(2),
        same([["a", "b\0"], ["c"]]),
    ),
    row(
        "batch a nest",
        lambda: Dataset.from_tensor_slices({"x": [[1], [2], [3]], "y": ([4, 5, 6],)}).batch(2),
        same([{"x": [[1], [2]], "y": ([4, 5],)}, {"x": [[3]], "y": ([6],)}]),
    ),
    row(
        "batch after a map",
        lambda: source(5).map(lambda x: (x, float(x))).batch(2),
        same([([0, 1], [0.0, 1.0]), ([2, 3], [2.0, 3.0]), ([4], [4.0])]),
    ),
    row(
        "padded_batch",
        lambda: source(5).map(ragged).padded_batch(2),
        same([padded([[], [0]]), padded([[0, 1], [0, 1, 2]]), [[0, 1, 2, 3]]]),
    ),
    row(
        "padded_batch to a shape with a value",
        lambda: source(3).map(ragged).padded_batch(2, padded_shapes=[3], padding_values=-1),
        same([[[-1, -1, -1], [0, -1, -1]], [[0, 1, -1]]]),
    ),
    row(
        "padded_batch of words",
        lambda: (
            source(3).map(lambda x: (["w"] * int(x + 1), "s")).padded_batch(2, drop_remainder=True)
        ),
        same([([["w", ""], ["w", "w"]], ["s", "s"])]),
    ),
    row("map after batch", lambda: source(5).batch(2).map(lambda b: b.sum()), same([1, 5, 4])),
    row(
        "take and skip batches", lambda: source(9).batch(2).skip(1).take(2), same([[2, 3], [4, 5]])
    ),
    row("shard batches", lambda: source(9).batch(2).shard(2, 1), same([[2, 3], [6, 7]])),
    row("shuffle batches", lambda: source(9).batch(2).shuffle(seed=1)),
    row("prefetch", lambda: source(5).prefetch(2), same(range(5))),
    row("prefetch inside", lambda: source(5).map(noisy, rng=True, seed=1).prefetch(3).batch(2)),
    row(
        "prefetch, all chosen",
        lambda: source(5).map(lambda x: -x).prefetch(),
        same([0, -1, -2, -3, -4]),
    ),
]


def streams():
    """Every operation that can stand over a stream, over both kinds."""
    kinds = [("filter", walked, survivors()), ("generator", generated, GENERATED)]
    for kind, make, values in kinds:
        n = len(values)
        yield from [
            row(
                f"map over a {kind}",
                lambda make=make: make().map(lambda x: x + 1),
                same([v + 1 for v in values]),
            ),
            row(f"random map over a {kind}", lambda make=make: make().map(noisy, rng=True, seed=1)),
            row(
                f"batch over a {kind}", lambda make=make: make().batch(2), same(batched(values, 2))
            ),
            row(
                f"batch without remainder over a {kind}",
                lambda make=make: make().batch(3, True),
                same(batched(values, 3, True)),
            ),
            row(f"large batch over a {kind}", lambda make=make: make().batch(50), same([values])),
            row(
                f"padded_batch over a {kind}",
                lambda make=make: make().map(lambda x: ragged(x % 4)).padded_batch(2),
                same([padded([list(range(v % 4)) for v in b]) for b in batched(values, 2)]),
            ),
            row(f"take over a {kind}", lambda make=make: make().take(3), same(values[:3])),
            row(f"take none over a {kind}", lambda make=make: make().take(0), same([])),
            row(f"take all over a {kind}", lambda make=make: make().take(99), same(values)),
            row(f"skip over a {kind}", lambda make=make: make().skip(2), same(values[2:])),
            row(f"skip all over a {kind}", lambda make=make: make().skip(99), same([])),
            row(f"shard over a {kind}", lambda make=make: make().shard(3, 1), same(values[1::3])),
            row(
                f"repeat over a {kind}",
                lambda make=make: make().repeat(2),
                same(values * 2),
                every=2,
            ),
            row(
                f"endless repeat over a {kind}",
                lambda make=make: make().repeat(),
                lambda e, values=values, n=n: (values * 3)[: n + 4],
                epochs=1,
                steps=n + 4,
            ),
            row(
                f"endless repeat over a {kind}, then take",
                lambda make=make, n=n: make().repeat().take(n + 2),
                lambda e, values=values, n=n: (values * 2)[: n + 2],
            ),
            row(
                f"random map before repeat over a {kind}",
                lambda make=make: make().take(2).map(noisy, rng=True, seed=1).repeat(2),
            ),
            row(
                f"concatenate over a {kind}",
                lambda make=make: make().concatenate(source(2)),
                same([*values, 0, 1]),
            ),
            row(
                f"concatenate before a {kind}",
                lambda make=make: source(2).concatenate(make()),
                same([0, 1, *values]),
            ),
            row(
                f"zip over a {kind}",
                lambda make=make: Dataset.zip(make(), source(4)),
                same(list(zip(values, range(4), strict=False))),
            ),
            row(
                f"zip before a {kind}",
                lambda make=make: Dataset.zip({"a": source(99), "b": make()}),
                same([{"a": k, "b": v} for k, v in enumerate(values)]),
            ),
            row(
                f"enumerate over a {kind}",
                lambda make=make: make().enumerate(3),
                same(list(enumerate(values, 3))),
            ),
            row(
                f"endless epochs over a {kind}",
                make,
                lambda e, values=values: values,
                epochs=None,
                steps=n + 3,
            ),
            row(
                f"batch, repeat, take over a {kind}",
                lambda make=make: make().batch(2).repeat().take(5),
                lambda e, values=values: (batched(values, 2) * 5)[:5],
            ),
        ]


NESTED = [
    row(
        "the usual pipeline",
        lambda: (
            source(11).shuffle(seed=1).map(noisy, rng=True, seed=2).repeat(2).batch(4).prefetch(2)
        ),
        workers=(0, 1, 4),
    ),
    row(
        "nothing seeded",
        lambda: source(5).shuffle().map(noisy, rng=True).repeat(2).shuffle(3).batch(3),
    ),
    row(
        "zip of a stream and a shuffle, repeated",
        lambda: Dataset.zip(walked(4), source(5).shuffle(seed=1)).repeat(2).batch(3),
        workers=(0, 1, 4),
    ),
    row(
        "a filter that keeps nothing in some passes",
        lambda: source(6).shuffle(seed=1).take(2).filter(lambda x: x < 2).repeat(6).enumerate(),
    ),
    row(
        "epochs without an element",
        lambda: source(6).shuffle(seed=1).take(2).filter(lambda x: x < 2),
        epochs=7,
    ),
    row(
        "concatenate of streams, filtered and batched",
        lambda: (
            walked(5)
            .map(int)
            .concatenate(generated())
            .filter(lambda x: x % 4 != 1)
            .batch(2)
            .enumerate()
        ),
        same(list(enumerate(batched([x for x in survivors(5) + GENERATED if x % 4 != 1], 2)))),
    ),
    row(
        "take of a repeat of a take of a repeat",
        lambda: source(3).shuffle(seed=4).repeat().take(4).repeat().take(6).batch(4),
    ),
    row(
        "shard of a concatenation of batches",
        lambda: source(5).batch(2).concatenate(source(4).batch(3)).shard(2, 0),
        same([[0, 1], [4], [3]]),
    ),
    row(
        "skip in each pass of a stream",
        lambda: walked(4).skip(1).take(2).repeat(3).shard(2, 1),
        same(([1, 3] * 3)[1::2]),
    ),
]


def rows_of(x):
    return Dataset.from_tensor_slices(np.arange(int(x)) + 100 * int(x))


def jumbled(x):
    """A dataset that cannot jump, in an order of its own."""
    return rows_of(x).shuffle(seed=int(x)).filter(lambda y: y % 3 != 1)


def rows_from(values):
    return [y for x in values for y in range(100 * x, 101 * x)]


def interleaved(datasets, cycle, block):
    """tf.data's interleave over lists: a dataset that has ended leaves its slot when its turn comes again."""
    waiting, slots, out = list(datasets), [None] * cycle, []
    slot = 0
    while waiting or any(part is not None for part in slots):
        if slots[slot] is None and waiting:
            slots[slot] = list(waiting.pop(0))
        turn = slots[slot]
        if turn is not None:
            out += turn[:block]
            slots[slot] = turn[block:] if len(turn) >= block else None
        slot = (slot + 1) % cycle
    return out


def words():
    return Dataset.from_tensor_slices(["a", "b", "a", "c", "b", "d"])


def fails_at(*wrong):
    def divide(x):
        if x in wrong:
            raise ZeroDivisionError(f"{x}")
        return x * 2

    return divide


def of_length(n):
    return Dataset.from_sequence([np.full(k, k, np.int32) for k in n])


LENGTHS = [1, 5, 2, 9, 3, 7, 4, 4, 12, 1]
BUCKETS = [
    [[1, 0], [2, 2]],
    [[5, 5, 5, 5, 5, 0, 0], [7, 7, 7, 7, 7, 7, 7]],
    [[4, 4, 4, 4], [4, 4, 4, 4]],
    [[9] * 9 + [0] * 3, [12] * 12],
    [[3, 3, 3], [1, 0, 0]],
]

CHOOSING = [
    row("counter", lambda: Dataset.counter(3, 2).take(4), same([3, 5, 7, 9])),
    row("random", lambda: Dataset.random(seed=4).take(5)),
    row("random without a seed", lambda: Dataset.random(rerandomize_each_iteration=True).take(5)),
    row("select", lambda: source(9).select([8, 0, -2, 0]), same([8, 0, 7, 0])),
    row("select by a mask", lambda: source(4).select([True, False, False, True]), same([0, 3])),
    row("select nothing", lambda: source(4).select([]), same([])),
    row("select of a shuffle", lambda: source(9).shuffle(seed=1).select(range(3)).batch(2)),
    row("resample", lambda: source(5).resample([1, 0, 2, 3, 0], seed=1, num=9).batch(4)),
    row("resample without a seed", lambda: source(5).shuffle().resample(np.ones(5)).repeat(2)),
    row("shuffle a stream", lambda: walked(9).shuffle(4, seed=1)),
    row("shuffle a stream by one", lambda: generated().shuffle(1, seed=1), same(GENERATED)),
    row("shuffle a stream by all", lambda: generated().shuffle(99).repeat(2).batch(3)),
    row("cache", lambda: source(5).map(lambda x: x + 1).cache(), same([1, 2, 3, 4, 5])),
    row("cache a shuffle", lambda: source(6).shuffle(seed=1).cache().map(noisy, rng=True, seed=2)),
    row("cache a stream", lambda: walked(5).shuffle(3, seed=1).cache().batch(2), epochs=3),
    row("cache a generator", lambda: generated().cache().repeat(2), same(GENERATED * 2)),
    row("cache before a shuffle", lambda: source(6).batch(2).cache().shuffle(seed=1).repeat(2)),
    row("cache nothing", lambda: source(0).cache(), same([])),
]

MIXING = [
    row(
        "sample_from_datasets",
        lambda: Dataset.sample_from_datasets([source(4), source(3)], [0.7, 0.3], seed=1),
    ),
    row(
        "sample_from_datasets until one is empty",
        lambda: Dataset.sample_from_datasets(
            [source(9), source(3).map(lambda x: x + 50)], seed=2, stop_on_empty_dataset=True
        ).batch(2),
    ),
    row(
        "sample_from_datasets anew in each epoch",
        lambda: Dataset.sample_from_datasets(
            [source(3).shuffle(), source(2).repeat()],
            [1, 3],
            stop_on_empty_dataset=True,
            rerandomize_each_iteration=True,
        ).repeat(2),
        every=3,
    ),
    row(
        "sample_from_datasets of streams",
        lambda: Dataset.sample_from_datasets(
            [walked(4).map(int), generated(), source(2).map(int)],
            [1, 2, 1],
            seed=1,
            rerandomize_each_iteration=True,
        ).batch(2),
    ),
    row(
        "sample_from_datasets of streams until one is empty",
        lambda: Dataset.sample_from_datasets(
            [walked(4), generated()], seed=1, stop_on_empty_dataset=True
        ).map(noisy, rng=True, seed=3),
    ),
    row(
        "choose_from_datasets",
        lambda: Dataset.choose_from_datasets(
            [source(3), walked(2), generated()], Dataset.from_tensor_slices([2, 0, 0, 1, 2])
        ),
        same([0, 0, 1, 0, 10]),
    ),
    row(
        "choose_from_datasets past an empty one",
        lambda: Dataset.choose_from_datasets(
            [source(1), source(9).skip(5)], Dataset.range(2).repeat(3), stop_on_empty_dataset=False
        ),
        same([0, 5, 6, 7]),
    ),
    row(
        "choose_from_datasets until one is empty",
        lambda: Dataset.choose_from_datasets([source(1), source(9)], Dataset.range(2).repeat()),
        same([0, 0]),
    ),
]

NESTING = [
    row("flat_map", lambda: source(5).flat_map(rows_of), same(rows_from(range(5)))),
    row("flat_map to nothing", lambda: source(3).flat_map(lambda x: source(0)), same([])),
    row("flat_map of nothing", lambda: source(0).flat_map(rows_of), same([])),
    row(
        "flat_map a shuffle to streams, batched",
        lambda: source(6).shuffle(seed=1).flat_map(jumbled).batch(3),
    ),
    row("flat_map a stream, repeated", lambda: walked(4).flat_map(rows_of).repeat(2), every=3),
    row(
        "flat_map a generator with random numbers",
        lambda: generated(3).flat_map(lambda x: source(2)).map(noisy, rng=True, seed=1),
    ),
    row(
        "flat_map in flat_map",
        lambda: source(4).flat_map(lambda x: source(int(x)).flat_map(lambda y: source(int(y)))),
        same([z for x in range(4) for y in range(x) for z in range(y)]),
    ),
    row(
        "interleave",
        lambda: source(6).interleave(rows_of, cycle_length=2, block_length=3),
        same(interleaved([rows_from([x]) for x in range(6)], 2, 3)),
    ),
    row(
        "interleave one by one",
        lambda: source(5).interleave(rows_of, cycle_length=3),
        same(interleaved([rows_from([x]) for x in range(5)], 3, 1)),
    ),
    row(
        "interleave many elements",
        lambda: source(5).interleave(lambda x: source(70 + 30 * int(x)), 3, 2),
        same(interleaved([range(70 + 30 * x) for x in range(5)], 3, 2)),
        every=61,
        epochs=2,
    ),
    row("interleave all", lambda: source(5).interleave(rows_of), every=2),
    row(
        "interleave a shuffle of streams, repeated",
        lambda: source(5).shuffle(seed=1).interleave(jumbled, 2, 2).repeat(2).batch(3),
        epochs=1,
    ),
    row("interleave a generator", lambda: generated(3).interleave(lambda x: walked(3), 2), every=2),
    row("interleave nothing", lambda: source(0).interleave(rows_of), same([])),
    row(
        "window",
        lambda: source(8).window(3).flat_map(lambda w: w.batch(3)),
        same(batched(range(8), 3)),
    ),
    row(
        "window with shift and stride",
        lambda: source(8).window(2, shift=3, stride=2).flat_map(lambda w: w.batch(2)),
        same([[0, 2], [3, 5], [6]]),
    ),
    row(
        "window without remainder",
        lambda: source(8).window(3, 2, drop_remainder=True).flat_map(lambda w: w.batch(3)),
        same([[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
    ),
    row(
        "window of a nest",
        lambda: source(4).enumerate().window(2).flat_map(lambda k, x: Dataset.zip(k, x).batch(2)),
        same([([0, 1], [0, 1]), ([2, 3], [2, 3])]),
    ),
]

CARRYING = [
    row("take_while", lambda: source(9).take_while(lambda x: x < 4), same([0, 1, 2, 3])),
    row("take_while nothing", lambda: source(9).take_while(lambda x: x < 0), same([])),
    row("take_while all", lambda: source(3).take_while(lambda x: True), same([0, 1, 2])),
    row(
        "take_while of a shuffle, batched",
        lambda: source(9).shuffle(seed=2).take_while(lambda x: x != 5).batch(2).repeat(3),
    ),
    row("take_while a stream", lambda: walked().take_while(lambda x: x < 5), same([0, 1, 3, 4])),
    row(
        "scan",
        lambda: source(5).scan(np.int64(0), lambda total, x: (total + x, total + x)),
        same([0, 1, 3, 6, 10]),
    ),
    row(
        "scan with a nest of states over a stream",
        lambda: walked(6).scan(
            {"n": np.int64(0), "seen": np.zeros(2)},
            lambda s, x: ({"n": s["n"] + 1, "seen": s["seen"] + [x, 1]}, (s["n"], s["seen"])),
        ),
    ),
    row("unique", lambda: words().unique(), same(["a", "b", "c", "d"])),
    row("unique of a shuffle", lambda: words().shuffle(seed=1).unique().batch(2)),
    row("unique of a generator", lambda: generated().map(lambda x: x % 20).unique(), same([0, 10])),
    row(
        "ignore_errors",
        lambda: source(7).map(fails_at(0, 3, 6)).ignore_errors(),
        same([2, 4, 8, 10]),
    ),
    row(
        "ignore_errors over a stream",
        lambda: walked(6).map(fails_at(1, 7)).ignore_errors().batch(2),
        same(batched([2 * x for x in survivors(6) if x not in (1, 7)], 2)),
    ),
    row(
        "ignore_errors everywhere", lambda: source(2).map(fails_at(0, 1)).ignore_errors(), same([])
    ),
    row(
        "ignore_errors of batches",
        lambda: source(6).map(fails_at(3)).batch(2).ignore_errors(),
        same([[0, 2], [8, 10]]),
    ),
    row(
        "rejection_resample",
        lambda: source(40).rejection_resample(lambda x: x % 4 != 0, [0.5, 0.5], seed=1),
        every=3,
    ),
    row(
        "rejection_resample of a known distribution",
        lambda: walked(20).rejection_resample(
            lambda x: x % 3, [0.2, 0.4, 0.4], initial_dist=[0.5, 0.4, 0.1]
        ),
    ),
]

REGROUPING = [
    row("unbatch", lambda: source(7).batch(3).unbatch(), same(range(7))),
    row("unbatch batches of one size", lambda: source(7).batch(3, True).unbatch(), same(range(6))),
    row(
        "unbatch, shuffle, batch",
        lambda: source(8).batch(4, True).unbatch().shuffle(seed=1).repeat(2).batch(3),
    ),
    row("unbatch a stream", lambda: walked(5).batch(2).unbatch(), same(survivors(5))),
    row(
        "unbatch a nest with random numbers",
        lambda: walked(5).enumerate().batch(2).unbatch().map(lambda k, x, r: r.random(), rng=True),
    ),
    row(
        "unbatch empty batches",
        lambda: source(3).map(lambda x: np.arange(x % 2)).unbatch(),
        same([0]),
    ),
    row("rebatch", lambda: source(10).batch(3).rebatch(4), same(batched(range(10), 4))),
    row(
        "rebatch by several sizes",
        lambda: source(11).batch(4).rebatch([1, 3]),
        same([[0], [1, 2, 3], [4], [5, 6, 7], [8], [9, 10]]),
    ),
    row(
        "rebatch without remainder over a stream",
        lambda: walked(7).batch(2).rebatch(3, drop_remainder=True).repeat(2),
        same(batched(survivors(7), 3, True) * 2),
    ),
    row(
        "map_batches",
        lambda: source(7).map_batches(lambda b: b + len(b), 3),
        same([3, 4, 5, 6, 7, 8, 7]),
    ),
    row(
        "map_batches, shuffled and batched",
        lambda: source(7).map_batches(lambda b: b * 2, 3).shuffle(seed=1).batch(2).repeat(2),
    ),
    row("map_batches of a stream", lambda: walked(5).map_batches(lambda b: -b, 2)),
    row(
        "group_by_window",
        lambda: source(8).group_by_window(lambda x: x % 3, lambda key, w: w.batch(2), 2),
        same([[0, 3], [1, 4], [2, 5], [6], [7]]),
    ),
    row(
        "group_by_window of a shuffle, flattened",
        lambda: (
            source(11)
            .shuffle(seed=1)
            .group_by_window(
                lambda x: x % 2, lambda key, w: w, window_size_func=lambda key: 2 + key
            )
            .enumerate()
        ),
    ),
    row(
        "group_by_window of a filter, repeated",
        lambda: (
            walked(9)
            .map(lambda x: x + 1)
            .group_by_window(lambda x: x % 2, lambda key, w: w.batch(3), 3)
            .repeat(2)
        ),
    ),
    row(
        "group_by_window of a generator",
        lambda: generated(9).group_by_window(lambda x: x % 30, lambda k, w: w.batch(2), 2).batch(1),
    ),
    row(
        "group_by_window of batches",
        lambda: (
            source(16)
            .batch(3)
            .group_by_window(lambda b: b[0] % 2, lambda k, w: w.padded_batch(2), 2)
        ),
    ),
    row(
        "group_by_window behind a skip of a generator",
        lambda: generated(9).skip(3).group_by_window(lambda x: x % 20, lambda k, w: w.batch(2), 2),
    ),
    row(
        "group_by_window whose windows are given out at the end of a generator",
        lambda: generated(6).group_by_window(lambda x: x % 30, lambda k, w: w, 99),
    ),
    row(
        "group_by_window of an enumerated stream",
        lambda: (
            walked(9)
            .enumerate()
            .group_by_window(lambda k, x: x % 2, lambda key, w: w.filter(lambda k, x: x != 3), 3)
        ),
    ),
    row(
        "bucket_by_sequence_length",
        lambda: of_length(LENGTHS).bucket_by_sequence_length(len, [4, 8], [2, 2, 2]),
        same(BUCKETS),
    ),
    row(
        "bucket_by_sequence_length to the boundary",
        lambda: (
            of_length([1, 2, 1])
            .shuffle(seed=1)
            .bucket_by_sequence_length(
                len, [2, 4], [2, 2, 2], pad_to_bucket_boundary=True, padding_values=-1
            )
        ),
    ),
    row(
        "bucket_by_sequence_length of a stream without remainder",
        lambda: (
            walked(12)
            .map(lambda x: np.arange(x % 7))
            .bucket_by_sequence_length(len, [3, 5], [2, 3, 1], drop_remainder=True)
            .repeat(2)
        ),
    ),
]


PACKING = [
    row(
        "pack",
        lambda: of_length([3, 1, 4]).pack(5),
        same(
            [
                {
                    "tokens": [3, 3, 3, 1, 4],
                    "segment_ids": [1, 1, 1, 2, 3],
                    "positions": [0, 1, 2, 0, 0],
                },
                {
                    "tokens": [4, 4, 4, 0, 0],
                    "segment_ids": [1, 1, 1, 0, 0],
                    "positions": [0, 1, 2, 0, 0],
                },
            ]
        ),
    ),
    row(
        "pack by first fit",
        lambda: of_length([3, 4, 2, 1, 7]).pack(5, "first_fit", bins=2).map(lambda d: d["tokens"]),
        same([[3, 3, 3, 2, 2], [4, 4, 4, 4, 1], [7] * 5, [7, 7, 0, 0, 0]]),
    ),
    row(
        "pack in lanes over a stream",
        lambda: walked(9).map(lambda x: np.full(x % 6, x)).pack(4, lanes=2).batch(2),
    ),
    row(
        "pack by lengths",
        lambda: of_length(LENGTHS).shuffle(seed=1).pack(6, lengths=LENGTHS).repeat(2).batch(2),
    ),
]


def split_rows():
    """Parts of batches, by one, two and three processes."""
    kinds = [
        ("batches", lambda: source(11).shuffle(seed=1).batch(4)),
        ("mapped batches", lambda: source(11).batch(4).map(lambda b: b * 2)),
        ("batches of a stream", lambda: walked(9).batch(4, True)),
        ("repeated batches", lambda: source(6).map(noisy, rng=True, seed=1).batch(3).repeat(2)),
    ]
    for name, make in kinds:
        for count in (1, 2, 3):
            yield row(
                f"split {name} by {count}",
                lambda make=make, count=count: (
                    make().split(count, count - 1).map(lambda b: b + 1).enumerate()
                ),
            )


VOCABULARY = [*CHOOSING, *MIXING, *NESTING, *CARRYING, *REGROUPING, *PACKING, *split_rows()]

TABLE = [*SOURCES, *FILES, *ORDER, *ELEMENTS, *BATCHES, *streams(), *NESTED, *VOCABULARY]


def _with_itself(dataset):
    return Dataset.zip(dataset, dataset)


def _dicts():
    return Dataset.from_tensor_slices({"a": [0, 1, 2], "b": [3, 4, 5]})


def _rows():
    return Dataset.from_tensor_slices(np.arange(6).reshape(3, 2))


def _double_in_place(x):
    x *= 2
    return x


def plain(element):
    """An element as Python values, with arrays as lists."""
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(plain(value) for value in element)
    return element.tolist() if isinstance(element, np.ndarray | np.generic) else element


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_it_resumes_exactly_after_every_step_with_any_number_of_workers(row):
    assert_resumes_exactly(row.make, **row.options)


KNOWN = [row for row in TABLE if row.expected is not None]


@pytest.mark.parametrize("row", KNOWN, ids=[row.name for row in KNOWN])
def test_it_gives_what_a_list_says(row):
    dataset, steps = row.make(), row.options.get("steps")
    epochs = row.options.get("epochs", 2)
    iterator = dataset.iterator(epochs=epochs)
    passes = []
    for epoch in iterator.epochs():
        passes.append([])
        for element in epoch:
            passes[-1].append(plain(element))
            if iterator.position.step == steps:
                break
        if iterator.position.step == steps:
            break
    assert passes == [row.expected(e)[: len(passes[e])] for e in range(len(passes))]
    if steps is None:
        assert passes == [row.expected(e) for e in range(epochs)]
        count = dataset.cardinality()
        assert count in (len(passes[0]), -2)
    else:
        assert sum(map(len, passes)) == steps


def test_every_operation_of_dataset_has_a_row():
    built = {said for row in TABLE for said in _operations(row.make())}
    assert built == {
        "random",
        "select",
        "resample",
        "cache",
        "sample_from_datasets",
        "choose_from_datasets",
        "flat_map",
        "interleave",
        "window",
        "take_while",
        "scan",
        "unique",
        "ignore_errors",
        "rejection_resample",
        "unbatch",
        "rebatch",
        "map_batches",
        "group_by_window",
        "bucket_by_sequence_length",
        "pack",
        "split",
        "range",
        "tensor_slices",
        "tensors",
        "sequence",
        "generator",
        "tf_data",
        "lines",
        "json_lines",
        "csv",
        "parquet",
        "frame",
        "tokens",
        "tfrecords",
        "tar",
        "image_folder",
        "array_records",
        "shuffle",
        "repeat",
        "take",
        "skip",
        "shard",
        "concatenate",
        "zip",
        "map",
        "filter",
        "enumerate",
        "batch",
        "padded_batch",
        "prefetch",
    }


def _operations(dataset):
    def walk(node):
        yield (node.describe() or {}).get("op", node.op)
        for parent in node.parents:
            yield from walk(parent)

    return walk(dataset.node)
