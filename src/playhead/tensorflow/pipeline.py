"""An unchanged tf.data pipeline as a source: walked by TensorFlow, counted here.

A position is (pass, elements delivered in it). A run goes on there over a fresh copy of the pipeline: passes
before are made up for, elements before are taken and dropped, inside TensorFlow. With `state="iterator"` the
walk also saves tf.data's own iterator state now and then, and a position names the newest one before it and
how many elements lie between; whatever runs ahead of the consumer, in tf.data or behind it, is not in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import tensorflow as tf

from playhead.errors import PipelineError, SlowResume, SourceChanged, warn
from playhead.plan.aligned import aligned_copy
from playhead.plan.block import ArraySpec, Columns, Nest, Rows, map_nest, named_leaves
from playhead.plan.compute import Chunk, Compute
from playhead.plan.lock import Lock
from playhead.plan.node import Node, Source
from playhead.plan.places import Cursor, Index, Places, Record, is_place
from playhead.plan.randomness import draw_seed
from playhead.tensorflow.blueprint import Blueprint, Leaves
from playhead.tensorflow.iterator_state import Snapshot, Snapshots, is_snapshot, require_snapshots
from playhead.tensorflow.repeatable import calls_python, require_repeatable_pipeline

State = Literal["skip", "iterator"]

_COPIES = 4  # that wait for the pass they stand before
_PATIENCE = 10.0  # seconds of replaying without a word
_CALL = 0.5  # seconds that one call into TensorFlow may about take


@dataclass(frozen=True, eq=False)
class TfData(Source):
    """The elements of a tf.data pipeline; pass e is what iterating the dataset for the (e + 1)-th time gives.

    The cursor is [epoch, elements taken], or with a saved iterator {"at": that, "taken", "state", ...}.
    """

    op: ClassVar[str] = "tf_data"

    blueprint: Blueprint | None
    content: str
    elements: Nest  # of `ArraySpec`, and of None where the rank is not known
    count: int
    saves_state: bool
    seed: int | None  # for shuffles that have none
    drawn: bool
    python: str | None  # what of it calls Python
    parents: tuple[Node, ...] = field(default=(), kw_only=True)
    standing: _Standing = field(default_factory=lambda: _Standing(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return self.count

    @cached_property
    def seekable(self) -> bool:
        return False

    @cached_property
    def uneven(self) -> bool:
        return True

    def gather(self, index: Index) -> Columns:
        raise PipelineError("a tf.data pipeline has no elements to jump to")

    def static_spec(self) -> Nest | None:
        found = [spec for _, spec in named_leaves(self.elements)]
        return None if not found or None in found else self.elements

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"op": self.op, "content": self.content, "kind": "declared"}
        if self.count >= 0:
            said["records"] = self.count
        if self.seed is not None:
            said["seed"] = self.seed
            if self.drawn:
                said["drawn"] = True
        if self.python is not None:
            said["python"] = self.python
        return said

    def __getstate__(self) -> dict[str, Any]:
        """Without the pipeline: workers elsewhere are handed its elements."""
        return {k: v for k, v in vars(self).items() if k != "standing"} | {
            "blueprint": None,
            "standing": _Standing(),
        }

    # --- walking ----------------------------------------------------------------------------------------

    def start_stream(self, epoch: int) -> Cursor:
        return [epoch, 0]

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if isinstance(cursor, dict):
            return is_snapshot(cursor) and self.fits(cursor["at"], epoch)
        inside = self.count < 0 or (is_place(cursor) and cursor[1] <= self.count)
        return is_place(cursor) and cursor[0] == epoch and inside

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, index = cursor["at"] if isinstance(cursor, dict) else cursor
        if index == self.count and index:
            return  # nothing is left, and nothing needs to be replayed to know it
        saved = self._saved(cursor)
        walk = self._replayed(epoch, index) if saved is None else self._restored(index, saved)
        snapshots = Snapshots(walk.iterator, self.content, saved) if self.saves_state else None
        pace = compute.pace(self)
        rows: list[Any] = []
        began = time.perf_counter()
        try:
            for element in walk.iterator:
                rows.append(map_nest(_as_leaf, element))
                seconds = time.perf_counter() - began
                if len(rows) >= pace.size or seconds > pace.seconds:
                    pace.report(len(rows), seconds)
                    yield self._chunk(epoch, index, rows, snapshots)
                    index, rows = index + len(rows), []
                    if snapshots is not None:
                        snapshots.look(index)
                    began = time.perf_counter()
        except tf.errors.OpError as error:
            if rows:
                yield self._chunk(epoch, index, rows, snapshots)
            error.add_note(f"playhead: in from_tf, element {index + len(rows)} of epoch {epoch}")
            raise
        if rows:
            yield self._chunk(epoch, index, rows, snapshots)
        if walk.whole:
            self.standing.keep(epoch + 1, self.seed, walk.copy)

    def _chunk(self, epoch: int, index: int, rows: list[Any], snapshots: Snapshots | None) -> Chunk:
        return Chunk(
            Rows(rows),
            Places(epoch, np.arange(index, index + len(rows), dtype=np.int64)),
            partial(_after, epoch, index, snapshots.latest if snapshots else _no_snapshot),
            lambda j: [self.record(epoch, index + j)],
        )

    def record(self, epoch: int, index: int) -> Record:
        return Record(self.info.name or "from_tf", epoch, index)

    # --- going on ---------------------------------------------------------------------------------------

    def _saved(self, cursor: Cursor) -> Snapshot | None:
        """tf.data's own state; None where there is none of this pipeline, written by this TensorFlow."""
        if not isinstance(cursor, dict):
            return None
        saved = Snapshot.of(cursor)
        return saved if saved.fits(self.content) else None

    def _restored(self, index: int, saved: Snapshot) -> _Walk:
        began = time.perf_counter()
        copy = self._blueprint().copy(self.seed)
        iterator = _opened(copy)
        saved.restore(iterator)
        _Replay(began, index - saved.taken).advance(iterator, index - saved.taken)
        return _Walk(copy, iterator, whole=False)

    def _replayed(self, epoch: int, index: int) -> _Walk:
        began = time.perf_counter()
        replay = _Replay(began, index)
        copy = self.standing.take(epoch, self.seed)
        if copy is None:
            copy = self._blueprint().copy(self.seed)
            self._make_up(copy, epoch, replay)
        iterator = _opened(copy)
        replay.advance(iterator, index)
        if replay.done:
            seconds = time.perf_counter() - began
            warn(
                f"resuming from_tf replayed {replay.done} elements in {seconds:.1f} s, to stand behind "
                f"element {index} of epoch {epoch}; a source of playhead's own resumes at once",
                SlowResume,
            )
        return _Walk(copy, iterator, whole=True)

    def _make_up(self, copy: tf.data.Dataset, epoch: int, replay: _Replay) -> None:
        """Let `epoch` passes have gone over a copy, as far as that matters to the next."""
        leaves = self._blueprint().leaves
        for number in range(epoch if leaves is not Leaves.NOTHING else 0):
            iterator = _opened(copy)
            whole = leaves is Leaves.A_PASS or (leaves is Leaves.A_FIRST_PASS and number == 0)
            if whole:
                replay.advance(iterator, None)

    def _blueprint(self) -> Blueprint:
        if self.blueprint is None:
            raise PipelineError("a tf.data pipeline is read in the process that built it")
        return self.blueprint


