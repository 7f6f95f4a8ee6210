import itertools
import subprocess
import sys

import numpy as np
import pytest

import playhead as ph
from playhead import ArraySpec, Dataset
from playhead.errors import ElementError, NotSeekable, PipelineError, UnequalElements
from playhead.testing import equal


def lists(elements):
    return [element.tolist() for element in elements]


# Order and epochs


def test_the_passes_of_a_repeat_below_a_take_begin_at_its_epochs_beginning():
    assert lists(Dataset.range(10).repeat().take(3).repeat(2)) == [0, 1, 2, 0, 1, 2]


def test_each_pass_of_a_repeat_is_shuffled_anew():
    dataset = Dataset.range(50).shuffle(seed=1).repeat(3)
    one = lists(dataset)
    passes = [one[k : k + 50] for k in (0, 50, 100)]
    assert all(sorted(p) == list(range(50)) for p in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    alone = Dataset.range(50).shuffle(seed=1)
    assert passes == [lists(alone.epoch(e)) for e in range(3)]
    assert lists(dataset.epoch(1)) == [x for e in range(3, 6) for x in lists(alone.epoch(e))]


def test_endless_repeats_inside_each_other_are_shuffled_anew_in_every_epoch():
    dataset = Dataset.range(20).shuffle(seed=1).repeat().take(20).repeat().take(20)
    orders = [lists(dataset.epoch(e)) for e in range(4)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_the_second_shuffle_of_a_pipeline_is_another_one():
    once = lists(Dataset.range(30).shuffle(seed=1))
    twice = lists(Dataset.range(30).shuffle(seed=1).shuffle(seed=1))
    again = [once[k] for k in once]
    assert sorted(twice) == list(range(30)) and twice not in (once, again)


def test_loops_count_the_passes_that_were_completed():
    dataset = Dataset.range(20).shuffle(seed=4)
    passes = [lists(dataset.epoch(e)) for e in range(4)]
    assert lists(dataset) == passes[0]
    for _ in dataset:
        break
    next(iter(dataset))
    assert lists(dataset) == passes[1]
    assert lists(dataset.iterator()) == lists(dataset.epoch(0)) == passes[0]
    assert lists(dataset) == passes[2]
    assert [lists(dataset.map(lambda x: x)), lists(dataset)] == [passes[0], passes[3]]


def test_two_loops_at_once_walk_the_same_pass_and_count_it_once():
    dataset = Dataset.range(9).shuffle(seed=4)
    assert [a == b for a, b in zip(dataset, dataset, strict=True)] == [True] * 9
    assert lists(dataset) == lists(dataset.epoch(1))


def test_an_epoch_can_be_walked_indexed_and_traced():
    dataset = Dataset.range(10).shuffle(seed=1).batch(3)
    epoch = dataset.epoch(5)
    assert len(epoch) == 4
    assert lists(epoch) == [epoch[k].tolist() for k in range(4)] != lists(dataset.epoch(4))
    assert [r.index for r in epoch.trace(-1)] == epoch[-1].tolist()
    assert {r.epoch for r in epoch.trace(0)} == {5}
    with pytest.raises(PipelineError):
        dataset.epoch(-1)


# Seeds


def test_seed_gives_one_to_every_random_operation_that_has_none():
    def make():
        return (
            Dataset.range(9)
            .shuffle()
            .shuffle(seed=1)
            .map(lambda x, rng: x + rng.random(), rng=True)
        )

    seeded = make().seed(3)
    assert [op.get("seed") for op in seeded.operations()] == [None, 3, 1, 3]
    assert not any(op.get("drawn") for op in seeded.operations())
    assert lists(seeded) == lists(make().seed(3)) != lists(make().seed(4))
    assert len(seeded.trace(0)) == 1
    written = Dataset.range(9).shuffle(seed=1)
    assert written.seed(5) is written


def test_without_a_seed_two_datasets_differ_and_one_stays_as_it_is():
    first, second = Dataset.range(1000).shuffle(), Dataset.range(1000).shuffle()
    assert lists(first.iterator()) == lists(first.iterator()) != lists(second.iterator())
    with pytest.raises(PipelineError, match=r"shuffle \(test_dataset.py:\d+\) has no seed"):
        first.trace(0)


# Looking


def test_an_index_is_a_place_of_the_first_pass():
    dataset = Dataset.range(10).shuffle(seed=1).batch(4)
    assert [dataset[k].tolist() for k in range(3)] == lists(dataset.iterator())
    assert equal(dataset[-1], dataset[2]) and equal(dataset[np.int64(1)], dataset[1])
    for outside in (3, -4, 10**20):
        with pytest.raises(IndexError):
            dataset[outside]
    with pytest.raises(TypeError):
        dataset["1"]
    with pytest.raises(NotSeekable):
        Dataset.range(3).filter(lambda x: True)[0]
    assert Dataset.range(3).repeat()[10**9] == 10**9 % 3


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: Dataset.range(7), 7),
        (lambda: Dataset.range(7).repeat(), -1),
        (lambda: Dataset.range(0).repeat(), 0),
        (lambda: Dataset.range(7).filter(lambda x: True), -2),
        (lambda: Dataset.range(7).filter(lambda x: True).repeat(), -1),
        (lambda: Dataset.range(7).filter(lambda x: True).take(0), 0),
        (lambda: Dataset.range(7).repeat().take(5), 5),
        (lambda: Dataset.range(7).repeat().skip(5), -1),
        (lambda: Dataset.range(7).repeat().batch(5), -1),
        (lambda: Dataset.range(7).concatenate(Dataset.range(3)), 10),
        (lambda: Dataset.range(7).concatenate(Dataset.range(3).repeat()), -1),
        (lambda: Dataset.zip(Dataset.range(7), Dataset.range(3).repeat()), 7),
        (lambda: Dataset.zip(Dataset.range(7), Dataset.range(3).filter(bool)), -2),
        (lambda: Dataset.from_generator(lambda: iter("ab")), -2),
        (lambda: Dataset.from_generator(lambda: iter("ab"), length=2), 2),
    ],
)
def test_cardinality_is_tf_datas_and_len_raises_where_there_is_none(make, count):
    dataset = make()
    assert dataset.cardinality() == count and bool(dataset)
    if count >= 0:
        assert len(dataset) == count
    else:
        with pytest.raises(
            TypeError, match="is endless" if count == -1 else "has no length before"
        ):
            len(dataset)


