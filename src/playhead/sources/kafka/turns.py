"""A partition as it is read, and where all of them stand behind each message that was taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from playhead.plan.places import Index
from playhead.sources.kafka.bounds import Partition

# The lane's number, the first offset that is gone, and the one where it goes on
Gap: TypeAlias = tuple[int, int, int]
UNTOLD = -1  # the timestamp of a message that has none, or was never read


@dataclass(eq=False, slots=True)
class Lane:
    """One partition: read from `next` to `end` (None: without end)."""

    number: int
    topic: str
    partition: int
    first: int
    end: int | None
    next: int
    time: int = UNTOLD  # of the message before `expected`
    arrived: list[Any] = field(default_factory=list)
    taken: int = 0  # of `arrived`
    nbytes: int = 0
    expected: int = 0  # the offset behind the last one that arrived
    over: bool = False  # nothing more will arrive
    idle: bool = False  # all that is there has arrived
    flows: bool = False
    asks: bool = False  # the message before `expected` comes once more, to be compared

    def __post_init__(self) -> None:
        self.expected = self.next
        self.over = self.end is not None and self.next >= self.end

    @property
    def name(self) -> Partition:
        return self.topic, self.partition

    @property
    def waiting(self) -> int:
        return len(self.arrived) - self.taken

    def add(self, messages: list[Any]) -> None:
        self.arrived += messages
        self.nbytes += sum(map(len, messages))

    def take(self, count: int) -> list[Any]:
        found = self.arrived[self.taken : self.taken + count]
        self.taken += count
        self.nbytes -= self.nbytes * len(found) // (self.waiting + len(found))
        if 2 * self.taken > len(self.arrived):
            del self.arrived[: self.taken]
            self.taken = 0
        return found


@dataclass(frozen=True, slots=True)
class Turn:
    """Which messages come next, of which lanes, and how everything stood before them. Holds none of them."""

    numbers: Index
    offsets: Index
    times: Index
    lanes: tuple[tuple[str, int, int, int | None], ...]  # topic, partition, first, end
    before: Index
    times_before: Index
    turn: int
    gaps: tuple[Gap, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, j: int) -> Partition:
        """The partition of message j."""
        return self.lanes[self.numbers[j]][:2]

    def after(self, j: int) -> dict[str, Any]:
        """How everything stands behind the first j messages."""
        stands, times = self.before.copy(), self.times_before.copy()
        stands[self.numbers[:j]] = self.offsets[:j] + 1  # the last one of a lane counts
        times[self.numbers[:j]] = self.times[:j]
        reached = []
        for number, start, stop in self.gaps:
            if stands[number] >= start:
                if stands[number] < stop:
                    stands[number], times[number] = stop, UNTOLD
                reached.append([number, start, stop])
        return {
            "turn": (int(self.numbers[j - 1]) + 1) % len(self.lanes) if j else self.turn,
            "partitions": [[*at, to] for at, to in zip(self.lanes, stands.tolist(), strict=True)],
            "times": times.tolist(),
            "gaps": reached,
        }
