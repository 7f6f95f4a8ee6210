"""Messages of Kafka topics: walked, with the offsets in the position and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from playhead.errors import PipelineError
from playhead.plan.block import Columns, Nest
from playhead.plan.compute import Chunk, Compute, nbytes
from playhead.plan.lock import Lock
from playhead.plan.node import INFINITE, UNKNOWN, Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_count
from playhead.sources.kafka.bounds import Bound, Partition, bound_of, name_of, said
from playhead.sources.kafka.client import OURS, Client
from playhead.sources.kafka.fields import EVERY, block_of, spec_of
from playhead.sources.kafka.lanes import Lanes, OnGap, Order
from playhead.sources.kafka.turns import UNTOLD, Lane, Turn

KEY_BITS = 62
OFFSET_BITS = 48  # of an element's key; the rest is the partition's number among all that are read
REFRESH = 60_000  # milliseconds
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
    fields: tuple[str, ...]
    known: Range = field(default_factory=Range, kw_only=True, repr=False)
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return INFINITE if self.until is None else UNKNOWN

    @cached_property
    def seekable(self) -> bool:
        return False

    @cached_property
    def uneven(self) -> bool:
        return "headers" in self.fields

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
        return spec_of(self.fields)

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
        start: Cursor = {"epoch": epoch, "turn": 0, "partitions": None, "gaps": []}
        if self.known.rows is None:
            return start
        rows = [
            [topic, number, first, end, first] for topic, number, first, end, _ in self.known.rows
        ]
        return start | {"partitions": rows, "times": [UNTOLD] * len(rows)}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if not isinstance(cursor, dict) or cursor.get("epoch") != epoch:
            return False
        rows, gaps = cursor.get("partitions"), cursor.get("gaps")
        if rows is None:
            return cursor.get("turn") == 0 and gaps == []
        times = cursor.get("times", [])
        fits = (
            isinstance(rows, list)
            and all(self._is_row(row) for row in rows)
            and len({(row[0], row[1]) for row in rows}) == len(rows)
            and isinstance(times, list)
            and all(time == UNTOLD or is_count(time) for time in times)
            and len(times) == ("times" in cursor) * len(rows)
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
                cursor.update(self.start_stream(cursor["epoch"]))
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
            rows = self._resolved(cursor, client)
            times = cursor.get("times", [UNTOLD] * len(rows))
            each = [[*row, time] for row, time in zip(rows, times, strict=True)]
            lanes = Lanes(
                client,
                [Lane(k, *one) for k, one in enumerate(each)],
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
                size_of_one = nbytes(chunk.block) // len(chunk)
                at, taken = 0, None
                while at < len(chunk):
                    size = min(pace.size, len(chunk) - at)
                    yield chunk.slice(at, at + size)
                    at += size
                    pace.report(size, 0.0, size * size_of_one)

    def _chunk(self, epoch: int, turn: Turn, messages: list[Any]) -> Chunk:
        return Chunk(
            block_of(self.fields, turn, messages),
            Places(epoch, turn.numbers << OFFSET_BITS | turn.offsets),
            lambda j: {"epoch": epoch, **turn.after(j)},
            lambda j: [self.message(epoch, turn.name(j), int(turn.offsets[j]))],
        )

    def message(self, epoch: int, partition: Partition, offset: int) -> Record:
        where = f"{name_of(partition)}@{offset}"
        return Record(self.info.name or self.op, epoch, offset, where)


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
    fields: Sequence[str],
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
    chosen = tuple(fields)
    if isinstance(fields, str) or not chosen or len({*chosen} & {*EVERY}) < len(chosen):
        raise PipelineError(
            f"from_kafka(fields={fields!r}): some of {', '.join(EVERY)}, each once",
            help='fields=("key", "value", "headers")',
        )
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
    return Messages(names, hosts, first, last, order, on_gap, float(patience), settings, chosen)


def _is_gap(gap: Any, count: int) -> bool:
    return isinstance(gap, list) and len(gap) == 3 and all(map(is_count, gap)) and gap[0] < count