INT = np.dtype(np.int64)


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (lambda: Dataset.range(3), ArraySpec((), INT)),
        (lambda: Dataset.range(3).batch(2), ArraySpec((None,), INT)),
        (lambda: Dataset.range(3).batch(2, drop_remainder=True), ArraySpec((2,), INT)),
        (lambda: Dataset.from_tensor_slices(["a"]).batch(2), ArraySpec((None,), str)),
        (lambda: Dataset.from_tensors(b"a"), ArraySpec((), bytes)),
        (
            lambda: Dataset.from_tensor_slices({"a": np.zeros((3, 2, 5), np.uint8)}).enumerate(),
            (ArraySpec((), INT), {"a": ArraySpec((2, 5), np.dtype(np.uint8))}),
        ),
        (
            lambda: Dataset.range(3).map(lambda x: (x, 2.0)).filter(lambda x, y: True),
            (ArraySpec((), INT), ArraySpec((), np.dtype(np.float32))),
        ),
        (
            lambda: Dataset.range(1, 4).map(np.arange).padded_batch(2),
            ArraySpec((None, None), INT),
        ),
        (
            lambda: Dataset.range(1, 4).map(np.arange).padded_batch(2, [5], drop_remainder=True),
            ArraySpec((2, 5), INT),
        ),
    ],
)
def test_element_spec_says_shapes_and_dtypes(make, spec):
    assert make().element_spec == spec


