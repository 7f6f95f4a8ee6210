"""What hangs, is interrupted or is dropped: prompt, named, and nothing left behind."""

import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import PipelineError, ReadAheadTimeout
from playhead.execution.arena import Arena
from playhead.plan.aligned import aligned_empty
from playhead.plan.lock import Lock

LONG = 120.0


def script(body):
    return [sys.executable, "-c", textwrap.dedent(body)]


# Hanging


@pytest.fixture
def stuck():
    """An event that a hanging function waits for; set at the end, so that no thread outlives the test."""
    event = threading.Event()
    yield event
    event.set()


# The clock of a timeout runs for each task that is waited for, also on a machine that is slow: so each of these
# iterators begins where its next task is the one that hangs.


@pytest.mark.parametrize("workers", [1, 3])
def test_a_function_that_hangs_is_named_with_its_record(stuck, workers):
    def hangs(x):
        if x == 7:
            stuck.wait(LONG)
        return x

    source = Dataset.from_tensor_slices(np.arange(20) * 1, name="numbers")
    dataset = source.map(hangs).batch(2).prefetch(2, workers=workers, timeout=0.5)
    iterator = dataset.iterator()
    iterator.seek(3)
    began = time.monotonic()
    with pytest.raises(ReadAheadTimeout, match=r"numbers\[[67]\].*after 0.5 seconds") as caught:
        next(iterator)
    assert isinstance(caught.value, TimeoutError) and caught.value.seconds == 0.5
    assert iterator.position.step == 3
    iterator.close()
    assert time.monotonic() - began < LONG / 2


def standing_behind(dataset, count, **ahead):
    """An iterator with read-ahead that goes on behind the first elements, which one without it has taken."""
    with dataset.iterator() as before:
        taken = [int(next(before)) for _ in range(count)]
        iterator = dataset.prefetch(**ahead).iterator()
        iterator.load_state_dict(before.position)
    return taken, iterator


def test_a_function_over_a_stream_that_hangs_is_named_with_its_record(stuck):
    entered = threading.Event()

    def hangs(x):
        if x == 4:
            entered.set()
            stuck.wait(LONG)
        return x

    def count(start=0):
        yield from range(start, 9)

    dataset = Dataset.from_generator(count, name="counter").map(hangs)
    taken, iterator = standing_behind(dataset, 4, buffer_size=4, workers=2, timeout=1)
    assert taken == [0, 1, 2, 3]
    assert iterator.start() and entered.wait(LONG)
    with pytest.raises(ReadAheadTimeout, match=r"counter\[4\].*after 1 seconds"):
        next(iterator)
    assert iterator.position.step == 4
    iterator.close()


def test_a_generator_that_hangs_is_noticed(stuck):
    def waits(start=0):
        if not start:
            yield 1
        stuck.wait(LONG)

    dataset = Dataset.from_generator(waits)
    taken, iterator = standing_behind(dataset, 1, buffer_size=4, workers=1, timeout=0.5)
    assert taken == [1]
    with pytest.raises(ReadAheadTimeout, match=r"no sign of life for 0\.85 seconds"):
        next(iterator)
    iterator.close()


def test_after_a_timeout_the_same_step_can_be_tried_again(stuck):
    hanging = [True]

    def hangs_once(x):
        if x == 3 and hanging:
            hanging.pop()
            stuck.wait(LONG)
        return x

    got, late = [], 0
    with (
        Dataset.range(6).map(hangs_once).prefetch(2, workers=2, timeout=0.5).iterator() as iterator
    ):
        while len(got) < 6:
            try:
                got.append(int(next(iterator)))
            except ReadAheadTimeout:
                late += 1
    assert got == [0, 1, 2, 3, 4, 5] and late and not hanging


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "60"])
def test_a_timeout_is_a_time(timeout):
    with pytest.raises(PipelineError, match="timeout"):
        Dataset.range(3).prefetch(timeout=timeout)


