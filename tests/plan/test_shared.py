"""A dataset that is joined with itself again and again: 2**n ways to its source, and n operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from playhead import Dataset
from playhead.plan.batches import Batch
from playhead.plan.cached import varies
from playhead.plan.description import (
    MAX_OPERATIONS,
    described,
    flatten,
    operations,
    seeded,
    unseeded,
    with_changes,
)
from playhead.plan.lengths import has_same_order
from playhead.plan.node import Node, ordinal
from playhead.plan.shared import each_once
from playhead.sources.arrays import Range

STEPS = 14  # 16384 ways
FEW = 40 * STEPS


@dataclass(frozen=True, eq=False)
class Counted(Range):
    """0, 1, 2; it writes down what it was asked."""

    asked: Counter = field(default_factory=Counter)
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self):
        self.asked["cardinality"] += 1
        return super().cardinality

    def static_spec(self):
        self.asked["static_spec"] += 1
        return super().static_spec()

    def describe(self):
        self.asked["describe"] += 1
        return super().describe()

    def count_records(self, index):
        self.asked["count_records"] += 1
        return super().count_records(index)


def doubled(join, steps=STEPS, drawn=False):
    source = Counted(0, 3, 1, np.dtype(np.int64))
    ds = Dataset(source)
    if drawn:
        ds = ds.shuffle()
    for _ in range(steps):
        ds = join(ds)
    return source, ds


JOINS = {
    "concatenate": lambda ds: ds.concatenate(ds),
    "through a repeat": lambda ds: ds.repeat(1).concatenate(ds),
    "through a slice": lambda ds: ds.skip(1).concatenate(ds.take(2)),
    "zip": lambda ds: Dataset.zip((ds, ds)).map(lambda a, b: a),
}


@pytest.mark.parametrize("name", JOINS)
def test_what_is_asked_of_the_source_grows_with_the_operations_not_with_the_ways_to_it(name):
    source, ds = doubled(JOINS[name])
    count = len(ds)
    assert (count == 3) == (name == "zip") and count > 2
    operations(ds.node)
    assert not varies(ds.node) and has_same_order(ds.node) and unseeded(ds.node) is None
    assert max(source.asked.values()) < FEW
    assert sum(1 for _ in each_once(ds.node)) < FEW


@pytest.mark.parametrize("name", ["concatenate", "through a repeat"])
def test_its_places_and_records_are_those_of_the_elements_one_by_one(name):
    source, ds = doubled(JOINS[name])
    batches = ds.batch(1000)
    with batches.iterator(epochs=1) as it:
        for k in range(7):
            assert next(it).tolist() == [n % 3 for n in range(1000 * k, 1000 * k + 1000)]
            assert it.position.records == 1000 * (k + 1)
        state = it.state_dict()
    with batches.iterator(epochs=1) as again:
        again.load_state_dict(state)
        assert next(again)[0] == 7000 % 3
    asked = source.asked["cardinality"] + source.asked["static_spec"] + source.asked["describe"]
    assert asked < 20 * FEW


def test_a_position_says_a_digest_of_what_would_be_too_much():
    counts = []
    for steps in range(STEPS):
        _, ds = doubled(JOINS["through a repeat"], steps)
        said = [one["op"] for one in flatten(operations(ds.node))]
        assert said == [at.describe()["op"] for at in described(ds.node)]
        counts.append(len(said))
    assert counts[:7] == [
        3 * 2**steps - 2 for steps in range(7)
    ]  # as long as it is little, all of it
    assert max(counts) == counts[6] < MAX_OPERATIONS < 3 * 2**7 - 2 and counts[7] == 1
    (digested,) = operations(doubled(JOINS["through a repeat"], 7)[1].node)
    assert digested["op"] == "concatenate" and digested["datasets"] == 2
    _, other = doubled(lambda ds: ds.repeat(2).concatenate(ds), 7)
    assert operations(other.node)[0]["digest"] != digested["digest"]


def test_what_is_shared_stays_shared_under_other_arguments_and_has_one_seed():
    _, ds = doubled(JOINS["concatenate"], drawn=True)
    assert unseeded(ds.node) is not None
    node = seeded(ds.node, 7)
    assert sum(1 for _ in each_once(node)) == STEPS + 2
    (shuffle,) = [at for at in each_once(node) if at.op == "shuffle"]
    assert (shuffle.seed, shuffle.drawn) == (7, False) and unseeded(node) is None
    assert ds.node is with_changes(ds.node, {})


def test_datasets_that_are_brought_together_get_seeds_of_their_own():
    a, b = Dataset.range(9).shuffle(), Dataset.range(9).shuffle()
    node = seeded(a.concatenate(b).concatenate(a).node, 7)
    seeds = [at.seed for at in each_once(node) if at.op == "shuffle"]
    assert len(seeds) == 2 and seeds[0] == 7 and seeds[1] != 7


@pytest.mark.parametrize("lengths", [(3, 0, 5), (0, 0), (4,), (2, None)])
def test_records_are_counted_at_every_place_of_a_concatenation(lengths):
    parts = [Dataset.range(n) if n is not None else Dataset.range(3).repeat() for n in lengths]
    ds = parts[0].batch(2)
    sizes = [min(2, lengths[0] - k) for k in range(0, lengths[0], 2)]
    for part, length in zip(parts[1:], lengths[1:], strict=True):
        ds = ds.concatenate(part.batch(2))
        sizes += [2] * 9 if length is None else [min(2, length - k) for k in range(0, length, 2)]
    assert isinstance(parts[0].batch(2).node, Batch)
    counted = [ds.node.count_records(k) for k in range(len(sizes) + 1)]
    assert counted == np.cumsum([0, *sizes]).tolist()


MIXES = {
    "sample": lambda ds: Dataset.sample_from_datasets([ds, ds], seed=1),
    "choose": lambda ds: Dataset.choose_from_datasets([ds, ds], Dataset.range(2).repeat(3)),
}


@pytest.mark.parametrize("name", MIXES)
def test_mixtures_ask_no_more_than_they_have_operations(name):
    source, ds = doubled(MIXES[name])
    assert ds.element_spec.shape == () and ds.cardinality() != 0
    operations(ds.node)
    assert max(source.asked.values()) < FEW


@pytest.mark.parametrize("step", [lambda ds: ds.skip(1), lambda ds: ds.repeat(1)])
def test_records_before_a_place_are_asked_for_once_at_each_of_many_steps(step):
    source, ds = doubled(step)
    source.asked.clear()
    assert ds.node.count_records(0) == 0
    assert source.asked["count_records"] < FEW


def test_random_operations_are_numbered_without_following_each_way_to_them():
    _, ds = doubled(lambda ds: Dataset.zip((ds, ds)).map(lambda a, b: a), 60, drawn=True)
    assert ordinal(ds.shuffle(seed=1).node) == 2**60
