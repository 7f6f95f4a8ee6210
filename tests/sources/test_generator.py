"""Generators that know their own place: their state inside the position, of what was delivered."""

from __future__ import annotations

import itertools
import json
import random
import sys
import warnings
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from playhead import Dataset, Position
from playhead.errors import (
    GlobalRandomness,
    IntegerOverflow,
    PipelineError,
    SlowResume,
    SourceChanged,
    UnequalElements,
    UnreadablePosition,
)
from playhead.plan.block import stack, taken
from playhead.sources.signature import fitted, signature_of
from playhead.sources.states import LIMIT, from_json, to_json
from playhead.testing import assert_resumes_exactly, difference

SAVED = []


class Counting:
    """An iterator whose state is not how many it gave, and whose every step is remembered."""

    def __init__(self, stop=7, size=0):
        self.at, self.stop, self.steps = 0, stop, 0
        self.pad = "x" * size

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.stop:
            raise StopIteration
        self.at += 1
        self.steps += 1
        return self.at * 10

    def get_state(self):
        SAVED.append(self.at)
        return {"at": self.at, "pad": self.pad}

    def set_state(self, state):
        self.at = state["at"]


class Loader:
    """An iterable that holds the state, and gives it to the next iterator, as torchdata's does."""

    def __init__(self):
        self.mutable = {"yielded": [0]}
        self.next = 0

    def __iter__(self):
        begin, self.next = self.next, 0
        for k in range(begin, 7):
            self.mutable["yielded"][0] = k + 1
            yield (k + 1) * 10

    def state_dict(self):
        return self.mutable

    def load_state_dict(self, state):
        self.next = state["yielded"][0]


