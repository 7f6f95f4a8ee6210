import contextlib
import gc
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import GlobalRandomness, SlowResume
from playhead.execution.ahead import Ahead
from playhead.execution.ordered import Ordered
from playhead.execution.pool import cores
from playhead.execution.threads import ThreadPool
from playhead.iterator import Iterator
from playhead.plan.batches import Batch
from playhead.plan.block import Columns, Rows
from playhead.plan.compute import Job, Pace, attempt, nbytes
from playhead.plan.lock import Lock
from playhead.testing import difference

NODE = Dataset.range(1).node


class Doing(Job):
    """Calls `fn` on each item's list."""

    def __init__(self, fn):
        super().__init__(NODE)
        object.__setattr__(self, "fn", fn)

    def __call__(self, sent):
        return self.fn(sent)


class Span(list):
    def singles(self):
        return [Span([x]) for x in self] if len(self) > 1 else []


@pytest.fixture
def pool():
    pools = []

    def make(workers, **options):
        pools.append(ThreadPool(workers))
        return Ordered(pools[-1], **options)

    yield make
    for made in pools:
        made.close()


def results(compute, fn, items):
    """fn(item) for each, in order, as a consumer of the read-ahead sees them."""
    spans = (Span([item]) for item in items)
    return (found for _, found in attempt(compute, Doing(lambda span: fn(*span)), spans))


def no_threads(name, seconds=60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(t.name.startswith(name) for t in threading.enumerate()):
            return True
        time.sleep(0.01)
    return False


# The pool


def test_the_oldest_task_that_no_thread_has_begun_is_done_by_who_helps():
    pool, go, begun, done = ThreadPool(1), threading.Event(), threading.Event(), []

    def work(name):
        done.append((name, threading.current_thread()))
        if name == "first":
            begun.set()
            assert go.wait(60)
        return name

    futures = [pool.submit(Doing(work), name) for name in ("first", "second", "third")]
    assert begun.wait(60)
    assert pool.help()
    me = threading.current_thread()
    assert [name for name, by in done if by is me] == ["second"]
    assert futures[1].done() and not futures[0].done() and not futures[2].done()
    go.set()
    assert [future.result(60).result for future in futures] == ["first", "second", "third"]
    assert not pool.help()
    pool.close()
    assert not pool.help()


def test_an_interrupt_of_who_helps_is_raised_and_said_to_who_waits():
    pool, go, begun = ThreadPool(1), threading.Event(), threading.Event()
    pool.submit(Doing(lambda sent: begun.set() or go.wait(60)), None)
    assert begun.wait(60)

    def interrupted(sent):
        raise KeyboardInterrupt

    future = pool.submit(Doing(interrupted), None)
    with pytest.raises(KeyboardInterrupt):
        pool.help()
    assert isinstance(future.result(0).error, KeyboardInterrupt)
    cancelled = pool.submit(Doing(interrupted), None)
    assert cancelled.cancel()
    assert pool.help()  # takes it, and does nothing
    go.set()
    pool.close()


def interrupted_everywhere(action, lock):
    """Call `action` with an interrupt as the first function begins or returns, as the second does, and so on.

    Those are places where Python looks for signals; between most lines it does not. Another thread must
    get the lock after each. How many there were.
    """
    for event in range(1, 1000):
        left = [event]

        def tracer(frame, kind, argument, left=left):
            frame.f_trace_lines = False
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return tracer

        sys.settrace(tracer)
        try:
            action()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        got = []

        def take(got=got):
            got.append(lock.acquire(timeout=1))
            if got[0]:
                lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join(20)
        assert got == [True], f"the lock is taken after event {event}"
        if left[0] > 0:
            return event
    raise AssertionError("it never ended")


def test_an_interrupt_wherever_python_looks_for_one_leaves_a_lock_free():
    lock = Lock()

    def action():
        with lock:
            sum(range(3))

    assert interrupted_everywhere(action, lock._lock) > 4


def test_an_interrupt_of_who_helps_or_hands_out_leaves_the_pool_at_work():
    pool = ThreadPool(1)
    submit = Doing(abs)
    assert interrupted_everywhere(pool.help, pool._desk.lock) > 2
    pool.submit(submit, -2).result(
        60
    )  # its thread runs: Python's own start of one is not asked here
    assert interrupted_everywhere(lambda: pool.submit(submit, -3), pool._desk.lock) > 5
    assert pool.submit(submit, -4).result(60).result == 4
    pool.close()


def test_who_waits_works_where_no_function_of_the_users_runs_and_no_time_is_set(monkeypatch):
    rows = Dataset.from_tensor_slices(np.arange(2000)).shuffle(seed=1)
    expected = [batch.tolist() for batch in rows.batch(2)]
    read, help, helped = Batch.read, ThreadPool.help, []
    monkeypatch.setattr(Batch, "read", lambda *given: time.sleep(0.001) or read(*given))
    monkeypatch.setattr(ThreadPool, "help", lambda pool: helped.append(help(pool)) or helped[-1])

    def helps(dataset):
        helped.clear()
        assert [batch.tolist() for batch in dataset] == expected
        return any(helped)

    assert helps(rows.batch(2).prefetch(workers=1))
    assert helps(rows.batch(2).prefetch(workers=2))
    assert helps(rows.batch(2).prefetch(16, workers=1))
    assert helped.count(True) < 900  # of 1000: the worker has its share
    assert not helps(rows.batch(2).prefetch(timeout=60.0))
    assert not helps(rows.map(lambda x: x).batch(2).prefetch())
    assert not helps(rows.batch(2).map(lambda x: x).prefetch())


def test_nobody_helps_with_tasks_that_take_long(monkeypatch):
    rows = Dataset.from_tensor_slices(np.arange(40)).batch(2)
    read, help, helped = Batch.read, ThreadPool.help, []
    monkeypatch.setattr(Batch, "read", lambda *given: time.sleep(0.1) or read(*given))
    monkeypatch.setattr(ThreadPool, "help", lambda pool: helped.append(help(pool)) or helped[-1])
    assert len(list(rows.prefetch(workers=2))) == 20
    assert helped.count(True) <= 2  # before anybody knows


@pytest.mark.parametrize("options", [None, {"workers": 1}])
def test_a_second_interrupt_while_the_first_is_cleared_away_loses_no_element(options, monkeypatch):
    rows = Dataset.from_tensor_slices(np.arange(200)).batch(2)
    read, due, ended = Batch.read, [False], Iterator._end_feed

    def reading(self, located):
        if due[0] and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.001)
        return read(self, located)

    def interrupted(self, *given, **options):
        if due[0]:
            due[0] = False
            raise KeyboardInterrupt
        return ended(self, *given, **options)

    monkeypatch.setattr(Batch, "read", reading)
    monkeypatch.setattr(Iterator, "_end_feed", interrupted)
    found, interrupts = [], 0
    dataset = rows if options is None else rows.prefetch(**options)
    with dataset.iterator() as iterator:
        while len(found) < 100:
            due[0] = due[0] or (len(found) % 20 == 7 and interrupts < 9)
            try:
                found.append(next(iterator).tolist())
            except KeyboardInterrupt:
                interrupts += 1
    assert found == [[2 * k, 2 * k + 1] for k in range(100)]
    assert interrupts >= 2
    gc.collect()  # nobody came to close what the interrupts left
    assert no_threads("playhead_")


