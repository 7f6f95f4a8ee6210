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

LONG = 60.0


def script(body):
    return [sys.executable, "-c", textwrap.dedent(body)]


# Hanging


@pytest.fixture
def stuck():
    """An event that a hanging function waits for; set at the end, so that no thread outlives the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_function_that_hangs_is_named_with_its_record(stuck, workers):
    def hangs(x):
        if x == 7:
            stuck.wait(LONG)
        return x

    source = Dataset.from_tensor_slices(np.arange(20) * 1, name="numbers")
    dataset = source.map(hangs).batch(2).prefetch(2, workers=workers, timeout=0.5)
    iterator = dataset.iterator()
    began = time.monotonic()
    assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ReadAheadTimeout, match=r"numbers\[[67]\].*after 0.5 seconds") as caught:
        next(iterator)
    assert isinstance(caught.value, TimeoutError) and caught.value.seconds == 0.5
    assert iterator.position.step == 3
    iterator.close()
    assert time.monotonic() - began < LONG / 2


def test_a_function_over_a_stream_that_hangs_is_named_with_its_record(stuck):
    def hangs(x):
        if x == 4:
            stuck.wait(LONG)
        return x

    def count():
        yield from range(9)

    dataset = Dataset.from_generator(count, name="counter").map(hangs)
    iterator = dataset.prefetch(4, workers=2, timeout=0.5).iterator()
    got = []
    with pytest.raises(ReadAheadTimeout, match=r"counter\[4\].*after 0.5 seconds"):
        got.extend(int(x) for x in iterator)
    assert got == [0, 1, 2, 3][: iterator.position.step]
    iterator.close()


def test_a_generator_that_hangs_is_noticed(stuck):
    def waits():
        yield 1
        stuck.wait(LONG)

    iterator = Dataset.from_generator(waits).prefetch(4, workers=1, timeout=0.5).iterator()
    assert int(next(iterator)) == 1
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

    with (
        Dataset.range(6).map(hangs_once).prefetch(2, workers=2, timeout=0.5).iterator() as iterator
    ):
        assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ReadAheadTimeout):
            next(iterator)
        assert [int(x) for x in iterator] == [3, 4, 5]


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "60"])
def test_a_timeout_is_a_time(timeout):
    with pytest.raises(PipelineError, match="timeout"):
        Dataset.range(3).prefetch(timeout=timeout)


def test_a_filter_that_keeps_nothing_for_long_does_not_hang():
    def slow(x):
        time.sleep(0.004)
        return x == 299

    for workers in (1, 2):
        dataset = Dataset.range(300).filter(slow).prefetch(4, workers=workers, timeout=0.25)
        assert [int(x) for x in dataset] == [299]


# Interrupts and exits


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


# Leaks


def footprint():
    gc.collect()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return threading.active_count(), files


def settled(expected, seconds=10.0):
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