TENS = [10, 20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize("make", [Counting, Loader])
@pytest.mark.parametrize("every", [1, 3])
def test_what_knows_its_own_place_resumes_exactly(make, every):
    def pipeline():
        return Dataset.from_generator(make, state_every=every)

    assert [int(x) for x in pipeline()] == TENS
    assert_resumes_exactly(pipeline)
    assert_resumes_exactly(lambda: pipeline().batch(2).prefetch(4))
    assert_resumes_exactly(lambda: pipeline().shuffle(3, seed=1).repeat(2))


def test_a_position_holds_the_state_of_what_was_delivered_and_not_of_what_was_read_ahead():
    ds = Dataset.from_generator(Counting, args=(500,)).prefetch(50)
    with ds.iterator() as it:
        for _ in range(20):
            next(it)
        for step in (20, 7, 1):
            cursor = it.position_at(step).cursor
            said = {"at": [0, step], "taken": step, "state": {"at": step, "pad": ""}}
            assert cursor == said
        assert max(SAVED) > 20


def test_nothing_is_replayed_where_the_state_is_the_newest_and_little_where_it_is_not():
    made = []

    def make(stop):
        made.append(Counting(stop))
        return made[-1]

    for every, replayed in ((1, 0), (8, 3)):
        ds = Dataset.from_generator(make, args=(100,), state_every=every)
        with ds.iterator() as it:
            for _ in range(11):
                next(it)
            position = it.position.to_json()
        with ds.iterator() as again:
            again.load_state_dict(position)
            assert next(again) == 120
            assert made[-1].steps == replayed + 1


def test_large_states_are_saved_less_often_and_too_large_ones_refused():
    ds = Dataset.from_generator(Counting, args=(20, 5 << 12))
    SAVED.clear()
    assert len(list(ds)) == 20
    assert SAVED == [1, 6, 11, 16]
    assert_resumes_exactly(lambda: ds, every=5)
    with pytest.raises(PipelineError, match="a position holds"):
        list(Dataset.from_generator(Counting, args=(20, LIMIT + 1)))
    with pytest.raises(PipelineError, match="state_every"):
        Dataset.from_generator(Counting, state_every=0)


def test_a_state_that_a_position_cannot_hold_is_refused():
    class Odd(Counting):
        def get_state(self):
            return {"lock": object()}

    with pytest.raises(PipelineError, match=r"holds builtins\.object"):
        list(Dataset.from_generator(Odd))


def test_a_state_that_is_not_taken_back_is_an_error():
    with Dataset.from_generator(Counting).iterator() as it:
        next(it)
        text = it.position.to_json()
    position = json.loads(text)
    position["cursor"]["state"] = {"elsewhere": 1}
    with Dataset.from_generator(Counting).iterator() as it:
        it.load_state_dict(position)
        with pytest.raises(UnreadablePosition, match="KeyError"):
            next(it)
    position["cursor"]["state"] = {"$": "bytes", "of": "!"}
    with Dataset.from_generator(Counting).iterator() as it:
        it.load_state_dict(position)
        with pytest.raises(UnreadablePosition, match="damaged"):
            next(it)
    position["cursor"] |= {"taken": 2}
    with Dataset.from_generator(Counting).iterator() as it, pytest.raises(ValueError):
        it.load_state_dict(position)


def test_a_generator_that_has_no_state_any_more_is_replayed():
    def make():
        return Counting() if stateful else iter(range(10, 80, 10))

    stateful = True
    with Dataset.from_generator(make).iterator() as it:
        next(it), next(it)
        position = Position.from_json(it.position.to_json())
    stateful = False
    with Dataset.from_generator(make).iterator() as it:
        it.load_state_dict(position)
        with pytest.warns(SlowResume, match="replays 2 elements"):
            assert next(it) == 30


def test_one_that_is_shorter_now_is_noticed():
    ds = Dataset.from_generator(Counting, state_every=4)
    with ds.iterator() as it:
        for _ in range(7):
            next(it)
        position = it.position.to_json()
    shorter = Dataset.from_generator(Counting, args=(5,), state_every=4)
    with shorter.iterator() as it:
        it.load_state_dict(position)
        with pytest.raises(SourceChanged, match="ended after 5"):
            next(it)


class Again:
    """An iterable that gives a new iterator each time."""

    def __iter__(self):
        return Counting()


def test_an_iterable_whose_iterators_have_states_is_taken_and_others_are_not():
    ds = Dataset.from_generator(Again())
    assert [int(x) for x in ds] == [int(x) for x in ds] == TENS
    assert ds.operations()[0]["fn"] == "Again"
    assert_resumes_exactly(lambda: ds)
    for one in (Counting(), Loader(), iter([1])):
        with pytest.raises(TypeError, match="needs a function that makes"):
            Dataset.from_generator(one)
    for other in (3, [1, 2, 3]):
        with pytest.raises(TypeError, match=r"not (int|list)"):
            Dataset.from_generator(other)


states = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$"), inner)
    ),
    max_leaves=12,
)