def test_printing_shows_one_operation_a_line():
    dataset = Dataset.zip(
        Dataset.range(8).shuffle(seed=3),
        Dataset.from_tensor_slices(["a", "b"]).repeat(name="again"),
    )
    lines = repr(dataset.filter(lambda x, y: True).batch(2).prefetch(4)).splitlines()
    assert lines[0] == "<playhead.Dataset of unknown length, stream>"
    assert [line.strip().split("(")[0] for line in lines[1:]] == [
        "[0]", "range", "shuffle", "[1]", "tensor_slices", "repeat", "zip", "filter", "batch", "prefetch",
    ]  # fmt: skip
    assert "shuffle(seed=3)  8 elements  seekable" in lines[3]
    assert "endless" in lines[6] and "name=again" in lines[6] and "test_dataset.py:" in lines[6]
    assert "buffer_size=4" in lines[-1] and "? elements  stream" in lines[-1]


# Values


def test_a_python_int_is_int32_and_a_float_float32():
    dataset = Dataset.from_tensor_slices(([1, 2], [0.5, 1.0], [True, False], ["a", "b"]))
    assert [str(spec.dtype) for spec in dataset.element_spec[:3]] == ["int32", "float32", "bool"]
    assert Dataset.range(2).map(lambda x: (7, 0.5, x)).element_spec == (
        ArraySpec((), np.dtype(np.int32)),
        ArraySpec((), np.dtype(np.float32)),
        ArraySpec((), INT),
    )


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, [1, 2**40], {"a": (2**31,)}])
def test_a_python_int_that_does_not_fit_int32_is_an_error(value):
    for make in (
        lambda: Dataset.from_tensors(value),
        lambda: list(Dataset.from_sequence([value])),
        lambda: list(Dataset.range(1).map(lambda x: value)),
        lambda: list(Dataset.from_generator(lambda: iter([value]))),
    ):
        with pytest.raises(OverflowError, match="does not fit int32") as caught:
            make()
        assert isinstance(caught.value, ElementError)
    assert int(Dataset.from_tensors(2**31 - 1)[0]) == 2**31 - 1


def test_words_and_bytes_keep_their_zeros():
    words, raw = ["a\0", "\0", ""], [b"\0b\0", b"\0", b""]
    dataset = Dataset.from_tensor_slices({"w": words, "r": raw})
    assert [(e["w"], e["r"]) for e in dataset] == list(zip(words, raw, strict=True))
    batch = dataset.batch(3)[0]
    assert batch["w"].dtype == object and batch["w"].tolist() == words
    assert batch["r"].dtype == object and batch["r"].tolist() == raw
    mapped = Dataset.from_sequence(raw).map(lambda r: (r + b"\0", str(r))).batch(2)[0]
    assert mapped[0].tolist() == [b"\0b\0\0", b"\0\0"]


def test_arrays_that_are_not_contiguous_are_read_rightly():
    base = np.arange(60, dtype=">i4").reshape(5, 3, 4)
    for array in (base, base.T, base[::-2], base[:, ::2, 1::2], np.asfortranarray(base)):
        dataset = Dataset.from_tensor_slices(array)
        assert equal(dataset.batch(9)[0], np.ascontiguousarray(array))
        assert [equal(x, y) for x, y in zip(dataset, np.ascontiguousarray(array), strict=True)]
        shuffled = dataset.shuffle(seed=1).batch(9)
        assert equal(shuffled[0], array[[r.index for r in shuffled.trace(0)]])


def test_a_batch_is_aligned_for_frameworks_that_take_it_without_a_copy():
    for dataset in (
        Dataset.from_tensor_slices(np.ones((7, 3), np.float32)).batch(5),
        Dataset.range(7).map(lambda x: np.ones(3, np.float32)).batch(5),
        Dataset.range(9).filter(lambda x: True).batch(5),
    ):
        assert dataset.iterator().__next__().ctypes.data % 64 == 0


