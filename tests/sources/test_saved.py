"""Datasets saved in directories, and caches in them: what comes back, whatever is killed or damaged."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from playhead import Dataset, kernels
from playhead.errors import (
    CorruptRecord,
    ElementError,
    MissingSource,
    PipelineChanged,
    PipelineError,
    SourceChanged,
    SourceError,
)
from playhead.execution.ordered import Ordered
from playhead.execution.threads import ThreadPool
from playhead.plan.block import ArraySpec, Columns, Rows
from playhead.plan.node import UNKNOWN, Serial
from playhead.plan.places import Places
from playhead.sources.saved.reading import saved
from playhead.sources.saved.store import MANIFEST
from playhead.sources.saved.stored import prepare, stored
from playhead.sources.saved.storing import write
from playhead.testing import assert_resumes_exactly, difference

KILLS = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

ELEMENTS = [
    {"x": np.arange(3, dtype=np.float32), "y": (np.int64(1), "word\0", b"\0\xff", None)},
    {"x": np.arange(4, dtype=np.float32), "y": (np.int64(2), "", b"", None)},
    np.array([["a", b"b"], [None, "\udc80"]], object),
    (),
    {"x": np.zeros((0, 2), np.int8), 7: np.array(5.5)},
]


def read(source, order=None):
    index = np.arange(source.cardinality) if order is None else np.array(order, np.int64)
    return source.gather(index).rows()


def pairs(count=6):
    """Elements that all have the same shapes."""
    return [
        {"x": np.full((2, 3), k, np.int16), "y": np.float64(k) / 7, "z": np.array([k == 2])}
        for k in range(count)
    ]


def the_file(path, kind):
    (found,) = Path(path).glob(f"elements-*.{kind}")
    return found


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


# --- what comes back ------------------------------------------------------------------------------------

texts = st.text() | st.text("\0\ud800a")
dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes(min_len=1)
    | hnp.unicode_string_dtypes(min_len=1)
    | hnp.array_dtypes(allow_subarrays=True)
)


def arrays(shapes):
    return st.tuples(dtypes, shapes, st.randoms()).map(_from_any_bytes)


def _from_any_bytes(drawn):
    """Any bit pattern: NaNs of every kind, dates that are none."""
    dtype, shape, source = drawn
    array = np.zeros(shape, dtype)
    if array.dtype.kind in "UO" or (array.dtype.fields and "U" in str(array.dtype)):
        return array  # not every bit pattern is a character
    return np.frombuffer(source.randbytes(array.nbytes), array.dtype).reshape(array.shape)


objects = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3).flatmap(
    lambda shape: st.lists(
        texts | st.binary() | st.none(),
        min_size=int(np.prod(shape)),
        max_size=int(np.prod(shape)),
    ).map(partial(lambda shape, items: _objects(items, shape), shape))
)


def _objects(items, shape):
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _scalar(array):
    return array[()]


nests = st.recursive(
    arrays(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    | hnp.scalar_dtypes().flatmap(lambda d: hnp.arrays(d, ())).map(_scalar)
    | objects
    | texts
    | st.binary()
    | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers(-(2**70), 2**70), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(nests, max_size=5), st.randoms())
def test_any_nest_comes_back_bit_for_bit_in_any_order(elements, shuffler):
    order = list(range(len(elements))) * 2
    shuffler.shuffle(order)
    with tempfile.TemporaryDirectory() as directory:
        write(directory, elements)
        source = saved(directory)
        assert source.cardinality == len(elements)
        assert difference([elements[k] for k in order], read(source, order)) is None


@settings(deadline=None, max_examples=50)
@given(nests, st.integers(1, 4))
def test_equal_elements_come_back_bit_for_bit(element, count):
    with tempfile.TemporaryDirectory() as directory:
        write(directory, [element] * count)
        assert difference([element] * count, read(saved(directory))) is None


def test_elements_of_one_shape_are_columns_with_a_spec_known_without_reading(path):
    write(path, pairs())
    source = saved(path)
    assert source.static_spec() == {
        "x": ArraySpec((2, 3), np.dtype(np.int16)),
        "y": ArraySpec((), np.dtype(np.float64)),
        "z": ArraySpec((1,), np.dtype(bool)),
    }
    block = source.gather(np.array([5, 0, 5]))
    assert isinstance(block, Columns)
    assert block.nest["x"][:, 1, 2].tolist() == [5, 0, 5]
    assert block.nest["y"].tolist() == [5 / 7, 0.0, 5 / 7]
    assert difference(read(source), pairs()) is None


def test_elements_of_several_shapes_are_rows(path):
    write(path, ELEMENTS)
    source = saved(path)
    assert source.static_spec() is None
    assert isinstance(source.gather(np.array([1, 0])), Rows)
    assert difference(read(source, [3, 4, 0]), [ELEMENTS[k] for k in (3, 4, 0)]) is None


@pytest.mark.parametrize("elements", [pairs(), ELEMENTS], ids=["columns", "rows"])
def test_what_is_read_belongs_to_the_reader(path, elements):
    write(path, elements)
    source = saved(path)
    first = read(source)
    first[0]["x"][...] = 100
    assert difference(read(source), elements) is None


def test_no_elements_are_a_dataset_of_none(path):
    write(path, [])
    assert saved(path).cardinality == 0
    assert read(saved(path)) == []
    assert list(Dataset(saved(path))) == []


def test_a_namedtuple_comes_back_as_a_tuple(path):
    Pair = namedtuple("Pair", "a b")
    write(path, [Pair(np.int8(1), Pair("x", None))])
    assert difference(read(saved(path)), [(np.int8(1), ("x", None))]) is None


def test_numbers_of_ml_dtypes_come_back_as_such(path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = np.arange(5).astype(ml_dtypes.bfloat16)
    write(path, [(numbers, numbers[3])] * 2)
    again = read(saved(path))[1]
    assert again[0].dtype == ml_dtypes.bfloat16
    assert difference(again, (numbers, numbers[3])) is None


def test_an_array_of_any_layout_comes_back(path):
    whole = np.arange(24).reshape(2, 3, 4)
    views = (whole[:, ::2].T, np.asfortranarray(whole), np.broadcast_to(np.int8(3), (2, 2)))
    write(path, [views])
    assert difference(read(saved(path))[0], views) is None


@pytest.mark.parametrize(
    ("element", "leaf", "what"),
    [
        (1, "", "type int"),
        ({"a": (np.int8(1), [2])}, "['a'][1]", "type list"),
        ({"a": {"b": 1.5}}, "['a']['b']", "type float"),
        ({"a": np.array(["x", 3], object)}, "['a']", "int"),
        ({"a": {2.5: b""}}, "['a']", "2.5"),
        ({"a": {True: b""}}, "['a']", "True"),
        ((np.str_("a"),), "[0]", "str_"),
        ((np.ma.masked_array([1], [True]),), "[0]", "MaskedArray"),
        ((np.zeros(2, [("o", object)]),), "[0]", "dtype"),
        ((np.zeros(2, "V0"),), "[0]", "dtype"),
    ],
)
def test_a_leaf_that_cannot_be_saved_is_named_and_nothing_is_left(path, element, leaf, what):
    with pytest.raises(ElementError) as caught:
        write(path, [b"fine", element])
    assert (caught.value.element, caught.value.leaf) == (1, leaf)
    assert what in caught.value.what
    with pytest.raises(MissingSource, match="not completed"):
        saved(path)
    assert not list(Path(path).glob("elements*"))


def test_an_element_outside_is_an_index_error(path):
    write(path, pairs(2))
    for outside in (-1, 2):
        with pytest.raises(IndexError, match=f"element {outside} of 2"):
            saved(path).gather(np.array([0, outside]))


def test_the_content_is_that_of_the_elements_wherever_they_lie(tmp_path):
    write(tmp_path / "a", pairs())
    write(tmp_path / "b", iter(pairs()))
    write(tmp_path / "c", pairs(5))
    said = [saved(tmp_path / name).describe() for name in "abc"]
    assert said[0] == said[1]
    assert said[0].keys() == {"op", "records", "content", "kind"}
    assert (said[0]["op"], said[0]["records"], said[0]["kind"]) == ("saved", 6, "full")
    assert said[0]["content"] != said[2]["content"]
    write(tmp_path / "b", [*pairs(5), pairs(5)[0]], overwrite=True)
    assert saved(tmp_path / "b").describe()["content"] != said[0]["content"]


def test_a_saved_dataset_resumes_exactly(path):
    write(path, pairs(7))
    assert_resumes_exactly(lambda: Dataset(saved(path)).shuffle(seed=1).batch(2), workers=(0, 2))


def test_an_element_is_traced_to_its_number_in_the_file(path):
    write(path, pairs())
    (record,) = Dataset(saved(path)).trace(4)
    assert (record.file, record.record) == (str(the_file(path, "bin")), 4)


# --- writing --------------------------------------------------------------------------------------------


def test_a_saved_dataset_is_replaced_only_when_that_is_asked_for(path):
    write(path, pairs(2))
    with pytest.raises(PipelineError, match="overwrite=True"):
        write(path, pairs(3))
    assert saved(path).cardinality == 2
    write(path, pairs(3), overwrite=True)
    assert saved(path).cardinality == 3
    assert len(list(Path(path).glob("elements*"))) == 2


def test_a_directory_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PipelineError, match=r"notes\.txt"):
        write(tmp_path, pairs())
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(PipelineError, match="is a file"):
        write(tmp_path / "notes.txt", pairs())


def test_elements_that_fail_leave_the_old_dataset(path):
    def failing():
        yield from pairs(3)
        raise KeyError("gone")

    write(path, pairs(2))
    with pytest.raises(KeyError):
        write(path, failing(), overwrite=True)
    assert difference(read(saved(path)), pairs(2)) is None
    assert len(list(Path(path).glob("elements*"))) == 2


def test_a_reader_goes_on_with_what_it_opened_while_it_is_replaced(path):
    write(path, pairs(2))
    source = saved(path)
    read(source)
    write(path, pairs(3), overwrite=True)
    assert difference(read(source), pairs(2)) is None


def test_a_remote_directory_is_refused(path):
    with pytest.raises(SourceError, match="remote"):
        write("gs://bucket/data", pairs())


WRITER = """
import itertools, sys
import numpy as np
from playhead.sources.saved.storing import write

