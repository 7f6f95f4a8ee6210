"""A store that goes silent while it is read: how long it is waited for, what is said, and how to get away."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time

import pytest

from playhead import Dataset
from playhead.errors import SourceError
from playhead.plan.leaving import until
from playhead.sources.files import silence
from playhead.sources.files.maps import Seen
from playhead.sources.files.remote import Remote
from playhead.sources.files.silence import Silence

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.usefixtures("cache")

PAD = b"." * 5000  # so that records do not all share one block
ROWS = b"".join(b'{"x": %d, "pad": "%s"}\n' % (k, PAD) for k in range(400))


class Ear(io.StringIO):
    """What is printed; `when` is called as soon as a silence is told."""

    def __init__(self, when):
        super().__init__()
        self.when = when

    def write(self, text):
        if "has not answered" in text:
            self.when()
        return super().write(text)

    def heard(self):
        return [line for line in self.getvalue().splitlines() if "answer" in line]


@pytest.fixture
def door():
    """A socket that listens, and answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def numbers(batches):
    return [x for batch in batches for x in batch["x"].tolist()]


def test_an_answer_that_something_is_not_there_ends_a_silence(monkeypatch):
    class Answer(OSError):
        def __init__(self, status):
            super().__init__(f"HTTP {status}")
            self.status = status

    now = [0.0]
    monkeypatch.setattr(silence.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(silence, "pause", lambda seconds: now.__setitem__(0, now[0] + seconds))
    store, answers = Silence("a store", patience=2.0), []

    def ask():
        answer = answers.pop(0)
        if answer == 200:
            return "there"
        raise Answer(answer)

    for _ in range(5):
        answers[:] = [503, 404]
        with pytest.raises(Exception, match=r"404|not there|missing"):
            store.insisted(ask, "memory://a")
        now[0] += 0.6
    answers[:] = [503, 200]
    assert store.insisted(ask, "memory://a") == "there"


# --- in the middle of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [None, 2])
def test_an_outage_that_ends_is_waited_for_and_told_once(site, monkeypatch, workers):
    monkeypatch.setattr(silence, "_SAID_AFTER", 0.1)
    site.files["a"] = ROWS
    ds = Dataset.from_json_lines(f"{site.url}/a").batch(20)
    if workers is not None:
        ds = ds.prefetch(2, workers=workers)
    ear = Ear(lambda: setattr(site, "out", False))
    monkeypatch.setattr(sys, "stderr", ear)
    with ds.iterator(epochs=1) as it:
        got = numbers([next(it)])
        site.out = True
        got += numbers(it)
    assert got == list(range(400))
    down, up = ear.heard()
    assert down.startswith(f"playhead: {site.url} has not answered for ")
    assert down.endswith(" (Ctrl-C ends it)")
    assert up.startswith(f"playhead: {site.url} answers again after ")


def test_an_outage_that_does_not_end_is_an_error_and_the_place_is_kept(site, monkeypatch):
    monkeypatch.setattr(silence, "PATIENCE", 0.3)
    site.files["a"] = ROWS
    ds = Dataset.from_json_lines(f"{site.url}/a").batch(20)
    it, again = ds.iterator(epochs=1), ds.iterator(epochs=1)
    got = numbers([next(it)])
    site.out = True
    with pytest.raises(SourceError, match=r"/a cannot be read: ServerDisconnectedError"):
        got += numbers(it)
    site.out = False
    again.load_state_dict(it.state_dict())
    assert got + numbers(again) == list(range(400))


def test_what_is_walked_outlasts_an_outage_too(site, monkeypatch):
    monkeypatch.setattr(silence, "_SAID_AFTER", 0.1)
    text = b"first\n" + os.urandom(12 << 20).hex().encode() + b"\nlast\n"  # more than one block
    site.files["a.gz"] = gzip.compress(text, 0)
    ear = Ear(lambda: setattr(site, "out", False))
    monkeypatch.setattr(sys, "stderr", ear)
    lines = iter(Dataset.from_lines(f"{site.url}/a.gz", encoding=None))
    site.out = True
    assert list(lines) == text.splitlines()
    down, _ = ear.heard()
    assert re.search(
        r"answered for \d+ s \(ServerDisconnectedError: .*\); asking it for \d+ s more", down
    )


def test_an_object_store_that_is_gone_for_a_while_is_waited_for(bucket, monkeypatch):
    monkeypatch.setattr(silence, "_SAID_AFTER", 0.1)
    bucket.system.pipe(f"{bucket.url}/a", ROWS)
    ds = Dataset.from_json_lines(f"{bucket.url}/a", storage_options=bucket.options).batch(20)
    monkeypatch.setattr(sys, "stderr", ear := Ear(bucket.start))
    with ds.iterator(epochs=1) as it:
        got = numbers([next(it)])
        bucket.stop()
        got += numbers(it)
    assert got == list(range(400))
    down, up = ear.heard()
    assert bucket.url in down and bucket.url in up


def test_how_long_a_store_is_waited_for_travels_with_what_reads_it(monkeypatch):
    monkeypatch.setattr(silence, "PATIENCE", 7.0)
    made = Remote({"anon": True})
    monkeypatch.setattr(silence, "PATIENCE", 9.0)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.patience, copy.options) == (7.0, {"anon": True}) and Remote().patience == 9.0