@given(states)
def test_every_state_comes_back_from_json_as_it_was(state):
    text = json.dumps(to_json(state), allow_nan=False)
    assert difference(from_json(json.loads(text)), state) is None


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=">i4").reshape(2, 3), np.float32(2.5), np.zeros((0, 2)), np.array([True])],
)
def test_arrays_come_back_from_json(array):
    found = from_json(json.loads(json.dumps(to_json({"a": array}))))["a"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype.name == array.dtype.name and np.shape(found) == np.shape(array)
    assert from_json(to_json(OrderedDict(a=1))) == {"a": 1}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchdatas_loaders_resume_exactly():
    torch = pytest.importorskip("torch")
    loading = pytest.importorskip("torchdata.stateful_dataloader")
    data = torch.utils.data.TensorDataset(torch.arange(26).reshape(13, 2))

    def loader(shuffle, workers=0):
        generator = torch.Generator()
        generator.manual_seed(5)
        return loading.StatefulDataLoader(
            data,
            batch_size=2,
            shuffle=shuffle,
            num_workers=workers,
            generator=generator,
            multiprocessing_context="forkserver" if workers else None,  # there are threads here
        )

    def make(shuffle, workers=0):
        return Dataset.from_generator(loader, args=(shuffle, workers)).map(lambda pair: pair[0])

    for shuffle in (False, True):
        expected = [pair[0].tolist() for pair in loader(shuffle)]
        assert [pair.tolist() for pair in make(shuffle)] == expected
        assert_resumes_exactly(lambda shuffle=shuffle: make(shuffle))
    with make(True, 2).iterator() as it:
        next(it), next(it)
        position = it.position.to_json()
        rest = [pair.tolist() for pair in it]
    with make(True, 2).iterator() as again:
        again.load_state_dict(position)
        assert [pair.tolist() for pair in again] == rest and len(rest) == 5


def test_grains_iterators_resume_exactly():
    grain = pytest.importorskip("grain")

    def stream():
        data = grain.MapDataset.source(list(range(16))).shuffle(seed=3)
        return data.to_iter_dataset().filter(lambda x: x % 3).batch(2)

    expected = [batch.tolist() for batch in stream()]
    for source in (stream, stream()):
        ds = Dataset.from_generator(source)
        assert [batch.tolist() for batch in ds] == expected
    assert_resumes_exactly(lambda: Dataset.from_generator(stream), every=3, workers=(0, 2))
    with Dataset.from_generator(stream).iterator() as it:
        next(it)
        assert set(it.position.cursor) == {"at", "taken", "state"}

    def loader():
        sampler = grain.samplers.IndexSampler(11, shuffle=True, num_epochs=1, seed=1)
        return grain.DataLoader(data_source=list(range(11)), sampler=sampler, worker_count=0)

    assert sorted(int(x) for x in Dataset.from_generator(loader)) == list(range(11))
    assert_resumes_exactly(lambda: Dataset.from_generator(loader), every=4, workers=(0,))


def test_playheads_own_iterators_are_such_iterators():
    def inner():
        return Dataset.range(9).shuffle(seed=1).filter(lambda x: x % 4 > 0).iterator(epochs=2)

    expected = [int(x) for x in inner()]
    assert [int(x) for x in Dataset.from_generator(inner)] == expected
    assert_resumes_exactly(lambda: Dataset.from_generator(inner), every=3)


PARTS = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "float": st.floats(width=32),
    "bool": st.booleans(),
    "str": st.text(max_size=2),
    "bytes": st.binary(max_size=2),
    "int64": st.integers(-(2**63), 2**63 - 1).map(np.int64),
    "row": arrays(np.float32, 2),
    "column": arrays(np.int16, (3, 1)).map(lambda array: array.T),
    "none": st.none(),
    "list": st.lists(st.integers(0, 9), max_size=2),
    "fixed width": st.just(np.array([b"a", b"bc"])),
    "no axis": st.just(np.array(3.5)),
    "large": st.just(np.zeros(2000)),
    "nested": st.fixed_dictionaries({"x": st.integers(0, 9)}),
}
Pair = namedtuple("Pair", "a b")
BUILT = [lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}, Pair, lambda a, b: (a, (b,))]


@settings(max_examples=150, deadline=None)
@given(
    alike=st.tuples(*[st.sampled_from(sorted(PARTS))] * 2),
    built=st.sampled_from(BUILT),
    unlike=st.integers(0, 7),
    size=st.integers(1, 4),
    draw=st.data(),
)
def test_items_become_the_elements_they_are_alone(alike, built, unlike, size, draw):
    names = [alike] * 6
    if unlike < 6:
        names[unlike] = draw.draw(st.tuples(*[st.sampled_from(sorted(PARTS))] * 2))
    items = [built(*(draw.draw(PARTS[name]) for name in pair)) for pair in names]
    if unlike == 6:
        items[3] = {key: items[3][key] for key in "ba"} if isinstance(items[3], dict) else (1,)
    wanted = [taken(item) for item in items]
    ds = Dataset.from_generator(lambda: iter(items), version="1")
    for found in (list(ds), list(ds.prefetch(workers=1))):
        assert_same(found, wanted)
    expected = outcome(lambda: [stack(wanted[k : k + size]) for k in range(0, 6, size)])
    for batches in (ds.batch(size), ds.batch(size).prefetch(workers=1)):
        found = outcome(lambda batches=batches: list(batches))
        if isinstance(expected, str):
            assert found == expected
        else:
            assert_same(found, expected)


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert difference(one, other) is None
        assert not isinstance(one, dict) or list(one) == list(other)


