"""What a log does not hold any more, as errors: messages that are gone, and a log that is another one."""

from __future__ import annotations

from typing import Any

from playhead.errors import MessagesGone, SourceChanged
from playhead.sources.kafka.bounds import name_of
from playhead.sources.kafka.turns import Lane

_ANEW = "the topic was deleted and made anew, or its end was lost"


def gone(lane: Lane, low: int, stop: int) -> MessagesGone:
    """The messages from the next one on, up to `stop`, are not there; the log begins at `low`."""
    count = stop - lane.expected
    return MessagesGone(
        f"{count} messages of {name_of(lane.name)} are gone, from offset {lane.expected} to {stop - 1}",
        help=f'on_gap="accept" goes on at offset {low} and writes the gap into the position; '
        "a longer retention.ms of the topic keeps more",
        topic=lane.topic,
        partition=lane.partition,
        offset=lane.expected,
        first=low,
        gone=count,
    )


def ended(lane: Lane, high: int) -> SourceChanged:
    """The log ends at `high`, before the message that comes next."""
    return SourceChanged(
        f"{name_of(lane.name)} ends at offset {high}, and the position stands at {lane.expected}",
        help=f"{_ANEW}: start anew, or restore it",
        topic=lane.topic,
        partition=lane.partition,
        offset=lane.expected,
    )


def removed(lane: Lane) -> SourceChanged:
    return SourceChanged(
        f"{name_of(lane.name)} is not there any more",
        help="it was deleted, or the topic made anew with fewer partitions",
        topic=lane.topic,
        partition=lane.partition,
        offset=lane.expected,
    )


def is_another(lane: Lane, message: Any) -> bool:
    """Whether the offset before the next one holds another message than the one that was read there."""
    return bool(message.offset() == lane.expected - 1 and message.timestamp()[1] != lane.time)


def another(lane: Lane, message: Any) -> SourceChanged:
    return SourceChanged(
        f"{name_of(lane.name)}@{message.offset()} is not the message that was read there: its timestamp is "
        f"{message.timestamp()[1]}, and was {lane.time}",
        help=f"{_ANEW} and was written anew: start anew, or restore it",
        topic=lane.topic,
        partition=lane.partition,
        offset=message.offset(),
    )