def test_elements_that_do_not_stack_are_an_error_that_names_both():
    def ragged(x):
        return {"a": (np.zeros(x + 1),)}

    with pytest.raises(UnequalElements) as caught:
        Dataset.range(3).map(ragged).batch(3)[0]
    message = str(caught.value)
    assert "element['a'][0]" in message and "padded_batch" in message
    assert "element 0 of the batch is float64[1], element 1 is float64[2]" in message
    with pytest.raises(UnequalElements, match=r"int64\[\].*element 2 is float32\[\]"):
        Dataset.range(3).map(lambda x: x if x < 2 else 0.5).batch(3)[0]
    with pytest.raises(UnequalElements, match=r"a dict with 'a'.*element 1 is a dict with 'b'"):
        Dataset.range(2).map(lambda x: {"ab"[int(x)]: x}).batch(2)[0]
    with pytest.raises(UnequalElements, match=r"str.*element 1 is bytes"):
        Dataset.from_sequence(["a", b"a"]).batch(2)[0]


def test_padded_batch_pads_and_says_what_it_cannot_pad():
    rows = Dataset.range(3).map(lambda x: (np.full((x, 2), 7, np.int16), "w"))
    padded, words = rows.padded_batch(3, padding_values=(1, ""))[0]
    assert padded.dtype == np.int16 and padded.tolist() == [
        [[1, 1], [1, 1]],
        [[7, 7], [1, 1]],
        [[7, 7], [7, 7]],
    ]
    assert words.tolist() == ["w"] * 3
    fixed = Dataset.range(3).map(np.arange).padded_batch(3, padded_shapes=(np.int64(4),))
    assert fixed[0].shape == (3, 4)
    with pytest.raises(UnequalElements, match="2 entries where padded_shapes allows 1"):
        Dataset.range(3).map(np.arange).padded_batch(3, [1])[0]
    with pytest.raises(UnequalElements, match="rank 1"):
        Dataset.range(3).map(np.arange).padded_batch(3, [None, None])[0]
    with pytest.raises(UnequalElements, match="ranks and dtypes must be equal"):
        Dataset.range(2).map(lambda x: np.zeros((1,) * int(x + 1))).padded_batch(2)[0]


def test_tuples_are_unpacked_and_dicts_are_not():
    pairs = Dataset.from_tensor_slices(([1, 2], {"a": [3, 4]}))
    assert lists(pairs.map(lambda x, d: x + d["a"])) == [4, 6]
    assert lists(pairs.map(lambda x, d: d).map(lambda d: d["a"])) == [3, 4]
    assert lists(pairs.filter(lambda x, d: x == 1).map(lambda x, d: x)) == [1]
    assert lists(pairs.map(lambda x, d, rng: x, rng=True)) == [1, 2]


