"""An iterator that a TensorFlow checkpoint holds, for Python loops and for loops inside a `tf.function`.

Inside a graph, elements come through a tf.data iterator over a generator: it asks for one element at a time
and keeps none, so what the position counts is what the loop took, there as in Python. (A `py_function` would
hold one of TensorFlow's own threads while it waits, and the functions of the pipeline need those.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from collections.abc import Iterator as IteratorABC
from typing import TYPE_CHECKING, Any, Self, SupportsInt, TypeVar

import numpy as np
import tensorflow as tf

from playhead.errors import WrongDoor
from playhead.plan.block import Element, Nest, leaves, map_nest
from playhead.tensorflow.agreement import Agreement, counter, require_counted
from playhead.tensorflow.carried import Carrier
from playhead.tensorflow.convert import eagerly, fitting, require_dataset
from playhead.tensorflow.distribute import Share, replicas_of
from playhead.tensorflow.snapshot import save_now

if TYPE_CHECKING:
    from playhead.dataset import Dataset
    from playhead.iterator import OnChange
    from playhead.position import Position

_CPU = "/CPU:0"

Taken = TypeVar("Taken")


def iterator(
    ds: Dataset,
    *,
    strategy: tf.distribute.Strategy | None = None,
    epochs: int | None = None,
    step: SupportsInt | None = None,
) -> Iterator:
    """An iterator over `epochs` passes of `ds`, endless unless said, whose position a checkpoint saves.

    strategy: `ds` yields whole batches, and `next` a `tf.distribute.DistributedValues` with each replica's
    part of one, which `strategy.run` takes. Each worker process reads its part only (a stream: all of it). The
    position is that of the whole batches: save it in one process, restore it in any number. Raises
    `PipelineError` for a dataset that is split already, for random operations without a seed under several
    workers, and for strategies other than OneDevice, Mirrored and MultiWorkerMirrored.
    step: the loop's own counter of batches taken, for instance the `tf.Variable` in the same checkpoint, or an
    optimizer's `iterations`. Where it and the data disagree, the first `next` after restoring raises
    `CheckpointError`.

    >>> import playhead as ph
    >>> step = tf.Variable(0, dtype=tf.int64)
    >>> it = iterator(ph.Dataset.range(6).batch(2), step=step)
    >>> checkpoint = tf.train.Checkpoint(step=step, data=it)
    >>> @tf.function
    ... def total(it):
    ...     return tf.reduce_sum(next(it)) + tf.reduce_sum(next(it))
    >>> int(total(it)), it.position.step
    (6, 2)
    """
    require_dataset(ds, "iterator")
    return Iterator(Share.of(ds, replicas_of(strategy)), epochs, step)


class Iterator(tf.train.experimental.PythonState, tf.distribute.DistributedIterator):  # type: ignore[misc]
    """Elements of a dataset as nests of tensors, or of what each replica takes of them. Made by `iterator`.

    It opens at its first `next`, so it may be restored before or after it was made part of a checkpoint. Its
    state is one line of JSON. A `tf.function` takes it as an argument or from outside; there, as with
    tf.data's iterators, the end is `tf.errors.OutOfRangeError`.
    """

    # Derived from TensorFlow's iterator interface so that autograph turns `for batch in it` into a loop in
    # the graph.

    def __init__(self, share: Share, epochs: int | None, step: SupportsInt | None) -> None:
        self._share = share
        self._replicas = replicas = share.replicas
        self._iterator = share.read.iterator(epochs=epochs)
        self._step = counter(step)
        self._unchecked = True
        self._agreement = None
        if replicas.workers > 1:
            self._agreement = Agreement(replicas.worker, replicas.workers)
        self._specs: Nest | None = None
        self._in_graphs: Carrier | None = None

    # --- moving -----------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        _refuse_in_graph(
            "iterating", "for batch in it (under autograph), or next(it) in a tf.range loop"
        )
        return self

    def __next__(self) -> Nest:
        if tf.inside_function():
            return self._next_in_graph()
        _refuse_in_replica()
        self._check(self._step)
        return self._handed_out(lambda: self._tensors(next(self._iterator)))

    def _tensors(self, element: Element) -> Nest:
        return self._replicas.tensors(self._parts(element), lambda: self._part_specs)

    def _parts(self, element: Element) -> list[Element]:
        """What the replicas here take of an element that was just delivered."""
        state = self._iterator._state
        return self._share.parts(element, self._iterator._node, state.epoch, state.inner - 1)

    def _handed_out(self, take: Callable[[], Taken]) -> Taken:
        """What `take` returns. Where it fails after an element was read, the next `next` tries that again."""
        # A generator as context manager would set the place back late, when an interrupt ends it as garbage.
        before = self._iterator._state
        try:
            return take()
        except StopIteration:  # nothing was read
            raise
        except BaseException:
            if self._iterator._state is not before:
                self._iterator.load_state_dict(self._iterator._position(before))
            raise

    def get_next(self) -> Nest:
        """The next element. Raises `tf.errors.OutOfRangeError` at the end."""
        if tf.inside_function():
            return self._next_in_graph()
        try:
            return next(self)
        except StopIteration:
            raise tf.errors.OutOfRangeError(
                None, None, "the playhead iterator is at its end"
            ) from None

    def get_next_as_optional(self) -> tf.experimental.Optional:
        """The next element, or at the end none, as a `tf.experimental.Optional`."""
        if not tf.inside_function():
            try:
                return self._handed_out(
                    lambda: tf.experimental.Optional.from_value(self._declared(next(self)))
                )
            except StopIteration:
                return tf.experimental.Optional.empty(self.element_spec)
        ended, flat = self._pull_in_graph()
        return tf.cond(
            ended,
            lambda: tf.experimental.Optional.empty(self.element_spec),
            lambda: tf.experimental.Optional.from_value(self._value(flat)),
        )

    def _declared(self, value: Nest) -> Nest:
        if self._replicas.wrapped:
            return value
        return map_nest(
            lambda leaf, spec: tf.ensure_shape(leaf, spec.shape), value, self._part_specs
        )

    def epochs(self) -> IteratorABC[IteratorABC[Nest]]:
        """The epochs that are left, each an iterator over its elements; a half-done one is finished first."""
        _refuse_in_graph(
            "epochs()", "loop over epochs in Python, and take batches in the tf.function"
        )
        for epoch in self._iterator.epochs():
            yield self._tensors_of(epoch)

    def _tensors_of(self, epoch: IteratorABC[Any]) -> IteratorABC[Nest]:
        while True:
            self._check(self._step)
            try:
                yield self._handed_out(lambda: self._tensors(next(epoch)))
            except StopIteration:
                return

    # --- in a graph -------------------------------------------------------------------------------------

    def _next_in_graph(self) -> Nest:
        _refuse_in_replica()
        ended, flat = self._pull_in_graph()

        def stop() -> tf.Tensor:
            return tf.numpy_function(_stop, [], tf.bool)

        with tf.device(_CPU):
            stopped = tf.cond(ended, stop, lambda: tf.constant(False))
        with tf.control_dependencies([stopped]):
            return self._value([tf.identity(leaf) for leaf in flat])

    def _pull_in_graph(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Whether the end is reached, and the leaves of each replica's part (empty ones at the end)."""
        checks = []
        with tf.device(_CPU):
            if isinstance(self._step, tf.Variable):
                # Read here, where the graph orders it among the loop's own updates.
                checks.append(tf.numpy_function(_checker(self), [self._step.read_value()], tf.bool))
            with tf.control_dependencies(checks):
                ended, *flat = self._carrier().get_next()
        return ended, flat

    def _carrier(self) -> tf.data.Iterator:
        """The tf.data iterator that brings elements into graphs. It has no end and no state of its own."""
        if self._in_graphs is None:
            specs = list(leaves(self._part_specs)) * len(self._replicas.devices)
            reference = weakref.ref(self)
            with tf.init_scope(), tf.device(_CPU):
                self._in_graphs = Carrier(
                    lambda: _alive(reference)._pull(), (tf.TensorSpec((), tf.bool), *specs)
                )
        return self._in_graphs.iterator

    def _pull(self) -> tuple[Any, ...]:
        if not isinstance(self._step, tf.Variable):
            self._check(self._step)
        specs = self._part_specs

        def flat() -> list[Any]:
            parts = self._parts(next(self._iterator))
            return [leaf for part in parts for leaf in fitting(part, specs)]

        try:
            return (False, *self._handed_out(flat))
        except StopIteration:
            nothing = [_nothing(spec) for spec in leaves(specs)]
            return (True, *(nothing * len(self._replicas.devices)))

    def _value(self, flat: list[tf.Tensor]) -> Nest:
        """The next value in a graph, of the leaves of its parts."""
        each = iter(flat)
        parts = [
            map_nest(lambda spec: tf.ensure_shape(next(each), spec.shape), self._part_specs)
            for _ in self._replicas.devices
        ]
        return self._replicas.value(parts, self._part_specs)

    # --- where it stands --------------------------------------------------------------------------------

    @property
    def element_spec(self) -> Nest:
        """The nest of types of what `next` gives; reads an element where a Python function decides.

        A `tf.TensorSpec` for each leaf, or for more than one replica a `PerReplicaSpec` of one for each: with
        None for the first axis where parts may differ in length. It fits a `tf.function`'s `input_signature`.
        """
        return self._replicas.element_spec(self._part_specs)

    @property
    def _part_specs(self) -> Nest:
        if self._specs is None:
            whole = eagerly(lambda: self._share.whole.element_spec)
            self._specs = self._replicas.specs(whole)
        return self._specs

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read: with adopted seeds, where it was restored. Under several workers, the part
        that this one reads, or all of it.
        """
        return self._iterator.dataset

    @property
    def position(self) -> Position:
        """After what the loop took."""
        return self._iterator.position

    def position_at(self, step: int) -> Position:
        """After the first `step` elements; see `playhead.Iterator.position_at`."""
        return self._iterator.position_at(step)

    @property
    def state(self) -> dict[str, Any]:
        """The position as JSON values, which `load_state_dict` takes."""
        return self._iterator.state_dict()

    def load_state_dict(
        self,
        state: Position | dict[str, Any] | str | bytes,
        *,
        on_change: OnChange = "error",
        override: Iterable[str] = (),
    ) -> None:
        """Go on where `state` was saved; see `playhead.Iterator.load_state_dict`."""
        self._iterator.load_state_dict(state, on_change=on_change, override=override)
        self._unchecked = True

    def close(self) -> None:
        """End here: no thread and no file is left. Restoring opens it again."""
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; an error that came of a lost worker is told what to do."""
        self.close()
        lost = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
        if lost and error is not None and self._replicas.workers > 1:
            error.add_note(
                f"playhead: a worker was lost after step {self.position.step} of the data. Start all "
                f"{self._replicas.workers} again (or another number of them): restored from the last "
                "checkpoint they go on exactly there"
            )

    def _check(self, step: SupportsInt | None) -> None:
        """Once after each restoring: the other workers, and the loop's own counter, against the data."""
        if not self._unchecked:
            return
        position = self._iterator.position
        if self._agreement is not None:
            self._agreement.require(position)
        self._share.require_last(self._iterator._node, position.epoch)
        require_counted(step, position)
        self._unchecked = False

    # --- saving and restoring, as tf.train.Checkpoint asks for it ---------------------------------------

    def serialize(self) -> str:
        """The position as one line of JSON."""
        return self._iterator.position.to_json()

    def deserialize(self, string_value: str | bytes) -> None:
        """Go on where `serialize` was called."""
        self.load_state_dict(string_value)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        """The position at this moment, for an asynchronous save that writes it later, in another thread."""
        save_now(self, object_map)

    def __repr__(self) -> str:
        return f"<playhead.tensorflow.Iterator over {self._iterator!r}>"