path, = sys.argv[1:]
print("ready", flush=True)
for turn in itertools.count():
    write(path, ({"turn": np.int64(turn), "x": np.full(k * 50, turn)} for k in range(40)), overwrite=True)
"""


@KILLS
@pytest.mark.parametrize("before", [False, True], ids=["into nothing", "over another"])
def test_a_killed_writer_leaves_nothing_or_a_whole_dataset(tmp_path, before):
    shuffler, found = random.Random(before), []
    for attempt in range(8):
        path = tmp_path / str(attempt)
        if before:
            write(path, [{"turn": np.int64(-1), "x": np.zeros(3)}])
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(shuffler.uniform(0, 0.02) if attempt % 2 else shuffler.uniform(0, 0.2))
            child.send_signal(signal.SIGKILL)
        try:
            rows = read(saved(path))
        except MissingSource:
            assert not before
            rows = []
        turns = {int(row["turn"]) for row in rows}
        assert len(turns) == bool(rows)
        assert len(rows) == (1 if turns == {-1} else 40 if rows else 0)
        for k, row in enumerate(rows):
            if turns != {-1}:
                assert row["x"].tolist() == [int(row["turn"])] * k * 50
        found.append(turns)
        write(path, pairs(2), overwrite=True)
        assert difference(read(saved(path)), pairs(2)) is None
        assert len(list(path.glob("elements*"))) == 2
        assert not list(path.glob("*.tmp"))
    assert len(found) == 8


@KILLS
@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_writer_killed_between_elements_leaves_nothing_readable(path, at):
    script = f"""