def test_an_interrupt_while_the_consumer_reads_loses_no_element(monkeypatch):
    rows = Dataset.from_tensor_slices(np.arange(400)).shuffle(seed=1).batch(2)
    read, due = Batch.read, [False]

    def reading(self, located):
        if due[0] and threading.current_thread() is threading.main_thread():
            due[0] = False
            raise KeyboardInterrupt
        time.sleep(0.001)
        return read(self, located)

    expected = [batch.tolist() for batch in rows]
    monkeypatch.setattr(Batch, "read", reading)
    found, interrupts = [], 0
    with rows.prefetch(workers=1).iterator() as iterator:
        while len(found) < len(expected):
            due[0] = due[0] or len(found) % 20 == 7
            try:
                found.append(next(iterator).tolist())
            except KeyboardInterrupt:
                interrupts += 1
    assert found == expected
    assert interrupts >= 2


def test_results_come_in_order_though_they_are_ready_out_of_order(pool):
    def work(item):
        time.sleep(0.02 if item % 4 == 0 else 0)
        return item * item

    assert list(results(pool(4), work, range(30))) == [k * k for k in range(30)]


def test_no_more_than_the_buffer_is_computed_ahead(pool):
    started = []
    lock = threading.Lock()

    def work(item):
        with lock:
            started.append(item)
        return item

    found = results(pool(3, records=5), work, iter(range(100)))
    for k in range(20):
        assert next(found) == k
        time.sleep(0.005)
        assert len(started) <= k + 1 + 5
    found.close()


