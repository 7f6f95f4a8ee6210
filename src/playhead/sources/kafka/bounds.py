"""Where the reading of partitions begins and ends, as it is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

from playhead.errors import PipelineError

Partition: TypeAlias = tuple[str, int]
# A side of the log, offsets by partition, or milliseconds since 1970
Bound: TypeAlias = Literal["beginning", "end"] | dict[Partition, int] | int


def name_of(partition: Partition) -> str:
    return f"{partition[0]}[{partition[1]}]"


def bound_of(name: str, given: Any, topics: Sequence[str], words: Sequence[str]) -> Bound | None:
    """An argument as a `Bound`. Raises `PipelineError` for what is none."""
    if given is None or given in words if isinstance(given, str) else given is None:
        return given  # type: ignore[no-any-return]
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise PipelineError(
                f"from_kafka({name}={given!r}): a time without a time zone means another moment elsewhere",
                help=f"{name}=datetime(..., tzinfo=timezone.utc)",
            )
        return int(given.timestamp() * 1000)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if isinstance(given, dict):
        return {_partition(name, key, topics): _offset(name, n) for key, n in given.items()}
    said = ", ".join(f'"{word}"' for word in words)
    raise PipelineError(
        f"from_kafka({name}={given!r}): {said}, a dict of offsets by (topic, partition), a time "
        "(datetime or milliseconds since 1970), or None"
    )


def _partition(name: str, key: Any, topics: Sequence[str]) -> Partition:
    if isinstance(key, int) and len(topics) == 1:
        key = (topics[0], key)
    fits = isinstance(key, tuple) and len(key) == 2 and key[0] in topics
    if not fits or not isinstance(key[1], int) or key[1] < 0:
        raise PipelineError(
            f"from_kafka({name}=...): {key!r} is no partition of {', '.join(topics)}",
            help='{("topic", 0): offset}, or {0: offset} where there is one topic',
        )
    return key[0], key[1]


def _offset(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PipelineError(f"from_kafka({name}=...): {value!r} is no offset")
    return value


def said(bound: Bound | None) -> Any:
    """A bound as JSON."""
    if isinstance(bound, dict):
        return {name_of(partition): offset for partition, offset in sorted(bound.items())}
    return bound
