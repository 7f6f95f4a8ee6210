"""Messages of Kafka topics: walked, with the offsets in the position and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, TypeAlias

import numpy as np

from playhead.errors import PipelineError
from playhead.plan.block import ArraySpec, Columns, Element, Nest, map_nest, object_array
from playhead.plan.compute import Chunk, Compute, nbytes
from playhead.plan.lock import Lock
from playhead.plan.node import INFINITE, UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_count
from playhead.sources.kafka.bounds import Bound, Partition, bound_of, name_of, said
from playhead.sources.kafka.client import OURS, Client, library
from playhead.sources.kafka.lanes import Lanes, OnGap, Order
from playhead.sources.kafka.turns import Lane, Turn

KEY_BITS = 62
OFFSET_BITS = 48  # of an element's key; the rest is the partition's number among all that are read
REFRESH = 60_000  # milliseconds
SPEC = {
    "key": ArraySpec((), bytes),
    "value": ArraySpec((), bytes),
    "timestamp": ArraySpec((), np.dtype(np.int64)),
    "topic": ArraySpec((), str),
    "partition": ArraySpec((), np.dtype(np.int32)),
    "offset": ArraySpec((), np.dtype(np.int64)),
}
# [topic, partition, first offset, end or None, next offset]
Row: TypeAlias = list[Any]


class Range:
    """What a dataset's passes read, once that is known: the first offset and the end of each partition.

    It is told by the first walk, or by the position that was restored last.
    """

    def __init__(self) -> None:
        self.rows: list[Row] | None = None
        self.lock = Lock()


@dataclass(frozen=True, eq=False)
class Messages(Source):
    """The messages of some topics. The cursor holds the range of each partition, and where it stands in it."""

    op: ClassVar[str] = "kafka"

    topics: tuple[str, ...]
    servers: str
    first: Bound
    until: Bound | None
    order: Order
    on_gap: OnGap
    patience: float
    config: Mapping[str, Any] = field(repr=False)
    known: Range = field(default_factory=Range, kw_only=True, repr=False)
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return INFINITE if self.until is None else UNKNOWN

    @cached_property
    def seekable(self) -> bool:
        return False

    @property
    def refresh(self) -> float:
        """Seconds between two looks for partitions that were added."""
        return float(self.config.get("topic.metadata.refresh.interval.ms", REFRESH)) / 1000

    @cached_property
    def repeatable(self) -> bool:
        """Whether two walks give the same messages in the same order."""
        return self.until is not None and self.order == "round_robin"

    def gather(self, index: Index) -> Columns:
        raise PipelineError("a topic is walked: it has no items to jump to")

    def static_spec(self) -> Nest:
        return SPEC

    def describe(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "topics": list(self.topics),
            "order": self.order,
            "start": said(self.first),
            "until": said(self.until),
            "kind": "declared",
        }

    # --- cursors ----------------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        rows = self.known.rows
        if rows is not None:
            rows = [[topic, number, first, end, first] for topic, number, first, end, _ in rows]
        return {"epoch": epoch, "turn": 0, "partitions": rows, "gaps": []}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if not isinstance(cursor, dict) or cursor.get("epoch") != epoch:
            return False
        rows, gaps = cursor.get("partitions"), cursor.get("gaps")
        if rows is None:
            return cursor.get("turn") == 0 and gaps == []
        fits = (
            isinstance(rows, list)
            and all(self._is_row(row) for row in rows)
            and len({(row[0], row[1]) for row in rows}) == len(rows)
            and is_count(cursor.get("turn"))
            and cursor["turn"] < max(1, len(rows))
            and isinstance(gaps, list)
            and all(_is_gap(gap, len(rows)) for gap in gaps)
        )
        if fits:
            self.known.rows = rows
        return fits

    def _is_row(self, row: Any) -> bool:
        if not isinstance(row, list) or len(row) != 5 or row[0] not in self.topics:
            return False
        ends = row[3] is None if self.until is None else is_count(row[3])
        return ends and all(map(is_count, (row[1], row[2], row[4]))) and row[2] <= row[4]

    def _resolved(self, cursor: Cursor, client: Client) -> list[Row]:
        """The rows of a cursor; where it has none, those of the range, which then is found out once.

        They are written into the cursor: it says from now on, wherever else it is held, where this pass begins
        and ends, though nothing of it was delivered yet.
        """
        if cursor["partitions"] is None:
            with self.known.lock:
                if self.known.rows is None:
                    self.known.rows = self._found(client)
                cursor["partitions"] = self.start_stream(cursor["epoch"])["partitions"]
        return list(cursor["partitions"])

    def _found(self, client: Client) -> list[Row]:
        there = [(topic, n) for topic in self.topics for n in client.partitions(topic)]
        there.sort()
        self._require(there, self.first)
        self._require(there, self.until)
        if len(there) >> KEY_BITS - OFFSET_BITS:
            raise PipelineError(f"from_kafka: {len(there)} partitions are too many for one source")
        if isinstance(self.until, dict):
            there = [partition for partition in there if partition in self.until]
        first = client.offsets(there, self.first)
        ends: Sequence[int | None] = [None] * len(there)
        if self.until is not None:
            ends = client.offsets(there, self.until)
        return [[*p, a, z, a] for p, a, z in zip(there, first, ends, strict=True)]

    @staticmethod
    def _require(there: list[Partition], bound: Bound | None) -> None:
        absent = [key for key in bound if key not in there] if isinstance(bound, dict) else []
        if absent:
            topic, number = absent[0]
            count = sum(name == topic for name, _ in there)
            raise PipelineError(
                f"from_kafka: topic {topic!r} has {count} partitions, and none of number {number}"
            )

    # --- walking ----------------------------------------------------------------------------------------

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        pace = compute.pace(self)
        with closing(Client(self.servers, self.config, self.patience)) as client:
            lanes = Lanes(
                client,
                [Lane(k, *row) for k, row in enumerate(self._resolved(cursor, client))],
                turn=cursor["turn"],
                gaps=[tuple(gap) for gap in cursor["gaps"]],
                order=self.order,
                on_gap=self.on_gap,
                topics=self.topics if self.until is None else (),
                refresh=self.refresh,
                stopped=lambda: compute.closed,
            )
            while (taken := lanes.take()) is not None:
                chunk = self._chunk(cursor["epoch"], *taken)
                if not len(chunk):
                    yield chunk  # what has been read ahead need not wait for what comes next
                    continue
                each = nbytes(chunk.block) // len(chunk)
                at, taken = 0, None
                while at < len(chunk):
                    size = min(pace.size, len(chunk) - at)
                    yield chunk.slice(at, at + size)
                    at += size
                    pace.report(size, 0.0, size * each)

    def _chunk(self, epoch: int, turn: Turn, messages: list[Any]) -> Chunk:
        return Chunk(
            columns(turn, messages),
            Places(epoch, turn.numbers << OFFSET_BITS | turn.offsets),
            lambda j: {"epoch": epoch, **turn.after(j)},
            lambda j: [self.message(epoch, turn.name(j), int(turn.offsets[j]))],
        )

    def message(self, epoch: int, partition: Partition, offset: int) -> Record:
        where = f"{name_of(partition)}@{offset}"
        return Record(self.info.name or self.op, epoch, offset, where)


class Scalars(Columns):
    """Columns of what nobody can write to: a consumer's rows need no copies."""

    __slots__ = ()

    def own_rows(self) -> list[Element]:
        return self.rows()

    def slice(self, start: int, stop: int) -> Scalars:
        return Scalars(map_nest(lambda column: column[start:stop], self.nest), stop - start)


