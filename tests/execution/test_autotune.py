"""AUTOTUNE against models of pools whose rate is known, and in real threads."""

import heapq
import random
import time

import numpy as np
import pytest

from playhead import Dataset, feed
from playhead.execution import threads
from playhead.execution.autotune import Tuner
from playhead.execution.pool import cores
from playhead.feed import needs_processes
from playhead.plan.compute import Outcome

CORES = 2


class Model:
    """A pool that delivers `rate(workers)` records a second, in results of ten, and a clock that it moves."""

    def __init__(self, rate, busy, most=32, consumer=0.0, noise=0.0, workers=CORES):
        self.workers, self.most = workers, most
        self.rate, self.busy, self.consumer, self.noise = rate, busy, consumer, noise
        self.now = 0.0
        self.delivered = 0
        self.random = random.Random(7)
        self.tuner = Tuner(self, clock=lambda: self.now)

    def resize(self, workers):
        assert 1 <= workers <= self.most
        self.workers = workers

    def run(self, seconds):
        """Records a second that the consumer gets."""
        begin, before = self.now, self.delivered
        while self.now < begin + seconds:
            factor = 1 + self.noise * (2 * self.random.random() - 1)
            made = 10 / (self.rate(self.workers) * factor)
            took = max(made, self.consumer)
            self.now += took
            self.delivered += 10
            outcome = Outcome(None, None, seconds=1.0, cpu=self.busy(self.workers))
            self.tuner.delivered(10, max(0.0, took - self.consumer), outcome)
        return (self.delivered - before) / (self.now - begin)


def waiting(workers):
    """Tasks that wait for a disk: each worker adds as much."""
    return 100.0 * workers


def few_disks(workers):
    return 100.0 * min(workers, 8)


def computing(workers):
    return 500.0 * min(workers, CORES)


def locked(workers):
    """Python that holds its lock: more threads get in each other's way."""
    return 1000.0 / (1 + 0.25 * (workers - 1))


def flat(workers):
    return 1000.0


def busy_computing(workers):
    return min(1.0, CORES / workers)


def busy_locked(workers):
    return 1.0 / workers


def never(workers):
    return 0.02


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    ("rate", "busy", "chosen", "seconds"),
    [
        (waiting, never, {32}, 6),
        (few_disks, never, {8, 16}, 8),
        (computing, busy_computing, {CORES}, 8),
        (locked, busy_locked, {1}, 8),
    ],
)
def test_it_finds_a_good_number_within_seconds_and_stays(rate, busy, chosen, seconds, noise):
    model = Model(rate, busy, noise=noise)
    model.run(seconds)
    assert model.workers in chosen
    for _ in range(20):
        model.run(10)
        assert model.workers in chosen or model.tuner.is_trying


@pytest.mark.parametrize(
    ("rate", "busy"),
    [(computing, busy_computing), (locked, busy_locked), (flat, never), (flat, busy_locked)],
)
def test_it_never_costs_more_than_a_few_percent(rate, busy):
    model = Model(rate, busy, noise=0.1)
    assert model.run(120) > 0.95 * rate(CORES)


def test_a_consumer_that_is_slower_than_the_pipeline_changes_nothing():
    model = Model(waiting, never, consumer=1.0)
    model.run(300)
    assert model.workers == CORES


def test_it_follows_when_the_work_becomes_another():
    model = Model(locked, busy_locked)
    model.run(20)
    assert model.workers == 1
    model.rate, model.busy = waiting, never
    model.run(150)
    assert model.workers == 32
    model.rate, model.busy = computing, busy_computing
    rate = model.run(60)
    assert rate > 0.95 * computing(CORES)


def test_trials_in_vain_become_rare():
    model = Model(flat, never)
    model.run(30)
    trials, resize = [], model.resize

    def counted(workers):
        trials.append(model.now)
        resize(workers)

    model.resize = counted
    model.run(600)
    assert len(trials) <= 2 * (600 / 60 + 5)


