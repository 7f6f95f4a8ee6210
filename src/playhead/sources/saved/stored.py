"""A cache in a directory: pass 0 of what is above it."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from playhead.errors import (
    MissingSource,
    PipelineError,
    SourceChanged,
)
from playhead.plan.block import (
    Block,
    Element,
    Nest,
)
from playhead.plan.cached import varies
from playhead.plan.compute import Chunk, Compute, nbytes
from playhead.plan.description import (
    Operation,
    compare,
    fingerprint,
    flatten,
    operations,
    render,
    unseeded,
)
from playhead.plan.functions import UserFunction, function_name, identity
from playhead.plan.lock import Lock
from playhead.plan.node import INFINITE, Node, Serial
from playhead.plan.places import Cursor, Index, Places, Record, is_place
from playhead.sources.generator import Generated
from playhead.sources.saved.store import Store, local
from playhead.sources.saved.storing import alone, write_elements


@dataclass(frozen=True, slots=True)
class Kept:
    """Elements of a cache over something seekable; their records are its own, of pass 0."""

    node: Stored
    index: Index

    def __len__(self) -> int:
        return len(self.index)

    def slice(self, start: int, stop: int) -> Kept:
        return Kept(self.node, self.index[start:stop])

    def records(self) -> Iterator[Record]:
        return self.node.parent.locate(Places(0, self.index)).records()


@dataclass(frozen=True, eq=False)
class Stored(Node):
    """Pass 0 of the parent, kept in a directory and read from there in every pass.

    Whoever reads first, in whatever process, writes it; others wait. `version` stands for the functions above,
    whose code is compared otherwise. A cache over a stream is a stream whose cursor is [epoch, index].

    Reading raises `PipelineError` where `path` holds the cache of another pipeline, or where what is above
    cannot be told: a function without code of its own and no `version`, a random operation without a seed.
    """

    op: ClassVar[str] = "cache"

    path: str
    version: str | None
    _made: list[Store] = field(init=False, repr=False, default_factory=list)
    _making: Lock = field(init=False, repr=False, default_factory=Lock)

    def __post_init__(self) -> None:
        if self.parent.cardinality == INFINITE:
            raise PipelineError(
                "cache(filename) over an endless dataset would never be complete",
                help="put cache before repeat, or take before cache",
            )

    @cached_property
    def user_code(self) -> bool:
        return False  # once it is written

    @cached_property
    def batches(self) -> Node | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        # Over a stream it counts elements where the stream has another cursor: a position must tell them apart.
        said = not self.parent.seekable or varies(self.parent)
        return {"op": self.op} if said else None

    def spec(self) -> Nest:
        known = self.static_spec()
        if known is not None:
            return known
        return super().spec() if self.complete else self.parent.spec()

    # --- the store --------------------------------------------------------------------------------------

    @cached_property
    def key(self) -> str:
        """A digest of all that decides what is kept: 32 hexadecimal digits."""
        random = unseeded(self.parent)
        if random is not None:
            raise PipelineError(
                f"cache({self.path!r}) outlives the run, and above it {random.op} ({random.info.where}) has "
                "no seed",
                help="give it seed=, or ds.seed(n)",
            )
        said = operations(self.parent)
        code: list[Any] = [self.version]
        if self.version is None:
            numpys = [op["numpy"] for op in flatten(said) if "numpy" in op]
            code = [*_identities(self.parent, self.path), *numpys]
        text = json.dumps([fingerprint(said), code])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        _ = self.key  # sources that are walked are not sent with the plan, and it is made of them
        return self.__dict__

    def store(self, compute: Compute | None = None) -> Store:
        """The complete store. Where there is none it is written now, by this thread alone or with `compute`.

        A task of a pool must not wait for others of its pool: only the coordinator gives `compute`, and before
        it gives out tasks that read from here; see `prepare`.
        """
        if not self._made:
            with self._making:
                if not self._made:
                    self._made.append(self._found() or self._make(compute or Serial()))
        return self._made[0]

    @property
    def complete(self) -> bool:
        """Whether it is written. Raises `PipelineError` where something else is there."""
        return self._found() is not None

    def _found(self) -> Store | None:
        """The store of this very pipeline at `path`, if a complete one is there."""
        if self._made:
            return self._made[0]
        store = Store(self.path)
        try:
            manifest = store.manifest
        except MissingSource:
            return None
        if manifest.key != self.key:
            made_by = (
                f"by another pipeline, here against this one\n{self._compared(manifest.pipeline)}"
                if manifest.key
                else "by save, not by cache"
            )
            raise PipelineError(
                f"the cache at {self.path} was made {made_by}",
                help="delete it, name another directory, or restore the pipeline; version= stands for the code "
                "of functions",
                path=self.path,
            )
        return store

    def _compared(self, pipeline: list[Operation]) -> str:
        return render(compare(pipeline, self.parent))

    def _make(self, compute: Compute) -> Store:
        _ = self.key  # complain before anything is written
        with alone(self.path) as locked:
            found = self._found()
            if found is None:
                said = operations(self.parent)
                write_elements(self.path, self._first_pass(compute), locked, self.key, said)
                found = Store(self.path)
        return found

    def _first_pass(self, compute: Compute) -> Iterator[tuple[Element, int]]:
        for chunk in self.parent.open(self.parent.start(0), compute):
            counts = itertools.repeat(1) if chunk.records is None else chunk.records.tolist()
            yield from zip(chunk.block.rows(), counts, strict=False)

    # --- jumping ----------------------------------------------------------------------------------------

    def locate(self, places: Places) -> Kept:
        return Kept(self, places.index)

    def read(self, located: Any) -> Block:
        assert isinstance(located, Kept)
        return self.store().block(located.index)

    # --- walking ----------------------------------------------------------------------------------------

    @cached_property
    def fetchable(self) -> bool:
        return True

    def fetch(self, keys: Places) -> Block:
        return self.store().block(keys.index)

    def fetched_records(self, keys: Places) -> Iterator[Record]:
        if self.seekable:
            return self.locate(keys).records()
        return map(self._record, keys.index.tolist())

    def fetched_counts(self, keys: Places) -> Index | None:
        counts = self.store().source_records(0, self.store().count)
        return None if counts is None else counts[keys.index]

    def fits_key(self, epoch: int, index: int) -> bool:
        return index < self.store().count

    def start_stream(self, epoch: int) -> Cursor:
        return [epoch, 0]

    def fits(self, cursor: Cursor, epoch: int) -> bool:
        if self.seekable:
            return super().fits(cursor, epoch)
        return is_place(cursor) and cursor[0] == epoch

    def walk(self, cursor: Cursor, compute: Compute) -> Iterator[Chunk]:
        epoch, index = cursor
        store = self.store()
        if index > store.count:
            raise SourceChanged(
                f"the cache at {self.path} holds {store.count} elements, and the position stands at {index}",
                help="restore what it was made of, or start anew",
            )
        pace = compute.pace(self)
        while index < store.count:
            began = time.perf_counter()
            stop = min(index + pace.size, store.count)
            chunk = self._chunk(store, epoch, index, stop)
            pace.report(len(chunk), time.perf_counter() - began, nbytes(chunk.block))
            yield chunk
            index = stop

    def _chunk(self, store: Store, epoch: int, start: int, stop: int) -> Chunk:
        index = np.arange(start, stop, dtype=np.int64)
        return Chunk(
            store.block(index),
            Places(epoch, index),
            lambda j: [epoch, start + j],
            lambda j: [self._record(start + j)],
            store.source_records(start, stop),
        )

    def _record(self, index: int) -> Record:
        return Record(self.info.name or self.op, 0, index, self.store().file(), index)


def stored(parent: Node, path: str | os.PathLike[str], version: str | None = None) -> Stored:
    """Pass 0 of `parent`, kept in the directory `path`; nothing is read or written yet.

    >>> import tempfile
    >>> from playhead.sources.arrays import Range
    >>> numbers = Range(0, 4, 1, np.dtype(np.int64))
    >>> node = stored(numbers, os.path.join(tempfile.mkdtemp(), "kept"))
    >>> node.read(node.locate(Places(7, np.array([2, 0])))).nest
    array([2, 0])
    """
    return Stored((parent,), local(path), version)


def prepare(node: Node, compute: Compute) -> None:
    """Write the caches that a plan reads from and that are not there yet, each with `compute`.

    For the coordinator, before it reads. Without it each is written when it is first read, by one thread.
    """
    _prepare(node, compute, set())


def _prepare(at: Node, compute: Compute, seen: set[int]) -> None:
    # No function inside another: one that calls itself holds what it sees until the garbage collector comes.
    if id(at) in seen or (isinstance(at, Stored) and at.complete):
        return
    seen.add(id(at))
    for parent in at.parents:
        _prepare(parent, compute, seen)
    if isinstance(at, Stored):
        at.store(compute)


def _identities(node: Node, path: str, seen: set[int] | None = None) -> Iterator[str]:
    """The identity of every function in a plan, sources first; a cache's version stands for those above it.

    Raises `PipelineError` where one has none.
    """
    seen = set() if seen is None else seen
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, Stored) and node.version is not None:
        yield node.version
        return
    for parent in node.parents:
        yield from _identities(parent, path, seen)
    if isinstance(node, Generated) and node.version is None:
        bound = functools.partial(node.function, *node.args)
        yield _known(identity(bound), function_name(node.function), node, path)
    for name in (f.name for f in fields(node)):
        function = getattr(node, name)
        if isinstance(function, UserFunction):
            yield _known(function.identity, function.name, node, path)


def _known(code: str | None, name: str, node: Node, path: str) -> str:
    if code is None:
        at = f" at {node.info.where}" if node.info.where else ""
        raise PipelineError(
            f"cache({path!r}) cannot tell one {node.op}({name}){at} from another: it has no Python code",
            help='cache(filename, version="1") stands for the functions above it: change it when they change',
        )
    return code