@pytest.mark.parametrize("buffer", [1, 2, 12])
@pytest.mark.parametrize("workers", [1, 2])
def test_as_many_batches_as_were_asked_for_are_made_while_one_is_used(buffer, workers):
    made, lock = [], threading.Lock()

    def note(x):
        time.sleep(0.003)
        with lock:
            made.append(int(x))
        return x

    dataset = Dataset.range(400).map(note, form="python").batch(4)
    with dataset.prefetch(buffer, workers=workers).iterator() as iterator:
        for _ in range(40):
            next(iterator)
        used, deadline = 160, time.monotonic() + 60
        while len(made) < used + 4 * buffer and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(made) >= used + 4 * buffer
        time.sleep(0.05)
        # A chunk that is being used may hold several batches; so may what comes next.
        assert len(made) <= used + 3 * 4 * (buffer + 1)
        assert [batch.tolist() for batch in iterator] == np.arange(160, 400).reshape(-1, 4).tolist()


def test_nothing_is_taken_before_it_is_asked_for(pool):
    taken = []

    def items():
        for k in range(100):
            taken.append(k)
            yield k

    found = results(pool(2), lambda x: x, items())
    assert taken == []
    next(found)
    assert len(taken) == 2  # the first waits for no more than the workers need
    next(found)
    assert len(taken) <= 2 * 2 + 3
    found.close()


def test_the_memory_of_what_waits_is_bounded_whatever_the_buffer(pool):
    most, alive = 0, set()
    lock = threading.Lock()

    def work(item):
        nonlocal most
        with lock:
            alive.add(item)
            most = max(most, len(alive))
        return Rows([np.zeros(1000)])

    found = results(pool(4, records=64, budget=3 * 8000), work, range(60))
    for k, _ in enumerate(found):
        time.sleep(0.002)
        with lock:
            alive.discard(k)
    assert most <= 4 + 1  # a task for each worker at first, then three results


def test_an_error_comes_in_its_turn_and_the_rest_is_not_begun(pool):
    started = []

    def work(item):
        started.append(item)
        if item == 5:
            raise KeyError(item)
        return item

    found = results(pool(2, records=4), work, range(1000))
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(found)
    time.sleep(0.02)
    assert len(started) < 20


def test_closing_ends_the_threads(pool):
    made = pool(3)
    found = results(made, lambda x: time.sleep(0.01) or x, range(1000))
    next(found)
    found.close()
    made.pool.close()
    assert no_threads("playhead_")


def test_an_item_that_fails_gives_its_elements_up_to_the_failing_one(pool):
    def work(span):
        if 13 in span:
            raise ValueError("thirteen")
        return [10 * x for x in span]

    spans = [Span(range(k, k + 5)) for k in range(0, 30, 5)]
    for compute in (pool(3), pool(1, records=2)):
        found, got = attempt(compute, Doing(work), spans), []
        while len(got) < 13:
            item, result = next(found)
            assert result == [10 * x for x in item]
            got += item
        assert got == list(range(13))
        with pytest.raises(ValueError, match="thirteen"):
            next(found)


def test_the_pace_follows_the_time_an_element_takes():
    pace = Pace(most=100)
    pace.report(1, 0.0001)
    assert pace.size == 2
    pace.report(2, 0.0002)
    pace.report(4, 0.0004)
    assert pace.size == 8
    for _ in range(10):
        pace.report(pace.size, pace.size * 0.0001)
    assert pace.size == 100
    pace.report(100, 4.0)
    assert pace.size == 1
    pace.report(1, 0.001)
    assert pace.size == 2
    pace.report(1, 5.0)
    assert pace.size == 2
    Pace(0).report(1, 0)


def test_the_pace_leaves_large_elements_few():
    pace = Pace(most=1000)
    for _ in range(12):
        pace.report(pace.size, pace.size * 1e-6, pace.size * (1 << 20))
    assert pace.size == 2
    pace.report(2, 2e-6, 2 << 24)
    assert pace.size == 1


def test_a_pace_begins_like_another_where_the_first_call_is_soon_over():
    def beginning(seconds, most=1000, first=1):
        known, pace = Pace(most=10_000), Pace(most)
        for _ in range(20):
            known.report(known.size, known.size * seconds)
        pace.size = first
        pace.begin_like(known)
        return pace.size

    assert beginning(1e-7) == 1000
    assert beginning(1e-5) == 40  # 0.4 thousandths of a second
    assert beginning(1e-2) == 1
    assert beginning(1e-2, first=32) == 32
    unknown = Pace(100)
    unknown.begin_like(Pace(100))
    assert unknown.size == 1