# --- one budget for all -----------------------------------------------------------------------------


def hang_up():
    raise ConnectionResetError("gone")


def test_a_store_that_was_given_up_costs_whatever_comes_next_one_request():
    store, asked = Silence("s3://bucket", 0.2), []

    def ask():
        asked.append(1)
        hang_up()

    with pytest.raises(
        SourceError, match="s3://bucket/a cannot be read: ConnectionResetError: gone"
    ):
        store.insisted(ask, "s3://bucket/a")
    assert len(asked) > 1
    for _ in range(3):
        asked.clear()
        with pytest.raises(SourceError, match="gone"):
            store.insisted(ask, "s3://bucket/b")
        assert len(asked) == 1


def test_answers_to_others_are_none_for_a_request_that_fails_on_and_on():
    store, asked = Silence("s3://bucket", 0.2), []

    def ask():
        asked.append(store.insisted(lambda: "here", "s3://bucket/b"))
        hang_up()

    with pytest.raises(SourceError, match="gone"):
        store.insisted(ask, "s3://bucket/a")
    assert len(asked) > 1


def test_a_silence_is_forgotten_where_nobody_asked_for_long():
    store, answers = Silence("s3://bucket", 1.0), [hang_up, lambda: "here"]
    with pytest.raises(SourceError):
        store.insisted(hang_up, "s3://bucket/a")
    time.sleep(1.1)
    assert store.insisted(lambda: answers.pop(0)(), "s3://bucket/a") == "here"


def test_one_request_of_ours_is_one_to_the_object_store(monkeypatch, door):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(silence, "PATIENCE", 0.0)
    came, over = [], threading.Event()

    def serve():
        while True:
            connection, _ = door.accept()
            with connection:
                if over.is_set():
                    return
                came.append(connection.recv(1 << 16))

    thread = threading.Thread(target=serve)
    thread.start()
    url = "http://{}:{}".format(*door.getsockname())
    options = {"endpoint_url": url, "key": "a", "secret": "b"}
    with pytest.raises(SourceError, match=r"s3://bucket/a cannot be read: ConnectionClosedError"):
        Dataset.from_lines("s3://bucket/a", storage_options=options)
    over.set()
    with socket.create_connection(door.getsockname()):
        thread.join()
    assert {request.split(b"\r\n")[0] for request in came} == {b"HEAD /bucket/a HTTP/1.1"}
    assert len(came) <= 2  # aiohttp asks a second time where somebody hangs up


# --- getting away -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="sends itself a signal")
def test_an_interrupt_takes_back_the_request_that_is_not_answered(door):
    taken_back = []

    def serve():
        connection, _ = door.accept()
        with connection:
            connection.recv(1 << 16)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            connection.settimeout(30)
            taken_back.append(connection.recv(1 << 16) == b"")

    thread = threading.Thread(target=serve)
    thread.start()
    url = "http://{}:{}/a".format(*door.getsockname())
    with pytest.raises(KeyboardInterrupt):
        Remote().read(Seen(url, 10, 0), 0, 10)
    thread.join()
    assert taken_back == [True]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("silent", [True, False])
def test_who_is_no_longer_waited_for_asks_no_more(door, parts, silent):
    url, gone, errors = "http://{}:{}/a".format(*door.getsockname()), threading.Event(), []
    if not silent:
        door.close()  # then it is asked again, and refuses

    def work():
        try:
            with until(gone.is_set):
                Remote(patience=3600).read_all([(Seen(url, 10, 0), k, k + 1) for k in range(parts)])
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()
    gone.set()
    thread.join()
    assert len(errors) == 1 and not isinstance(errors[0], SourceError)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("filtered", [False, True])
def test_closing_an_iterator_waits_for_no_store(site, workers, filtered):
    site.files["a"] = ROWS
    ds = Dataset.from_json_lines(f"{site.url}/a")
    assert len(ds) == 400
    site.out = True
    if filtered:
        ds = ds.filter(lambda row: True)
    others = set(threading.enumerate())  # of other tests' iterators, too
    it = ds.batch(20).prefetch(2, workers=workers).iterator(epochs=1)
    it.start()
    before = len(site.asked)
    while len(site.asked) < before + 8:
        time.sleep(0.01)  # it asks again and again
    mine = [one for one in set(threading.enumerate()) - others if one.name.startswith("playhead")]
    assert mine
    it.close()
    assert not [one for one in mine if one.is_alive()]