def test_a_filter_that_keeps_nothing_for_long_does_not_hang():
    def slow(x):
        time.sleep(0.01)
        return x == 299

    for workers in (1, 2):
        dataset = Dataset.range(300).filter(slow).prefetch(4, workers=workers, timeout=0.75)
        assert [int(x) for x in dataset] == [299]


# Interrupts and exits


def a_batch():
    return lambda: aligned_empty((1 << 16,), np.dtype(np.uint8))


def a_result_of_a_process():
    arena = Arena(1 << 20)
    return lambda: arena.empty((1 << 16,), np.dtype(np.uint8))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("made", [a_batch, a_result_of_a_process, lambda: Lock])
def test_no_interrupt_is_lost_in_the_end_of_what_lives_as_long_as_a_batch(made, monkeypatch):
    sent, lost, make = [], [], made()

    def interrupt(number, frame):
        sent.append(number)
        raise KeyboardInterrupt

    def make_many(seconds, count):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while len(sent) < count:
            make()

    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for count in range(1, 101):
            with pytest.raises(KeyboardInterrupt):
                make_many(0.001 + count * 1e-5, count)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not lost


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("ahead", [0, 4])
def test_an_interrupt_is_prompt_and_quiet(ahead):
    child = subprocess.Popen(
        script(f"""
            import sys, time
            from playhead import Dataset

            def slow(x):
                if x == 3:
                    print("here", flush=True)
                    time.sleep({LONG})
                return x

            try:
                for x in Dataset.range(8).map(slow).prefetch({ahead}, workers=2):
                    pass
            except KeyboardInterrupt:
                print("stopped", flush=True)
                sys.exit(3)
        """),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "here\n"
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LONG / 2)
    assert (out, err, child.returncode) == ("stopped\n", "", 3)
    assert time.monotonic() - began < LONG / 3


@pytest.mark.parametrize("how", ["in the middle", "exhausted", "never used", "started"])
def test_the_interpreter_ends_quietly_whatever_still_reads_ahead(how):
    done = subprocess.run(
        script(f"""
            import time
            from playhead import Dataset

            def slow(x):
                time.sleep({LONG} if x == 5 else 0)
                return x

            size = 4 if {how!r} == "exhausted" else 50
            kept = Dataset.range(size).map(slow).prefetch(16, workers=3).iterator()
            if {how!r} == "in the middle":
                next(kept)
                time.sleep(0.2)
            if {how!r} == "exhausted":
                assert len(list(kept)) == 4
            if {how!r} == "started":
                kept.start()
                time.sleep(0.2)
        """),
        capture_output=True,
        text=True,
        timeout=LONG / 2,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_an_iterator_that_is_first_used_at_the_interpreters_end_makes_no_noise():
    done = subprocess.run(
        script("""
            import atexit
            from playhead import Dataset

            kept = Dataset.range(9).map(lambda x: x).prefetch(2, workers=2).iterator()

            def late():
                try:
                    next(kept)
                except RuntimeError:  # from Python 3.12 on no thread can be started any more
                    pass

            atexit.register(late)
        """),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# Leaks


def footprint():
    gc.collect()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return threading.active_count(), files


def settled(expected, seconds=LONG):
    deadline = time.monotonic() + seconds
    while footprint() != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return footprint()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts through /proc")
def test_ten_thousand_iterators_leave_threads_files_and_memory_as_they_were():
    seekable = Dataset.range(64).map(lambda x: x + 1).batch(4).prefetch(2, workers=2)
    walked = Dataset.range(64).filter(lambda x: x % 2 == 0).batch(4).prefetch(2, workers=2)

    def use(count):
        for k in range(count):
            iterator = (seekable if k % 2 else walked).iterator()
            if k % 4 < 2:
                next(iterator)
            if k % 8 == 0:
                iterator.close()

    use(1000)
    before = settled((1, footprint()[1]))
    memory = resident()
    use(10_000)
    assert settled(before) == before
    assert resident() - memory < 8 << 20