def test_the_next_iterator_begins_with_as_large_tasks_as_the_last_one_found(monkeypatch):
    sizes = []
    read = Batch.read
    monkeypatch.setattr(
        Batch, "read", lambda self, located: sizes.append(len(located)) or read(self, located)
    )
    monkeypatch.setattr(Pace, "SOON", 1e9)
    monkeypatch.setattr(Pace, "SECONDS", 1e9)
    dataset = Dataset.range(40_000).batch(10).prefetch()
    expected = [batch.tolist() for batch in dataset]
    first = len(sizes)
    assert sizes[0] == 1 and max(sizes) > 100
    assert [batch.tolist() for batch in dataset] == expected
    assert sizes[first] > 100


def test_bytes_of_unequal_elements_are_counted_by_a_few_of_them():
    rows = [np.zeros(0, np.int8), *[np.zeros(1000, np.int8)] * 79]
    assert nbytes(Rows(rows)) == 1000 * 80 * 7 // 8
    strings = np.array([b"", *[b"x" * 100] * 15], object)
    assert nbytes(Columns(strings, 16)) == (50 + 7 * 150) * 16 // 8


def test_bytes_are_counted():
    assert nbytes(Columns((np.zeros(10), np.zeros((10, 2), np.int8)), 10)) == 100
    assert nbytes(Rows([{"a": np.zeros(10), "b": b"12345", "c": np.float32(1)}] * 3)) == 3 * (
        80 + 5 + 8
    )
    assert nbytes((Rows([]), Rows([b"123"]))) == 3
    assert nbytes(Rows([np.array(["ab", "cd"], object)])) == 2 * (2 + 50)
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_user_functions_run_in_so_many_threads_and_no_more(workers):
    inside, most = 0, 0
    lock = threading.Lock()

    def work(x):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.002)
        with lock:
            inside -= 1
        return x

    dataset = Dataset.range(60).map(work).prefetch(16, workers=workers)
    iterator = dataset.iterator()
    assert [int(x) for x in iterator] == list(range(60))
    for step in (7, 3, 30):
        iterator.seek(step)
        assert int(next(iterator)) == step
    iterator.close()
    assert most <= workers and (most > 1) == (workers > 1)


# The walk in a thread of its own


def test_a_walk_stays_so_many_units_ahead():
    made = []

    def walk():
        for k in range(50):
            made.append(k)
            yield k

    ahead = Ahead(walk(), lambda item: (1, 0), (3, 9))
    for k in range(20):
        assert next(ahead) == k
        time.sleep(0.002)
        assert len(made) <= k + 1 + 3 + 1
    ahead.close()
    assert len(made) <= 20 + 4 and no_threads("playhead-walk")


def test_an_item_larger_than_the_limit_goes_through_alone():
    ahead = Ahead((k for k in [1, 50, 1, 60]), lambda item: (item, 0), (3, 9))
    assert list(ahead) == [1, 50, 1, 60]
    ahead.close()


def test_an_error_of_the_walk_comes_after_what_was_walked_and_comes_again():
    def walk():
        yield 1
        yield 2
        raise KeyError("three")

    ahead = Ahead(walk(), lambda item: (1, 0), (10, 9))
    assert [next(ahead), next(ahead)] == [1, 2]
    for _ in range(2):
        with pytest.raises(KeyError, match="three"):
            next(ahead)
    ahead.close()


def test_a_walk_that_is_dropped_ends_and_is_closed():
    closed = threading.Event()

    def walk():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = Ahead(walk(), lambda item: (1, 0), (2, 9))
    next(ahead)
    del ahead
    assert closed.wait(60) and no_threads("playhead-walk")


def test_a_slow_walk_can_be_left_without_waiting_for_it():
    going = threading.Event()

    def walk():
        yield 1
        going.wait(60)
        yield 2

    ahead = Ahead(walk(), lambda item: (1, 0), (5, 9))
    next(ahead)
    began = time.monotonic()
    ahead.close(wait=False)
    assert time.monotonic() - began < 2
    going.set()
    assert no_threads("playhead-walk")


