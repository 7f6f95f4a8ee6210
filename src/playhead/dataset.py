"""Dataset, the face: a value. Each method adds one node to the plan and holds no logic."""

from __future__ import annotations

import glob
import importlib
import inspect
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Iterator as IteratorABC
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from playhead.arguments import distribution_of, limit, positive, seed_of, shapes_of, weights_of
from playhead.epoch import Epoch
from playhead.errors import IgnoredError, MissingSource, PipelineError
from playhead.instead import ATTRIBUTES
from playhead.iterator import Iterator
from playhead.plan.batches import Batch, Padding
from playhead.plan.block import Element, Nest, leaves, map_nest
from playhead.plan.branches import Concatenate, Zip
from playhead.plan.cached import Cache
from playhead.plan.carried import RejectionResample, Scan, Unique, require_like
from playhead.plan.choosing import Random, Resample, Select, indices_of, require_seekable
from playhead.plan.cuts import Rebatch, Split
from playhead.plan.description import operations, seeded, unseeded
from playhead.plan.elements import Enumerate, Filter, Map, RandomMap, TakeWhile
from playhead.plan.failing import IgnoreErrors, losses
from playhead.plan.functions import UserFunction
from playhead.plan.groups import Buckets, Gathered, GroupByWindow
from playhead.plan.interleave import Interleave
from playhead.plan.lengths import PackByLengths, lengths_of
from playhead.plan.mixing import SampleFromDatasets
from playhead.plan.nested import FlatMap
from playhead.plan.node import INFINITE, Node
from playhead.plan.order import Repeat, Shard, Shuffle, Skip, Take
from playhead.plan.pack import Pack
from playhead.plan.picking import ChooseFromDatasets
from playhead.plan.places import Record
from playhead.plan.prefetch import AUTOTUNE, Prefetch, Where
from playhead.plan.rows import MapBatches, Unbatch
from playhead.plan.windows import ShuffleStream, Window
from playhead.printing import printed
from playhead.readers.reader import info_here
from playhead.readers.records import Records
from playhead.readers.streams import Streams
from playhead.readers.tables import Tables
from playhead.readers.text import Text
from playhead.sources.arrays import Files, Range, Tensors, TensorSlices, number_range, tensor_slices
from playhead.sources.arrays import tensors as one_element
from playhead.sources.generator import generated, signature_of
from playhead.sources.saved.reading import saved
from playhead.sources.saved.stored import stored
from playhead.sources.saved.storing import write
from playhead.sources.sequence import sequence

if TYPE_CHECKING:
    import tensorflow as tf

    from playhead.keras.to_keras import EachPass

Form = Literal["auto", "python", "tf"]
range_ = range


