"""An iterator that a TensorFlow checkpoint holds, for Python loops and for loops inside a `tf.function`.

Inside a graph, elements come through a tf.data iterator over a generator: it asks for one element at a time
and keeps none, so what the position counts is what the loop took, there as in Python. (A `py_function` would
hold one of TensorFlow's own threads while it waits, and the functions of the pipeline need those.)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from collections.abc import Iterator as IteratorABC
from typing import TYPE_CHECKING, Any, Self, SupportsInt

import numpy as np
import tensorflow as tf

from playhead.errors import CheckpointError, PipelineError, WrongDoor
from playhead.plan.block import Nest, leaves, map_nest
from playhead.tensorflow.convert import (
    as_tensors,
    eagerly,
    fitting,
    require_dataset,
    type_specs,
)

if TYPE_CHECKING:
    from playhead.dataset import Dataset
    from playhead.iterator import OnChange
    from playhead.position import Position

_CPU = "/CPU:0"


def iterator(
    ds: Dataset,
    *,
    strategy: tf.distribute.Strategy | None = None,
    epochs: int | None = None,
    step: SupportsInt | None = None,
) -> Iterator:
    """An iterator over `epochs` passes of `ds`, endless unless said, whose position a checkpoint saves.

    step: the loop's own counter of batches taken, for instance the `tf.Variable` in the same checkpoint.
    Where it and the data disagree, the first `next` after restoring raises `CheckpointError`.

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
    if strategy is not None:
        raise PipelineError(
            "iterator(strategy=...): this version reads for one replica only",
            help="leave strategy out; each replica would need its part of the batch",
        )
    return Iterator(ds, epochs, step)


