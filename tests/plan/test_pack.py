"""pack: rows of one length made of documents, against lists; resumed anywhere; read directly by lengths."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import ElementError, PipelineChanged, PipelineError, UnreadablePosition
from playhead.plan.block import ArraySpec
from playhead.plan.lengths import PackByLengths, lengths_of
from playhead.plan.pack import Pack
from playhead.testing import assert_resumes_exactly, difference

LENGTHS = [3, 0, 5, 1, 4, 0, 9, 2]


def pack(dataset, length, method="concat", bins=8, lengths=None, lanes=1):
    if lengths is None:
        return Dataset(Pack((dataset.node,), length, method, bins, lanes))
    declared = lengths_of(lengths)
    return Dataset(PackByLengths((dataset.node,), length, method, bins, lanes, declared))


def document(number, size):
    """Tokens that tell which document they are of, and where in it they stand: none is 0."""
    return np.arange(size, dtype=np.int32) + 1000 * number + 1


def documents(lengths=LENGTHS):
    return [document(k, size) for k, size in enumerate(lengths)]


def stored(lengths=LENGTHS):
    return Dataset.from_sequence(documents(lengths))


def filtered(lengths=LENGTHS):
    """The same documents as a stream whose elements can be fetched again."""
    both = [d for size in lengths for d in (np.array([-1], np.int32), size)]
    both = [document(k // 2, d) if isinstance(d, int) else d for k, d in enumerate(both)]
    return Dataset.from_sequence(both).filter(lambda d: not len(d) or d[0] != -1)


def generated(lengths=LENGTHS):
    """The same documents as a stream that can only be walked."""

    def walk(start=0):
        yield from documents(lengths)[start:]

    return Dataset.from_generator(walk)


# What pack should give, by its description, on lists.


def lane_rows(lengths, length, method, bins):
    """Rows of one lane as lists of (document, low, high); `lengths` is a list of (document, length)."""
    if method == "concat":
        tokens = [(d, t) for d, size in lengths for t in range(size)]
        rows = []
        for start in range(0, len(tokens), length):
            row = {}
            for d, t in tokens[start : start + length]:
                row.setdefault(d, []).append(t)
            rows.append([(d, ts[0], ts[-1] + 1) for d, ts in row.items()])
        return rows
    pieces = [
        (d, low, min(size, low + length)) for d, size in lengths for low in range(0, size, length)
    ]
    given, opened = [], []
    for piece in pieces:
        fitting = [
            k
            for k, row in enumerate(opened)
            if sum(high - low for _, low, high in [*row, piece]) <= length
        ]
        if fitting:
            opened[fitting[0]].append(piece)
        else:
            if len(opened) == bins:
                given.append(opened[0])
                opened = opened[1:]
            opened = [*opened, [piece]]
        full = [row for row in opened if sum(high - low for _, low, high in row) == length]
        opened = [row for row in opened if row not in full]
        given += full
    return given + opened


def expected_parts(lengths, length, method="concat", bins=8, lanes=1):
    numbered = list(enumerate(lengths))
    by_lane = [lane_rows(numbered[lane::lanes], length, method, bins) for lane in range(lanes)]
    rows = []
    while any(by_lane):
        mine = by_lane[len(rows) % lanes]
        rows.append(mine.pop(0) if mine else [])
    return rows


def expected(lengths, length, method="concat", bins=8, lanes=1, order=None):
    """(tokens, segment ids, positions) of each row. `order` tells which documents the numbers are."""
    rows = []
    for parts in expected_parts(lengths, length, method, bins, lanes):
        tokens, segments, positions = [], [], []
        for segment, (number, low, high) in enumerate(parts):
            name = number if order is None else order[number]
            tokens += [1000 * name + 1 + t for t in range(low, high)]
            segments += [segment + 1] * (high - low)
            positions += list(range(high - low))
        rows.append(tuple(x + [0] * (length - len(x)) for x in (tokens, segments, positions)))
    return rows


def as_lists(rows):
    return [
        (row["tokens"].tolist(), row["segment_ids"].tolist(), row["positions"].tolist())
        for row in rows
    ]


SHAPES = st.fixed_dictionaries(
    {
        "length": st.integers(1, 5),
        "method": st.sampled_from(["concat", "first_fit"]),
        "bins": st.integers(1, 4),
        "lanes": st.integers(1, 3),
    }
)


@st.composite
def packings(draw):
    shape = draw(SHAPES)
    return draw(st.lists(st.integers(0, 3 * shape["length"]), max_size=14)), shape


# --- rows ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(packings())
def test_rows_are_those_of_lists(packing):
    lengths, shape = packing
    assert as_lists(pack(stored(lengths), **shape)) == expected(lengths, **shape)


@settings(deadline=None, max_examples=200)
@given(packings())
def test_rows_by_lengths_are_those_of_the_walk(packing):
    lengths, shape = packing
    shape["method"] = "concat"
    dataset = pack(stored(lengths), **shape, lengths=lengths)
    rows = list(dataset)
    assert len(dataset) == len(rows)
    assert as_lists(rows) == expected(lengths, **shape)
    assert [dataset[k]["tokens"].tolist() for k in range(len(rows))] == [
        r[0] for r in as_lists(rows)
    ]
    walked = pack(stored(lengths), **shape)
    for here, there in zip(rows, walked, strict=True):
        assert difference(here, there) is None


@settings(deadline=None, max_examples=100)
@given(packings(), st.sampled_from([stored, filtered, generated]))
def test_a_walk_goes_on_exactly_from_every_row_and_from_every_row_after_that(packing, make):
    lengths, shape = packing
    with pack(make(lengths), **shape).iterator(epochs=2) as iterator:
        positions = [iterator.position.to_json()]
        rows = []
        for row in iterator:
            rows.append(row)
            positions.append(iterator.position.to_json())
    assert as_lists(rows) == expected(lengths, **shape) * 2
    for step in range(len(rows)):
        with pack(make(lengths), **shape).iterator(epochs=2) as iterator:
            iterator.load_state_dict(positions[step])
            for later in range(step, len(rows)):
                assert difference(next(iterator), rows[later]) is None
                assert _cursor(iterator.position.to_json()) == _cursor(positions[later + 1])


def _cursor(text):
    said = json.loads(text)
    return said["cursor"], said["records"], said["epoch"], said["step_in_epoch"]


def test_every_token_comes_once_with_its_document_s_number_and_its_place():
    rows = list(pack(stored([3, 0, 5, 1]), 4))
    assert as_lists(rows) == [
        ([1, 2, 3, 2001], [1, 1, 1, 2], [0, 1, 2, 0]),
        ([2002, 2003, 2004, 2005], [1, 1, 1, 1], [0, 1, 2, 3]),
        ([3001, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]),
    ]


def test_the_oldest_row_is_given_out_where_too_many_are_open():
    rows = list(pack(stored([3, 3, 2, 1, 2, 4]), 4, "first_fit", bins=2))
    assert [row["tokens"].tolist() for row in rows] == [
        [1, 2, 3, 0],
        [1001, 1002, 1003, 3001],
        [2001, 2002, 4001, 4002],
        [5001, 5002, 5003, 5004],
    ]


def test_a_lane_that_has_ended_gives_padding_until_the_others_end():
    rows = as_lists(pack(stored([2, 7]), 2, lanes=2))
    nothing = ([0, 0], [0, 0], [0, 0])
    assert rows[1::2] == [
        ([1001, 1002], [1, 1], [0, 1]),
        ([1003, 1004], [1, 1], [0, 1]),
        ([1005, 1006], [1, 1], [0, 1]),
        ([1007, 0], [1, 0], [0, 0]),
    ]
    assert rows[0::2] == [([1, 2], [1, 1], [0, 1]), nothing, nothing, nothing]


@pytest.mark.parametrize("lengths", [None, [3, 2]])
def test_arrays_of_a_dict_are_packed_alike_and_keep_their_dtypes(lengths):
    made = [
        {"ids": np.array([7, 8, 9], np.uint16), "weight": np.array([0.5, 1.5, 2.5], np.float64)},
        {"ids": np.array([4, 5], np.uint16), "weight": np.array([3.5, 4.5], np.float64)},
    ]
    dataset = pack(Dataset.from_sequence(made), 4, lengths=lengths)
    first, second = dataset
    assert list(first) == ["ids", "weight", "segment_ids", "positions"]
    assert first["ids"].tolist() == [7, 8, 9, 4] and second["ids"].tolist() == [5, 0, 0, 0]
    assert first["weight"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert {name: array.dtype.name for name, array in first.items()} == {
        "ids": "uint16",
        "weight": "float64",
        "segment_ids": "int32",
        "positions": "int32",
    }
    assert dataset.element_spec == {
        name: ArraySpec((4,), array.dtype) for name, array in first.items()
    }


def test_tokens_may_be_of_other_libraries_numbers():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    made = [np.array([1, 2, 3], bfloat16), np.array([4], bfloat16)]
    (row,) = pack(Dataset.from_sequence(made), 5)
    assert row["tokens"].dtype == bfloat16 and row["tokens"].tolist() == [1, 2, 3, 4, 0]


@pytest.mark.parametrize("lengths", [None, [64, 64]])
def test_rows_lie_in_aligned_memory_of_their_own(lengths):
    whole = [np.arange(64, dtype=np.int64), np.arange(64, dtype=np.int64)]
    for row in pack(Dataset.from_sequence(whole), 64, lengths=lengths):
        for array in row.values():
            assert array.flags.writeable and array.ctypes.data % 64 == 0
        row["tokens"][:] = -1
    assert whole[0].tolist() == list(range(64)) == whole[1].tolist()


@pytest.mark.parametrize("method", ["concat", "first_fit"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_row_names_its_documents_and_counts_those_that_end_in_it(method, lanes):
    lengths = [3, 0, 5, 1, 4, 0, 9, 2, 1]
    parts = expected_parts(lengths, 4, method, 2, lanes)
    with pack(generated(lengths), 4, method, 2, lanes=lanes).iterator() as iterator:
        for row in parts:
            next(iterator)
            assert [record.index for record in iterator.trace()] == [d for d, _, _ in row]
        assert iterator.position.records == len(lengths)


def test_rows_by_lengths_are_traced_without_reading_and_count_the_same_documents():
    lengths = [3, 0, 5, 1, 4, 0, 9, 2, 1]
    for lanes in (1, 2):
        dataset = pack(stored(lengths), 4, lengths=lengths, lanes=lanes)
        parts = expected_parts(lengths, 4, lanes=lanes)
        with pack(generated(lengths), 4, lanes=lanes).iterator() as walk:
            for k, row in enumerate(parts):
                assert [record.index for record in dataset.trace(k)] == [d for d, _, _ in row]
                next(walk)
                iterator = dataset.iterator()
                iterator.seek(k + 1)
                assert iterator.position.records == walk.position.records


def test_rows_by_lengths_that_are_walked_count_the_same_documents():
    order = stored().shuffle(seed=1)
    with (
        pack(order, 4, lengths=LENGTHS, lanes=2).iterator() as by_lengths,
        pack(order, 4, lanes=2).iterator() as walk,
    ):
        for here, there in zip(by_lengths, walk, strict=True):
            assert difference(here, there) is None
            assert by_lengths.position.records == walk.position.records


# --- resuming -----------------------------------------------------------------------------------------

PARENTS = {
    "stored": stored,
    "shuffled": lambda: stored().shuffle(seed=3),
    "filtered": filtered,
    "filtered and repeated": lambda: filtered([3, 0, 5]).repeat(2),
    "generated": generated,
    "generated and shuffled": lambda: generated().shuffle(3, seed=1),
}
WAYS = {
    "concat": {},
    "concat in lanes": {"lanes": 3},
    "first_fit": {"method": "first_fit", "bins": 2},
    "first_fit in lanes": {"method": "first_fit", "bins": 2, "lanes": 2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parent", PARENTS)
def test_a_walk_resumes_exactly_after_every_row_with_any_number_of_workers(parent, way):
    assert_resumes_exactly(lambda: pack(PARENTS[parent](), 4, **WAYS[way]), workers=(0, 1, 4))


@pytest.mark.parametrize("way", WAYS)
def test_documents_without_end_are_packed_across_passes(way):
    def make():
        return pack(stored().shuffle(seed=1).repeat(), 4, **WAYS[way])

    assert make().cardinality() == -1
    assert_resumes_exactly(make, epochs=1, steps=20)


AROUND = {
    "batches": lambda rows: rows.batch(2).repeat(2),
    "a map and a shuffle": lambda rows: (
        rows.map(lambda row, rng: row["tokens"] * rng.integers(9), rng=True, seed=1)
        .shuffle(3, seed=2)
        .batch(3)
    ),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    "make",
    [
        lambda: pack(generated().map(lambda d: d * 2), 4, "first_fit", 2),
        lambda: pack(filtered().map(lambda d: d + 1), 4, lanes=2),
        lambda: pack(stored().shuffle(seed=1), 4, lengths=LENGTHS),
    ],
    ids=["generated", "filtered", "by lengths"],
)
def test_pack_resumes_exactly_among_other_operations(make, around):
    assert_resumes_exactly(lambda: AROUND[around](make()), workers=(0, 1, 4))


BY_LENGTHS = {
    "in order": (lambda: stored(), 1, True),
    "shuffled and mapped": (lambda: stored().shuffle(seed=1).map(lambda d: d * 2), 1, True),
    "in lanes": (lambda: stored().skip(1), 3, True),
    "shuffled, in lanes": (lambda: stored().shuffle(seed=1), 2, False),
    "some of a shuffle": (lambda: stored().shuffle(seed=1).take(4), 1, False),
    "two passes of a shuffle": (lambda: stored().shuffle(seed=1).repeat(2), 1, True),
    "shuffled once, in lanes": (
        lambda: stored().shuffle(seed=1, reshuffle_each_iteration=False).take(5),
        2,
        True,
    ),
    "chosen and cached": (lambda: stored().select([6, 2, 2]).cache(), 2, True),
    "drawn": (lambda: stored().resample(np.ones(len(LENGTHS)), seed=1), 1, False),
}


@pytest.mark.parametrize("name", BY_LENGTHS)
def test_rows_by_lengths_resume_exactly_and_are_seekable_where_epochs_are_equally_long(name):
    make, lanes, seekable = BY_LENGTHS[name]
    by_lengths = pack(make(), 4, lengths=LENGTHS, lanes=lanes)
    assert by_lengths.seekable == seekable
    walked = pack(make(), 4, lanes=lanes)
    for epoch in range(3):
        assert as_lists(by_lengths.epoch(epoch)) == as_lists(walked.epoch(epoch))
    assert_resumes_exactly(lambda: pack(make(), 4, lengths=LENGTHS, lanes=lanes), workers=(0, 1, 4))


def test_a_shuffle_s_epochs_are_packed_each_in_its_own_order():
    order = stored().shuffle(seed=5)
    dataset = pack(order, 4, lengths=LENGTHS)
    for epoch in (0, 1, 6):
        documents_of = [record.index for k in range(8) for record in order.epoch(epoch).trace(k)]
        lengths = [LENGTHS[k] for k in documents_of]
        rows = as_lists(dataset.epoch(epoch))
        assert rows == expected(lengths, 4, order=documents_of)


def test_rows_by_lengths_can_be_shuffled_and_repeated():
    rows = pack(stored().shuffle(seed=1), 4, lengths=LENGTHS)
    mixed = list(rows.shuffle(seed=2).repeat(2))
    plain = [as_lists(rows.epoch(epoch)) for epoch in (0, 1)]
    n = len(rows)
    assert [sorted(as_lists(mixed[:n])), sorted(as_lists(mixed[n:]))] == [sorted(p) for p in plain]
    assert as_lists(mixed[:n]) != plain[0]


class Shelf:
    """Documents that note which of them is read."""

    def __init__(self, lengths):
        self.lengths, self.read = lengths, []

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, k):
        self.read.append(k)
        return document(k, self.lengths[k])


@pytest.mark.parametrize("way", WAYS)
def test_restoring_reads_only_documents_that_wait_and_those_that_follow(way):
    lengths = [3, 1, 2, 6, 1, 3, 2, 1, 5, 2] * 6
    with pack(stored(lengths), 4, **WAYS[way]).iterator() as iterator:
        for _ in range(17):
            next(iterator)
        position = iterator.position
    waiting = {k for run in position.cursor["waiting"] for k in run[1:]}
    following = position.cursor["at"][1]
    shelf = Shelf(lengths)
    with pack(Dataset.from_sequence(shelf), 4, **WAYS[way]).iterator() as iterator:
        pipeline = iterator.position.to_dict()["pipeline"]  # the same documents, kept elsewhere
        iterator.load_state_dict(position.to_dict() | {"pipeline": pipeline})
        next(iterator)
    assert sorted(shelf.read) == sorted({*waiting, *range(following, max(shelf.read) + 1)})
    assert len(waiting) < 20 and max(shelf.read) < following + 8


def test_rows_by_lengths_read_only_the_documents_they_are_made_of():
    lengths = [3, 1, 2, 6, 1, 3, 2, 1, 5, 2] * 6
    shelf = Shelf(lengths)
    dataset = pack(Dataset.from_sequence(shelf), 4, lengths=lengths)
    row = dataset[25]
    wanted = [d for d, _, _ in expected_parts(lengths, 4)[25]]
    assert shelf.read == wanted and row["tokens"].tolist() == expected(lengths, 4)[25][0]


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_position_holds_at_most_16_bytes_for_each_document_that_waits(lanes):
    size = 10_000_000_000
    source = Dataset.range(size).map(lambda k: np.full(60 + k % 7, k))
    with pack(source, 100, "first_fit", bins=500, lanes=lanes).iterator() as iterator:
        state = iterator.state_dict()
        state["cursor"]["at"] = [0, size - 10_000]
        iterator.load_state_dict(state)
        for _ in range(100):
            next(iterator)
        position = iterator.position
    waiting = sum(len(run) - 1 for run in position.cursor["waiting"])
    assert waiting >= 400 * lanes
    assert len(position.to_json()) <= 4096 + 16 * waiting


def test_a_position_of_a_walk_holds_no_tokens():
    with pack(generated([5000] * 3), 100).iterator() as iterator:
        for _ in range(60):
            next(iterator)
        cursor = iterator.position.cursor
    assert cursor == {
        "epoch": 0,
        "given": 60,
        "lanes": [1000],
        "at": [0, 2],
        "waiting": {"at": [0, 1], "offsets": [0], "read": 1},
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: pack(stored().shuffle(seed=1), 4, lengths=LENGTHS, lanes=1).batch(2),
        lambda: pack(stored().map(lambda d: d + 1), 4, "first_fit", 2, lanes=2),
        lambda: pack(generated(), 4, lanes=2).batch(3),
    ],
    ids=["by lengths", "first_fit", "generated"],
)
def test_rows_on_processes_are_those_of_one_thread(make):
    one = list(make().iterator(epochs=2))
    with make().prefetch(3, workers=2, on="processes").iterator(epochs=2) as iterator:
        for step, row in enumerate(iterator):
            assert difference(one[step], row) is None
            if step == 1:
                position = iterator.position.to_json()
    assert step == len(one) - 1
    with make().prefetch(3, workers=2, on="processes").iterator(epochs=2) as iterator:
        iterator.load_state_dict(position)
        for there, here in zip(one[2:], iterator, strict=True):
            assert difference(there, here) is None


# --- what is refused ----------------------------------------------------------------------------------


def notes(error):
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.zeros((2, 2), np.float32), r"element is float32\[2, 2\]"),
        (np.int64(3), r"element is int64\[\]"),
        ("words", "element is str"),
        (np.array(["a"], object), "element is object"),
        ((np.arange(2), np.arange(2)), r"element\[0\] is int64\[2\]"),
        ({"ids": np.arange(2), "x": {"y": "z"}}, r"element\['x'\]\['y'\] is str"),
        ({"a": np.arange(2), "b": np.arange(3)}, r"element\['a'\]: 2, element\['b'\]: 3"),
        ({}, "not none"),
    ],
)
@pytest.mark.parametrize("lengths", [None, [3, 2, 3]])
def test_what_is_no_document_is_refused_by_leaf_and_record(bad, said, lengths):
    dataset = pack(Dataset.from_sequence([np.arange(3), bad, np.arange(3)]), 3, lengths=lengths)
    iterator = dataset.iterator()
    assert next(iterator)["tokens"].tolist() == [0, 1, 2]
    with pytest.raises(ElementError, match=said) as caught:
        next(iterator)
    assert "sequence[1]" in notes(caught.value)


@pytest.mark.parametrize("lengths", [None, [2, 2]])
def test_documents_of_other_dtypes_or_names_do_not_go_into_one_row(lengths):
    first = np.arange(2, dtype=np.int32)
    for other, said in [
        (np.arange(2, dtype=np.int64), "'tokens' of int32 and of int64"),
        ({"ids": first}, r"documents of \['tokens'\] and of \['ids'\]"),
    ]:
        dataset = pack(Dataset.from_sequence([first, other]), 4, lengths=lengths)
        with pytest.raises(ElementError, match=said) as caught:
            list(dataset)
        assert "sequence[1]" in notes(caught.value)


def test_names_that_pack_adds_are_refused():
    clash = {"tokens": [[1, 2]], "positions": [[0, 1]]}
    with pytest.raises(PipelineError, match="pack adds 'positions'"):
        pack(Dataset.from_tensor_slices(clash), 4)
    made = {"segment_ids": np.arange(3)}
    with pytest.raises(PipelineError, match="pack adds 'segment_ids'") as caught:
        list(pack(Dataset.from_sequence([made]), 4))
    assert "sequence[0]" in notes(caught.value)


@pytest.mark.parametrize(("declared", "row"), [([3, 4, 2], 0), ([3, 6, 2], 0), ([3, 5, 1], 2)])
def test_a_document_of_another_length_than_declared_is_named(declared, row):
    dataset = pack(stored([3, 5, 2]), 4, lengths=declared)
    wrong = next(k for k in range(3) if declared[k] != [3, 5, 2][k])
    said = f"{[3, 5, 2][wrong]} tokens, and `lengths` says {declared[wrong]}"
    with pytest.raises(ElementError, match=said) as caught:
        dataset[row]
    assert f"sequence[{wrong}]" in notes(caught.value)


def test_a_document_declared_empty_that_is_not_is_named():
    with pytest.raises(ElementError, match="5 tokens, and `lengths` says 0") as caught:
        list(pack(stored([3, 5, 2]), 4, lengths=[3, 0, 2]))
    assert "sequence[1]" in notes(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pack(stored(), 0), "length is at least 1"),
        (lambda: pack(stored(), 4, "first_fit", bins=0), "bins is at least 1"),
        (lambda: pack(stored(), 4, lanes=0), "lanes is at least 1"),
        (lambda: pack(stored(), 4, "best_fit"), "best_fit"),
        (lambda: pack(stored(), 4, "first_fit", lengths=LENGTHS), 'for method="concat"'),
        (lambda: pack(filtered(), 4, lengths=LENGTHS), "a stream"),
        (lambda: pack(stored().repeat(), 4, lengths=LENGTHS), "endless"),
        (lambda: pack(stored().batch(2), 4, lengths=LENGTHS), "one record of one source"),
        (
            lambda: pack(stored().concatenate(stored()), 4, lengths=LENGTHS * 2),
            "one record of one source",
        ),
        (lambda: pack(stored(), 4, lengths=LENGTHS[1:]), "7 lengths for a source of 8"),
        (lambda: pack(stored([1]), 4, lengths=[-1]), "whole numbers"),
        (lambda: pack(stored([1]), 4, lengths=[1.0]), "whole numbers"),
    ],
)
def test_arguments_that_make_no_rows_are_refused(make, said):
    with pytest.raises(PipelineError, match=said):
        make()


def test_rows_before_a_document_that_fails_come_first_also_after_restoring():
    def fail_at_6(d):
        if len(d) and d[0] > 6000:
            raise ValueError("no such document")
        return d

    def make():
        return pack(stored().map(fail_at_6), 4, "first_fit", 2)

    rows, positions, said = until_it_fails(make().iterator())
    assert said == "no such document" and as_lists(rows) == expected(LENGTHS, 4, "first_fit", 2)[:3]
    iterator = make().iterator()
    iterator.load_state_dict(positions[0])
    again, _, said = until_it_fails(iterator)
    assert said == "no such document" and as_lists(again) == as_lists(rows[1:])


def until_it_fails(iterator):
    """The rows before an error, the positions after each, and what the error says."""
    rows, positions = [], []
    while True:
        try:
            rows.append(next(iterator))
        except ValueError as error:
            return rows, positions, str(error)
        positions.append(iterator.position.to_json())


def test_other_rows_are_another_pipeline():
    with pack(stored(), 4, lengths=LENGTHS).iterator() as iterator:
        next(iterator)
        position = iterator.position
    longer = [*LENGTHS[:-1], 3]
    for other in [
        pack(stored(), 5, lengths=LENGTHS),
        pack(stored(), 4, lengths=LENGTHS, lanes=2),
        pack(stored(), 4, lengths=longer),
        pack(stored(), 4),
        pack(stored(), 4, "first_fit"),
    ]:
        with pytest.raises(PipelineChanged):
            other.iterator().load_state_dict(position)


def _damaged(cursor):
    yield cursor | {"lanes": [0]}
    yield cursor | {"lanes": [0, -1]}
    yield cursor | {"lanes": [99, 99]}
    yield cursor | {"lanes": [99 if lane in cursor["dealt"] else 0 for lane in (0, 1)]}
    yield cursor | {"next": 2}
    yield cursor | {"dealt": []}
    yield cursor | {"dealt": [7] * len(cursor["dealt"])}
    yield cursor | {"given": "1"}
    yield cursor | {"epoch": 1}
    yield cursor | {"waiting": [[]]}
    yield cursor | {"waiting": {"at": [0, 0], "offsets": [3], "read": 1}}
    walked = {"at": [0, 0], "offsets": [1], "read": 2}
    yield cursor | {"waiting": walked, "dealt": [1], "lanes": [0, 0]}
    yield {}


@pytest.mark.parametrize("make", [filtered, generated])
@pytest.mark.parametrize("method", ["concat", "first_fit"])
def test_damaged_positions_are_refused(make, method):
    def made():
        return pack(make(), 4, method, 2, lanes=2)

    with made().iterator() as iterator:
        next(iterator)
        next(iterator)
        saved = iterator.position.to_dict()
    for cursor in _damaged(saved["cursor"]):
        with pytest.raises(UnreadablePosition):
            go_on(made().iterator(), saved | {"cursor": cursor})


def go_on(iterator, state):
    iterator.load_state_dict(state)
    return next(iterator)
