"""Whole pipelines on processes: the elements, errors and positions of one thread, whatever is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from playhead import Dataset
from playhead.errors import PipelineError, ReadAheadTimeout, WorkerLost
from playhead.testing import difference

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def workers():
    """The worker processes of this one that are alive."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("popen_loky" in word for word in child.cmdline()):
                found.append(child.pid)
    return found


def count(start=0):
    yield from range(start, 40)


def noisy(x, rng):
    return {"x": x, "noise": rng.random((3, 5)), "name": f"{x}\0"}


PIPELINES = {
    "random maps in parts": lambda: (
        Dataset.range(50).shuffle(seed=1).map(noisy, rng=True, seed=2).batch(16)
    ),
    "large rows": lambda: (
        Dataset.range(30).map(lambda x: np.full((64, 64, 3), x, np.uint8)).batch(8)
    ),
    "maps of batches": lambda: (
        Dataset.from_tensor_slices(np.arange(60_000.0).reshape(60, 1000))
        .shuffle(seed=3)
        .map(lambda row: row * 2)
        .batch(7)
        .map(lambda b: (b, b.sum(1)))
        .repeat(2)
    ),
    "a filter": lambda: (
        Dataset.range(90).filter(lambda x: x % 3 == 1).map(lambda x: x * x).batch(4)
    ),
    "a generator": lambda: Dataset.from_generator(count).map(noisy, rng=True, seed=4).batch(6),
    "ragged": lambda: Dataset.range(20).map(lambda x: np.arange(x)).padded_batch(6),
    "datasets in datasets": lambda: (
        Dataset.range(12)
        .shuffle(seed=1)
        .interleave(lambda x: Dataset.range(int(x)).map(lambda y, x=x: x * y), 3, 2)
        .map(noisy, rng=True, seed=2)
        .batch(5)
    ),
    "windows": lambda: (
        Dataset.range(40)
        .map(lambda x: x * 3)
        .window(4, shift=3)
        .flat_map(lambda w: w.batch(4))
        .map(lambda b: b.sum())
        .batch(3)
    ),
    "buckets": lambda: (
        Dataset.range(50)
        .shuffle(seed=1)
        .map(lambda x: np.arange(x % 9))
        .bucket_by_sequence_length(len, [3, 6], [4, 3, 2])
        .map(lambda b: b.sum())
    ),
    "groups of a filter": lambda: (
        Dataset.range(60)
        .filter(lambda x: x % 4 != 1)
        .group_by_window(lambda x: x % 5, lambda key, w: w.batch(3), 3)
        .rebatch(7)
    ),
    "a mixture, resampled": lambda: (
        Dataset.sample_from_datasets(
            [Dataset.range(20), Dataset.range(100, 130).map(lambda x: x + 1)], [1, 2], seed=1
        )
        .resample(np.arange(50), seed=2)
        .map_batches(lambda b: b - b.min(), 4)
        .batch(6)
    ),
    "what is carried": lambda: (
        Dataset.range(60)
        .map(lambda x: 60 // (x % 7) if x % 7 else 1 // int(x % 7))
        .ignore_errors()
        .unique()
        .scan(np.int64(0), lambda s, x: (s + x, (s, x)))
        .map(lambda s, x: s * x)
        .cache()
        .batch(2)
    ),
    "nothing": lambda: Dataset.range(0).map(lambda x: x).batch(4),
    "one": lambda: Dataset.range(1).map(lambda x: x).batch(4),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_elements_and_positions_are_those_of_one_thread_from_the_beginning_and_from_the_middle(
    name,
):
    dataset = PIPELINES[name]()
    ahead = dataset.prefetch(3, workers=2, on="processes")
    one, saved = [], []
    with dataset.iterator(epochs=2) as iterator:
        for element in iterator:
            one.append(element)
            saved.append(iterator.position)
    with ahead.iterator(epochs=2) as iterator:
        for step, element in enumerate(iterator):
            assert difference(one[step], element) is None
            there, here = iterator.position.to_dict(), saved[step].to_dict()
            assert there.pop("pipeline")["fingerprint"] == here.pop("pipeline")["fingerprint"]
            assert there == here
        assert iterator.position.step == len(one)
    half = len(one) // 2
    if half:
        with ahead.iterator(epochs=2) as iterator:
            iterator.load_state_dict(saved[half - 1])
            assert difference(one[half:], list(iterator)) is None


@pytest.mark.parametrize(
    "build",
    [
        lambda f: Dataset.range(40).map(f).batch(4),
        lambda f: Dataset.range(40).filter(lambda x: f(x) >= 0).batch(4),
        lambda f: Dataset.from_generator(count, name="range").map(f).batch(4),
    ],
    ids=["map", "filter", "map over a stream"],
)
def test_an_error_comes_at_its_step_after_the_steps_before_it(build):
    def fails(x):
        if x == 22:
            raise KeyError("no such thing")
        return x

    with build(fails).prefetch(8, workers=2, on="processes").iterator() as iterator:
        found = [next(iterator).tolist() for _ in range(5)]
        assert found == [list(range(k, k + 4)) for k in range(0, 20, 4)]
        with pytest.raises(KeyError, match="no such thing") as caught:
            next(iterator)
        notes = "\n".join(caught.value.__notes__)
        assert "step 6 of the run" in notes and "range[22]" in notes
        assert "in fails" in str(caught.value.__cause__)  # the worker's own traceback
        assert iterator.position.step == 5


def test_a_worker_that_hangs_is_named_and_does_not_stay(tmp_path):
    note = tmp_path / "hangs"

    def hangs(x):
        if x == 9:
            note.touch()
            time.sleep(600)
        return x

    dataset = Dataset.from_tensor_slices(np.arange(20) * 1, name="numbers").map(hangs)
    iterator = dataset.batch(2).prefetch(2, workers=2, on="processes", timeout=3).iterator()
    iterator.seek(
        4
    )  # whose task is the only one that the clock runs for, however slow the machine is
    iterator.start()
    deadline = time.monotonic() + 120
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ReadAheadTimeout, match=r"numbers\[[89]\]"):
        next(iterator)
    iterator.close()
    deadline = time.monotonic() + 120
    while workers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers()


@POSIX
@pytest.mark.parametrize("stream", [False, True])
def test_an_element_that_kills_its_workers_is_named(stream):
    def kills(x):
        if x == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    source = (
        Dataset.from_generator(count, name="numbers")
        if stream
        else Dataset.range(40, name="numbers")
    )
    with source.map(kills).prefetch(2, workers=1, on="processes").iterator() as iterator:
        assert [int(next(iterator)) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(WorkerLost) as caught:
            next(iterator)
    said = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "numbers[5]" in said and "SIGKILL" in said


@POSIX
def test_workers_killed_while_a_run_goes_on_change_nothing_of_it():
    dataset = (
        Dataset.range(3000)
        .shuffle(seed=5)
        .map(lambda x, rng: (time.sleep(0.001), x + rng.random(200))[1], rng=True, seed=6)
        .batch(64)
    )
    expected = list(dataset)
    ended, killed = threading.Event(), []

    def kill():
        while not ended.wait(0.4):
            alive = workers()
            if alive:
                killed.append(random.choice(alive))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    with dataset.prefetch(4, workers=2, on="processes").iterator(epochs=2) as iterator:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for _ in range(2):
                for k in range(len(expected)):
                    batch = next(iterator)
                    if iterator.position.epoch == 0:
                        assert difference(expected[k], batch) is None
                    assert batch.shape == expected[k].shape
        finally:
            ended.set()
            killer.join()
        assert next(iterator, None) is None and iterator.position.step == 2 * len(expected)
    assert len(killed) >= 3


def test_two_iterators_on_processes_do_not_disturb_each_other():
    dataset = Dataset.range(60).map(lambda x: np.full(500, x)).batch(5)
    ahead = dataset.prefetch(2, workers=1, on="processes")
    expected = list(dataset)
    with ahead.iterator() as first, ahead.iterator() as second:
        found = [(next(first), next(second)) for _ in expected]
    assert difference(expected, [a for a, _ in found]) is None
    assert difference(expected, [b for _, b in found]) is None


def test_where_work_is_done_is_no_part_of_what_a_position_says():
    dataset = Dataset.range(20).map(lambda x: x + 1).batch(2)
    with dataset.prefetch(2, on="processes", workers=1).iterator() as iterator:
        next(iterator)
        saved = iterator.position
    with dataset.prefetch(2, on="threads", workers=3).iterator() as iterator:
        iterator.load_state_dict(saved)
        assert next(iterator).tolist() == [3, 4]


def test_only_known_places_to_work_are_accepted():
    with pytest.raises(PipelineError, match='it is "threads", "processes" or "ray"'):
        Dataset.range(3).prefetch(on="fibers")


class Particular(Exception):
    """Takes other arguments than it keeps, as those of many libraries do."""

    def __init__(self, code, *, why):
        super().__init__(f"{code}: {why}")
        self.code = code


def test_an_exception_of_any_class_can_be_caught_by_its_class():
    def fails(x):
        raise Particular(7, why="it is so")

    dataset = Dataset.range(3).map(fails).prefetch(2, workers=1, on="processes")
    with dataset.iterator() as iterator, pytest.raises(Particular, match="7: it is so") as caught:
        next(iterator)
    assert caught.value.code == 7


SPAWNED = """
import multiprocessing
from playhead import Dataset

def double(x):
    return 2 * x

def train(daemon):
    try:
        print([int(x) for x in Dataset.range(3).map(double).prefetch(on="processes", workers=1)], flush=True)
    except Exception as error:
        print(type(error).__name__, "on=\\"threads\\"" in str(error).replace("'", '"'), flush=True)

if __name__ == "__main__":
    for daemon in (False, True):
        child = multiprocessing.get_context("spawn").Process(target=train, args=(daemon,), daemon=daemon)
        child.start()
        child.join()
"""


def test_a_script_that_starts_processes_of_its_own_can_read_on_processes_in_them(tmp_path):
    (tmp_path / "script.py").write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == ["[0, 2, 4]", "PipelineError True"], done.stderr


@pytest.mark.parametrize("size", [2.5, True, "auto", None, -2])
def test_a_number_of_elements_ahead_is_a_whole_number(size):
    with pytest.raises(PipelineError, match="buffer_size"):
        Dataset.range(3).prefetch(size)
