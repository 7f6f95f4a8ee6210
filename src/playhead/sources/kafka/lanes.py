"""The partitions of a walk side by side: what has arrived of each, and whose turn it is."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np

from playhead.errors import PlayheadWarning, SourceError, warn
from playhead.plan.places import Index
from playhead.sources.kafka import losses
from playhead.sources.kafka.bounds import name_of
from playhead.sources.kafka.client import Client
from playhead.sources.kafka.turns import UNTOLD, Gap, Lane, Turn

Order: TypeAlias = Literal["round_robin", "arrival"]
OnGap: TypeAlias = Literal["error", "accept"]

AT_ONCE = 4096  # messages in a turn
MOMENT, LONGEST = 0.01, 0.2  # seconds of a silence before somebody may look at something else
HELD = 64 << 20  # bytes that may wait for the turns of others, all lanes together
HELD_EACH = 4 << 20  # what any one lane may hold


class Lanes:
    """Takes messages of all lanes in the order asked for. `topics` are those that may get more partitions."""

    def __init__(
        self,
        client: Client,
        lanes: list[Lane],
        *,
        turn: int,
        gaps: Sequence[Gap],
        order: Order,
        on_gap: OnGap,
        topics: Sequence[str],
        refresh: float,
        stopped: Callable[[], bool],
    ) -> None:
        self._client, self._lanes, self._topics = client, lanes, topics
        self._order, self._on_gap, self._stopped = order, on_gap, stopped
        self._turn, self._gaps = turn, tuple(gaps)
        self._stands = np.array([lane.next for lane in lanes], np.int64)
        self._times = np.array([lane.time for lane in lanes], np.int64)
        self._table = _table(lanes)
        self._refresh, self._looked = refresh, time.monotonic()
        self._came: list[Any] = []
        self._moment = MOMENT
        if topics:
            self._look()
        self._let_flow()

    def take(self) -> tuple[Turn, list[Any]] | None:
        """The next messages, none where none came for a moment; None at the end of all lanes."""
        messages = self._next()
        if not messages:
            ended = not self._topics and all(lane.over for lane in self._lanes)
            if ended or self._stopped():
                return None
            came = self._receive(self._moment)
            self._moment = MOMENT if came else min(2 * self._moment, LONGEST)
            messages = self._next()
        return self._turn_of(messages), messages

    def _next(self) -> list[Any]:
        return self._in_turn() if self._order == "round_robin" else self._as_they_came()

    def _turn_of(self, messages: list[Any]) -> Turn:
        numbers, offsets = self._numbers_of(messages), self._offsets_of(messages)
        times = self._times_of(messages)
        lanes = tuple((at.topic, at.partition, at.first, at.end) for at in self._lanes)
        before = self._stands.copy(), self._times.copy()
        turn = Turn(numbers, offsets, times, lanes, *before, self._turn, self._gaps)
        self._stands[numbers], self._times[numbers] = offsets + 1, times
        if messages:
            self._turn = (int(numbers[-1]) + 1) % len(lanes)
        return turn

    # --- whose turn it is -------------------------------------------------------------------------------

    def _in_turn(self) -> list[Any]:
        """Whole rounds where all have something, else one of each up to the first that has to be waited for.

        A lane without end that has nothing more for now is passed over.
        """
        while True:
            lanes = [*self._lanes[self._turn :], *self._lanes[: self._turn]]
            lanes = [at for at in lanes if at.waiting or not (at.over or self._is_passed_over(at))]
            rounds = min((lane.waiting for lane in lanes), default=0)
            if rounds:
                rounds = min(rounds, max(1, AT_ONCE // len(lanes)))
                columns = [lane.take(rounds) for lane in lanes]
                self._let_flow()
                return list(chain.from_iterable(zip(*columns, strict=True)))
            if not lanes or not lanes[0].waiting:
                return []
            if not self._receive():
                break
        found = []
        for lane in lanes:
            if not lane.waiting:
                break
            found += lane.take(1)
        return found

    @staticmethod
    def _is_passed_over(lane: Lane) -> bool:
        return lane.end is None and lane.idle

    def _as_they_came(self) -> list[Any]:
        found, self._came = self._came, []
        return found

    # --- what arrives -----------------------------------------------------------------------------------

    def _receive(self, seconds: float = 0.0) -> bool:
        """Put what arrives, within so long, where it belongs; whether anything came."""
        if self._topics and time.monotonic() - self._looked > self._refresh:
            self._look()
        received = self._client.receive(AT_ONCE, seconds)
        if self._client.doubts:
            self._client.doubts = False
            self._look_again()
        events: list[Any] = []
        messages = received
        if any(map(self._client.message.error, received)):
            events = [message for message in received if message.error() is not None]
            messages = [message for message in received if message.error() is None]
        if messages:
            self._sort(messages)
        for event in events:
            self._hear(event)
        if messages or events:
            self._let_flow()
        return bool(received)

    def _sort(self, messages: list[Any]) -> None:
        numbers, offsets = self._numbers_of(messages), self._offsets_of(messages)
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        kept = []
        for place in np.split(order, cuts):
            lane, here = self._lanes[numbers[place[0]]], offsets[place]
            if np.any(np.diff(here) <= 0):
                raise SourceError(f"the client gave offsets of {name_of(lane.name)} out of order")
            if lane.asks:
                self._compare(lane, messages[place[0]])
            mine = here >= lane.expected
            if lane.end is not None:
                mine &= here < lane.end
            kept.append(place[mine])
            if self._order == "round_robin":
                lane.add(list(map(messages.__getitem__, kept[-1].tolist())))
            lane.idle = False
            if here[-1] >= lane.expected:
                last = messages[place[-1]]
                lane.expected, lane.time = int(here[-1]) + 1, last.timestamp()[1]
            self._see_end(lane)
        if self._order == "arrival":
            self._came += [messages[k] for k in np.sort(np.concatenate(kept)).tolist()]

    @staticmethod
    def _compare(lane: Lane, message: Any) -> None:
        lane.asks = False
        if losses.is_another(lane, message):
            raise losses.another(lane, message)

    def _see_end(self, lane: Lane) -> None:
        if lane.end is not None and lane.expected >= lane.end:
            lane.over = True
            self._client.leave(lane.name)
            lane.flows = False

    def _hear(self, event: Any) -> None:
        """What the client says of a lane, or of itself."""
        error, kinds = event.error(), self._client.kinds
        lane = self._lane_of(event)
        if lane is None or lane.over:
            if self._client.is_final(error):
                raise self._client.refused("messages", error)
            return
        offset = event.offset()
        if error.code() == kinds._PARTITION_EOF:
            if offset >= lane.expected:
                lane.idle = True
                if lane.end is not None and offset >= lane.end:
                    lane.expected = lane.end
                    self._see_end(lane)
            elif lane.asks:
                self._within(lane)
        elif error.code() in (kinds._AUTO_OFFSET_RESET, kinds.OFFSET_OUT_OF_RANGE):
            if offset < 0 or offset >= lane.expected - lane.asks:
                if offset > lane.expected or lane.asks:
                    lane.time = UNTOLD
                lane.expected = max(lane.expected, offset)  # up to there no message came
                self._miss(lane)
        elif error.code() in self._client.absent:
            self._look_again()
        elif error.code() == kinds._LOG_TRUNCATION:
            raise losses.ended(lane, offset)
        elif not self._client.is_passing(error):
            raise self._client.refused(f"messages of {name_of(lane.name)} at {offset}", error)

    def _miss(self, lane: Lane) -> None:
        """The broker has not the offset that comes next: it is gone, or never was."""
        low = self._within(lane)
        if lane.expected >= low:
            self._flow(lane)
            return
        stop = low if lane.end is None else min(low, lane.end)
        lost = losses.gone(lane, low, stop)
        if self._on_gap == "error":
            raise lost
        warn(f"{lost.what}; going on at offset {low}", PlayheadWarning)
        self._gaps = (*self._gaps, (lane.number, lane.expected, stop))
        lane.expected, lane.time = stop, UNTOLD
        self._see_end(lane)
        if not lane.over:
            self._flow(lane)

    def _within(self, lane: Lane) -> int:
        """The first offset that is there. Raises `SourceChanged` where the log ends before what comes next."""
        low, high = self._client.edges(lane.name)
        if lane.expected > high:
            raise losses.ended(lane, high)
        return low

    # --- which partitions are read ----------------------------------------------------------------------

    def _let_flow(self) -> None:
        """Read every lane, but for those of which too much waits for the others."""
        most = max(HELD_EACH, HELD // max(1, len(self._lanes)))
        for lane in self._lanes:
            if lane.flows and lane.nbytes > most:
                self._client.leave(lane.name)
                lane.flows = False
            elif not lane.flows and not lane.over and lane.nbytes <= most // 2:
                self._flow(lane)

    def _flow(self, lane: Lane) -> None:
        lane.flows, lane.idle, lane.asks = True, False, lane.time >= 0
        self._client.read_from(lane.name, lane.expected - lane.asks)

    def _look(self) -> None:
        """Partitions that were added begin at their beginning."""
        self._looked = time.monotonic()
        for topic in self._topics:
            for partition in self._client.partitions(topic):
                if partition not in self._table.get(topic, ()):
                    self._lanes.append(Lane(len(self._lanes), topic, partition, 0, None, 0))
                    self._stands = np.append(self._stands, np.int64(0))
                    self._times = np.append(self._times, np.int64(UNTOLD))
        self._table = _table(self._lanes)

    def _look_again(self) -> None:
        """Whether all that is read is still there. Raises `MissingSource`, `SourceChanged`."""
        for topic in self._table:
            there = self._client.partitions(topic)
            for lane in self._lanes:
                if lane.topic == topic and not lane.over:
                    if lane.partition not in there:
                        raise losses.removed(lane)
                    self._flow(lane)

    def _lane_of(self, event: Any) -> Lane | None:
        number = self._table.get(event.topic(), {}).get(event.partition())
        return None if number is None else self._lanes[number]

    def _numbers_of(self, messages: list[Any]) -> Index:
        message = self._client.message
        partitions = map(message.partition, messages)
        if len(self._table) == 1:
            [table] = self._table.values()
            numbers = map(table.__getitem__, partitions)
        else:
            tables = map(self._table.__getitem__, map(message.topic, messages))
            numbers = map(operator.getitem, tables, partitions)
        return np.fromiter(numbers, np.int64, len(messages))

    def _offsets_of(self, messages: list[Any]) -> Index:
        return np.fromiter(map(self._client.message.offset, messages), np.int64, len(messages))

    def _times_of(self, messages: list[Any]) -> Index:
        times = map(operator.itemgetter(1), map(self._client.message.timestamp, messages))
        return np.fromiter(times, np.int64, len(messages))


def _table(lanes: list[Lane]) -> dict[str, dict[int, int]]:
    """The lanes' numbers by topic, then by partition."""
    table: dict[str, dict[int, int]] = {}
    for lane in lanes:
        table.setdefault(lane.topic, {})[lane.partition] = lane.number
    return table