class Iterator(tf.train.experimental.PythonState, tf.distribute.DistributedIterator):  # type: ignore[misc]
    """Elements of a dataset as nests of tensors. Made by `iterator`.

    It opens at its first `next`, so it may be restored before or after it was made part of a checkpoint. Its
    state is one line of JSON. A `tf.function` takes it as an argument or from outside; there, as with
    tf.data's iterators, the end is `tf.errors.OutOfRangeError`.
    """

    # Derived from TensorFlow's iterator interface so that autograph turns `for batch in it` into a loop in
    # the graph.

    def __init__(self, ds: Dataset, epochs: int | None, step: SupportsInt | None) -> None:
        self._iterator = ds.iterator(epochs=epochs)
        self._step = step
        self._unchecked = step is not None
        self._specs: Nest | None = None
        self._in_graphs: tf.data.Iterator | None = None

    # --- moving -----------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        _refuse_in_graph(
            "iterating", "for batch in it (under autograph), or next(it) in a tf.range loop"
        )
        return self

    def __next__(self) -> Nest:
        if tf.inside_function():
            return self._next_in_graph()
        self._check(self._step)
        return as_tensors(next(self._iterator))

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
                return tf.experimental.Optional.from_value(self._shaped(list(leaves(next(self)))))
            except StopIteration:
                return tf.experimental.Optional.empty(self.element_spec)
        ended, flat = self._pull_in_graph()
        return tf.cond(
            ended,
            lambda: tf.experimental.Optional.empty(self.element_spec),
            lambda: tf.experimental.Optional.from_value(self._shaped(flat)),
        )

    def epochs(self) -> IteratorABC[IteratorABC[Nest]]:
        """The epochs that are left, each an iterator over its elements; a half-done one is finished first."""
        _refuse_in_graph(
            "epochs()", "loop over epochs in Python, and take batches in the tf.function"
        )
        for epoch in self._iterator.epochs():
            yield self._tensors_of(epoch)

    def _tensors_of(self, epoch: IteratorABC[Any]) -> IteratorABC[Nest]:
        self._check(self._step)
        for element in epoch:
            yield as_tensors(element)

    # --- in a graph -------------------------------------------------------------------------------------

    def _next_in_graph(self) -> Nest:
        ended, flat = self._pull_in_graph()

        def stop() -> tf.Tensor:
            return tf.numpy_function(_stop, [], tf.bool)

        with tf.device(_CPU):
            stopped = tf.cond(ended, stop, lambda: tf.constant(False))
        with tf.control_dependencies([stopped]):
            return self._shaped([tf.identity(leaf) for leaf in flat])

    def _pull_in_graph(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Whether the end is reached, and the leaves of the next element (empty ones at the end)."""
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
            specs = self.element_spec
            options = tf.data.Options()
            options.autotune.enabled = False
            options.threading.private_threadpool_size = 1
            with tf.init_scope(), tf.device(_CPU):
                carried = tf.data.Dataset.from_generator(
                    _Carried(self), output_signature=(tf.TensorSpec((), tf.bool), *leaves(specs))
                )
                self._in_graphs = iter(carried.with_options(options))
        return self._in_graphs

    def _pull(self) -> tuple[Any, ...]:
        if not isinstance(self._step, tf.Variable):
            self._check(self._step)
        specs = self.element_spec
        try:
            element = next(self._iterator)
        except StopIteration:
            return (True, *(_nothing(spec) for spec in leaves(specs)))
        return (False, *fitting(element, specs))

    def _shaped(self, flat: list[tf.Tensor]) -> Nest:
        each = iter(flat)
        return map_nest(lambda spec: tf.ensure_shape(next(each), spec.shape), self.element_spec)

    # --- where it stands --------------------------------------------------------------------------------

    @property
    def element_spec(self) -> Nest:
        """The nest of `tf.TensorSpec` of an element; reads one where a Python function decides."""
        if self._specs is None:
            self._specs = type_specs(eagerly(lambda: self._iterator.dataset.element_spec))
        return self._specs

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read: with adopted seeds, where it was restored."""
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
        self._unchecked = self._step is not None

    def close(self) -> None:
        """End here: no thread and no file is left. Restoring opens it again."""
        self._iterator.close()

    def _check(self, step: SupportsInt | None) -> None:
        """Once after each restoring: the loop's own counter against the data's."""
        if not self._unchecked or step is None:
            return
        counted, taken = int(step), self._iterator.position.step
        if counted != taken:
            raise CheckpointError(
                f"the loop stands at step {counted}, its data at step {taken}",
                help="save and restore both in one tf.train.Checkpoint(step=step, data=it), and count a step "
                "after its batch was taken",
                step=counted,
                position=taken,
            )
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
        if self not in object_map:
            with tf.init_scope():
                object_map[self] = _Snapshot()
        # After the first save TensorFlow runs this as a graph.
        inside = tf.inside_function()
        line = tf.numpy_function(self.serialize, [], tf.string) if inside else self.serialize()
        object_map[self].line.assign(line)

    def __repr__(self) -> str:
        return f"<playhead.tensorflow.Iterator over {self._iterator!r}>"


class _Snapshot(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The position of an iterator as it was when an asynchronous save began."""

    def __init__(self) -> None:
        with tf.device(_CPU):
            self.line = tf.Variable("", trainable=False, dtype=tf.string, shape=())

    def serialize(self) -> bytes:
        line: bytes = self.line.numpy()
        return line

    def deserialize(self, string_value: str | bytes) -> None:
        self.line.assign(string_value)


class _Carried:
    """What tf.data iterates on a graph's behalf: it never ends, and does not keep the iterator alive."""

    def __init__(self, owner: Iterator) -> None:
        self._owner = weakref.ref(owner)

    def __call__(self) -> _Carried:
        return self

    def __iter__(self) -> _Carried:
        return self

    def __next__(self) -> tuple[Any, ...]:
        return _alive(self._owner)._pull()


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


def _refuse_in_graph(what: str, instead: str) -> None:
    if tf.inside_function():
        raise WrongDoor(
            f"{what} a playhead iterator while TensorFlow traces a function has no end",
            help=instead,
        )