def _checker(owner: Iterator) -> Any:
    reference = weakref.ref(owner)

    def check(step: Any) -> np.bool_:
        _alive(reference)._check(step)
        return np.bool_(True)

    return check


def _alive(reference: weakref.ref[Iterator]) -> Iterator:
    owner = reference()
    if owner is None:
        raise WrongDoor(
            "a tf.function runs on after the playhead iterator it reads was dropped",
            help="keep the iterator in a variable for as long as the loop runs",
        )
    return owner


def _stop() -> np.bool_:
    raise StopIteration("the playhead iterator is at its end")


def _nothing(spec: tf.TensorSpec) -> Any:
    shape = [0 if size is None else size for size in spec.shape]
    fill = b"" if spec.dtype == tf.string else 0
    return np.full(shape, fill, spec.dtype.as_numpy_dtype)


def _refuse_in_replica() -> None:
    if tf.distribute.has_strategy() and tf.distribute.get_replica_context() is not None:
        raise WrongDoor(
            "next was called inside strategy.run, where each replica would take a whole batch",
            help="take it outside: strategy.run(step_fn, args=(next(it),))",
        )


def _refuse_in_graph(what: str, instead: str) -> None:
    if tf.inside_function():
        raise WrongDoor(
            f"{what} a playhead iterator while TensorFlow traces a function has no end",
            help=instead,
        )
