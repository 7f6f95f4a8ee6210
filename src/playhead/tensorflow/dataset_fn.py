"""What `strategy.distribute_datasets_from_function` takes: a function that makes a worker's tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator as IteratorABC
from typing import TYPE_CHECKING, Any, SupportsInt

import tensorflow as tf

from playhead.errors import CheckpointError, PipelineError, WrongDoor
from playhead.iterator import Iterator
from playhead.plan.block import Nest, map_nest
from playhead.plan.node import INFINITE, UNKNOWN
from playhead.tensorflow.agreement import Agreement, counted, counter, require_counted
from playhead.tensorflow.convert import eagerly, fitting, require_dataset
from playhead.tensorflow.distribute import Replicas, Share
from playhead.tensorflow.snapshot import save_now

if TYPE_CHECKING:
    from playhead.dataset import Dataset
    from playhead.iterator import OnChange
    from playhead.position import Position


def dataset_fn(
    ds: Dataset, *, step: SupportsInt | None = None, epochs: int | None = None
) -> DatasetFn:
    """A function for `strategy.distribute_datasets_from_function` that a checkpoint saves and restores.

    ds: yields whole batches; each replica gets its part of them, as with `iterator(strategy=)`. epochs: how
    many passes, endless unless said.
    step: the loop's own counter of batches trained, for instance the `tf.Variable` in the same checkpoint.
    TensorFlow reads ahead of the loop here, so only that says what was trained: saving without it raises
    `CheckpointError`.

    >>> import playhead as ph
    >>> strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    >>> step = tf.Variable(0, dtype=tf.int64)
    >>> fn = dataset_fn(ph.Dataset.range(6).batch(2), step=step)
    >>> checkpoint = tf.train.Checkpoint(step=step, data=fn)
    >>> batches = iter(strategy.distribute_datasets_from_function(fn))
    >>> next(batches).numpy().tolist()
    [0, 1]
    """
    require_dataset(ds, "dataset_fn")
    return DatasetFn(ds, step, epochs)


class DatasetFn(tf.train.experimental.PythonState):  # type: ignore[misc]
    """Called with a `tf.distribute.InputContext`, a `tf.data.Dataset` of its replicas' parts of each batch.

    Made by `dataset_fn`. Each iteration begins where `step` stands, the first where this was restored to.
    Without `step` each is the next `epochs` passes, for evaluation.
    """

    def __init__(self, ds: Dataset, step: SupportsInt | None, epochs: int | None) -> None:
        self._ds = ds
        self._step = counter(step)
        self._epochs = epochs
        self._agreement: Agreement | None = None
        self._reader = ds.iterator(epochs=epochs)
        self._turns = 0  # iterations since this was made or restored

    def __call__(self, context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        replicas = _replicas(context)
        share = Share.of(self._ds, replicas)
        if replicas.workers > 1 and self._agreement is None:
            self._agreement = Agreement(replicas.worker, replicas.workers)
        specs = replicas.specs(eagerly(lambda: self._ds.element_spec))
        made = tf.data.Dataset.from_generator(
            lambda: self._parts(share, specs), output_signature=specs
        )
        count = self._ds.cardinality()
        if count == INFINITE or (self._epochs is None and count not in (0, UNKNOWN)):
            made = made.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return made

    # --- reading, in a thread of tf.data's ---------------------------------------------------------------

    def _parts(self, share: Share, specs: Nest) -> IteratorABC[Nest]:
        """The parts of each batch for the replicas here, in turn."""
        reader = self._begin(share)
        try:
            for element in reader:
                state = reader._state
                for part in share.parts(element, reader._node, state.epoch, state.inner - 1):
                    flat = iter(fitting(part, specs))
                    yield map_nest(lambda _, flat=flat: next(flat), specs)
                if self._reader is not reader:
                    raise WrongDoor(
                        "the playhead dataset_fn was restored, or iterated anew, while this iteration ran",
                        help="restore first, then iter(strategy.distribute_datasets_from_function(fn))",
                    )
        finally:
            reader.close()

    def _begin(self, share: Share) -> Iterator:
        """A reader from where this iteration begins."""
        epochs, turn = self._epochs, self._turns
        if turn and self._step is None:
            if epochs is None:
                raise PipelineError(
                    "a dataset_fn without step= and without epochs= was iterated again, and would begin anew",
                    help="dataset_fn(ds, step=step) goes on after the step that the loop has trained; "
                    "epochs=1 reads the next pass in each iteration",
                )
            reader = Iterator(share.read, epochs=(turn + 1) * epochs, epoch=turn * epochs)
        else:
            position = self._reader.position if turn == 0 else self.position
            if self._agreement is not None:
                self._agreement.require(position)
            require_counted(self._step, position)
            reader = share.read.iterator(epochs=epochs)
            reader.load_state_dict(position)
        share.require_last(reader._node, reader._state.epoch)
        self._turns, self._reader = turn + 1, reader
        return reader

    # --- where it stands, saving and restoring ------------------------------------------------------------

    @property
    def position(self) -> Position:
        """After the `step` batches that the loop has trained. Raises `CheckpointError` where none says so."""
        if self._step is None:
            raise CheckpointError(
                "TensorFlow reads ahead of the loop here, so nothing says which batches were trained",
                help="dataset_fn(ds, step=step) with the tf.Variable that counts them; or "
                "iterator(ds, strategy=strategy), which knows by itself",
            )
        trained, read = counted(self._step), self._reader.position.step
        if trained > read:
            raise CheckpointError(
                f"the loop says that it has trained {trained} batches, and {read} were read",
                help="count one step for each batch, after it was taken",
                step=trained,
            )
        return self._reader.position_at(trained)

    def load_state_dict(
        self,
        state: Position | dict[str, Any] | str | bytes,
        *,
        on_change: OnChange = "error",
        override: Iterable[str] = (),
    ) -> None:
        """The next iteration goes on where `state` was saved; see `playhead.Iterator.load_state_dict`."""
        reader = self._ds.iterator(epochs=self._epochs)
        reader.load_state_dict(state, on_change=on_change, override=override)
        self._reader, self._turns = reader, 0

    def serialize(self) -> str:
        """The position as one line of JSON."""
        return self.position.to_json()

    def deserialize(self, string_value: str | bytes) -> None:
        """Go on where `serialize` was called."""
        self.load_state_dict(string_value)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        save_now(self, object_map)


def _replicas(context: tf.distribute.InputContext | None) -> Replicas:
    if context is None:
        return Replicas()
    workers = context.num_input_pipelines
    here = context.num_replicas_in_sync // workers
    return Replicas(("",) * here, workers, context.input_pipeline_id)
