"""A Kafka consumer that reads named partitions from named offsets, and says why where it cannot."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from playhead.errors import MissingSource, PipelineError, SourceError
from playhead.plan.living import Living
from playhead.sources.kafka.bounds import Bound, Partition, name_of

Result = TypeVar("Result")

ANSWER = 5.0  # seconds that one question to a broker may take
GLANCE = 0.5  # what it may take at first: Ctrl-C has to wait for it
QUIET = 30.0  # seconds of silence in which nothing need be wrong
# Offsets belong to the position alone, and nothing may be skipped unseen.
OURS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


def library() -> Any:
    """The module confluent_kafka. Raises ImportError, naming the extra that brings it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ImportError(
            "from_kafka reads through confluent-kafka: pip install 'playhead[kafka]'"
        ) from error
    return confluent_kafka


class Client:
    """One connection. Whatever cannot be had for `patience` seconds raises `SourceError`.

    `close` it, or it is closed when nobody holds it any more; in a forked child it is forgotten.
    """

    def __init__(self, servers: str, config: Mapping[str, Any], patience: float) -> None:
        self._kafka = library()
        self.kinds: Any = self._kafka.KafkaError
        self.message: Any = self._kafka.Message
        self.absent = (
            self.kinds.UNKNOWN_TOPIC_OR_PART,
            self.kinds._UNKNOWN_TOPIC,
            self.kinds._UNKNOWN_PARTITION,
        )
        self._servers, self._patience = servers, patience
        self._told: Callable[[Any], None] | None = config.get("error_cb")
        self._trouble: Any = None
        self.doubts = False  # whether topics that are read have been missed
        self._heard = self._asked = time.monotonic()
        self._longest = GLANCE
        # The client itself would say each attempt to connect, some twenty a second.
        quiet = {"group.id": "playhead", "bootstrap.servers": servers, "log_level": 2}
        known = {**quiet, **config, **OURS}
        reference = weakref.ref(self)  # the consumer must not keep its owner alive
        told = self._told

        def on_error(error: Any) -> None:
            client = reference()
            if client is not None:
                client._hear(error)
            if told is not None:
                told(error)

        try:
            self._consumer: Any = self._kafka.Consumer({**known, "error_cb": on_error})
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            raise PipelineError(f"from_kafka: the client refuses its settings: {error}") from None
        self._assigned: set[Partition] = set()
        self._pid = os.getpid()
        _clients.add(self)

    def _hear(self, error: Any) -> None:
        """What the client says of itself; on stderr, once until they answer, that brokers are waited for."""
        if error.code() in self.absent:
            self.doubts = True
            return
        if self._trouble is None and sys.stderr is not None:
            waiting = f"waiting up to {self._patience:g} s for a broker"
            print(f"playhead: {error.str()}; {waiting}", file=sys.stderr)
        self._trouble = error

    # --- what there is --------------------------------------------------------------------------------

    def partitions(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions, sorted. Raises `MissingSource` where there is no such topic."""
        missing = (*self.absent, self.kinds.TOPIC_EXCEPTION)

        def ask(seconds: float) -> list[int]:
            said = self._consumer.list_topics(topic, timeout=seconds).topics[topic]
            if said.error is not None:
                raise self._kafka.KafkaException(said.error)
            return sorted(said.partitions)

        try:
            return self._answer(ask, f"topic {topic!r}", missing)
        except self._kafka.KafkaException as raised:
            raise MissingSource(
                f"there is no topic {topic!r} at {self._servers} ({raised.args[0].str()})",
                help="check its name, and that these are the right servers; create it before the run",
                topic=topic,
            ) from None

    def edges(self, partition: Partition) -> tuple[int, int]:
        """The first offset that is there, and the one behind the last."""
        at = self._kafka.TopicPartition(*partition)
        found: tuple[int, int] = self._answer(
            lambda seconds: self._consumer.get_watermark_offsets(at, timeout=seconds),
            f"the offsets of {name_of(partition)}",
        )
        return found

    def offsets(self, partitions: Sequence[Partition], bound: Bound) -> list[int]:
        """Where `bound` lies in each partition; a partition that a dict leaves out counts as its beginning.

        For a time: the first message at or after it, or the end where there is none yet.
        """
        if bound == "beginning":
            return [self.edges(partition)[0] for partition in partitions]
        if isinstance(bound, dict):
            return [bound[p] if p in bound else self.edges(p)[0] for p in partitions]
        if isinstance(bound, str):
            return [self.edges(partition)[1] for partition in partitions]
        at = [self._kafka.TopicPartition(*partition, bound) for partition in partitions]

        def ask(seconds: float) -> list[Any]:
            said: list[Any] = self._consumer.offsets_for_times(at, timeout=seconds)
            for one in said:
                if one.error is not None:
                    raise self._kafka.KafkaException(one.error)
            return said

        found = self._answer(ask, "the offsets of a time")
        return [
            said.offset if said.offset >= 0 else self.edges(partition)[1]
            for said, partition in zip(found, partitions, strict=True)
        ]

    # --- reading ----------------------------------------------------------------------------------------

    def read_from(self, partition: Partition, offset: int) -> None:
        """Messages of that partition come from `offset` on."""
        self.leave(partition)
        self._consumer.incremental_assign([self._kafka.TopicPartition(*partition, offset)])
        self._assigned.add(partition)

    def leave(self, partition: Partition) -> None:
        """No more messages of that partition come."""
        if partition in self._assigned:
            self._assigned.remove(partition)
            self._consumer.incremental_unassign([self._kafka.TopicPartition(*partition)])

    def receive(self, most: int, seconds: float) -> list[Any]:
        """What has arrived, errors among it: `most` messages at most, none after `seconds` without any."""
        found: list[Any] = self._consumer.consume(most, 0)
        if not found and seconds:
            first = self._consumer.poll(seconds)
            if first is not None:
                found = [first, *(self._consumer.consume(most - 1, 0) if most > 1 else ())]
        if found:
            self._hears()
        elif seconds:
            self._check()
        return found

    def _check(self) -> None:
        """In a silence: whether a broker is there at all. Raises `SourceError` where none is for too long."""
        now = time.monotonic()
        quiet = QUIET if self._trouble is None else ANSWER
        if now - max(self._heard, self._asked) < min(quiet, self._patience / 4):
            return
        self._asked = now
        longest, self._longest = self._longest, min(2 * self._longest, ANSWER)
        topic = next((topic for topic, _ in self._assigned), None)
        try:
            self._consumer.list_topics(topic, timeout=min(longest, max(0.1, self._patience / 4)))
        except self._kafka.KafkaException as error:
            self._trouble = self._trouble or error.args[0]
            if time.monotonic() - self._heard > self._patience:
                raise self._unreachable("messages", error.args[0]) from None
            return
        self._hears()

    def _hears(self) -> None:
        self._heard, self._trouble, self._longest = time.monotonic(), None, GLANCE

    def _answer(
        self, ask: Callable[[float], Result], what: str, passed_on: Sequence[int] = ()
    ) -> Result:
        """What a broker answers; asked again until `patience` is over, unless asking again is no use."""
        began = time.monotonic()
        longest = GLANCE
        while True:
            left = began + self._patience - time.monotonic()
            try:
                return ask(max(0.1, min(longest, left)))
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
                if error.code() in passed_on:
                    raise
                if self.is_final(error):
                    raise self.refused(what, error) from None
                if self._trouble is not None and self._trouble.code() == self.kinds._AUTHENTICATION:
                    raise self.refused(what, self._trouble) from None
                if time.monotonic() - began > self._patience:
                    raise self._unreachable(what, error) from None
            if not self._assigned:
                self._consumer.poll(0)  # on_error is told
            longest = min(2 * longest, ANSWER)
            time.sleep(0.1)

    def is_final(self, error: Any) -> bool:
        """Whether it will not pass by waiting."""
        kinds = self.kinds
        final = (
            kinds.TOPIC_AUTHORIZATION_FAILED,
            kinds.CLUSTER_AUTHORIZATION_FAILED,
            kinds.GROUP_AUTHORIZATION_FAILED,
            kinds.SASL_AUTHENTICATION_FAILED,
            kinds.UNSUPPORTED_VERSION,
            kinds._INVALID_ARG,
            kinds._UNSUPPORTED_FEATURE,
        )
        return bool(error.fatal()) or error.code() in final

    def is_passing(self, error: Any) -> bool:
        """Whether the client gets over it by itself."""
        kinds = self.kinds
        passing = (kinds._TRANSPORT, kinds._ALL_BROKERS_DOWN, kinds._TIMED_OUT, kinds._RESOLVE)
        return error.code() in passing or bool(error.retriable())

    def refused(self, what: str, error: Any) -> SourceError:
        return SourceError(
            f"{self._servers} gives no {what}: {error.str()}",
            help="config= takes the client's settings for security: security.protocol, sasl.* and ssl.*",
            servers=self._servers,
        )

    def _unreachable(self, what: str, error: Any) -> SourceError:
        said = (self._trouble or error).str()
        return SourceError(
            f"no broker of {self._servers} gave {what} for {self._patience:g} seconds: {said}",
            help="check that they run and can be reached from here; from_kafka(patience=...) waits longer",
            servers=self._servers,
        )

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if self._pid == os.getpid():
            consumer.close()

    def forget(self) -> None:
        """In a forked child: freeing the consumer would wait for threads that only the parent has."""
        if self._consumer is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._consumer))
            self._consumer = None

    def __del__(self) -> None:
        if getattr(self, "_consumer", None) is not None and self._pid == os.getpid():
            self.close()


_clients: Living[Client] = Living()


def _forget_all() -> None:
    for client in _clients:
        client.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