import os, signal
from playhead.sources.saved.storing import write
def elements():
    for k in range(8):
        if k == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield bytes(100_000)
write({path!r}, elements())
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    with pytest.raises(MissingSource, match="not completed"):
        saved(path)


def test_writing_takes_no_more_memory_for_more_elements(tmp_path):
    def peak(count):
        elements = ({"x": np.arange(k % 90), "y": str(k)} for k in range(count))
        tracemalloc.start()
        write(tmp_path / str(count), elements)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(20_000) < 1.2 * peak(6_000)


# --- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [pairs(3), ELEMENTS], ids=["columns", "rows"])
def test_every_flipped_bit_of_an_element_is_found_where_it_is_read(path, elements):
    write(path, elements)
    file = the_file(path, "bin")
    data = bytearray(file.read_bytes())
    edges = np.fromfile(the_file(path, "index"), "<i8")[::2]
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        file.write_bytes(data)
        data[place] ^= 1 << place % 8
        source = saved(path)
        damaged = int(np.searchsorted(edges, place, side="right")) - 1
        with pytest.raises(CorruptRecord) as caught:
            read(source)
        assert (caught.value.record, caught.value.offset) == (damaged, edges[damaged])
        assert caught.value.file == str(file)
        others = [k for k in range(len(elements)) if k != damaged]
        assert difference(read(source, others), [elements[k] for k in others]) is None


