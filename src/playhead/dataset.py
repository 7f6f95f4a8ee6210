"""Dataset, the face: a value. Each method adds one node to the plan and holds no logic."""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Callable, Sequence
from collections.abc import Iterator as IteratorABC
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from playhead.epoch import Epoch
from playhead.errors import PipelineError
from playhead.iterator import Iterator
from playhead.plan import randomness
from playhead.plan.batches import Batch, Padding
from playhead.plan.block import Element, Nest, leaves, map_nest
from playhead.plan.branches import Concatenate, Zip
from playhead.plan.description import operations, seeded
from playhead.plan.elements import Enumerate, Filter, Map, RandomMap
from playhead.plan.functions import UserFunction
from playhead.plan.node import INFINITE, UNKNOWN, Info, Node
from playhead.plan.order import Repeat, Shard, Shuffle, Skip, Take
from playhead.plan.places import Record
from playhead.plan.prefetch import AUTOTUNE, Prefetch, Where
from playhead.sources.arrays import Range, Tensors, TensorSlices, number_range, tensor_slices
from playhead.sources.arrays import tensors as one_element
from playhead.sources.generator import generated
from playhead.sources.sequence import sequence

if TYPE_CHECKING:
    import tensorflow as tf

Form = Literal["auto", "python", "tf"]
range_ = range
_HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep

_NOT_YET = frozenset(
    """
    apply as_numpy_iterator bucket_by_sequence_length cache choose_from_datasets counter flat_map
    get_single_element group_by_window ignore_errors interleave list_files load options random rebatch
    reduce rejection_resample sample_from_datasets save scan snapshot sparse_batch take_while unbatch
    unique window with_options
    """.split()  # noqa: SIM905
)