class InFlight:
    """Tasks that sleep for `latency`, begun as workers are free and delivered in order."""

    def __init__(self, latency):
        self.workers, self.most, self.latency = CORES, 32, latency
        self.now = 0.0
        self.chosen = []
        self.tuner = Tuner(self, clock=lambda: self.now)

    def resize(self, workers):
        self.workers = workers
        self.chosen.append(workers)

    def run(self, seconds):
        queued, running = 0, []
        while self.now < seconds:
            while queued + len(running) < 2 * self.workers + 1:
                queued += 1
            while queued and len(running) < self.workers:
                queued -= 1
                heapq.heappush(running, self.now + self.latency)
            began, self.now = self.now, heapq.heappop(running)
            outcome = Outcome(seconds=self.latency, cpu=0.01 * self.latency)
            self.tuner.delivered(1, self.now - began, outcome)


@pytest.mark.parametrize("latency", [0.005, 0.1, 0.5, 1.0])
def test_tasks_begun_before_a_change_do_not_judge_it(latency):
    model = InFlight(latency)
    model.run(60)
    assert model.chosen[:4] == [4, 8, 16, 32]


# Real threads


def test_threads_that_sleep_become_many_and_the_elements_are_the_same():
    def sleeps(x):
        time.sleep(0.004)
        return x

    dataset = Dataset.range(30_000).shuffle(seed=1).map(sleeps).batch(8).prefetch()
    with dataset.iterator() as iterator:
        found, began = [], time.monotonic()
        while iterator.stats().get("workers", 0) < 8 and time.monotonic() - began < 60:
            found.append(next(iterator))
        assert iterator.stats()["workers"] >= 8
    expected = Dataset.range(30_000).shuffle(seed=1).batch(8)
    assert len(found) > 10
    assert all(np.array_equal(batch, expected[k]) for k, batch in enumerate(found))


def test_what_is_light_begins_with_one_worker_and_all_else_with_every_core(tmp_path):
    pytest.importorskip("tensorflow")

    def workers(dataset):
        with dataset.prefetch().iterator() as iterator:
            next(iterator)
            return iterator.stats()["workers"]

    (tmp_path / "a.txt").write_text("line\n" * 100)
    light = Dataset.from_lines(tmp_path / "a.txt").shuffle(seed=1).batch(5)
    assert workers(light) == (1 if needs_processes() else cores())
    assert workers(light.map(lambda x: x)) == cores()
    rows = Dataset.from_tensor_slices(np.zeros((40, 3))).shuffle(seed=1)
    assert workers(rows.batch(5)) == max(1, cores() - 1)  # and the consumer
    assert workers(rows.map(lambda x: x).batch(5)) == cores()
    assert workers(rows.map(lambda x: x, form="tf").batch(5)) == cores() + 1


@pytest.mark.parametrize(
    ("busy", "rate", "ends"),
    [(lambda w: 0.98, flat, {15}), (busy_locked, locked, {1})],
    ids=["they compute", "they hold the lock"],
)
def test_where_the_consumer_helps_one_worker_fewer_is_as_good_as_all_cores(
    busy, rate, ends, monkeypatch
):
    for module in (feed, threads):
        monkeypatch.setattr(module, "cores", lambda: 16)
    rows = Dataset.from_tensor_slices(np.zeros((4000, 3))).shuffle(seed=1)
    with rows.batch(5).prefetch().iterator(epochs=None) as iterator:
        next(iterator)
        compute = iterator._feed.compute
        pool, tuner, now, chosen = compute.pool, compute.tuner, [1e9], []
        assert (pool.workers, compute.hands) == (15, 16)
        tuner._clock = lambda: now[0]
        while now[0] < 1e9 + 60:
            now[0] += 10 / rate(pool.workers)
            outcome = Outcome(seconds=1.0, cpu=busy(pool.workers))
            tuner.delivered(10, 0.95 * 10 / rate(pool.workers), outcome)
            chosen.append(pool.workers)
        trials = {half for number in ends for half in (number // 2, 2 * number)}
        assert set(chosen[len(chosen) // 2 :]) <= ends | trials
        assert pool.workers in ends


def test_a_number_of_workers_that_was_asked_for_stays():
    dataset = Dataset.range(3000).map(lambda x: time.sleep(0.001) or x).batch(8).prefetch(workers=3)
    with dataset.iterator() as iterator:
        seen = {iterator.stats()["workers"] for _ in iterator}
    assert seen == {3}