@pytest.mark.parametrize("elements", [pairs(2), ELEMENTS], ids=["columns", "rows"])
def test_every_flipped_bit_of_the_index_is_found(path, elements):
    write(path, elements)
    file = the_file(path, "index")
    data = bytearray(file.read_bytes())
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        file.write_bytes(data)
        data[place] ^= 1 << place % 8
        with pytest.raises(SourceError, match=r"\.index is damaged"):
            read(saved(path))


def test_every_flipped_bit_of_the_manifest_is_found(path):
    write(path, pairs(2))
    file = Path(path) / MANIFEST
    data = bytearray(file.read_bytes())
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            file.write_bytes(data)
            data[place] ^= 1 << bit
            with pytest.raises(SourceError, match=MANIFEST):
                read(saved(path))


@pytest.mark.parametrize("name", [MANIFEST, "bin", "index"])
def test_every_file_that_is_cut_short_is_found(path, name):
    write(path, pairs(3))
    file = Path(path) / name if name == MANIFEST else the_file(path, name)
    data = file.read_bytes()
    for size in range(len(data)):
        file.write_bytes(data[:size])
        with pytest.raises(SourceError, match="damaged" if name != "bin" else "ends inside"):
            read(saved(path))


HOSTILE = [
    ["array", "<i2", [2, 3000]],
    ["array", "<i2", [2**40, 2**40]],
    ["array", "<i2", [-2, -3]],
    ["array", "|O", [1]],
    ["array", [["a", "|O"]], [1]],
    ["array", "system", [1]],
    ["array", None, [1]],
    ["array", "<i2", "x"],
    ["objects", [2**40]],
    ["objects", [12]],
    ["pickle", "x"],
    ["str"],
    ["dict", [["x"]]],
    functools.reduce(lambda inner, _: ["tuple", [inner]], range(300), ["str"]),
    {},
    7,
]