# Arguments


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.batch(0),
        lambda ds: ds.batch(2.0),
        lambda ds: ds.batch(True),
        lambda ds: ds.padded_batch(-1),
        lambda ds: ds.take(1.5),
        lambda ds: ds.skip("1"),
        lambda ds: ds.repeat(2.0),
        lambda ds: ds.shard(2, 2),
        lambda ds: ds.shard(0, 0),
        lambda ds: ds.shuffle(0),
        lambda ds: ds.repeat().shuffle(),
        lambda ds: ds.filter(lambda x: True).shuffle(),
        lambda ds: ds.prefetch(-2),
        lambda ds: ds.prefetch(2, workers=0),
        lambda ds: ds.prefetch(2, on="mars"),
        lambda ds: ds.map(lambda x: x, seed=1),
        lambda ds: ds.map(lambda x: x, form="cobol"),
        lambda ds: ds.concatenate(Dataset.from_tensor_slices(["a"])),
        lambda ds: Dataset.zip(),
        lambda ds: Dataset.zip({}),
        lambda ds: Dataset.from_tensor_slices(3),
        lambda ds: Dataset.from_tensor_slices(([1, 2], [1])),
        lambda ds: Dataset.from_tensor_slices({}),
        lambda ds: Dataset.from_sequence({1: 2}),
        lambda ds: Dataset.from_sequence(iter([1])),
        lambda ds: ds.iterator(epochs=-1),
        lambda ds: Dataset.range(3, output_type=np.complex64),
    ],
)
def test_arguments_that_make_no_pipeline_are_an_error_at_once(make):
    with pytest.raises(ValueError):
        make(Dataset.range(5))


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(3),
        lambda ds: ds.filter(None),
        lambda ds: ds.concatenate([1]),
        lambda ds: Dataset.zip(ds, 3),
        lambda ds: Dataset.from_generator([1]),
        lambda ds: ds.shard(2, 0.5),
        lambda ds: Dataset.range(1.5),
    ],
)
def test_arguments_of_another_type_are_a_type_error(make):
    with pytest.raises(TypeError):
        make(Dataset.range(5))


def test_numbers_may_be_numpys():
    n = np.int64(2)
    dataset = (
        Dataset.range(np.int32(20)).shuffle(n, seed=n).repeat(n).skip(n).take(n * 8).shard(n, n - 1)
    )
    dataset = dataset.enumerate(n).batch(n).prefetch(n, workers=n)
    iterator = dataset.iterator()
    next(iterator)
    again = dataset.iterator()
    again.load_state_dict(iterator.position.to_json())
    assert all(equal(a, b) for a, b in zip(again, iterator, strict=True))


def test_a_filter_must_return_one_bool():
    with pytest.raises(TypeError, match="one bool"):
        list(Dataset.range(3).filter(lambda x: np.array([True, False])))
    for wrong in (lambda x: int(x), lambda x: None, lambda x: "False"):
        with pytest.raises(TypeError, match="one bool"):
            list(Dataset.range(3).filter(wrong))
    assert lists(Dataset.range(3).filter(lambda x: x > 0)) == [1, 2]


def test_a_name_of_tf_data_that_is_about_graphs_says_so():
    with pytest.raises(AttributeError, match=r"no 'with_options': there is no optimiser"):
        Dataset.range(3).with_options(None)
    with pytest.raises(AttributeError, match=r"no 'cash'$"):
        Dataset.range(3).cash()
    assert not hasattr(Dataset.range(3), "snapshot")


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_of_a_stream_share_no_memory(ahead):
    dataset = Dataset.from_tensor_slices(np.arange(4000.0)).filter(lambda x: True).batch(8)
    batches = list(dataset.prefetch(workers=2) if ahead else dataset)
    assert all(batch.ctypes.data % 64 == 0 for batch in batches)
    assert not any(np.shares_memory(a, b) for a, b in itertools.pairwise(batches))


def test_a_slice_is_refused_by_name():
    with pytest.raises(TypeError, match="skip and take"):
        Dataset.range(3)[0:2]


# What importing loads


