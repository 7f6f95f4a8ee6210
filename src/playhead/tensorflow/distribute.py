"""Who takes which rows of a batch under a `tf.distribute` strategy, and how they become one value.

A batch is cut twice by the same formula, rows i * b // n to (i + 1) * b // n for part i of n: first among the
worker processes, then among the replicas that each feeds. Replicas' parts differ by one row at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute.values import PerReplica, PerReplicaSpec

from playhead.errors import ElementError, PipelineError, UnequalElements
from playhead.plan.aligned import aligned_copy
from playhead.plan.batches import Batch
from playhead.plan.block import Element, Nest, map_nest
from playhead.plan.cuts import Split
from playhead.plan.node import Node
from playhead.plan.places import Places
from playhead.plan.prefetch import Prefetch
from playhead.plan.rows import rows_in
from playhead.tensorflow.convert import as_tensors, type_specs

if TYPE_CHECKING:
    from playhead.dataset import Dataset

_EVEN = (
    "batch(..., drop_remainder=True), so that no epoch ends with a short batch; or larger batches"
)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas that this process feeds: on `devices`, as worker number `worker` of `workers`.

    wrapped: whether a value for them is a `tf.distribute.DistributedValues`, as TensorFlow itself has it for
    more than one replica or worker. Without it there is one replica, which takes whole batches.
    """

    devices: tuple[str, ...] = ("",)
    workers: int = 1
    worker: int = 0
    wrapped: bool = False

    @property
    def total(self) -> int:
        """How many replicas share a batch, in all processes."""
        return self.workers * len(self.devices)

    def cut(self, batch: Element) -> list[Element]:
        """The parts of a whole batch for the replicas here. Raises `ElementError` where one would be empty."""
        if self.total == 1:
            return [batch]
        size = rows_in(batch, "a strategy")
        self.require(size)
        low, high = (size * k // self.workers for k in (self.worker, self.worker + 1))
        return self._shared(batch, low, high)

    def share(self, part: Element) -> list[Element]:
        """This worker's part of a batch as parts for its replicas."""
        if len(self.devices) == 1:
            return [part]
        return self._shared(part, 0, rows_in(part, "a strategy"))

    def _shared(self, batch: Element, low: int, high: int) -> list[Element]:
        count = len(self.devices)
        bounds = [low + (high - low) * k // count for k in range(count + 1)]
        return [
            map_nest(lambda leaf, a=a, b=b: aligned_copy(leaf[a:b]), batch)
            for a, b in pairwise(bounds)
        ]

    def require(self, size: int) -> None:
        """Raises `ElementError` where a batch of `size` rows leaves a replica, wherever it is, without any."""
        if size < self.total:
            raise ElementError(
                f"a batch of {size} rows has no part for each of {self.total} replicas", help=_EVEN
            )

    def specs(self, spec: Nest) -> Nest:
        """The nest of `tf.TensorSpec` of one replica's part, for one of `ArraySpec` of a batch.

        The first axis is None unless all parts of all batches are known to have the same length. Raises
        `PipelineError` where batches are known to be too small.
        """
        whole = type_specs(spec)
        return whole if self.total == 1 else map_nest(self._part_spec, whole)

    def _part_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        if not spec.shape.rank:
            raise ElementError(
                "iterator(strategy=): each replica takes a part of the batch, and a leaf has no first axis",
                help="batch the elements; or give each row the number that all share",
            )
        size = spec.shape[0]
        if size is not None and size < self.total:
            raise PipelineError(
                f"iterator(strategy=): a batch of {size} rows has no part for each of {self.total} replicas",
                help="make batches of at least as many elements as there are replicas",
            )
        lead = None if size is None or size % self.total else size // self.total
        return tf.TensorSpec([lead, *spec.shape[1:]], spec.dtype)

    def value(self, parts: list[Nest], specs: Nest) -> Nest:
        """One value of the parts' tensors, each on its replica's device: what `strategy.run` takes.

        Its type is that of `specs` wherever it fits, also for a shorter part: a `tf.function` called with it
        is traced once, and so on all workers alike.
        """
        placed = [self._on(device, part) for device, part in zip(self.devices, parts, strict=True)]
        if not self.wrapped:
            return placed[0]
        try:
            return map_nest(lambda *found: _Parts(found[:-1], found[-1]), *placed, specs)
        except (KeyError, TypeError, ValueError):
            raise UnequalElements(
                "an element has another structure than the first, which said what replicas are given",
                help="make elements alike in a map",
            ) from None

    @staticmethod
    def _on(device: str, part: Nest) -> Nest:
        if _is_host(device):
            return part
        with tf.device(device):
            return map_nest(
                lambda leaf: leaf if leaf.dtype == tf.string else tf.identity(leaf), part
            )

    def tensors(self, parts: list[Element], specs: Callable[[], Nest]) -> Nest:
        """`value` of arrays, outside of any graph."""
        with tf.device("/CPU:0"):
            made = [as_tensors(part) for part in parts]
        return self.value(made, specs() if self.wrapped else None)

    def element_spec(self, specs: Nest) -> Nest:
        """The type of `value`."""
        if not self.wrapped:
            return specs
        return map_nest(lambda spec: PerReplicaSpec(*[spec] * len(self.devices)), specs)


class _Parts(PerReplica):  # type: ignore[misc]
    """A `PerReplica` of a declared type. TensorFlow's own takes its type from the shapes of the moment.

    Workers whose parts differ would then trace at different batches, and each wait for the other's
    collective operations.
    """

    def __init__(self, values: tuple[tf.Tensor, ...], spec: tf.TensorSpec) -> None:
        super().__init__(values)
        fits = all(spec.is_compatible_with(value) for value in values)
        self._spec = PerReplicaSpec(*[spec] * len(values)) if fits else None

    @property
    def _type_spec(self) -> tf.TypeSpec:
        return self._spec or super()._type_spec


def _is_host(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type in (None, "CPU") and not spec.device_index


ONE = Replicas()


def replicas_of(strategy: tf.distribute.Strategy | None) -> Replicas:
    """What `strategy` feeds from here; None: one replica. Raises `PipelineError` for strategies not tested."""
    if strategy is None or isinstance(strategy, distribute_lib._DefaultDistributionStrategy):
        return ONE
    if not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(f"strategy= takes a tf.distribute.Strategy, not {type(strategy).__name__}")
    if not isinstance(strategy, _TESTED):
        raise PipelineError(
            f"{type(strategy).__name__}: which replica gets which rows is not tested under this strategy",
            help="tf.distribute.OneDeviceStrategy, MirroredStrategy and MultiWorkerMirroredStrategy are",
        )
    devices = tuple(strategy.extended.worker_devices)
    several = strategy.extended._in_multi_worker_mode() or len(devices) > 1
    if not several:
        return Replicas(devices)
    found = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    first = int(strategy.experimental_local_results(found)[0])
    workers = strategy.num_replicas_in_sync // len(devices)
    return Replicas(devices, workers, first // len(devices), True)


_TESTED = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process reads of `whole`, the dataset of whole batches, and how it cuts that for its replicas.

    Where batches can be read in parts, `read` gives this worker's part of each; else whole batches, as it does
    for one process. Either way its positions are those of `whole`.
    """

    whole: Dataset
    read: Dataset
    replicas: Replicas

    @classmethod
    def of(cls, ds: Dataset, replicas: Replicas) -> Share:
        """Raises `PipelineError` for a dataset that is split already or that differs between processes, and
        `ElementError` where a replica is known to be left without rows.
        """
        if replicas.total > 1 and ds.node.parted:
            raise PipelineError(
                "this dataset is split already, and its parts would be split again among the replicas",
                help="leave split(...) out: each process gives the whole dataset, and reads its part of it",
            )
        share = cls(ds, cls._part(ds, replicas), replicas)
        share.require_last(share.read.node, 0)
        return share

    @staticmethod
    def _part(ds: Dataset, replicas: Replicas) -> Dataset:
        """The dataset of this worker's parts, where batches can be read in parts, else `ds`."""
        if replicas.workers == 1:
            return ds
        part = ds.split(replicas.workers, replicas.worker).node
        assert isinstance(part, Split)
        ahead: list[Prefetch] = []
        node = part.parent
        while isinstance(node, Prefetch):
            ahead.append(node)
            node = node.parent
        if not isinstance(node, Batch) or not node.seekable:
            return ds
        node = replace(part, parents=(node,))
        for prefetch in reversed(ahead):
            node = replace(prefetch, parents=(node,))
        return ds.with_node(node)

    @property
    def parted(self) -> bool:
        """Whether what is read are parts already."""
        return self.read is not self.whole

    def parts(self, element: Element, node: Node, epoch: int, index: int) -> list[Element]:
        """The element at a place of `node`, as it was read, cut for the replicas here.

        Raises `ElementError`, in every process alike, where a replica would be left without rows.
        """
        if not self.parted:
            return self.replicas.cut(element)
        if len(self.replicas.devices) > 1:
            self.replicas.require(_rows_at(node, epoch, index) or 0)
        return self.replicas.share(element)

    def require_last(self, node: Node, epoch: int) -> None:
        """Raises `ElementError` where it is known that an epoch's last batch will be too small."""
        length = node.length_at(epoch) if node.seekable else None
        if length:
            size = _rows_at(node, epoch, length - 1)
            self.replicas.require(self.replicas.total if size is None else size)


def _rows_at(node: Node, epoch: int, index: int) -> int | None:
    """How many rows the whole batch at a place has, where that is known without reading it."""
    while isinstance(node, Prefetch | Split):
        node = node.parent
    if not isinstance(node, Batch) or not node.seekable:
        return None
    start, stop = node.bounds(Places(epoch, np.array([index], np.int64)))
    return int(stop[0] - start[0])
