"""An iterator against a list: whatever is saved, killed or damaged, the next element is the list's."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from playhead import Dataset
from playhead.errors import NotSeekable, PositionError
from playhead.plan.block import leaves, map_nest
from playhead.testing import assert_resumes_exactly, difference, equal

EPOCHS = 3


# One iterator, driven at random


def thirds(start=0):
    yield from range(start * 3, 27, 3)


def jitter(x, rng):
    return x * 1000 + rng.integers(1000)


MACHINES = {
    "counted": (
        lambda: Dataset.range(11).map(lambda x: x * 3).batch(2),
        lambda e: [[x * 3 for x in range(k, min(k + 2, 11))] for k in range(0, 11, 2)],
    ),
    "filtered": (
        lambda: Dataset.range(20).filter(lambda x: x % 3 > 0).map(lambda x: -x).batch(3).repeat(2),
        lambda e: (
            [
                [-1, -2, -4],
                [-5, -7, -8],
                [-10, -11, -13],
                [-14, -16, -17],
                [-19],
            ]
            * 2
        ),
    ),
    "generated": (
        lambda: Dataset.zip(Dataset.from_generator(thirds).skip(2), Dataset.range(5).repeat()),
        lambda e: [(6 + 3 * k, k % 5) for k in range(7)],
    ),
    "shuffled": (
        lambda: Dataset.range(13).shuffle(seed=5).map(jitter, rng=True, seed=6).repeat(2).batch(4),
        lambda e: [
            x.tolist() for x in map(MACHINES["shuffled"][0]().epoch(e).__getitem__, range(7))
        ],
    ),
    "empty": (lambda: Dataset.range(3).filter(lambda x: x > 5), lambda e: []),
}


class IteratorAgainstList(RuleBasedStateMachine):
    @initialize(name=st.sampled_from(sorted(MACHINES)))
    def begin(self, name):
        self.make, expected = MACHINES[name]
        self.passes = [expected(e) for e in range(EPOCHS)]
        self.elements = [element for one in self.passes for element in one]
        self.step = 0
        self.iterator = self.make().iterator(epochs=EPOCHS)
        self.closed = False
        self.saved = [(self.iterator.position.to_json(), 0)]

    def open(self, text, workers, buffer):
        dataset = self.make().prefetch(buffer, workers=workers)
        self.iterator = dataset.iterator(epochs=EPOCHS)
        self.iterator.load_state_dict(text)
        self.closed = False

    @rule()
    def next(self):
        element = next(self.iterator, None)
        if self.closed or self.step == len(self.elements):
            assert element is None
        else:
            assert plain(element) == self.elements[self.step]
            self.step += 1

    @rule(count=st.integers(2, 30))
    def next_many(self, count):
        for _ in range(count):
            self.next()

    @precondition(lambda self: not self.closed)
    @rule()
    def finish_the_epoch(self):
        epoch = self.iterator.position.epoch
        rest = [plain(element) for element in next(self.iterator.epochs(), ())]
        assert rest == self.elements[self.step : self.step + len(rest)]
        self.step += len(rest)
        if epoch < EPOCHS:
            assert self.step == sum(map(len, self.passes[: epoch + 1]))
            now = self.iterator.position
            assert (now.epoch, now.step_in_epoch) == (epoch + 1, 0)

    @rule()
    def save(self):
        self.saved.append((self.iterator.position.to_json(), self.step))

    @rule(data=st.data(), workers=st.integers(1, 3), buffer=st.integers(0, 5), kind=st.booleans())
    def kill_and_restore(self, data, workers, buffer, kind):
        text, self.step = data.draw(st.sampled_from(self.saved))
        if kind:
            self.iterator.close()
        self.open(text, workers, buffer)

    @rule(data=st.data())
    def restore_in_place(self, data):
        text, self.step = data.draw(st.sampled_from(self.saved))
        state = json.loads(text)
        self.iterator.load_state_dict(state)
        state.clear()
        self.closed = False

    @rule(data=st.data())
    def seek(self, data):
        step = data.draw(st.integers(0, len(self.elements)))
        if self.iterator.dataset.seekable:
            self.iterator.seek(step)
            self.step = step
        else:
            with pytest.raises(NotSeekable):
                self.iterator.seek(step)

    @rule()
    def close(self):
        self.iterator.close()
        self.closed = True

    @rule(data=st.data())
    def load_a_damaged_state(self, data):
        text, step = data.draw(st.sampled_from(self.saved))
        at = data.draw(st.integers(0, len(text) - 1))
        damaged = text[:at] + data.draw(st.sampled_from(["", "0", "9", "}", '"', "x", ","]))
        if data.draw(st.booleans()):
            damaged += text[at + 1 :]
        before = self.iterator.position.to_json()
        try:
            self.iterator.load_state_dict(damaged)
        except PositionError:
            assert self.iterator.position.to_json() == before
            return
        if self.iterator.dataset.seekable:
            self.step = self.iterator.position.step
            self.closed = False
            return
        next(self.iterator, None)  # another cursor may be a right one, and goes on from there
        self.step = step
        self.open(text, 1, 0)

    @rule(data=st.data())
    def look_elsewhere(self, data):
        if self.iterator.dataset.seekable:
            step = data.draw(st.integers(0, len(self.elements)))
            position = self.iterator.position_at(step)
            assert position.step == step
            self.saved.append((position.to_json(), step))
        assert len(list(self.make().epoch(1))) == len(self.passes[1])

    @invariant()
    def the_position_says_what_was_delivered(self):
        position = self.iterator.position
        assert position.step == self.step
        before = sum(map(len, self.passes[: position.epoch]))
        assert before + position.step_in_epoch == self.step


def plain(element):
    if isinstance(element, tuple):
        return tuple(plain(part) for part in element)
    return element.tolist()


IteratorAgainstList.TestCase.settings = settings(
    max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_an_iterator_is_a_list_with_a_place = pytest.mark.filterwarnings(
    "ignore::playhead.errors.PlayheadWarning"
)(IteratorAgainstList.TestCase)


# Pipelines put together at random


def counted(n, start=0):
    for k in range(start, n):
        yield np.int64(k)


SOURCES = {
    "range": lambda n: Dataset.range(n),
    "slices": lambda n: Dataset.from_tensor_slices(np.arange(n)),
    "sequence": lambda n: Dataset.from_sequence([np.int64(k) for k in range(n)]),
    "generator": lambda n: Dataset.from_generator(counted, args=(n,)),
}


def whole(parts):
    return parts if len(parts) > 1 else parts[0]


def total(element):
    return sum(int(np.sum(leaf)) for leaf in leaves(element))


def bump(*parts):
    return map_nest(lambda leaf: leaf + 1, whole(parts))


def noise(*parts):
    *parts, rng = parts
    return map_nest(lambda leaf: leaf + rng.integers(1 << 40), whole(tuple(parts)))


def odd(*parts):
    return total(whole(parts)) % 3 != 1


def cut(values, size, drop):
    batches = [values[k : k + size] for k in range(0, len(values), size)]
    return [stacked(b) for b in batches if len(b) == size or not drop]


def stacked(batch):
    if isinstance(batch[0], tuple):
        return tuple(stacked([element[k] for element in batch]) for k in range(len(batch[0])))
    return np.stack(batch)


def repeated(values, count, limit):
    return values * count if limit is None else (values * limit)[:limit] if values else []


# name: (build, reference); the reference works on lists, and is None where the order is playhead's own
OPERATIONS = {
    "map": (
        lambda ds, a: ds.map(bump),
        lambda v, a: [bump(*v_) if isinstance(v_, tuple) else bump(v_) for v_ in v],
    ),
    "noise": (lambda ds, a: ds.map(noise, rng=True, seed=a["seed"]), None),
    "filter": (lambda ds, a: ds.filter(odd), lambda v, a: [x for x in v if total(x) % 3 != 1]),
    "shuffle": (lambda ds, a: ds.shuffle(seed=a["seed"]), None),
    "window": (lambda ds, a: ds.shuffle(a["n"] + 1, seed=a["seed"]), None),
    "repeat": (lambda ds, a: ds.repeat(a["n"]), lambda v, a: v * a["n"]),
    "endless": (
        lambda ds, a: ds.repeat().take(a["m"]),
        lambda v, a: (v * a["m"])[: a["m"]] if v else [],
    ),
    "take": (lambda ds, a: ds.take(a["m"]), lambda v, a: v[: a["m"]]),
    "skip": (lambda ds, a: ds.skip(a["n"]), lambda v, a: v[a["n"] :]),
    "shard": (lambda ds, a: ds.shard(a["n"] + 1, a["n"]), lambda v, a: v[a["n"] :: a["n"] + 1]),
    "enumerate": (
        lambda ds, a: ds.enumerate(a["n"]),
        lambda v, a: [(np.int64(k), x) for k, x in enumerate(v, a["n"])],
    ),
    "batch": (lambda ds, a: ds.batch(a["n"] + 1, True), lambda v, a: cut(v, a["n"] + 1, True)),
    "last batch": (lambda ds, a: ds.batch(a["n"] + 1), lambda v, a: cut(v, a["n"] + 1, False)),
    "zip": (
        lambda ds, a: Dataset.zip(ds, SOURCES[a["source"]](a["m"])),
        lambda v, a: list(zip(v, [np.int64(k) for k in range(a["m"])], strict=False)),
    ),
    "with itself": (lambda ds, a: Dataset.zip(ds, ds), lambda v, a: [(x, x) for x in v]),
    "concatenate": (
        lambda ds, a: ds.concatenate(ds.skip(a["n"])),
        lambda v, a: v + v[a["n"] :],
    ),
    "prefetch": (lambda ds, a: ds.prefetch(a["n"], workers=2), lambda v, a: v),
}
NEEDS_SEEKABLE = ("shuffle", "window")
ONCE = "last batch"  # its short batch cannot be batched again, nor joined with others


@st.composite
def pipelines(draw):
    """(a source, operations with their arguments)"""
    source = draw(st.sampled_from(sorted(SOURCES))), draw(st.integers(0, 9))
    stream, short, chain = source[0] == "generator", False, []
    for _ in range(draw(st.integers(0, 5))):
        allowed = [
            name
            for name in sorted(OPERATIONS)
            if not (stream and name in NEEDS_SEEKABLE) and not (short and "batch" in name)
        ]
        name = draw(st.sampled_from(allowed))
        arguments = {
            "n": draw(st.integers(0, 3)),
            "m": draw(st.integers(0, 9)),
            "seed": draw(st.integers(0, 3)),
            "source": draw(st.sampled_from(sorted(SOURCES))),
        }
        stream |= name == "filter" or (name == "zip" and arguments["source"] == "generator")
        short |= name == ONCE
        chain.append((name, arguments))
    return source, chain


def build(pipeline):
    (source, n), chain = pipeline
    dataset = SOURCES[source](n)
    for name, arguments in chain:
        dataset = OPERATIONS[name][0](dataset, arguments)
    return dataset


def reference(pipeline):
    (_, n), chain = pipeline
    values = [np.int64(k) for k in range(n)]
    for name, arguments in chain:
        if OPERATIONS[name][1] is None:
            return None
        values = OPERATIONS[name][1](values, arguments)
    return values


def short_enough(pipeline):
    """Few elements in a pass, however the operations multiply them."""
    size = pipeline[0][1]
    for name, arguments in pipeline[1]:
        size = {"repeat": size * arguments["n"], "concatenate": 2 * size}.get(name, size)
    return size <= 24


COMPOSED = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@COMPOSED
@given(pipelines().filter(short_enough), st.integers(1, 4), st.integers(1, 5))
def test_any_pipeline_resumes_exactly(pipeline, workers, every):
    assert_resumes_exactly(lambda: build(pipeline), workers=(0, workers), every=every)


@settings(COMPOSED, max_examples=250)
@given(pipelines().filter(short_enough))
def test_any_pipeline_gives_what_lists_give(pipeline):
    expected, dataset = reference(pipeline), build(pipeline)
    for epoch in range(2):
        elements = list(dataset.epoch(epoch))
        if expected is not None:
            assert difference(elements, expected) is None
        if dataset.seekable:
            assert len(elements) == len(dataset)
            assert equal(elements, [dataset.epoch(epoch)[k] for k in range(len(dataset))])


@settings(COMPOSED, max_examples=120)
@given(pipelines().filter(short_enough), st.integers(0, 3))
def test_a_stream_gives_what_the_same_seekable_pipeline_gives(pipeline, size):
    """Over a filter that keeps everything: places and cursors are two ways to one order."""
    (source, n), chain = pipeline
    kept = [c for c in chain if c[0] not in ("shuffle", "window", "noise", "filter")]
    if source == "generator" or any(a["source"] == "generator" and c == "zip" for c, a in kept):
        return
    seekable = build(((source, n), kept))
    stream = Dataset.range(n).filter(lambda x: True)
    for name, arguments in kept:
        stream = OPERATIONS[name][0](stream, arguments)
    assert seekable.seekable and not stream.seekable
    for epoch in range(2):
        assert difference(list(seekable.epoch(epoch)), list(stream.epoch(epoch))) is None