@dataclass(frozen=True, slots=True)
class _Walk:
    """An iterator over a copy; `whole`: after it the copy stands before the next pass."""

    copy: tf.data.Dataset
    iterator: Any
    whole: bool


class _Standing:
    """Copies that whole passes have gone over, each waiting for its next one: with its cache and its seeds."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._copies: deque[tuple[int, int | None, tf.data.Dataset]] = deque(maxlen=_COPIES)

    def keep(self, epoch: int, seed: int | None, copy: tf.data.Dataset) -> None:
        with self._lock:
            self._copies.append((epoch, seed, copy))

    def take(self, epoch: int, seed: int | None) -> tf.data.Dataset | None:
        with self._lock:
            for found in self._copies:
                if found[:2] == (epoch, seed):
                    self._copies.remove(found)
                    return found[2]
        return None


class _Replay:
    """Takes elements and drops them, in TensorFlow, and counts them."""

    def __init__(self, began: float, wanted: int) -> None:
        self._began, self._wanted = began, wanted
        self._said = False
        self.done = 0

    def advance(self, iterator: Any, count: int | None) -> None:
        """Past `count` elements; to the end for None. Raises `SourceChanged` where there are fewer."""
        taken, size = 0, 1
        while count is None or taken < count:
            began = time.perf_counter()
            asked = size if count is None else min(size, count - taken)
            found = int(_drop(iterator, tf.constant(asked, tf.int64)))
            taken, self.done = taken + found, self.done + found
            if found < asked:
                if count is None:
                    return
                raise SourceChanged(
                    f"the tf.data pipeline ended after {taken} elements, and the position stands at {count}",
                    help="restore the files it reads, or start anew",
                )
            seconds = time.perf_counter() - began
            size = max(1, min(2 * asked, int(asked * _CALL / max(seconds, 1e-6))))
            self._say()

    def _say(self) -> None:
        seconds = time.perf_counter() - self._began
        if not self._said and seconds > _PATIENCE:
            self._said = True
            warn(
                f"resuming from_tf has replayed {self.done} elements in {seconds:.0f} s and goes on; the "
                f"position stands at element {self._wanted} of its epoch",
                SlowResume,
            )


@tf.function(autograph=False, reduce_retracing=True)  # type: ignore[untyped-decorator]
def _drop(iterator: Any, count: tf.Tensor) -> tf.Tensor:
    """Takes up to `count` elements; returns how many there were."""

    def more(done: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        return tf.logical_and(left, done < count)

    def one(done: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = iterator.get_next_as_optional().has_value()
        return done + tf.cast(found, tf.int64), found

    start = (tf.constant(0, tf.int64), tf.constant(True))
    done, _ = tf.while_loop(more, one, start, parallel_iterations=1)
    return done


def _opened(copy: tf.data.Dataset) -> Any:
    with tf.init_scope(), tf.device("/CPU:0"):
        return iter(copy)


def _after(epoch: int, index: int, latest: Callable[[int], Snapshot | None], j: int) -> Cursor:
    saved = latest(index + j)
    at = [epoch, index + j]
    return at if saved is None else saved.cursor(at)


def _no_snapshot(index: int) -> None:
    return None


def _as_leaf(tensor: Any) -> Any:
    value = tensor._numpy()  # still TensorFlow's memory
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return value.copy() if value.ndim else value.item()
        return aligned_copy(value) if value.ndim else value[()]
    return value


# --- wrapping ---------------------------------------------------------------------------------------------


def from_tf(dataset: tf.data.Dataset, state: State = "skip") -> TfData:
    """The node for an unchanged tf.data pipeline; see `playhead.Dataset.from_tf`."""
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"from_tf takes a tf.data.Dataset, not {type(dataset).__name__}")
    if state not in ("skip", "iterator"):
        raise ValueError(f'state must be "skip" or "iterator", not {state!r}')
    elements = _array_specs(dataset.element_spec)
    blueprint = Blueprint(dataset)
    require_repeatable_pipeline(blueprint, saves_state=state == "iterator")
    seed = draw_seed() if blueprint.unseeded else None
    node = TfData(
        blueprint=blueprint,
        content=blueprint.content,
        elements=elements,
        count=int(dataset.cardinality()),
        saves_state=state == "iterator",
        seed=seed,
        drawn=seed is not None,
        python=calls_python(blueprint),
    )
    if node.saves_state:
        require_snapshots(_opened(blueprint.copy(seed)))
    return node


def _array_specs(specs: Nest) -> Nest:
    found = iter([_array_spec(path, spec) for path, spec in named_leaves(specs)])
    return map_nest(lambda _: next(found), specs)


def _array_spec(path: str, spec: Any) -> ArraySpec | None:
    if not isinstance(spec, tf.TensorSpec):
        kind = type(spec).__name__.removesuffix("Spec")
        instead = {
            "RaggedTensor": "map it with x.to_tensor() before, or batch it with padded_batch",
            "SparseTensor": "map it with tf.sparse.to_dense before",
        }.get(kind, "map it to tensors before")
        raise PipelineError(
            f"from_tf: element{path} is a {kind}, and elements hold arrays",
            help=instead,
            path=path,
        )
    if spec.dtype in (tf.variant, tf.resource):
        raise PipelineError(f"from_tf: element{path} is a {spec.dtype.name}, which is no array")
    dtype: Any = bytes if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
    return None if spec.shape.rank is None else ArraySpec(tuple(spec.shape), dtype)