def outcome(make):
    try:
        return make()
    except UnequalElements as error:
        return str(error)


DTYPES = [np.int32, np.uint8, np.uint64, np.float32, np.float16, np.bool_, str, bytes]
VALUES = [
    *(0, 1, 255, 1 << 31, (1 << 64) - 1, -1, 2.5, 1e300, True, "a", b"a", None),
    *(np.int32(7), np.uint8(7), np.float32(7), np.bool_(True), np.array(7), np.array(7.0)),
    *(np.arange(2), np.arange(2, dtype=np.uint8), np.ones(2, np.float32), [1, 0], ["a", "b"]),
]


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([None, (), (2,), (None,)]),
    usual=st.sampled_from(VALUES),
    odd=st.none() | st.sampled_from(VALUES),
    named=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_items_fit_a_signature_together_as_they_do_alone(dtype, shape, usual, odd, named):
    values = [usual, usual, usual if odd is None else odd, usual]
    types, shapes = ({"x": dtype}, {"x": shape}) if named else ((dtype,), (shape,))
    items = [{"x": value} if named else (value,) for value in values]
    signature = signature_of(types, shapes, None)
    wanted, said = [], None
    for number, item in enumerate(items):
        try:
            wanted.append(fitted(signature, item))
        except Exception as error:
            said = type(error), str(error), f"item {number}"
            break
    ds = Dataset.from_generator(
        lambda: iter(items), output_types=types, output_shapes=shapes, version="1"
    )
    for iterator in (iter(ds), iter(ds.prefetch(workers=1))):
        for element in wanted:
            assert difference(next(iterator), element) is None
        if said is not None:
            with pytest.raises(said[0]) as caught:
                next(iterator)
            assert str(caught.value) == said[1]
            assert any(note.endswith(said[2]) for note in caught.value.__notes__)
    if said is None:
        found, expected = outcome(lambda: next(iter(ds.batch(4)))), outcome(lambda: stack(wanted))
        assert found == expected if isinstance(found, str) else difference(found, expected) is None


