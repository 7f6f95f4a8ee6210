"""Workers that go from one iterator to the next over the same dataset, and when they must not."""

import contextlib
import copy
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import GlobalRandomness
from playhead.execution import kept, supervisor
from playhead.testing import difference

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


others = set()  # threads that other tests of this process left


def threads():
    names = [t for t in threading.enumerate() if t.name.startswith("playhead")]
    return [t for t in names if t not in others]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Each test's datasets are garbage at its end, and its workers are gone then."""
    others.clear()
    others.update(threads())
    yield
    gc.collect()
    wait_until(lambda: not threads())


def environment(x):
    return x * int(os.environ["PLAYHEAD_TEST_FACTOR"])


def directory(x):
    return len(os.getcwd())


def crew_of(dataset):
    return kept._idle[dataset.node]


def pids_of(batches):
    return {int(pid) for batch in batches for pid in np.ravel(batch)}


def own_pid(count=40, workers=1):
    dataset = Dataset.range(count).map(lambda x: os.getpid()).batch(4)
    return dataset.prefetch(2, on="processes", workers=workers)


def exhaust(iterator):
    return pids_of(iterator)


def drop(iterator):
    return pids_of([next(iterator)])


def release(iterator):
    found = pids_of([next(iterator)])
    iterator.release()
    assert next(iterator, None) is None
    return found


def test_the_next_iterator_has_the_workers_of_the_one_that_ended_was_dropped_or_released():
    dataset = own_pid()
    pids = exhaust(dataset.iterator())
    assert len(pids) == 1
    for end in (drop, release, exhaust, drop):
        assert end(dataset.iterator(epochs=2)) == pids
        assert len(threads()) <= 2
    assert all(map(is_alive, pids))


def test_loops_over_a_dataset_and_its_passes_have_the_same_workers_wherever_they_break_off():
    dataset = own_pid()
    pids = pids_of(dataset)
    for batch in dataset:
        assert pids_of([batch]) == pids
        break
    assert pids_of(dataset.epoch(7)) == pids == pids_of(dataset)
    assert [t.name for t in threads()] == ["playhead-processes"]


def test_an_iterator_that_is_closed_leaves_nothing_behind_even_if_it_came_to_its_end_before():
    dataset = own_pid()
    for end in (exhaust, drop):
        with dataset.iterator() as iterator:
            pids = end(iterator)
        assert not threads() and not any(map(is_alive, pids))
    exhausted = dataset.iterator()
    pids = exhaust(exhausted)
    with dataset.iterator() as another:
        assert drop(another) == pids
        exhausted.close()  # they are another's now
        assert exhaust(another) == pids
    assert not threads() and not any(map(is_alive, pids))


def test_a_second_iterator_at_the_same_time_has_workers_of_its_own_and_one_crew_is_kept():
    dataset = own_pid()
    first, second = dataset.iterator(), dataset.iterator()
    here, there = pids_of([next(first)]), pids_of([next(second)])
    assert not here & there
    assert exhaust(first) == here and exhaust(second) == there
    wait_until(lambda: not any(map(is_alive, here)))
    assert exhaust(dataset.iterator()) == there


def test_workers_end_when_their_dataset_is_garbage():
    dataset = own_pid()
    pids = exhaust(dataset.iterator())
    gc.disable()
    try:
        del dataset
        wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        gc.enable()


def test_workers_that_nobody_wants_for_long_end_and_new_ones_come(monkeypatch):
    monkeypatch.setattr(supervisor, "IDLE", 0.1)
    dataset = own_pid()
    pids = exhaust(dataset.iterator())
    wait_until(lambda: not threads())
    assert not any(map(is_alive, pids))
    again = exhaust(dataset.iterator())
    assert again and not again & pids


def test_of_many_datasets_the_last_ones_keep_their_workers(monkeypatch):
    monkeypatch.setattr(kept, "MOST", 2)
    datasets = [own_pid() for _ in range(3)]
    pids = [exhaust(dataset.iterator()) for dataset in datasets]
    wait_until(lambda: not any(map(is_alive, pids[0])))
    assert exhaust(datasets[2].iterator()) == pids[2]
    assert exhaust(datasets[1].iterator()) == pids[1]


def test_the_same_prefetch_below_other_operations_is_another_pipeline():
    dataset = own_pid()
    pids = exhaust(dataset.iterator())
    shorter = dataset.map(lambda pid: np.append(pid, -1)).take(2)
    found = [batch.tolist() for batch in shorter.iterator()]
    assert len(found) == 2 and all(batch[-1] == -1 for batch in found)
    assert not pids & pids_of(batch[:-1] for batch in found)
    assert exhaust(dataset.iterator()) == pids