class Dataset(Records, Text, Tables, Streams):
    """A pipeline of elements: a value that never changes, made by its constructors and methods.

    Methods and arguments are tf.data's where the meaning is tf.data's.

    >>> import playhead as ph
    >>> ds = ph.Dataset.range(6).shuffle(seed=7).map(lambda x: x * 10).batch(4)
    >>> len(ds), ds[0].shape
    (2, (4,))
    """

    __slots__ = ("__weakref__", "_passes")

    def __init__(self, node: Node) -> None:
        _refuse_after_split(node)
        super().__init__(node)
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
        return Dataset(TensorSlices(tensor_slices(tensors), info=info_here(name)))

    @staticmethod
    def from_tensors(tensors: Nest, name: str | None = None) -> Dataset:
        """One element: `tensors`."""
        return Dataset(Tensors(one_element(tensors), info=info_here(name)))

    @staticmethod
    def range(*args: int, output_type: Any = np.int64, name: str | None = None) -> Dataset:
        """Numbers as Python's `range(*args)` counts them, int64 unless `output_type` says otherwise."""
        start, stop, step, dtype = number_range(*args, dtype=output_type)
        return Dataset(Range(start, stop, step, dtype, info=info_here(name)))

    @staticmethod
    def from_sequence(
        items: Any,
        *,
        version: str | None = None,
        thread_safe: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Element k is `items[k]`, for anything with `__len__` and `__getitem__`.

        Those of torch and Hugging Face, Grain's sources, memory maps, lists; many items are read at once where
        `__getitems__` gives them. Tensors and pictures of Pillow become numpy arrays.

        Items are read under a lock unless `thread_safe`. They are never read to find out whether they
        changed: `version` says which data it is, and a position notices another one. That of a Hugging Face
        dataset is its fingerprint unless told.
        """
        return Dataset(replace(sequence(items, version, thread_safe), info=info_here(name)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any] | Iterable[Any],
        output_types: Nest | None = None,
        output_shapes: Nest | None = None,
        args: Sequence[Any] | None = None,
        output_signature: Nest | None = None,
        name: str | None = None,
        *,
        length: int | None = None,
        version: str | None = None,
        state_every: int = 1,
    ) -> Dataset:
        """What `generator(*args)` yields; it is called anew in every epoch. A stream.

        generator: a function that returns an iterable, or one of Grain's datasets.
        Resuming calls it with `start=n` where it takes that argument. Where what it returns, or the iterator
        of that, has `state_dict` and `load_state_dict`, or `get_state` and `set_state` (torchdata's loaders,
        Grain's iterators), the position holds its state, saved every `state_every` elements, and the few
        behind that are replayed. Else it replays n elements and says so once. `length` declares the number of
        elements.
        output_signature (a nest of `ArraySpec` or `tf.TensorSpec`), or output_types and output_shapes: what the
        items are made into; without them an item keeps the dtypes it has. Raises `ElementError`, when read, for
        an item that does not fit.
        """
        signature = signature_of(output_types, output_shapes, output_signature)
        node = generated(generator, tuple(args or ()), length, version, signature, state_every)
        return Dataset(replace(node, info=info_here(name)))

    @staticmethod
    def counter(
        start: int = 0, step: int = 1, dtype: Any = np.int64, name: str | None = None
    ) -> Dataset:
        """`start`, `start + step` and so on, without end: numbers of `dtype`, int64 unless told otherwise."""
        first, _, stride, kind = number_range(start, start, step, dtype=dtype)
        return Dataset(Range(first, None, stride, kind, info=info_here(name)))

    @staticmethod
    def random(
        seed: int | None = None,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Whole numbers from 0 to 2**32 - 1, each equally likely, without end: int64.

        They are the same in each epoch unless `rerandomize_each_iteration`.
        """
        own, drawn = seed_of(seed)
        return Dataset(Random(own, drawn, bool(rerandomize_each_iteration), info=info_here(name)))

    @staticmethod
    def list_files(
        file_pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The paths that match a glob pattern, or any of several, as str.

        Sorted; in another order in each epoch where `shuffle` or a `seed` says so. Raises `MissingSource`
        where no file matches.
        """
        given = [file_pattern] if isinstance(file_pattern, str | os.PathLike) else file_pattern
        patterns = [os.fspath(pattern) for pattern in given]
        found = sorted({path for pattern in patterns for path in glob.glob(pattern)})
        if not found:
            raise MissingSource(f"no file matches {', '.join(patterns)}")
        files = Dataset(Files(tensor_slices(found), info=info_here(name)))
        wanted = seed is not None if shuffle is None else shuffle
        return files.shuffle(seed=seed, name=name) if wanted else files

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Elements of several datasets, each as often as its weight says (all alike where there are none).

        Of every 4096 elements each dataset has its exact share, in an order drawn by `seed`. Where the next
        draw is of a dataset that has no element left, the epoch ends (`stop_on_empty_dataset`), or it goes on
        with the others by their weights. The draws are the same in each epoch unless
        `rerandomize_each_iteration`. Seekable where the datasets are.
        """
        parents = tuple(_node(ds, "sample_from_datasets") for ds in datasets)
        if not parents:
            raise PipelineError("sample_from_datasets needs at least one dataset")
        shares = weights_of(weights, len(parents))
        own, drawn = seed_of(seed)
        stop, again = bool(stop_on_empty_dataset), bool(rerandomize_each_iteration)
        info = info_here(name)
        return Dataset(SampleFromDatasets(parents, shares, own, drawn, stop, again, info=info))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset],
        choice_dataset: Dataset,
        stop_on_empty_dataset: bool = True,
        name: str | None = None,
    ) -> Dataset:
        """The next element of `datasets[c]` for each whole number c of `choice_dataset`. A stream.

        Where that dataset has no element left, the epoch ends, or the choice is passed over
        (`stop_on_empty_dataset=False`).
        """
        parents = tuple(_node(ds, "choose_from_datasets") for ds in datasets)
        if not parents:
            raise PipelineError("choose_from_datasets needs at least one dataset")
        choices = _node(choice_dataset, "choose_from_datasets")
        stop = bool(stop_on_empty_dataset)
        return Dataset(ChooseFromDatasets((choices, *parents), stop, info=info_here(name)))

    @staticmethod
    def load(path: str | os.PathLike[str], name: str | None = None) -> Dataset:
        """The elements that `save` wrote to the directory `path`. Seekable.

        Raises `MissingSource`, `CorruptRecord`, `SourceChanged`.
        """
        return Dataset(replace(saved(path), info=info_here(name)))

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Elements side by side, until the shortest ends: of `zip(a, b)`, or of a nest of datasets."""
        if datasets is not None and args:
            raise TypeError("zip takes datasets, or datasets=, not both")
        shape = datasets if datasets is not None else args[0] if len(args) == 1 else args
        parents = [_node(ds, "zip") for ds in leaves(shape)]
        if not parents:
            raise PipelineError("zip needs at least one dataset")
        numbers = iter(range_(len(parents)))
        return Dataset(
            Zip(tuple(parents), map_nest(lambda _: next(numbers), shape), info=info_here(name))
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
        size = None if buffer_size is None else positive("shuffle", "buffer_size", buffer_size)
        own, drawn = seed_of(seed)
        reshuffle = True if reshuffle_each_iteration is None else bool(reshuffle_each_iteration)
        if size is not None and not self.node.seekable:
            return self._add(ShuffleStream, size, own, drawn, reshuffle, name=name)
        return self._add(Shuffle, size, own, drawn, reshuffle, name=name)

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """`count` passes one after the other, each shuffled and augmented anew; endless for None or -1."""
        passes = None if count is None else limit("repeat", count)
        return self._add(Repeat, passes, name=name)

    def take(self, count: int, name: str | None = None) -> Dataset:
        """At most the first `count` elements; all for -1."""
        return self._add(Take, 0, limit("take", count), name=name)

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """All but the first `count` elements; no element for -1."""
        skipped = limit("skip", count)
        if skipped is None:
            return self._add(Take, 0, 0, name=name)
        return self._add(Skip, skipped, None, name=name)

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Every `num_shards`-th element, from `index` on."""
        shards, mine = positive("shard", "num_shards", num_shards), operator.index(index)
        if not 0 <= mine < shards:
            raise PipelineError(f"shard index {mine} is not in 0 ... {shards - 1}")
        return self._add(Shard, mine, None, shards, name=name)

    def select(self, indices: Any, name: str | None = None) -> Dataset:
        """The elements at `indices` in that order, or those where a mask of bools is true. Seekable.

        indices: int[n], negative ones from the end, any of them several times; or bool[len(self)]. Raises
        `PipelineError` for a stream and for an index outside the dataset.
        """
        chosen = indices_of(indices, self.node.length if self.node.seekable else None)
        return self._add(Select, chosen, name=name)

    def resample(
        self,
        weights: Any,
        seed: int | None = None,
        num: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """`num` elements an epoch, each drawn in proportion to its weight; as many as there are for None.

        weights: float[len(self)], not negative. Others are drawn in each epoch. Seekable.
        """
        require_seekable(self.node, "resample")
        count = len(self) if num is None else positive("resample", "num", num)
        own, drawn = seed_of(seed)
        values = np.array(weights, np.float64)
        return self._add(Resample, values, own, drawn, count, name=name)

    def cache(
        self,
        filename: str | os.PathLike[str] = "",
        name: str | None = None,
        *,
        version: str | None = None,
    ) -> Dataset:
        """The elements of pass 0 in every pass, computed once: in memory, or in the directory `filename`.

        A directory is written whole at the first read, by whoever reads first, and serves later runs too. It
        knows what it was made of: another pipeline there is a `PipelineError`. `version` stands for the
        functions above, where their code cannot be told or does not matter.
        """
        if not os.fspath(filename):
            if version is not None:
                raise PipelineError(
                    "cache(version=...) is for a cache in a directory: give filename="
                )
            return self._add(Cache, name=name)
        node = stored(self.node, os.fspath(filename), version)
        return Dataset(replace(node, info=info_here(name)))

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """This dataset's elements, then `dataset`'s."""
        first = self.node.parents if isinstance(self.node, Concatenate) else (self.node,)
        return Dataset(Concatenate((*first, _node(dataset, "concatenate")), info=info_here(name)))

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
        info = info_here(name)
        function = UserFunction(map_func, form=form, op="map", where=info.where)
        if not rng:
            if seed is not None:
                raise PipelineError(
                    "map(seed=...) needs rng=True, which hands the numbers to the function"
                )
            return Dataset(Map((self.node,), function, info=info))
        own, drawn = seed_of(seed)
        return Dataset(RandomMap((self.node,), function, own, drawn, info=info))

    def filter(
        self,
        predicate: Callable[..., Any],
        *,
        form: Form = "auto",
        name: str | None = None,
    ) -> Dataset:
        """The elements for which `predicate` is true. A stream of unknown length."""
        info = info_here(name)
        function = UserFunction(predicate, form=form, op="filter", where=info.where)
        return Dataset(Filter((self.node,), function, info=info))

    def take_while(
        self, predicate: Callable[..., Any], *, form: Form = "auto", name: str | None = None
    ) -> Dataset:
        """The elements before the first one for which `predicate` is false. A stream."""
        info = info_here(name)
        function = UserFunction(predicate, form=form, op="take_while", where=info.where)
        return Dataset(TakeWhile((self.node,), function, info=info))

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements of the dataset that `map_func` makes of each element, one after the other. A stream.

        Random operations in it need a seed. It is called again for the element that a position stands in.
        """
        info = info_here(name)
        function = UserFunction(map_func, form="python", op="flat_map", where=info.where)
        return Dataset(FlatMap((self.node,), function, info=info))

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Elements of `cycle_length` datasets (16) in turn, `block_length` (1) of each; a stream.

        `map_func` makes a dataset of each element. One that ends makes room for the next.
        num_parallel_calls, deterministic: accepted for tf.data's sake.
        """
        info = info_here(name)
        function = UserFunction(map_func, form="python", op="interleave", where=info.where)
        cycle = 16 if cycle_length in (None, AUTOTUNE) else cycle_length
        width = positive("interleave", "cycle_length", cycle)
        block = positive("interleave", "block_length", 1 if block_length is None else block_length)
        return Dataset(Interleave((self.node,), function, width, block, info=info))

    def scan(
        self, initial_state: Nest, scan_func: Callable[..., Any], name: str | None = None
    ) -> Dataset:
        """The outputs of `scan_func(state, element) -> (state, output)`, from `initial_state` in each epoch.

        The state travels in the position: arrays, numbers, str and bytes of 64 KB at most, of the same
        structure and dtypes throughout. A stream.
        """
        info = info_here(name)
        function = UserFunction(scan_func, form="python", op="scan", where=info.where)
        return Dataset(Scan((self.node,), function, one_element(initial_state), info=info))

    def unique(self, name: str | None = None) -> Dataset:
        """Each element once, where it comes first in the epoch. A stream; resuming looks at the epoch again."""
        return self._add(Unique, name=name)

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Dataset:
        """Without the elements that cannot be computed. A stream; its cursor counts what was left out.

        log_warning: warn of each, with its records. `ignored` lists them at any time.
        """
        return self._add(IgnoreErrors, bool(log_warning), name=name)

    def ignored(self, epoch: int = 0) -> IteratorABC[IgnoredError]:
        """What is left out of a pass (`ignore_errors`, `on_error="skip"`): `file`, `record`, `offset`, `error`.

        It is found by walking that pass of each of them, so it is the same before, during and after a run: a
        position that counts n has left out the first n. Raises what nothing leaves out.

        >>> import playhead as ph
        >>> ds = ph.Dataset.from_tensor_slices(["1", "two"]).map(int).ignore_errors()
        >>> [said.error for said in ds.ignored()]
        ["ValueError: invalid literal for int() with base 10: 'two'"]
        """
        return losses(self.node, operator.index(epoch))

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Sequence[float],
        initial_dist: Sequence[float] | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """(class, element) for some of the elements, so that the classes come as `target_dist` says. A stream.

        class_func gives an element's class, from 0 to len(target_dist) - 1. initial_dist: how the classes come
        in this dataset; where not given, it is estimated on the way.
        """
        info = info_here(name)
        function = UserFunction(class_func, form="auto", op="rejection_resample", where=info.where)
        target = distribution_of("target_dist", target_dist)
        initial = None if initial_dist is None else distribution_of("initial_dist", initial_dist)
        if initial is not None and len(initial) != len(target):
            raise PipelineError(
                "rejection_resample: target_dist and initial_dist are of one length"
            )
        own, drawn = seed_of(seed)
        made = RejectionResample((self.node,), function, target, initial, own, drawn, info=info)
        return Dataset(made)

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
        size = positive("batch", "batch_size", batch_size)
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
        size = positive("padded_batch", "batch_size", batch_size)
        padding = Padding(shapes_of(padded_shapes), padding_values)
        return self._add(Batch, size, bool(drop_remainder), padding, name=name)

    def unbatch(self, name: str | None = None) -> Dataset:
        """Each row of each batch as an element. Seekable where all batches are known to be of one size."""
        return self._add(Unbatch, name=name)

    def rebatch(
        self,
        batch_size: int | Sequence[int],
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """The rows of batches in batches of another size, or of several sizes in turn. A stream."""
        given = [batch_size] if np.ndim(batch_size) == 0 else list(batch_size)  # type: ignore[arg-type]
        several = len(given) > 1 and any(given)  # then some may be 0
        sizes = tuple(
            0 if several and size == 0 else positive("rebatch", "batch_size", size)  # type: ignore[arg-type]
            for size in given
        )
        if not sizes:
            raise PipelineError("rebatch needs a batch size")
        return self._add(Rebatch, sizes, bool(drop_remainder), name=name)

    def map_batches(
        self,
        map_func: Callable[..., Any],
        batch_size: int,
        *,
        rng: bool = False,
        seed: int | None = None,
        form: Form = "auto",
        name: str | None = None,
    ) -> Dataset:
        """`map_func` on batches of `batch_size` elements; it returns arrays with a row for each of them.

        For functions that are quicker on many elements at once. An element depends on its batch's others only
        as the function makes it so. Seekable where this dataset is.
        """
        batches = self.batch(batch_size, name=name)
        made = batches.map(map_func, rng=rng, seed=seed, form=form, name=name)
        return made._add(MapBatches, name=name)

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Datasets of `size` elements `stride` apart, each beginning `shift` (`size`) after the one before.

        For elements that are nests, a nest of datasets. `flat_map(lambda w: w.batch(size))` makes batches.
        """
        width = positive("window", "size", size)
        step = width if shift is None else positive("window", "shift", shift)
        apart, drop = positive("window", "stride", stride), bool(drop_remainder)
        return self._add(Window, width, step, apart, drop, _datasets, name=name)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        window_size: int | None = None,
        window_size_func: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """What `reduce_func(key, dataset)` makes of every `window_size` elements of equal key. A stream.

        key_func: element -> a whole number. window_size_func: key -> size, instead of one size for all.
        reduce_func returns a dataset. Windows that are not full come at the end, by ascending keys.
        The position names the elements that wait, and they are read again.
        """
        if (window_size is None) == (window_size_func is None):
            raise PipelineError("group_by_window needs one of window_size and window_size_func")
        info = info_here(name)
        op = "group_by_window"
        key = UserFunction(key_func, form="auto", op=op, where=info.where)
        reduce = UserFunction(reduce_func, form="python", op=op, where=info.where)
        size = None if window_size is None else positive(op, "window_size", window_size)
        sizes = None
        if window_size_func is not None:
            sizes = UserFunction(window_size_func, form="python", op=op, where=info.where)
        made = GroupByWindow((self.node,), key, reduce, size, sizes, Dataset, info=info)
        return Dataset(made)

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Nest | None = None,
        padding_values: Nest | None = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Padded batches of elements of like lengths: bucket i holds lengths below `bucket_boundaries[i]`.

        The last bucket holds the rest, so there is one batch size more than boundaries.
        pad_to_bucket_boundary: pad to the bucket's longest length instead of the batch's. A stream; the
        position names the elements that wait, and they are read again.
        """
        op = "bucket_by_sequence_length"
        boundaries = tuple(int(b) for b in bucket_boundaries)
        sizes = tuple(positive(op, "bucket_batch_sizes", size) for size in bucket_batch_sizes)
        if not boundaries or list(boundaries) != sorted(set(boundaries)):
            raise PipelineError(f"{op}: bucket_boundaries ascend, and there is at least one")
        if len(sizes) != len(boundaries) + 1:
            raise PipelineError(
                f"{op}: {len(boundaries)} boundaries part {len(boundaries) + 1} buckets, "
                f"and there are {len(sizes)} bucket_batch_sizes"
            )
        info = info_here(name)
        length = UserFunction(element_length_func, form="auto", op=op, where=info.where)
        padding = None if no_padding else Padding(shapes_of(padded_shapes), padding_values)
        to_boundary = bool(pad_to_bucket_boundary) and not no_padding
        drop = bool(drop_remainder)
        made = Buckets(
            (self.node,), length, boundaries, sizes, padding, to_boundary, drop, info=info
        )
        return Dataset(made)

    def pack(
        self,
        length: int,
        method: Literal["concat", "first_fit"] = "concat",
        bins: int = 8,
        lengths: Any = None,
        lanes: int = 1,
        name: str | None = None,
    ) -> Dataset:
        """Rows of `length` tokens, made of documents: 1-D arrays, or dicts of 1-D arrays of equal length.

        An element is {"tokens": [length], "segment_ids": int32[length], "positions": int32[length]}, or has the
        dict's keys and the last two. Padding is 0; segments count from 1 in each row and are 0 where
        padded; positions count from 0 in each segment.
        method: "concat" cuts the epoch's documents, one behind the other, into rows. "first_fit" keeps those
        whole that are no longer than `length`, with `bins` rows open at once.
        lengths: int[n], the length of each of the source's records; then "concat" is seekable.
        lanes: document k goes to lane k % lanes, which packs for itself; row r is of lane r % lanes.
        """
        if lengths is None:
            return self._add(Pack, length, method, bins, lanes, name=name)
        known = lengths_of(lengths)
        return self._add(PackByLengths, length, method, bins, lanes, known, name=name)

    def split(self, count: int, index: int, name: str | None = None) -> Dataset:
        """Part `index` of `count` of each batch, for one of several processes.

        Part i of a batch of b is rows i * b // count to (i + 1) * b // count. Positions are those of the whole
        batches: one process saves, any number restores. After it only map, enumerate and prefetch may come.
        Raises `PipelineError` for random operations without a seed, which would differ between processes.
        """
        parts, mine = positive("split", "count", count), operator.index(index)
        if not 0 <= mine < parts:
            raise PipelineError(f"split index {mine} is not in 0 ... {parts - 1}")
        random = unseeded(self.node)
        if random is not None:
            raise PipelineError(
                f"split: {random.op} ({random.info.where}) has no seed, and would differ between processes",
                help="give it seed=, or ds.seed(n) before split",
            )
        return self._add(Split, parts, mine, name=name)

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
        A batch that takes long is cut among the workers. What is held ahead stays within about 1 GiB. Where
        only kernels work (arrays, Examples, tokens, CSV from local files), who would wait reads, too.

        on: what the workers are. "threads" for numpy, TensorFlow and decoders, which leave Python's lock;
        functions must be thread-safe unless `workers=1`. "processes" for functions in Python that hold it:
        results come through shared memory, and a process that dies is replaced and its elements computed
        again (needs `playhead[processes]`; in a Python without that lock, threads do it). They wait a minute
        for the next iterator over this dataset, unless theirs was closed or failed. "ray" for more than one
        machine (needs `playhead[ray]`).
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
            positive("prefetch", "workers", workers)
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
        instead = f": {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
        raise AttributeError(f"playhead.Dataset has no {name!r}{instead}", name=name, obj=self)

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

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the `from_image_folder` below, in the order of their labels.

        Raises AttributeError where there is none, or several differ.
        """
        from playhead.sources.images import named_classes

        found = set(named_classes(self.node))
        if len(found) != 1:
            raise AttributeError(name="class_names", obj=self)
        return found.pop()

    def operations(self) -> list[dict[str, Any]]:
        """The pipeline's description, as positions hold it."""
        return operations(self.node)

    def __repr__(self) -> str:
        return printed(self.node)

    # --- whole passes -----------------------------------------------------------------------------------

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """`transformation_func(self)`, which is a dataset."""
        made = transformation_func(self)
        if not isinstance(made, Dataset):
            raise TypeError(f"apply: the function returned {type(made).__name__}, not a dataset")
        return made

    def as_numpy_iterator(self) -> IteratorABC[Element]:
        """The elements of one pass: they are numpy's already."""
        return iter(self)

    def save(
        self, path: str | os.PathLike[str], name: str | None = None, *, overwrite: bool = False
    ) -> None:
        """Write the elements of pass 0 to the directory `path`, for `load`.

        It appears whole or not at all. Raises `PipelineError` where a saved dataset is there and not
        `overwrite`, and `ElementError` for what is no array, number, str, bytes or None.
        """
        write(path, self.epoch(0), overwrite=overwrite)

    def get_single_element(self, name: str | None = None) -> Element:
        """The only element. Raises `PipelineError` where there is none, or more than one."""
        found = list(itertools.islice(self.epoch(0), 2))
        if len(found) != 1:
            raise PipelineError(
                f"get_single_element: this dataset has {'no element' if not found else 'more than one'}"
            )
        return found[0]

    def reduce(
        self, initial_state: Nest, reduce_func: Callable[..., Any], name: str | None = None
    ) -> Element:
        """The last state of `state = reduce_func(state, element)` over one pass, from `initial_state`."""
        state = initial = one_element(initial_state)
        for element in self.epoch(0):
            state = one_element(reduce_func(state, element))
            require_like("reduce", initial, state)
        return state

    # --- other doors ------------------------------------------------------------------------------------

    def to_tf(self, output_signature: Any = None) -> tf.data.Dataset:
        """A plain `tf.data.Dataset` for evaluation and fits without resume; each iteration is the next pass.

        output_signature: a nest of `tf.TypeSpec`, where what `element_spec` says does not fit every element.
        """
        return importlib.import_module("playhead.tensorflow").to_tf(self, output_signature)

    def to_keras(self) -> EachPass:
        """What `model.fit`, `model.evaluate` and `model.predict` of Keras read, on every backend.

        Each epoch of `fit` reads another pass, as a `for` loop does, and a second `fit` goes on with the next
        one; `evaluate`, `predict` and `validation_data=` read the first pass each time. A run that is to go
        on after a kill is `playhead.keras.fit`'s, which takes the dataset itself.
        """
        return importlib.import_module("playhead.keras.to_keras").to_keras(self)  # type: ignore[no-any-return]

    def _add(self, kind: type[Node], *arguments: Any, name: str | None) -> Dataset:
        return Dataset(kind((self.node,), *arguments, info=info_here(name)))


for _kind in (Records, Text, Tables, Streams):
    for _name, _made in vars(_kind).items():
        if isinstance(_made, classmethod):
            # Python's own errors about arguments name the class that users know.
            _made.__func__.__qualname__ = f"Dataset.{_name}"
            inspect.unwrap(_made.__func__).__qualname__ = f"Dataset.{_name}"


def _refuse_after_split(node: Node) -> None:
    if not node.parted or isinstance(node, Split | Enumerate | Prefetch):
        return
    if type(node) is not Map:
        random = "map(rng=True)" if isinstance(node, RandomMap) else node.op
        raise PipelineError(
            f"{random} after split would depend on how many processes there are",
            help=f"put {random} before split; only map, enumerate and prefetch may come after it",
        )


def _datasets(elements: list[Element]) -> Any:
    """The elements of a window as datasets: one for each leaf."""
    first = elements[0]
    if isinstance(first, dict):
        return {key: _datasets([element[key] for element in elements]) for key in first}
    if isinstance(first, tuple):
        parts = [_datasets([element[k] for element in elements]) for k in range_(len(first))]
        return type(first)._make(parts) if hasattr(first, "_make") else tuple(parts)
    return Dataset(Gathered(tuple(elements)))


def _node(dataset: Any, op: str) -> Node:
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{op} takes playhead datasets, not {type(dataset).__name__}")
    return dataset.node