def test_importing_playhead_loads_numpy_and_the_standard_library_only():
    script = """
import sys
import numpy.random
before = set(sys.modules)
import playhead
playhead.Dataset.range(3).shuffle(seed=1).map(lambda x: x).batch(2)[0]
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded - sys.stdlib_module_names - {"playhead", "numpy"}))
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert ph.AUTOTUNE == -1 and ph.INFINITE == -1 and ph.UNKNOWN == -2
    heavy = {"keras", "tensorflow"}
    assert all(hasattr(ph, name) for name in set(ph.__all__) - heavy)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ph.nothing  # noqa: B018


# Datasets brought together


def test_seed_gives_datasets_that_are_zipped_orders_and_numbers_of_their_own():
    def numbered(x, rng):
        return rng.integers(1000)

    orders = Dataset.zip(Dataset.range(50).shuffle(), Dataset.range(50).shuffle()).seed(3)
    first, second = zip(*([int(x) for x in pair] for pair in orders), strict=True)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    numbers = [Dataset.range(50).map(numbered, rng=True) for _ in range(2)]
    pairs = list(Dataset.zip(*numbers).seed(3))
    assert sum(a == b for a, b in pairs) < 5
    alone = Dataset.range(50).shuffle().seed(3)
    assert [int(x) for x in alone] == list(first)


def test_a_chain_of_concatenates_is_one_operation():
    dataset = Dataset.range(2)
    for k in range(600):
        dataset = dataset.concatenate(Dataset.range(k, k + 1))
    assert len(dataset) == 602
    assert [int(dataset[k]) for k in (0, 1, 2, 601)] == [0, 1, 0, 599]
    iterator = dataset.iterator()
    next(iterator)
    assert len(iterator.position.to_json()) < 1024


def test_the_spec_of_concatenated_datasets_fits_both():
    three = Dataset.from_tensor_slices(np.zeros((2, 3), np.float32))
    four = Dataset.from_tensor_slices(np.zeros((2, 4), np.float32))
    assert three.concatenate(four).element_spec == ArraySpec((None,), np.dtype(np.float32))


def test_numpy_integers_are_numbers_everywhere_and_fractions_nowhere():
    dataset = Dataset.range(10).shuffle(seed=np.int64(3)).batch(np.int32(4))
    assert lists(dataset.epoch(np.int64(1))) == lists(dataset.epoch(1))
    iterator = dataset.iterator(epochs=np.int64(2))
    iterator.seek(np.int64(1))
    assert iterator.position_at(np.int64(2)).to_json() == iterator.position_at(2).to_json()
    with pytest.raises(TypeError):
        iterator.seek(2.5)
    with pytest.raises(TypeError):
        dataset.iterator(epochs=2.5)
    with pytest.raises(TypeError):
        Dataset.range(3).shuffle(seed=1.7)
    with pytest.raises(ph.errors.OutOfReach, match="count from 0"):
        iterator.seek(-1)


def test_places_in_very_many_passes_are_found():
    dataset = Dataset.range(2).shuffle(seed=1).repeat().batch(40)
    batch = dataset[100]
    assert [sorted(batch[k : k + 2].tolist()) for k in range(0, 40, 2)] == [[0, 1]] * 20
    alone = Dataset.range(2).shuffle(seed=1).repeat()
    assert batch.tolist() == [int(alone[k]) for k in range(4000, 4040)]


def test_seed_keeps_together_what_two_zipped_datasets_share():
    shuffled = Dataset.range(50).shuffle()
    pairs = Dataset.zip(shuffled.map(lambda x: x), shuffled.map(lambda x: x * 2))
    for dataset in (pairs, pairs.seed(3)):
        found = [(int(a), int(b)) for a, b in dataset]
        assert all(b == 2 * a for a, b in found)
        assert sorted(a for a, _ in found) == list(range(50))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"padded_shapes": ([3], [3])}, "padded_shapes is built as"),
        ({"padding_values": (0, 1)}, "padding_values is built as"),
        ({"padding_values": {"x": 0}}, "padding_values is built as"),
        ({"padding_values": 0.5}, "padding_values has 0.5 where the elements are int64"),
        ({"padding_values": "no"}, "padding_values has 'no' where the elements are int64"),
        ({"padding_values": np.zeros(2)}, "padding_values has array"),
    ],
)
def test_padding_that_does_not_fit_the_elements_is_told(options, said):
    with pytest.raises(UnequalElements, match=said):
        list(Dataset.range(3).map(np.arange).padded_batch(2, **options))


def test_a_mistyped_argument_of_a_reader_names_the_class_that_users_know():
    with pytest.raises(TypeError, match=r"^Dataset\.from_csv\(\) got an unexpected keyword"):
        Dataset.from_csv("x.csv", colums=["a"])