def test_a_restored_iterator_that_cuts_its_batches_anew_has_other_workers_and_the_right_batches():
    numbers = Dataset.range(40).map(lambda x: (x, os.getpid()))
    with numbers.batch(4).prefetch(2, on="processes", workers=1).iterator() as iterator:
        next(iterator)
        saved = iterator.position
    dataset = numbers.batch(6).prefetch(2, on="processes", workers=1)
    pids = {int(p) for _, found in dataset.iterator() for p in found}
    iterator = dataset.iterator()
    iterator.load_state_dict(saved, on_change="by_record")
    batches = list(iterator)
    assert [x.tolist() for x, _ in batches][:2] == [list(range(4, 10)), list(range(10, 16))]
    assert not pids & {int(p) for _, found in batches for p in found}
    unchanged = dataset.iterator(epochs=2)
    unchanged.load_state_dict(dataset.iterator().position)
    assert {int(p) for _, found in unchanged for p in found} == pids


strength = 1


class Items:
    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 4

    def __getitem__(self, k):
        return np.array([k + 10 * self.epoch, os.getpid()])


def test_what_the_user_changes_between_iterators_reaches_the_workers(monkeypatch):
    table, items = np.arange(50_000), Items()
    dataset = (
        Dataset.from_sequence(items)
        .map(lambda x: np.append(x * [strength, 1], table[-1]))
        .prefetch(2, on="processes", workers=1)
    )

    def found():
        rows = np.array(list(dataset.iterator()))
        return rows[:, 0].tolist(), int(rows[0, 1]), int(rows[0, 2])

    values, first, _ = found()
    assert values == [0, 1, 2, 3]
    assert found() == (values, first, 49_999)
    monkeypatch.setattr(sys.modules[__name__], "strength", 2)
    values, second, _ = found()
    assert values == [0, 2, 4, 6] and second != first
    items.epoch = 1
    values, third, _ = found()
    assert values == [20, 22, 24, 26] and third != second
    table[-1] = 7
    values, fourth, last = found()
    assert last == 7 and fourth != third
    assert found() == (values, fourth, 7)


def test_workers_are_not_kept_after_an_error_of_the_users_function():
    def fails(x):
        if x == 9:
            raise KeyError("no")
        return os.getpid()

    dataset = Dataset.range(20).map(fails).prefetch(2, on="processes", workers=1)
    iterator = dataset.iterator()
    pids = pids_of(next(iterator) for _ in range(9))
    with pytest.raises(KeyError):
        next(iterator)
    assert not any(map(is_alive, pids))
    dropped = [dataset.iterator()]
    pids = pids_of(next(dropped[0]) for _ in range(7))
    wait_until(lambda: not any(map(is_alive, pids)))  # before the error was asked for
    dropped.clear()
    assert not pids & pids_of([next(dataset.iterator())])


def test_a_task_that_hangs_when_its_iterator_is_dropped_does_not_hold_up_the_next(tmp_path):
    note = tmp_path / "hung"

    def hangs(x):
        if x == 5 and not note.exists():
            note.touch()
            time.sleep(600)
        return (x, os.getpid())

    dataset = Dataset.range(12).map(hangs).prefetch(2, on="processes", workers=1)
    iterator = dataset.iterator()
    before, *_ = (int(next(iterator)[1]) for _ in range(4))
    wait_until(note.exists)
    del iterator
    found = list(dataset.iterator())
    assert [int(x) for x, _ in found] == list(range(12))
    assert not is_alive(before)
    assert len({int(pid) for _, pid in found}) == 1


def test_releasing_does_not_wait_for_what_runs(tmp_path):
    note = tmp_path / "begun"

    def long(x):
        if x:
            note.touch()
            time.sleep(600)
        return x

    iterator = Dataset.range(9).map(long).prefetch(2, on="processes", workers=2).iterator()
    assert next(iterator) == 0
    wait_until(note.exists)
    iterator.release()
    assert [t.name for t in threads()] == ["playhead-processes"]


def test_iterators_broken_off_anywhere_leave_nothing_in_the_batches_of_others():
    def row(x, rng):
        time.sleep(rng.random() / 500)
        return np.full(3000, x), rng.random(40)

    plain = Dataset.range(120).shuffle(seed=1).map(row, rng=True, seed=2).batch(8)
    dataset = plain.prefetch(4, on="processes", workers=2)
    expected = list(plain.iterator(epochs=2))
    pids, held = set(), []
    for k in [3, 1, 0, 7, 2, 14, 5, 29, 1, 30, 4]:
        iterator = dataset.iterator(epochs=2)
        held.append([next(iterator) for _ in range(k)])
        if k == 7:
            iterator.seek(20)
            assert difference(expected[20:25], [next(iterator) for _ in range(5)]) is None
        elif k == 5:
            iterator.release()
        del iterator
        wait_until(lambda: dataset.node in kept._idle)  # a walk that just ends does it itself
        pids |= {worker.process.pid for worker in crew_of(dataset).supervisor.workers}
    for batches in held:
        assert difference(expected[: len(batches)], batches) is None
    assert difference(expected, list(dataset.iterator(epochs=2))) is None
    assert 2 <= len(pids) < 22


