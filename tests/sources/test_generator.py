"""Generators that know their own place: their state inside the position, of what was delivered."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playhead import Dataset, Position
from playhead.errors import PipelineError, SlowResume, SourceChanged, UnreadablePosition
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