@pytest.mark.parametrize("bad", [1 << 31, [[1], []]])
def test_what_came_before_a_bad_item_is_delivered_and_the_item_is_named(bad):
    def items():
        for k in range(5):
            yield k, "x"
        yield bad, "x"
        raise AssertionError("nobody asks for this one")

    ds = Dataset.from_generator(items)
    for iterator in (ds.batch(2).iterator(), ds.batch(2).prefetch(workers=1).iterator()):
        assert [next(iterator)[0].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises((IntegerOverflow, UnequalElements)) as caught:
            next(iterator)
        assert any("item 5" in note for note in caught.value.__notes__)
        assert iterator.position.step == 2


def test_without_read_ahead_as_many_items_are_taken_as_a_batch_needs():
    given = []

    def items():
        for k in range(100):
            given.append(k)
            yield k, float(k)

    iterator = Dataset.from_generator(items).batch(4).iterator()
    for step in range(1, 4):
        next(iterator)
        assert len(given) == 4 * step
    given.clear()
    iterator = Dataset.from_generator(items).shuffle(5, seed=1).iterator()
    next(iterator)
    assert len(given) == 5
    given.clear()
    iterator = iter(Dataset.from_generator(items))
    next(iterator), next(iterator)
    assert len(given) == 2


def test_a_buffer_that_a_generator_fills_again_gives_each_element_its_own():
    def items():
        buffer = np.zeros(3)
        for k in range(4):
            buffer[:] = k
            yield buffer, k

    ds = Dataset.from_generator(items)
    for elements in (list(ds), list(ds.prefetch(workers=1)), list(ds.batch(2))):
        rows = np.concatenate([np.atleast_2d(element[0]) for element in elements])
        assert rows[:, 0].tolist() == [0, 1, 2, 3]
        for row, _ in elements:
            row += 10
        assert not any(
            np.may_share_memory(a, b) for a, _ in elements for b, _ in elements if a is not b
        )


# --- global random states -------------------------------------------------------------------------------

DRAWS = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "torch": lambda: sys.modules["torch"].rand(()).item(),
}


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("state", DRAWS)
def test_a_generator_that_draws_from_a_global_state_is_a_warning_that_names_it(state, ahead):
    if state == "torch":
        pytest.importorskip("torch")

    def noisy():
        for _ in range(9):
            yield DRAWS[state]()

    ds = Dataset.from_generator(noisy).prefetch(ahead, workers=1)
    with pytest.warns(
        GlobalRandomness,
        match=rf"from_generator\(noisy\) draws from the global {state} state.*rng =",
    ) as said:
        assert len(list(ds)) == len(list(ds)) == 9
    assert len(said) == 1 and said[0].filename == __file__


def test_what_others_draw_between_the_items_is_not_the_generators_doing():
    own = np.random.default_rng(0)

    def quiet():
        while True:
            yield own.random()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in itertools.islice(Dataset.from_generator(quiet).iterator(), 9):
            random.random(), np.random.rand()


def test_a_generator_that_ends_or_fails_while_it_is_watched_does_so_once():
    def fails():
        yield 1
        raise KeyError("no such thing")

    assert list(Dataset.from_generator(lambda: iter([1, 2]), version="1")) == [1, 2]
    found = []
    with pytest.raises(KeyError, match="no such thing") as caught:
        found.extend(Dataset.from_generator(fails).iterator())
    assert found == [1] and "from_generator(fails), item 1" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("build", [lambda ds: ds, lambda ds: ds.batch(4, drop_remainder=True)])
def test_a_cache_straight_over_a_generator_asks_for_nothing_ahead(build):
    asked = []

    def counted():
        for k in range(11):
            asked.append(k)
            yield k

    ds = build(Dataset.from_generator(counted).cache())
    iterator = ds.iterator()
    for _ in range(2):
        last = next(iterator)
    assert asked == list(range(int(np.max(last)) + 1))
    assert [np.ravel(x).tolist() for x in ds] == [np.ravel(x).tolist() for x in ds]
    assert_resumes_exactly(lambda: build(Dataset.from_generator(counted).cache()))


class Signed:
    """What a signature is made of: a dtype and a shape, as tf.TensorSpec has them."""

    def __init__(self, dtype):
        self.dtype, self.shape = np.dtype(dtype), ()


@pytest.mark.parametrize("dtype", ["i4", ">i4", ">f4", "f8", "?", "U2", "S2"])
def test_what_a_signature_makes_of_an_item_does_not_depend_on_how_many_are_taken(dtype):
    kind = np.dtype(dtype)
    item = str if kind.kind == "U" else (lambda k: str(k).encode()) if kind.kind == "S" else int
    made = [
        Dataset.from_generator(
            lambda: ((item(k % 2), k) for k in range(8)),
            output_signature=(Signed(dtype), Signed("i8")),
        ).batch(size)
        for size in (1, 4)
    ]
    ones, fours = ([batch[0] for batch in dataset] for dataset in made)
    assert {batch.dtype for batch in ones} == {batch.dtype for batch in fours}
    assert np.concatenate(ones).tolist() == np.concatenate(fours).tolist()