def test_memory_of_an_iterator_that_is_gone_is_free_for_the_next():
    dataset = (
        Dataset.range(64).map(lambda x: np.full(50_000, x)).batch(4).prefetch(4, on="processes")
    )
    drop_all = [next(dataset.iterator()) for _ in range(3)]
    del drop_all
    list(dataset.iterator())
    crew = crew_of(dataset)
    wait_until(lambda: crew.arena.taken == 0)
    assert not crew.supervisor.waiting and not any(w.tasks for w in crew.supervisor.workers)


@pytest.mark.parametrize("while_idle", [True, False])
def test_workers_that_die_between_or_during_iterators_are_replaced(while_idle):
    dataset = Dataset.range(60).map(lambda x: (x, os.getpid())).batch(4)
    dataset = dataset.prefetch(2, on="processes", workers=1)
    iterator = dataset.iterator()
    (victim,) = set(next(iterator)[1].tolist())
    if while_idle:
        iterator.release()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not is_alive(victim))
    else:
        os.kill(victim, signal.SIGKILL)
        iterator.release()
    found = list(dataset.iterator())
    assert np.concatenate([x for x, _ in found]).tolist() == list(range(60))
    assert victim not in {int(p) for _, pids in found for p in pids}


def test_a_warning_is_given_for_the_iterator_whose_elements_it_is_about():
    def drawing(x):
        return x + int(np.random.random())

    dataset = Dataset.range(60).map(drawing).prefetch(2, on="processes", workers=1)
    with pytest.warns(GlobalRandomness):
        next(dataset.iterator())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [int(x) for x in dataset.iterator()] == list(range(60))


def test_a_copy_and_a_pickle_of_a_dataset_have_none_of_its_workers():
    dataset = own_pid()
    pids = exhaust(dataset.iterator())
    for other in (copy.deepcopy(dataset), cloudpickle.loads(cloudpickle.dumps(dataset))):
        assert not pids & exhaust(other.iterator())
    assert exhaust(dataset.iterator()) == pids


def test_a_forked_child_has_workers_of_its_own_and_leaves_its_parents_alone():
    dataset = own_pid()
    exhausted = dataset.iterator()
    pids = exhaust(exhausted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            exhausted.close()
            other = exhaust(dataset.iterator())
            again = exhaust(dataset.iterator())
            del dataset
            code = 0 if other == again and not other & pids else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert exhaust(dataset.iterator()) == pids


def test_iterators_in_many_threads_share_a_dataset_and_leave_one_crew():
    plain = Dataset.range(40).map(lambda x: np.full(600, x)).batch(4)
    dataset, expected, wrong = plain.prefetch(2, on="processes", workers=1), list(plain), []

    def read(seed):
        for k in range(4):
            iterator = dataset.iterator()
            count = (seed + 3 * k) % 11
            got = [next(iterator) for _ in range(count)]
            if difference(expected[:count], got) is not None:
                wrong.append((seed, k))
            if k % 2:
                iterator.release()

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not wrong
    wait_until(lambda: len(threads()) == 1)


IDLE = """
    import sys, time
    from playhead import Dataset
    ds = Dataset.range(9).map(lambda x: x).prefetch(on="processes", workers=2)
    assert [int(x) for x in ds.iterator()] == list(range(9))
    held = ds.iterator()
    next(held)
    held.release()
    print("ready", flush=True)
    if sys.argv[1] == "wait":
        time.sleep(600)
"""


def children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and b"popen_loky" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("end", ["exit", "wait"])
def test_idle_workers_end_in_silence_when_the_process_ends_or_is_killed(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[4:] for line in IDLE.splitlines()))
    before = sorted(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, str(script), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        workers = children(process.pid)
        if end == "wait":
            assert len(workers) == 2
            process.kill()
        assert process.communicate(timeout=120) == ("", "")
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not any(map(is_alive, workers)))
    assert sorted(os.listdir("/dev/shm")) == before


def test_workers_that_inherited_another_environment_or_directory_are_not_handed_on(
    tmp_path, monkeypatch
):
    def values(dataset):
        return [int(x) for batch in dataset for x in batch]

    monkeypatch.setenv("PLAYHEAD_TEST_FACTOR", "2")
    monkeypatch.chdir("/")
    factor, path = (
        Dataset.range(4).map(fn, form="python").batch(2).prefetch(on="processes", workers=1)
        for fn in (environment, directory)
    )
    assert values(factor) == [0, 2, 4, 6]
    assert values(path) == [1] * 4
    monkeypatch.setenv("PLAYHEAD_TEST_FACTOR", "3")
    monkeypatch.chdir(tmp_path)
    assert values(factor) == [0, 3, 6, 9]
    assert values(path) == [len(str(tmp_path))] * 4
