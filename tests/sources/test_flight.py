"""Calls under way at once: their order, their errors, and what becomes of them when nobody waits any more."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from playhead.sources.files.flight import in_order
from playhead.sources.files.maps import Seen
from playhead.sources.files.shelf import Shelf


def crew():
    return [thread for thread in threading.enumerate() if thread.name == "playhead-remote"]


def interrupt_the_waiting_thread():
    """As a terminal does; one that is sent to the process may be taken by the thread that sends it."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize(("ahead", "workers"), [(1, None), (3, None), (20, 2), (3, 0), (40, 40)])
def test_results_come_in_order_from_threads_that_are_gone_at_the_end(ahead, workers):
    assert list(in_order(lambda k: k * k, range(20), ahead, workers)) == [k * k for k in range(20)]
    assert crew() == []


def test_an_error_comes_where_its_item_stands_and_ends_the_others():
    begun = []

    def call(item):
        begun.append(item)
        if item == 5:
            raise KeyError(item)
        return item

    found = in_order(call, range(1000), 3)
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(found)
    assert crew() == [] and len(begun) < 10


@pytest.mark.skipif(os.name == "nt", reason="sends itself a signal")
def test_an_interrupt_does_not_wait_for_calls_that_are_not_answered():
    answered, under_way, ended = threading.Event(), threading.Barrier(3), []

    def call(item):
        under_way.wait()
        answered.wait(120)
        ended.append(item)

    def interrupt():
        under_way.wait()
        interrupt_the_waiting_thread()

    beside = threading.Thread(target=interrupt)
    beside.start()
    with pytest.raises(KeyboardInterrupt):
        list(in_order(call, range(2), 2))
    assert ended == []
    answered.set()
    for thread in [beside, *crew()]:
        thread.join(120)
    assert sorted(ended) == [0, 1]


class Endless:
    """The index of a file that has no end."""

    suffix = what = "endless"

    def build(self, seen, opening, advance):
        while True:
            advance(1)
            time.sleep(0.001)


@pytest.mark.skipif(os.name == "nt", reason="sends itself a signal")
def test_an_interrupt_ends_the_scans_of_a_set():
    scanning, both = set(), threading.Event()

    def advance(count):
        scanning.add(threading.get_ident())
        if len(scanning) == 2:
            both.set()

    def interrupt():
        both.wait(120)
        interrupt_the_waiting_thread()

    beside = threading.Thread(target=interrupt)
    beside.start()
    with pytest.raises(KeyboardInterrupt):
        list(Shelf(Endless()).built([Seen("a", 1, 0), Seen("b", 1, 0)], advance, workers=2))
    for thread in [beside, *crew()]:
        thread.join(120)
    assert crew() == []