def columns(turn: Turn, messages: list[Any]) -> Scalars:
    """The messages as elements, in order: see `SPEC`. A key or a value that is not there is None."""
    kind, count = type(messages[0]) if messages else library().Message, len(messages)
    topics = object_array([lane[0] for lane in turn.lanes])
    partitions = np.array([lane[1] for lane in turn.lanes], np.int32)
    times = map(itemgetter(1), map(kind.timestamp, messages))
    nest = {
        "key": _objects(map(kind.key, messages), count),
        "value": _objects(map(kind.value, messages), count),
        "timestamp": np.fromiter(times, np.int64, count),
        "topic": topics[turn.numbers],
        "partition": partitions[turn.numbers],
        "offset": turn.offsets.copy(),  # the cursors' own are not for anybody to write to
    }
    return Scalars(nest, count)


def _objects(items: Iterable[bytes | None], count: int) -> np.ndarray[Any, Any]:
    column = np.empty(count, object)
    column[:] = list(items)
    return column


def messages(
    topics: str | Sequence[str],
    servers: str | Sequence[str],
    *,
    start: Any,
    until: Any,
    order: Order,
    on_gap: OnGap,
    patience: float,
    config: Mapping[str, Any] | None,
) -> Messages:
    """Raises `PipelineError` for arguments that make no source. Asks no broker anything."""
    names = tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise PipelineError(f"from_kafka: topics are names, not {topics!r}")
    hosts = servers if isinstance(servers, str) else ",".join(servers)
    if not hosts:
        raise PipelineError('from_kafka needs bootstrap_servers="host:port"')
    if order not in ("round_robin", "arrival"):
        raise PipelineError(f'from_kafka(order={order!r}): it is "round_robin" or "arrival"')
    if on_gap not in ("error", "accept"):
        raise PipelineError(f'from_kafka(on_gap={on_gap!r}): it is "error" or "accept"')
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience > 0:
        raise PipelineError(f"from_kafka(patience={patience!r}): more than 0 seconds")
    settings = dict(config or {})
    for name in {*OURS, "bootstrap.servers"} & settings.keys():
        raise PipelineError(
            f"from_kafka(config=...): {name} is not yours to set: offsets belong to the position",
            help="leave it out; bootstrap_servers= names the servers",
        )
    first = bound_of("start", start, names, ("beginning", "end"))
    if first is None:
        raise PipelineError('from_kafka(start=None): "beginning" is the default')
    last = bound_of("until", until, names, ("end",))
    return Messages(names, hosts, first, last, order, on_gap, float(patience), settings)


def _is_gap(gap: Any, count: int) -> bool:
    return isinstance(gap, list) and len(gap) == 3 and all(map(is_count, gap)) and gap[0] < count