def _info(name: str | None = None) -> Info:
    """The user's own line that called into playhead."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HOME):
        frame = frame.f_back
    return Info(name=name, where=f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")


class Dataset:
    """A pipeline of elements: a value that never changes, made by its constructors and methods.

    Methods and arguments are tf.data's where the meaning is tf.data's.

    >>> import playhead as ph
    >>> ds = ph.Dataset.range(6).shuffle(seed=7).map(lambda x: x * 10).batch(4)
    >>> len(ds), ds[0].shape
    (2, (4,))
    """

    __slots__ = ("__weakref__", "_passes", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self._passes = 0

    def with_node(self, node: Node) -> Dataset:
        """Another pipeline of the same kind; for the library's own use."""
        return self if node is self.node else Dataset(node)

    # --- sources ----------------------------------------------------------------------------------------

    @staticmethod
    def from_tensor_slices(tensors: Nest, name: str | None = None) -> Dataset:
        """Element k is row k of every array in `tensors`, a nest of arrays [n, ...] or lists.

        The arrays are not copied and must not be changed afterwards. Raises `PipelineError` where their
        first axes differ.
        """
        return Dataset(TensorSlices(tensor_slices(tensors), info=_info(name)))

    @staticmethod
    def from_tensors(tensors: Nest, name: str | None = None) -> Dataset:
        """One element: `tensors`."""
        return Dataset(Tensors(one_element(tensors), info=_info(name)))

    @staticmethod
    def range(*args: int, output_type: Any = np.int64, name: str | None = None) -> Dataset:
        """Numbers as Python's `range(*args)` counts them, int64 unless `output_type` says otherwise."""
        start, stop, step, dtype = number_range(*args, dtype=output_type)
        return Dataset(Range(start, stop, step, dtype, info=_info(name)))

    @staticmethod
    def from_sequence(
        items: Any,
        *,
        version: str | None = None,
        thread_safe: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Element k is `items[k]`, for anything with `__len__` and `__getitem__`.

        Items are read under a lock unless `thread_safe`. They are never read to find out whether they
        changed: `version` says which data it is, and a position notices another one.
        """
        return Dataset(replace(sequence(items, version, thread_safe), info=_info(name)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        length: int | None = None,
        version: str | None = None,
        name: str | None = None,
    ) -> Dataset:
        """What `generator(*args)` yields; it is called anew in every epoch. A stream.

        Resuming calls it with `start=n` where it takes that argument; else it replays n elements and says
        so once. `length` declares the number of elements.
        """
        return Dataset(
            replace(generated(generator, tuple(args), length, version), info=_info(name))
        )

    @staticmethod
    def from_tfrecords(
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        features: dict[str, Any] | None = None,
        verify: Literal["always", "index", "never"] = "always",
        index: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The records of TFRecord files, read at random through an index that is built once.

        files: a path, a glob pattern, or a sequence of them; a pattern's files are sorted. Without
        `features` an element is the record's bytes; with `features` (name -> `FixedLenFeature` or
        `VarLenFeature`, playhead's or `tf.io`'s) it is the parsed `tf.train.Example` as a dict.
        verify: check both CRCs "always" (at each read), when the "index" is built, or "never".
        index: a directory for the index, instead of the files' own (or, where that cannot be written,
        the user's cache).

        Raises `MissingSource`, `CorruptRecord` (file, byte offset, record number), `SourceChanged`.
        """
        from playhead.sources.tfrecord import tfrecords

        node = tfrecords(files, features=features, verify=verify, index=index)
        return Dataset(replace(node, info=_info(name)))

    @staticmethod
    def zip(*datasets: Any, name: str | None = None) -> Dataset:
        """Elements side by side, until the shortest ends: of `zip(a, b)`, or of a nest of datasets."""
        shape = datasets[0] if len(datasets) == 1 else datasets
        parents = [_node(ds, "zip") for ds in leaves(shape)]
        if not parents:
            raise PipelineError("zip needs at least one dataset")
        numbers = iter(range_(len(parents)))
        return Dataset(
            Zip(tuple(parents), map_nest(lambda _: next(numbers), shape), info=_info(name))
        )

    # --- order ------------------------------------------------------------------------------------------

    def shuffle(
        self,
        buffer_size: int | None = None,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        name: str | None = None,
    ) -> Dataset:
        """Another order in every epoch, each element exactly once.

        Without `buffer_size`: one uniform permutation of the whole epoch, at no memory. With it: blocks of
        neighbours are permuted over the epoch and mixed in windows of `buffer_size`, for near-sequential
        reads. It does not reproduce tf.data's sliding buffer; it is at least as random.
        """
        size = None if buffer_size is None else _positive("shuffle", "buffer_size", buffer_size)
        own, drawn = _seed(seed)
        reshuffle = True if reshuffle_each_iteration is None else bool(reshuffle_each_iteration)
        return self._add(Shuffle, size, own, drawn, reshuffle, name=name)

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """`count` passes one after the other, each shuffled and augmented anew; endless for None or -1."""
        passes = None if count is None else _count("repeat", count)
        return self._add(Repeat, passes, name=name)

    def take(self, count: int, name: str | None = None) -> Dataset:
        """At most the first `count` elements; all for -1."""
        return self._add(Take, 0, _count("take", count), name=name)

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """All but the first `count` elements; no element for -1."""
        skipped = _count("skip", count)
        if skipped is None:
            return self._add(Take, 0, 0, name=name)
        return self._add(Skip, skipped, None, name=name)

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Every `num_shards`-th element, from `index` on."""
        shards, mine = _positive("shard", "num_shards", num_shards), operator.index(index)
        if not 0 <= mine < shards:
            raise PipelineError(f"shard index {mine} is not in 0 ... {shards - 1}")
        return self._add(Shard, mine, None, shards, name=name)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """This dataset's elements, then `dataset`'s."""
        first = self.node.parents if isinstance(self.node, Concatenate) else (self.node,)
        return Dataset(Concatenate((*first, _node(dataset, "concatenate")), info=_info(name)))

    # --- elements ---------------------------------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        *,
        rng: bool = False,
        seed: int | None = None,
        form: Form = "auto",
        name: str | None = None,
    ) -> Dataset:
        """`map_func` on every element; a tuple is unpacked into arguments, a dict is not.

        rng: the function is given random numbers chosen by the element's place, the same for any number
        of workers: a `numpy.random.Generator` as last argument (valid during the call), or, for a function
        of TensorFlow operations, an int32[2] seed for `tf.random.stateless_*`.
        form: "python" calls it on numpy values; "tf" traces it once and runs it on chunks; "auto" finds
        out at the first element.
        num_parallel_calls, deterministic: accepted for tf.data's sake; `prefetch` says how many work
        ahead, and the order never depends on it.
        """
        info = _info(name)
        function = UserFunction(map_func, form=form, op="map", where=info.where)
        if not rng:
            if seed is not None:
                raise PipelineError(
                    "map(seed=...) needs rng=True, which hands the numbers to the function"
                )
            return Dataset(Map((self.node,), function, info=info))
        own, drawn = _seed(seed)
        return Dataset(RandomMap((self.node,), function, own, drawn, info=info))

    def filter(
        self,
        predicate: Callable[..., Any],
        *,
        form: Form = "auto",
        name: str | None = None,
    ) -> Dataset:
        """The elements for which `predicate` is true. A stream of unknown length."""
        info = _info(name)
        function = UserFunction(predicate, form=form, op="filter", where=info.where)
        return Dataset(Filter((self.node,), function, info=info))

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """(number, element), counting from `start` in every epoch; numbers are int64."""
        return self._add(Enumerate, operator.index(start), name=name)

    # --- batches ----------------------------------------------------------------------------------------

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """`batch_size` consecutive elements stacked along a new first axis.

        An epoch's last batch may be short unless `drop_remainder`. Raises `UnequalElements`, when read,
        where shapes or dtypes differ.
        """
        size = _positive("batch", "batch_size", batch_size)
        return self._add(Batch, size, bool(drop_remainder), name=name)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Nest | None = None,
        padding_values: Nest | None = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """`batch` of arrays of unequal length, padded at their ends.

        padded_shapes: a nest like the element's with a list per leaf, None or -1 along axes that are padded
        to the batch's longest; None for all axes. padding_values: a nest, or one value for all; zero or
        empty where not given.
        """
        size = _positive("padded_batch", "batch_size", batch_size)
        padding = Padding(_shapes(padded_shapes), padding_values)
        return self._add(Batch, size, bool(drop_remainder), padding, name=name)

    # --- execution --------------------------------------------------------------------------------------

    def prefetch(
        self,
        buffer_size: int = AUTOTUNE,
        *,
        workers: int = AUTOTUNE,
        on: Where = "threads",
        timeout: float | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Compute up to `buffer_size` elements ahead with `workers` at once; AUTOTUNE (-1) chooses both.

        Only says when elements are computed, never which. The outermost prefetch of a pipeline governs.
        A batch that takes long is cut among the workers. What is held ahead stays within about 1 GiB.

        on: what the workers are. "threads" for numpy, TensorFlow and decoders, which leave Python's lock;
        functions must be thread-safe unless `workers=1`. "processes" for functions in Python that hold it:
        results come through shared memory, and a process that dies is replaced and its elements computed
        again (needs `playhead[processes]`; in a Python without that lock, threads do it). "ray" for more
        than one machine (needs `playhead[ray]`).
        timeout: seconds that one task's elements may take; then `ReadAheadTimeout` names their records.
        """
        if on not in ("threads", "processes", "ray"):
            raise PipelineError(f'prefetch(on={on!r}): it is "threads", "processes" or "ray"')
        is_whole = isinstance(buffer_size, int | np.integer) and not isinstance(buffer_size, bool)
        if not is_whole or buffer_size < AUTOTUNE:
            raise PipelineError(
                f"prefetch(buffer_size={buffer_size!r}): a whole number, or AUTOTUNE (-1)"
            )
        if workers != AUTOTUNE:
            _positive("prefetch", "workers", workers)
        is_time = isinstance(timeout, int | float) and timeout > 0
        if timeout is not None and not is_time:
            raise PipelineError(f"prefetch(timeout={timeout!r}): more than 0 seconds, or None")
        return self._add(Prefetch, int(buffer_size), int(workers), on, timeout, name=name)

    # --- seeds, passes, iterators -----------------------------------------------------------------------

    def seed(self, seed: int) -> Dataset:
        """The pipeline with `seed` for every random operation that was given none."""
        return self.with_node(seeded(self.node, operator.index(seed)))

    def iterator(self, epochs: int | None = 1) -> Iterator:
        """An iterator over `epochs` passes (None: endless), always from the beginning."""
        return Iterator(self, epochs=epochs)

    def epoch(self, epoch: int) -> Epoch:
        """Pass `epoch` by itself: to iterate, to index, to trace."""
        return Epoch(self, epoch)

    def __iter__(self) -> IteratorABC[Element]:
        """Pass 0, then pass 1 and so on: every loop that ends counts one pass of this object."""
        number = self._passes
        yield from self.epoch(number)
        self._passes = max(self._passes, number + 1)

    # --- looking: moves nothing -------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Element:
        """Element `index` of pass 0. Raises IndexError outside it, `NotSeekable` for a stream."""
        return self.epoch(0)[index]

    def trace(self, index: int) -> list[Record]:
        """The records that make element `index` of pass 0, without reading them.

        Raises `PipelineError` for random operations without a seed: ask the run's iterator, which knows.
        """
        return self.epoch(0).trace(index)

    def __len__(self) -> int:
        """Elements in one pass. Raises TypeError where endless or unknown, as tf.data does."""
        count = self.node.cardinality
        if count < 0:
            kind = "is endless" if count == INFINITE else "has no length before it is walked"
            raise TypeError(f"this dataset {kind}")
        return count

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_YET:
            raise AttributeError(
                f"playhead.Dataset has no {name!r} yet: this version has not all of tf.data's operations",
                name=name,
                obj=self,
            )
        raise AttributeError(f"playhead.Dataset has no {name!r}", name=name, obj=self)

    def cardinality(self) -> int:
        """Elements in one pass; -1 endless, -2 unknown, as tf.data's constants."""
        return self.node.cardinality

    @property
    def seekable(self) -> bool:
        """Whether any element can be read directly; else the pipeline is a stream."""
        return self.node.seekable

    @property
    def element_spec(self) -> Nest:
        """A nest of `ArraySpec`; reads one element where a Python function decides."""
        return self.node.spec()

    def operations(self) -> list[dict[str, Any]]:
        """The pipeline's description, as positions hold it."""
        return operations(self.node)

    def __repr__(self) -> str:
        count = {INFINITE: "endless", UNKNOWN: "of unknown length"}.get(
            self.node.cardinality, f"of {self.node.cardinality} elements"
        )
        kind = "seekable" if self.seekable else "stream"
        return f"<playhead.Dataset {count}, {kind}>\n" + "\n".join(_lines(self.node))

    # --- other doors ------------------------------------------------------------------------------------

    def to_tf(self, output_signature: Any = None) -> tf.data.Dataset:
        """A plain `tf.data.Dataset` for evaluation and fits without resume; each iteration is the next pass.

        output_signature: a nest of `tf.TypeSpec`, where what `element_spec` says does not fit every element.
        """
        return importlib.import_module("playhead.tensorflow").to_tf(self, output_signature)

    def _add(self, kind: type[Node], *arguments: Any, name: str | None) -> Dataset:
        return Dataset(kind((self.node,), *arguments, info=_info(name)))


def _node(dataset: Any, op: str) -> Node:
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{op} takes playhead datasets, not {type(dataset).__name__}")
    return dataset.node


def _seed(seed: int | None) -> tuple[int, bool]:
    return (randomness.draw_seed(), True) if seed is None else (operator.index(seed), False)


def _positive(op: str, argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise PipelineError(f"{op}({argument}={value!r}): a whole number, at least 1")
    return int(value)


def _count(op: str, value: int) -> int | None:
    """None for -1, which means all of them, or endless."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < -1:
        raise PipelineError(f"{op}(count={value!r}): a whole number, or -1 for no limit")
    return None if value == -1 else int(value)


def _shapes(nest: Any) -> Any:
    """Padded shapes with a list at each leaf."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return {key: _shapes(value) for key, value in nest.items()}
    if isinstance(nest, tuple) and any(not isinstance(d, int | np.integer | None) for d in nest):
        return tuple(_shapes(value) for value in nest)
    return [None if d is None else int(d) for d in nest]


def _lines(node: Node, indent: str = "  ") -> list[str]:
    """One operation a line, sources first."""
    before: list[str] = []
    if len(node.parents) == 1:
        before = _lines(node.parent, indent)
    else:
        for number, parent in enumerate(node.parents):
            before += [f"{indent}[{number}]", *_lines(parent, indent + "  ")]
    return [*before, indent + _line(node)]


def _line(node: Node) -> str:
    said = node.describe() or {"op": node.op}
    if isinstance(node, Prefetch):
        said |= {"buffer_size": node.buffer_size, "workers": node.workers}
    hidden = ("op", "content", "kind", "code", "numpy", "drawn", "algorithm", "block")
    shown = ", ".join(f"{k}={v}" for k, v in said.items() if k not in hidden)
    count = {INFINITE: "endless", UNKNOWN: "? elements"}.get(
        node.cardinality, f"{node.cardinality} elements"
    )
    spec = node.static_spec()
    parts = [f"{said['op']}({shown})", count, "seekable" if node.seekable else "stream"]
    if spec is not None:
        parts.append(str(spec))
    if node.info.name:
        parts.append(f"name={node.info.name}")
    if node.info.where:
        parts.append(node.info.where)
    return "  ".join(parts)