# Locks and forks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_lock_that_another_thread_holds_is_open_in_a_forked_child():
    lock, held, free = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            free.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            entered = threading.Event()

            def enter():
                with lock, lock:
                    entered.set()

            threading.Thread(target=enter, daemon=True).start()
            os._exit(0 if entered.wait(60) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    free.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_what_waits_of_a_stream_is_bounded_in_bytes_too():
    made = []

    def walk():
        for k in range(50):
            made.append(k)
            yield k

    ahead = Ahead(walk(), lambda item: (1, 100), (40, 350))
    assert next(ahead) == 0
    time.sleep(0.05)
    assert 4 <= len(made) <= 5  # one taken, three wait, one more may be in the walk's hand
    ahead.close()


def test_one_worker_never_runs_two_user_functions_at_once():
    running, overlaps = [], []

    def busy(x=0):
        running.append(x)
        if len(running) > 1:
            overlaps.append(x)
        time.sleep(0.0005)
        running.pop()
        return x

    def generate():
        for k in range(60):
            yield busy(k)

    dataset = Dataset.from_generator(generate).map(busy).filter(lambda x: busy(x) >= 0)
    with dataset.prefetch(8, workers=1).iterator() as iterator:
        assert len(list(iterator)) == 60
    assert not overlaps


def test_threads_do_the_work_of_processes_in_a_python_without_the_lock(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    dataset = Dataset.range(20).map(lambda x: (os.getpid(), threading.current_thread().name))
    ahead = dataset.prefetch(2, workers=2, on="processes")
    assert {int(pid) for pid, _ in ahead} == {os.getpid()}
    assert all(name.startswith("playhead_") for _, name in ahead)


def test_threads_with_several_iterators_each_get_what_one_thread_gets():
    def noisy(x, rng):
        return {"x": x, "noise": rng.random(3), "text": f"{x}"}

    def make():
        numbers = Dataset.range(200).map(noisy, rng=True, seed=2)
        return numbers.cache().shuffle(seed=1).batch(16)

    expected = list(make().iterator(epochs=2))
    dataset = make().prefetch(3, workers=4)
    start = threading.Barrier(8)

    def work():
        iterators = [dataset.iterator(epochs=2) for _ in range(3)]
        start.wait()
        for step, batches in enumerate(zip(*iterators, strict=True), 1):
            for iterator, batch in zip(iterators, batches, strict=True):
                assert iterator.position.step == step
                assert difference(batch, expected[step - 1]) is None
        return step

    with ThreadPoolExecutor(8) as threads:
        taken = [threads.submit(work) for _ in range(8)]
        assert [found.result() for found in taken] == [len(expected)] * 8


@pytest.mark.parametrize("stream", [False, True], ids=["seekable", "stream"])
def test_threads_that_share_an_iterator_get_every_element_once(stream):
    dataset = Dataset.range(3000).map(lambda x: x * 2)
    dataset = dataset.filter(lambda x: x % 3 > 0) if stream else dataset
    iterator = dataset.prefetch(workers=3).iterator()
    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(list, iterator) for _ in range(8)]
        got = sorted(int(x) for part in found for x in part.result())
    assert got == [2 * k for k in range(3000) if not stream or k % 3]
    assert iterator.position.step == len(got)


READ_BY = {
    "the caller": lambda ds: ds,
    "a walk in a thread": lambda ds: ds.prefetch(2, workers=1),
    "a walk with workers": lambda ds: ds.map(int).batch(2).prefetch(2, workers=2),
}


@pytest.mark.parametrize("build", READ_BY, ids=READ_BY.keys())
def test_a_warning_names_the_users_line_whichever_thread_gives_it(build):
    def counted():
        yield from range(20)

    ds = READ_BY[build](Dataset.from_generator(counted))
    with ds.iterator() as before:
        next(before), next(before)
        position = before.position
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ds.iterator() as after:
            after.load_state_dict(position)
            line = sys._getframe().f_lineno + 1
            next(after)
    assert [(w.category, w.filename, w.lineno) for w in said] == [(SlowResume, __file__, line)]
    assert "replays" in str(said[0].message)


def test_a_warning_from_a_worker_names_the_users_line():
    def noisy(x):
        return x + np.random.rand()

    ds = Dataset.range(20).map(noisy).prefetch(4, workers=3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        line = sys._getframe().f_lineno + 1
        list(ds)
    assert {(w.category, w.filename, w.lineno) for w in said} == {
        (GlobalRandomness, __file__, line)
    }
