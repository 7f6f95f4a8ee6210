"""An `input_fn` for `tf.estimator.Estimator.train` that goes on where the checkpoints of its model stand.

An Estimator saves no input. But each of its training steps takes one element, so its global step tells how
many were taken: the pipeline is opened there, and what it is made of is kept beside the checkpoints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from playhead.errors import CheckpointError, SlowResume, warn
from playhead.plan.block import Nest, map_nest
from playhead.position import Position, write_atomically
from playhead.tensorflow.convert import as_numpy, eagerly, require_dataset, type_specs

if TYPE_CHECKING:
    from playhead.dataset import Dataset
    from playhead.iterator import Iterator as PlayheadIterator

FILE = "playhead-input.json"


def input_fn(
    ds: Dataset, model_dir: str | os.PathLike[str] | None, epochs: int | None = None
) -> Callable[[], tf.data.Dataset]:
    """A function for `Estimator.train(input_fn=...)`: `epochs` passes over `ds` (endless for None), from on
    where the latest checkpoint in `model_dir` stands.

    Each training step takes one element, so `ds` must be batched, and the global step counts elements from
    the first on. A seekable pipeline jumps there; a stream is walked, and says so (`SlowResume`). What the
    pipeline is made of, drawn seeds too, is kept in `model_dir`/playhead-input.json: training on with another
    one raises `PipelineChanged`. For `Estimator.evaluate`, `model_dir=None` starts at the first pass each time.

    Raises `CheckpointError` where there are checkpoints, and no pipeline was kept with them.

    >>> import tempfile, playhead as ph
    >>> train = input_fn(ph.Dataset.range(6).batch(2), tempfile.mkdtemp(), epochs=1)
    >>> [batch.tolist() for batch in train().as_numpy_iterator()]
    [[0, 1], [2, 3], [4, 5]]
    """
    require_dataset(ds, "input_fn")

    def opened() -> tf.data.Dataset:
        # An Estimator calls this while it builds a graph.
        run = eagerly(lambda: _Run(ds, model_dir, epochs))
        return tf.data.Dataset.from_generator(run.elements, output_signature=run.specs)

    return opened


class _Run:
    """One call of `train`: the iterator, at the place of the newest checkpoint when the call began."""

    def __init__(
        self, ds: Dataset, model_dir: str | os.PathLike[str] | None, epochs: int | None
    ) -> None:
        self._ds, self._epochs = ds, epochs
        self.specs: Nest = type_specs(ds.element_spec)
        self._step = 0
        self._kept: Position | None = None
        if model_dir is not None:
            self._step = _global_step(os.fspath(model_dir))
            self._kept = _kept(ds, os.fspath(model_dir), self._step)

    def elements(self) -> Iterator[Any]:
        iterator = self._ds.iterator(epochs=self._epochs)
        try:
            if self._kept is not None:
                iterator.load_state_dict(self._kept)
            _advance(iterator, self._step)
            for element in iterator:
                yield map_nest(as_numpy, element)
        finally:
            iterator.release()  # the next call has its workers


def _advance(iterator: PlayheadIterator, step: int) -> None:
    if not step:
        return
    if iterator.dataset.seekable:
        iterator.seek(step)
        return
    warn(f"resuming this stream walks over {step} elements", SlowResume)
    for taken in range(step):
        if next(iterator, iterator) is iterator:
            raise CheckpointError(
                f"the checkpoint stands at step {step}, and the data end after {taken} elements",
                help="epochs=None goes on without end",
                step=step,
            )


def _global_step(model_dir: str) -> int:
    latest = tf.train.latest_checkpoint(model_dir)
    if latest is None:
        return 0
    reader = tf.compat.v1.train.NewCheckpointReader(latest)
    if not reader.has_tensor("global_step"):
        raise CheckpointError(
            f"{latest} has no global_step: no Estimator wrote it",
            help="name the Estimator's own model_dir",
            path=latest,
        )
    return int(reader.get_tensor("global_step"))


def _kept(ds: Dataset, model_dir: str, step: int) -> Position:
    """The beginning of the run in the pipeline that `model_dir` was begun with; kept there by the first call.

    Raises `PipelineChanged` where `ds` is another one.
    """
    path = os.path.join(model_dir, FILE)
    begin = ds.iterator().position
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            saved = Position.from_json(file.read())
        ds.iterator(epochs=None).load_state_dict(saved)
        return saved
    if step:
        raise CheckpointError(
            f"{model_dir} has checkpoints up to step {step}, and no {FILE}: which pipeline they were "
            "trained with is not known",
            help=f"to begin with this one at step {step}, write {json.dumps(FILE)} there: "
            "ds.iterator().position.save(path)",
            path=path,
        )
    tf.io.gfile.makedirs(model_dir)
    content = begin.to_json().encode() + b"\n"
    if "://" in path:  # an object store shows a file once it is whole
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(content)
    else:
        write_atomically(Path(path), content)
    return begin
