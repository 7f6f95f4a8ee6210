"""Operations that carry something from element to element: scan, unique, rejection_resample."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from playhead.errors import PipelineError, SlowResume, UnreadablePosition, warn
from playhead.plan import randomness
from playhead.plan.block import Element, Rows, leaves, map_nest, own, taken
from playhead.plan.compute import Chunk, Compute, attempt
from playhead.plan.elements import Calling, note
from playhead.plan.functions import UserFunction
from playhead.plan.node import UNKNOWN, ordinal
from playhead.plan.places import Cursor, has_counts, is_count
from playhead.plan.walking import Item, Walked, items

STATE = 1 << 16  # bytes that a scan may carry


@dataclass(frozen=True, eq=False)
class Scan(Walked):
    """`function(state, element) -> (state, output)`: the outputs. The cursor holds the state."""

    op: ClassVar[str] = "scan"
    runs_user_code: ClassVar[bool] = True

    function: UserFunction
    initial: Element

    def describe(self) -> dict[str, Any]:
        return self.function.said(self.op)

    def start_stream(self, epoch: int) -> Cursor:
        return {"at": self.parent.start(epoch), "state": to_json(self.initial)}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        return isinstance(cursor, dict) and "state" in cursor and self.fits_parent(cursor, epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        state = from_json(cursor["state"], self.initial)
        for chunk in self.parent.open(cursor["at"], compute):
            states: list[Element] = [state]
            outputs: list[Element] = []
            for item in items([chunk], None):
                try:
                    state, output = self._step(state, item)
                except Exception:
                    if outputs:
                        yield _carried(chunk.slice(0, len(outputs)), outputs, states)
                    raise
                states.append(state)
                outputs.append(output)
            yield _carried(chunk, outputs, states)

    def _step(self, state: Element, item: Item) -> tuple[Element, Element]:
        try:
            result = self.function.fn(own(state), item.row)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise PipelineError(
                    f"scan({self.function.name}) must return (state, output), not {result!r}"
                )
            following, output = taken(result[0]), taken(result[1])
            require_like(f"scan({self.function.name})", self.initial, following)
        except Exception as error:
            note(error, self, item.key, item.trace())
            raise
        return following, output


def _carried(chunk: Chunk, outputs: list[Element], states: list[Element]) -> Chunk:
    inner = chunk.cursor
    return Chunk(
        Rows(outputs),
        chunk.keys,
        lambda j: {"at": inner(j), "state": to_json(states[j])},
        chunk.trace,
        chunk.records,
    )


def require_like(op: str, initial: Element, state: Element) -> None:
    """Raises `PipelineError` where a state has another structure or other dtypes than the initial one."""
    before, after = _outline(initial), _outline(state)
    if before != after:
        raise PipelineError(
            f"{op}: the state was {before} and became {after}",
            help="return a state of the initial one's structure and dtypes",
        )


def _outline(state: Element) -> Any:
    def of(leaf: Any) -> str:
        return str(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic) else type(leaf).__name__

    return map_nest(of, state)


def to_json(state: Element) -> Any:
    """A nest of arrays, numbers, str and bytes as JSON. Raises `PipelineError` for more than 64 KB."""
    size = sum(leaf.nbytes for leaf in leaves(state) if isinstance(leaf, np.ndarray))
    if size > STATE:
        raise PipelineError(
            f"scan carries {size} bytes from element to element; a position holds {STATE} at most",
            help="carry less, or keep what is large outside the pipeline",
        )

    def told(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, str):
            return leaf
        if isinstance(leaf, bytes):
            return {"bytes": base64.b64encode(leaf).decode()}
        if isinstance(leaf, np.ndarray | np.generic) and not leaf.dtype.hasobject:
            array = np.ascontiguousarray(leaf)
            raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            data = base64.b64encode(raw).decode()
            return {"dtype": array.dtype.name, "shape": list(np.shape(leaf)), "data": data}
        raise PipelineError(
            f"scan carries {type(leaf).__name__}, which a position cannot hold",
            help="carry arrays, numbers, str or bytes",
        )

    return [told(leaf) for leaf in leaves(state)]


def from_json(saved: Any, initial: Element) -> Element:
    """What `to_json` wrote, in the structure of `initial`. Raises `UnreadablePosition`."""
    try:
        parts = iter([_leaf(part) for part in saved])
        state = map_nest(lambda _: next(parts), initial)
    except (TypeError, ValueError, KeyError, AttributeError, StopIteration):
        raise UnreadablePosition("the position's state of a scan is damaged") from None
    if next(parts, parts) is not parts or _outline(state) != _outline(initial):
        raise UnreadablePosition("the position's state of a scan is not like the initial state")
    return state


def _leaf(part: Any) -> Any:
    if part is None or isinstance(part, str):
        return part
    if "bytes" in part:
        return base64.b64decode(part["bytes"], validate=True)
    dtype = np.dtype(part["dtype"])
    raw = np.frombuffer(base64.b64decode(part["data"], validate=True), dtype.newbyteorder("<"))
    return raw.astype(dtype).reshape(part["shape"])[()]


@dataclass(frozen=True, eq=False)
class Unique(Walked):
    """Each element once, where it comes first in the epoch.

    The cursor is how many elements of the parent were looked at: restoring looks at them again.
    """

    op: ClassVar[str] = "unique"
    keeps_keys: ClassVar[bool] = True

    @property
    def cardinality(self) -> int:
        return 0 if self.parent.cardinality == 0 else UNKNOWN

    def describe(self) -> dict[str, Any]:
        return {"op": self.op}

    def start_stream(self, epoch: int) -> Cursor:
        return {"epoch": epoch, "seen": 0}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        return has_counts(cursor, ("epoch", "seen")) and bool(cursor["epoch"] == epoch)

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, before, number = cursor["epoch"], cursor["seen"], 0
        if before:
            warn(f"resuming unique looks at {before} elements again", SlowResume)
        known: set[Any] = set()
        for chunk in self.parent.open(self.parent.start(epoch), compute):
            chosen = []
            for j, row in enumerate(chunk.block.rows()):
                value = _hashable(row)
                if value not in known:
                    known.add(value)
                    if number + j >= before:
                        chosen.append(j)
            yield _firsts(chunk, np.array(chosen, np.int64), epoch, number)
            number += len(chunk)


def _hashable(element: Element) -> Any:
    def of(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
            return tuple(leaf.ravel().tolist()), leaf.shape
        if isinstance(leaf, np.ndarray | np.generic):
            return leaf.dtype.str, np.shape(leaf), leaf.tobytes()
        return leaf

    if isinstance(element, dict):
        return tuple((key, _hashable(element[key])) for key in sorted(element, key=repr))
    if isinstance(element, tuple):
        return tuple(map(_hashable, element))
    return of(element)


def _firsts(chunk: Chunk, chosen: Any, epoch: int, number: int) -> Chunk:
    trace = chunk.trace
    return Chunk(
        chunk.block.select(chosen),
        chunk.keys.select(chosen),
        lambda j: {"epoch": epoch, "seen": number + (int(chosen[j - 1]) + 1 if j else 0)},
        lambda j: trace(int(chosen[j])),
        None if chunk.records is None else chunk.records[chosen],
    )


@dataclass(frozen=True, eq=False)
class RejectionResample(Walked):
    """(class, element) of the elements that a lottery keeps, so that classes come as `target` says.

    `function` gives the class. An element of class c is kept with probability (t_c / p_c) / max(t / p), where
    p is `initial`, or what was seen of the classes so far (each counted once beforehand). The lottery is
    drawn by the element's key. The cursor holds the counts.
    """

    op: ClassVar[str] = "rejection_resample"
    random: ClassVar[str | None] = "rejection_resample"
    runs_user_code: ClassVar[bool] = True

    function: UserFunction
    target: tuple[float, ...]
    initial: tuple[float, ...] | None
    seed: int
    drawn: bool

    @property
    def cardinality(self) -> int:
        count = self.parent.cardinality
        everything = self.initial == self.target and all(self.target)
        return count if count == 0 or everything else UNKNOWN

    def describe(self) -> dict[str, Any]:
        said = self.function.said(self.op) | {"target": list(self.target), "seed": self.seed}
        if self.initial is not None:
            said["initial"] = list(self.initial)
        if self.drawn:
            said["drawn"] = True
        return said

    def start_stream(self, epoch: int) -> Cursor:
        return {"at": self.parent.start(epoch), "seen": [0] * len(self.target)}

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if not isinstance(cursor, dict) or not self.fits_parent(cursor, epoch):
            return False
        seen = cursor.get("seen")
        return isinstance(seen, list) and len(seen) == len(self.target) and all(map(is_count, seen))

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        wide = randomness.wide_key(self.seed, self.op, ordinal(self))
        seen = list(cursor["seen"])
        chunks = self.parent.open(cursor["at"], compute)
        for chunk, found in attempt(compute, Calling(self), chunks, weight=self.weight, after=True):
            part = chunk if len(found) == len(chunk) else chunk.slice(0, len(found))
            yield from self._kept(part, found.rows(), seen, wide)

    def _kept(
        self, chunk: Chunk, classes: list[Any], seen: list[int], wide: int
    ) -> Iterator[Chunk]:
        chances = randomness.uniform(wide, chunk.keys.epochs(), chunk.keys.index)
        rows, counts, chosen = [], [], []
        start = tuple(seen)
        wrong: PipelineError | None = None
        for j, (row, value) in enumerate(zip(chunk.block.own_rows(), classes, strict=True)):
            try:
                number = self._class(value, chunk, j)
            except PipelineError as error:
                wrong = error  # after those before it
                break
            seen[number] += 1
            if chances[j] < self._probability(number, seen):
                chosen.append(j)
                rows.append((value, row))
                counts.append(tuple(seen))
        inner, trace = chunk.cursor, chunk.trace

        def cursor(j: int) -> Cursor:
            at = inner(chosen[j - 1] + 1 if j else 0)
            return {"at": at, "seen": list(counts[j - 1] if j else start)}

        yield Chunk(
            Rows(rows),
            chunk.keys.select(np.array(chosen, np.int64)),
            cursor,
            lambda j: trace(chosen[j]),
            None if chunk.records is None else chunk.records[np.array(chosen, np.int64)],
        )
        if wrong is not None:
            raise wrong

    def _class(self, value: Any, chunk: Chunk, j: int) -> int:
        number = int(value)
        if not 0 <= number < len(self.target):
            error = PipelineError(
                f"rejection_resample({self.function.name}) gave class {number}; target_dist has "
                f"{len(self.target)} classes"
            )
            note(error, self, chunk.keys.at(j), chunk.trace(j))
            raise error
        return number

    def _probability(self, number: int, seen: list[int]) -> float:
        if self.initial is not None:
            now: tuple[float, ...] = self.initial
        else:
            total = sum(seen) + len(seen)
            now = tuple((n + 1) / total for n in seen)
        ratios = [t / p if p else 0.0 for t, p in zip(self.target, now, strict=True)]
        most = max(ratios)
        return ratios[number] / most if most else 0.0