@pytest.mark.parametrize("structure", HOSTILE, ids=lambda s: str(s)[:30])
def test_a_structure_that_was_forged_is_an_error_and_nothing_worse(path, structure):
    write(path, [np.full((2, 3), 2**15 - 1, np.int16)] * 2)
    said = json.loads((Path(path) / MANIFEST).read_text())
    said.pop("crc")
    said["structure"] = structure
    whole = json.dumps(structure).encode() + the_file(path, "index").read_bytes()
    said["content"] = hashlib.blake2b(whole, digest_size=16).hexdigest()
    said["crc"] = kernels.crc32c(json.dumps(said).encode())
    (Path(path) / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(SourceError, match=r"damaged|is not as it says"):
        read(saved(path))


def test_a_missing_file_is_named(path):
    write(path, pairs(3))
    file = the_file(path, "bin")
    file.unlink()
    with pytest.raises(MissingSource, match=file.name):
        read(saved(path))
    with pytest.raises(MissingSource, match="is not there"):
        saved(path + "s")


@pytest.mark.parametrize("text", ["", "[]", "1", "null", '{"playhead": 1}', "{" * 9999])
def test_a_manifest_that_is_none_is_damaged(path, text):
    write(path, pairs(3))
    (Path(path) / MANIFEST).write_text(text)
    with pytest.raises(SourceError, match="damaged"):
        saved(path)


def test_a_newer_format_is_refused(path):
    write(path, pairs(3))
    file = Path(path) / MANIFEST
    file.write_text(file.read_text().replace('"playhead": 1', '"playhead": 2'))
    with pytest.raises(SourceError, match="newer playhead"):
        saved(path)


# --- other threads, other processes ---------------------------------------------------------------------


@pytest.mark.parametrize("elements", [pairs(40), ELEMENTS * 8], ids=["columns", "rows"])
def test_many_threads_read_at_once(path, elements):
    write(path, elements)
    source, wrong = saved(path), []

    def reads(seed):
        order = np.random.default_rng(seed).permutation(40)
        for _ in range(20):
            if difference(read(source, order), [elements[k] for k in order]) is not None:
                wrong.append(seed)

    threads = [threading.Thread(target=reads, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_travels_as_its_path(path):
    write(path, [{"x": np.zeros(1000)}] * 100)
    source = saved(path)
    read(source)
    text = pickle.dumps(source)
    assert len(text) < 1000
    assert difference(read(pickle.loads(text)), read(source)) is None


def test_one_that_was_replaced_on_the_way_is_told(path):
    write(path, pairs(3))
    text = pickle.dumps(saved(path))
    unread = saved(path)
    write(path, pairs(4), overwrite=True)
    with pytest.raises(SourceChanged, match="replaced"):
        read(pickle.loads(text))
    with pytest.raises(SourceChanged, match="replaced"):
        read(unread)


@KILLS
def test_a_forked_child_reads_what_its_parent_opened(path):
    write(path, pairs(5))
    script = f"""
import os
import numpy as np
from playhead.sources.saved.reading import saved
source = saved({path!r})
source.gather(np.array([0]))
child = os.fork()
if not child:
    os._exit(source.gather(np.array([3])).nest["x"][0, 0, 0])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "3\n"


@pytest.mark.parametrize("elements", [pairs(40), ELEMENTS * 8], ids=["columns", "rows"])
def test_worker_processes_read_it(path, elements):
    write(path, elements)
    dataset = Dataset(saved(path)).shuffle(seed=1).prefetch(4, workers=2, on="processes")
    alone = Dataset(saved(path)).shuffle(seed=1)
    assert difference(list(dataset), list(alone)) is None


# --- caches ---------------------------------------------------------------------------------------------


def cached(dataset, path, version=None):
    return Dataset(stored(dataset.node, path, version))


def noisy(x, rng):
    return {"x": x, "noise": rng.random(3), "name": f"{x}\0"}


def count_from(n=11, start=0):
    for number in range(start, n):
        yield number * 10


ABOVE = {
    "range": lambda: Dataset.range(11),
    "random map": lambda: Dataset.range(11).map(noisy, rng=True, seed=1),
    "shuffle": lambda: Dataset.range(11).shuffle(seed=1),
    "batches": lambda: Dataset.range(11).map(lambda x: x * 2).batch(3),
    "filter": lambda: Dataset.range(16).filter(lambda x: x % 3 != 2),
    "filter of a shuffle": lambda: Dataset.range(16).shuffle(seed=1).filter(lambda x: x % 3 != 2),
    "batches of a filter": lambda: Dataset.range(16).filter(lambda x: x % 3 != 2).batch(3),
    "generator": lambda: Dataset.from_generator(count_from),
    "random map of a generator": lambda: Dataset.from_generator(count_from).map(
        noisy, rng=True, seed=2
    ),
    "ragged": lambda: Dataset.range(5).map(lambda x: np.arange(x)),
    "nothing": lambda: Dataset.range(0),
    "nothing of a filter": lambda: Dataset.range(3).filter(lambda x: x < 0),
}


@pytest.mark.parametrize("name", ABOVE)
def test_every_pass_is_pass_0_of_what_is_above(path, name):
    dataset = ABOVE[name]()
    first = list(dataset.epoch(0))
    kept = cached(dataset, path)
    for epoch in range(3):
        assert difference(list(kept.epoch(epoch)), first) is None
        assert difference(list(cached(ABOVE[name](), path).epoch(epoch)), first) is None


AFTER = {
    "nothing": lambda ds: ds,
    "map": lambda ds: ds.map(lambda x: {"again": x}),
    "random map, batch": lambda ds: ds.map(noisy, rng=True, seed=3).padded_batch(2),
    "repeat": lambda ds: ds.repeat(2),
}


@pytest.mark.parametrize(
    ("above", "after"),
    [
        (above, after)
        for above in ("random map", "batches", "batches of a filter", "generator")
        for after in AFTER
        if (above, after) != ("random map", "random map, batch")  # dicts are no arrays to pad
    ],
)
def test_a_cache_resumes_exactly(tmp_path, above, after):
    assert_resumes_exactly(
        lambda: AFTER[after](cached(ABOVE[above](), tmp_path / "kept")), workers=(0, 2), every=3
    )


def test_a_cache_before_a_shuffle_and_a_batch_resumes_exactly(tmp_path):
    assert_resumes_exactly(
        lambda: cached(ABOVE["random map"](), tmp_path / "kept").shuffle(seed=5).batch(4).repeat(2),
        workers=(0, 2),
        every=2,
    )


def test_a_cache_of_a_cache_resumes_exactly(tmp_path):
    def make():
        inner = cached(ABOVE["filter of a shuffle"](), tmp_path / "inner")
        return cached(inner.map(noisy, rng=True, seed=1), tmp_path / "outer").batch(2)

    assert_resumes_exactly(lambda: make().prefetch(2, workers=2), workers=(0,), every=2)


@pytest.mark.parametrize("walked", [False, True], ids=["seekable", "stream"])
def test_functions_above_are_called_once_for_each_element_in_three_passes(path, walked):
    calls = []

    def called(x):
        calls.append(int(x))
        return x * 2

    dataset = Dataset.range(9)
    if walked:
        dataset = dataset.filter(lambda x: x != 4)
    kept = cached(dataset.map(called), path).prefetch(3, workers=2)
    expected = [2 * x for x in range(9) if not walked or x != 4]
    for epoch in range(3):
        assert list(kept.epoch(epoch)) == expected
    assert sorted(calls) == [x for x in range(9) if not walked or x != 4]
    if not walked:
        assert kept[5] == 10
    assert kept.element_spec == ArraySpec((), np.dtype(np.int64))
    assert len(calls) == len(expected)


def test_worker_processes_make_one_cache_together(tmp_path):
    log = tmp_path / "log"

    def called(x):
        with open(log, "a") as file:
            file.write(f"{x}\n")
        return np.full(5, x)

    kept = cached(Dataset.range(30).map(called), tmp_path / "kept").shuffle(seed=1).batch(4)
    ahead = kept.prefetch(4, workers=2, on="processes")
    passes = [list(ahead.epoch(epoch)) for epoch in range(3)]
    assert sorted(map(int, log.read_text().split())) == list(range(30))
    assert difference(passes, [list(kept.epoch(epoch)) for epoch in range(3)]) is None
    assert sorted(map(int, log.read_text().split())) == list(range(30))


@pytest.mark.parametrize("above", ["filter", "generator"])
def test_a_cache_of_a_stream_goes_through_worker_processes(path, above):
    kept = cached(ABOVE[above](), path).map(noisy, rng=True, seed=1)
    ahead = kept.prefetch(4, workers=2, on="processes")
    for epoch in range(2):
        assert difference(list(ahead.epoch(epoch)), list(kept.epoch(epoch))) is None


@pytest.mark.parametrize("walked", [False, True], ids=["seekable", "stream"])
def test_a_cache_that_is_prepared_is_written_by_all_workers(tmp_path, walked):
    threads, two, calls = set(), threading.Event(), []

    def called(x):
        threads.add(threading.get_ident())
        if len(threads) == 2:
            two.set()
        assert x < 20 or two.wait(120)
        calls.append(int(x))
        return x

    dataset = Dataset.range(90)
    if walked:
        dataset = dataset.filter(lambda x: x >= 0)
    kept = cached(cached(dataset.map(called), tmp_path / "a").map(lambda x: x), tmp_path / "b")
    pool = ThreadPool(2)
    try:
        prepare(kept.node, Ordered(pool, 16))
        prepare(kept.node, Ordered(pool, 16))
    finally:
        pool.close()
    assert list(kept) == list(range(90))
    assert sorted(calls) == list(range(90))


def test_a_cache_that_nothing_reads_from_is_not_prepared(tmp_path):
    inner = cached(Dataset.range(8), tmp_path / "a")
    list(cached(inner, tmp_path / "b"))
    shutil.rmtree(tmp_path / "a")
    prepare(cached(inner, tmp_path / "b").node, Serial())
    assert not (tmp_path / "a").exists()


def test_a_cache_is_as_long_and_as_seekable_as_what_is_above(path):
    kept = cached(ABOVE["random map"](), path)
    assert (kept.seekable, len(kept)) == (True, 11)
    assert difference(kept.epoch(2)[3], ABOVE["random map"]()[3]) is None
    walked = cached(ABOVE["filter"](), path)
    assert (walked.seekable, walked.cardinality()) == (False, UNKNOWN)


def test_an_element_has_the_records_of_pass_0(path):
    dataset = Dataset.range(11).shuffle(seed=1).batch(3)
    kept = cached(dataset, path)
    assert kept.epoch(2).trace(1) == dataset.epoch(0).trace(1)
    assert not os.path.exists(path)


@pytest.mark.parametrize("above", ["random map", "filter"])
def test_keys_are_places_of_the_pass_that_is_read(path, above):
    node = cached(ABOVE[above](), path).node
    (chunk, *_) = node.open(node.start(3), Serial())
    assert chunk.keys.epoch == 3
    assert chunk.keys.index.tolist() == list(range(len(chunk)))


@pytest.mark.parametrize("above", ["random map", "filter"])
def test_elements_are_fetched_again_by_their_keys(path, above):
    node = cached(ABOVE[above](), path).node
    first = list(ABOVE[above]())
    assert node.fetchable
    block = node.fetch(Places(2, np.array([4, 1])))
    assert difference(block.rows(), [first[4], first[1]]) is None
    assert len(list(node.fetched_records(Places(2, np.array([4, 1]))))) == 2


def test_a_stream_counts_the_source_records_that_its_elements_are_made_of(path):
    kept = cached(Dataset.range(16).filter(lambda x: x % 3 != 2).batch(3), path)
    for _ in range(2):
        with kept.iterator() as iterator:
            counted = [iterator.position.records for _ in iterator]
        assert counted == [3, 6, 9, 11]


@pytest.mark.parametrize(
    ("above", "said"),
    [
        ("range", False),
        ("ragged", False),
        ("batches", False),
        ("shuffle", True),
        ("random map", True),
        ("filter", True),
        ("generator", True),
    ],
)
def test_it_is_in_the_description_where_without_it_passes_or_cursors_would_differ(
    path, above, said
):
    before = ABOVE[above]().operations()
    assert cached(ABOVE[above](), path).operations() == before + [{"op": "cache"}] * said


def test_a_shuffle_that_is_the_same_in_each_pass_needs_no_mention(path):
    dataset = Dataset.range(5).shuffle(seed=1, reshuffle_each_iteration=False)
    assert cached(dataset, path).operations() == dataset.operations()


@pytest.mark.parametrize("above", ["range", "shuffle", "random map", "batches"])
def test_a_position_goes_on_where_the_cache_in_memory_became_one_in_files(path, above):
    dataset = ABOVE[above]()
    with dataset.cache().iterator(epochs=2) as iterator:
        before = [next(iterator) for _ in range(3)]
        position = iterator.position
        rest = list(iterator)
    with cached(dataset, path).iterator(epochs=2) as iterator:
        iterator.load_state_dict(position)
        assert difference(list(iterator), rest) is None
        iterator.seek(0)
        assert difference([next(iterator) for _ in range(3)], before) is None


def test_the_cursor_of_a_stream_is_not_taken_for_that_of_its_cache(path):
    with ABOVE["filter"]().iterator() as iterator:
        for _ in range(4):
            next(iterator)
        position = iterator.position
    with (
        cached(ABOVE["filter"](), path).iterator() as iterator,
        pytest.raises(PipelineChanged, match="cache"),
    ):
        iterator.load_state_dict(position)


def test_a_position_behind_the_end_of_the_cache_is_refused(path):
    kept = cached(ABOVE["filter"](), path)
    with pytest.raises(SourceChanged, match="holds 11 elements"):
        list(kept.node.open([0, 12], Serial()))


# --- whose cache it is ----------------------------------------------------------------------------------


def test_the_cache_of_another_pipeline_is_refused_and_left_alone(path):
    list(cached(Dataset.range(5).map(lambda x: x * 2), path))
    others = [
        Dataset.range(6).map(lambda x: x * 2),
        Dataset.range(5).map(lambda x: x * 3),
        Dataset.range(5),
    ]
    for other in others:
        with pytest.raises(PipelineError, match="another pipeline") as caught:
            list(cached(other, path))
        assert caught.value.path == path
    assert list(cached(Dataset.range(5).map(lambda y: y * 2), path, "1").node.parent.parents)
    assert list(cached(Dataset.range(5).map(lambda x: x * 2), path)) == [0, 2, 4, 6, 8]


def test_the_refusal_shows_what_differs(path):
    list(cached(Dataset.range(9).shuffle(seed=1), path))
    with pytest.raises(PipelineError, match=r"shuffle +seed=1 +-> seed=2"):
        list(cached(Dataset.range(9).shuffle(seed=2), path))


def test_a_saved_dataset_is_no_cache(path):
    write(path, [np.int64(k) for k in range(5)])
    with pytest.raises(PipelineError, match="by save, not by cache"):
        list(cached(Dataset.range(5), path))
    assert saved(path).cardinality == 5


def test_a_version_stands_for_the_code_of_functions(path):
    list(cached(Dataset.range(3).map(lambda x: x * 2), path, "1"))
    assert list(cached(Dataset.range(3).map(lambda x: x * 3), path, "1")) == [0, 2, 4]
    with pytest.raises(PipelineError, match="another pipeline"):
        list(cached(Dataset.range(3).map(lambda x: x * 2), path, "2"))


def test_the_version_of_a_cache_above_stands_for_the_functions_above_that(tmp_path):
    def make(version):
        inner = cached(Dataset.range(3).map(abs), tmp_path / f"inner {version}", version)
        return cached(inner.map(lambda x: x * 2), tmp_path / "outer")

    assert list(make("1")) == list(make("1")) == [0, 2, 4]
    with pytest.raises(PipelineError, match="another pipeline"):
        list(make("2"))


def test_other_code_of_a_generator_is_noticed(path):
    list(cached(Dataset.from_generator(count_from, args=(3,)), path))
    with pytest.raises(PipelineError, match="another pipeline"):
        list(cached(Dataset.from_generator(count_from, args=(4,)), path))

    def other(n, start=0):
        yield from range(start, n)

    other.__name__ = "count_from"
    with pytest.raises(PipelineError, match="another pipeline"):
        list(cached(Dataset.from_generator(other, args=(3,)), path))


@pytest.mark.parametrize(
    "make",
    [lambda: Dataset.range(3).map(abs), lambda: Dataset.from_generator(partial(iter, (1, 2)))],
    ids=["map", "generator"],
)
def test_a_function_without_code_needs_a_version(path, make):
    with pytest.raises(PipelineError, match="version="):
        list(cached(make(), path))
    assert not os.path.exists(path)
    assert len(list(cached(make(), path, "1"))) > 1


def test_a_random_operation_without_a_seed_is_refused(path):
    with pytest.raises(PipelineError, match="no seed"):
        list(cached(Dataset.range(3).shuffle(), path))
    seeded = cached(Dataset.range(3).shuffle(), path).seed(1)
    assert sorted(seeded) == [0, 1, 2]


def test_an_endless_dataset_is_refused(path):
    with pytest.raises(PipelineError, match="endless"):
        cached(Dataset.range(3).repeat(), path)


def test_an_error_above_leaves_no_cache_and_the_next_pass_tries_again(path):
    broken = [True]

    def failing(x):
        if x == 3 and broken:
            raise ValueError("broken")
        return x

    kept = cached(Dataset.range(5).map(failing), path)
    with pytest.raises(ValueError, match="broken"):
        list(kept)
    with pytest.raises(MissingSource):
        saved(path)
    broken.clear()
    assert list(kept) == [0, 1, 2, 3, 4]


def test_threads_that_read_at_once_make_one_cache(path):
    calls, results = [], []

    def called(x):
        calls.append(int(x))
        time.sleep(0.005)
        return x

    dataset = Dataset.range(20).map(called)
    threads = [
        threading.Thread(target=lambda: results.append(list(cached(dataset, path))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(20))] * 3
    assert sorted(calls) == list(range(20))


CACHER = """
import os, sys, time
from playhead import Dataset
from playhead.sources.saved.stored import stored

(path,) = sys.argv[1:]

def called(x):
    print("call", flush=True)
    if x == 3 and os.path.exists(path + "-hang"):
        time.sleep(600)
    return x * 2

print(list(map(int, Dataset(stored(Dataset.range(5).map(called).node, path)))), flush=True)
"""


def cacher(path):
    return subprocess.Popen([sys.executable, "-c", CACHER, path], stdout=subprocess.PIPE, text=True)


@KILLS
def test_a_process_waits_for_the_one_that_writes_and_takes_over_when_that_is_killed(path):
    hang = Path(path + "-hang")
    hang.touch()
    with cacher(path) as first, cacher(path) as second:
        try:
            writer, waiter = first, second
            if select.select([first.stdout, second.stdout], [], [], 60)[0][0] is second.stdout:
                writer, waiter = second, first
            assert [writer.stdout.readline() for _ in range(4)] == ["call\n"] * 4
            time.sleep(1.0)
            assert waiter.poll() is None
            hang.unlink()
            writer.send_signal(signal.SIGKILL)
            said, _ = waiter.communicate(timeout=180)
        finally:
            first.kill()
            second.kill()
    assert said == "call\n" * 5 + "[0, 2, 4, 6, 8]\n"
    with cacher(path) as third:
        assert third.communicate(timeout=180)[0] == "[0, 2, 4, 6, 8]\n"
    assert len(list(Path(path).glob("elements*"))) == 2
