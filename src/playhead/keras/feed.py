"""The two ways data goes into Keras: the training feed, and the first pass for validation.

Both are `PyDataset`s with one worker, whose batches are a function of their index: Keras may look at a
batch twice, look ahead, or begin again, and nothing moves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import keras
import numpy as np

from playhead.errors import PipelineError
from playhead.iterator import Iterator
from playhead.plan.block import Nest, leaves, map_nest, named_leaves

# Keras takes the length of the first epoch it sees for that of all later ones; a length no epoch reaches
# leaves the end of each to `steps_per_epoch` and to us.
UNCOUNTED = 2**62


class Steps:
    """How many steps the coming epoch has, for the `range()` that Keras makes of it each time.

    It stands for the full length in every comparison, also when nothing of the epoch is left.
    """

    def __init__(self, full: int) -> None:
        self.full = full
        self.coming = full

    def __index__(self) -> int:
        return self.coming

    def __gt__(self, other: int) -> bool:
        return self.full > other

    def __bool__(self) -> bool:
        return True


class Unending:
    """A number of batches that no epoch reaches, until the end of the epoch is made known."""

    def __init__(self) -> None:
        self.reached = False

    def __index__(self) -> int:
        return UNCOUNTED

    def __lt__(self, other: int) -> bool:
        return False

    def __le__(self, other: int) -> bool:
        return self.reached

    def __bool__(self) -> bool:
        return True


class _Pure(keras.utils.PyDataset):  # type: ignore[misc]
    """A dataset whose batches are a function of their index.

    Keras looks at two batches before anything else and takes an axis for fixed where they agree. Batch 1 is
    shown one longer then along the axes that `spec` leaves open, as padded batches do. A model must be built
    before that, from a real batch: an axis that may be open need not be (features, say).
    """

    def __init__(self, spec: Nest) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self._spec = spec
        self._begun = False

    @property
    def has_open_axes(self) -> bool:
        return any(None in spec.shape[1:] for spec in leaves(self._spec))

    def on_epoch_begin(self) -> None:
        self._begun = True

    def __getitem__(self, index: int) -> Any:
        batch = self._batch(index)
        if index == 1 and not self._begun:
            batch = map_nest(_one_longer, batch, self._spec)
        return as_keras_batch(batch)

    def _batch(self, index: int) -> Any:
        raise NotImplementedError


class Feed(_Pure):
    """Batch i is the i-th from where the iterator stood, across epochs, without end.

    What Keras has pulled and not trained on yet is kept, so an index means the same batch however often it
    is asked for. `note_epochs` makes `epoch_after` known. Safe to call from several threads.
    """

    def __init__(self, iterator: Iterator, *, note_epochs: bool = False) -> None:
        super().__init__(iterator.dataset.element_spec)
        self._iterator = iterator
        self._note_epochs = note_epochs
        # Held while a batch is computed, so nothing the training loop calls at each step may ask for it.
        self._pulling = threading.RLock()
        self._waiting: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # step: (batch, its epoch)
        self._pulled = self._trained = self._origin = int(iterator.position.step)
        self._closed = False
        self._over: PipelineError | None = None
        self._end = Unending()
        self.failure: Exception | None = None

    @property
    def num_batches(self) -> Any:
        return self._end

    def on_epoch_begin(self) -> None:
        super().on_epoch_begin()
        self._end.reached = False

    def _batch(self, index: int) -> Any:
        with self._pulling:
            step = self._origin + index
            if index == 1 and not self._begun and self._runs_out_at(step):
                return self._at(step - 1)[0]  # the look ahead, when there is one batch in all
            if self._closed or step > self._pulled:
                # Only an iterator that Keras has already dropped asks here: nobody trains on the answer.
                return next(reversed(self._waiting.values()))[0]
            return self._at(step)[0]

    def epoch_after(self, step: int) -> int:
        """The data's epoch of the batch that follows the first `step` batches; waits for that batch.

        Where none follows since the next pass is empty, that one: nobody has asked for its batches yet.
        """
        known = self._waiting.get(step)
        if known is None:
            with self._pulling:
                if self._runs_out_at(step):
                    return self._at(step - 1)[1] + 1
                known = self._at(step)
        return known[1]

    def trained(self, step: int) -> None:
        """The first `step` batches of the run are learned and need not be kept."""
        self._trained = step

    def begin_again(self, step: int) -> None:
        """The epoch ends here for Keras: index 0 stands for the batch after the first `step` from now on."""
        with self._pulling:
            self._origin = step
        self._end.reached = True

    def close(self) -> None:
        """Nothing more is read. Read-ahead that Keras has not stopped yet gets old batches."""
        with self._pulling:
            self._closed = True
            self._iterator.close()

    def _runs_out_at(self, step: int) -> bool:
        """Whether the first `step` batches are all there are."""
        try:
            self._at(step)
        except PipelineError as error:
            if error is not self._over:
                raise
            return step == self._pulled and step - 1 in self._waiting
        return False

    def _at(self, step: int) -> tuple[Any, int]:
        while step >= self._pulled:
            try:
                if self._over is not None:
                    raise self._over
                batch = next(self._iterator)
                as_keras_batch(batch)
            except StopIteration:
                self._over = self.failure = self._nothing_given()
                raise self._over from None
            except Exception as error:
                self.failure = error  # TensorFlow will report it as text in an error of its own
                raise
            epoch = self._iterator.position.epoch if self._note_epochs else 0
            self._waiting[self._pulled] = batch, epoch
            self._pulled += 1
            for learned in [known for known in self._waiting if known < self._trained]:
                del self._waiting[learned]
        if step not in self._waiting:
            raise PipelineError(
                f"Keras asked again for the batch after step {step}, which is learned"
            )
        return self._waiting[step]

    def _nothing_given(self) -> PipelineError:
        position = self._iterator.position
        number = position.epoch + (1 if position.step_in_epoch else 0)
        return PipelineError(
            f"pass {number + 1} over the dataset gave no element",
            help="look at what a filter keeps, or say fewer epochs",
        )


def as_keras_batch(batch: Any) -> Any:
    """`batch` as Keras takes it: a dict, or a tuple of (inputs[, targets[, sample weights]]).

    Raises `PipelineError`, naming the leaf, for what a model cannot learn from.
    """
    for path, leaf in named_leaves(batch):
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
            raise PipelineError(
                f"element{path} is {_kind(leaf)}, where fit needs an array with a batch axis",
                help="end the pipeline with batch(...)",
                path=path,
            )
        if leaf.dtype.kind not in "biufc" and leaf.dtype.isbuiltin == 1:
            raise PipelineError(
                f"element{path} holds {_kind(leaf)}, which a model cannot learn from",
                help="turn it into numbers in a map, or drop it",
                path=path,
            )
    if isinstance(batch, dict):
        return batch
    parts = tuple(batch) if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise PipelineError(
            f"an element has {len(parts)} parts, where fit takes (inputs, targets, sample weights)",
            help="bring the parts into a dict or a tuple of inputs in a map",
        )
    return parts


def _one_longer(leaf: Any, spec: Any) -> Any:
    open_axes = [(0, int(k > 0 and size is None)) for k, size in enumerate(spec.shape)]
    return np.pad(leaf, open_axes) if any(after for _, after in open_axes) else leaf


def _kind(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.hasobject:
        return " and ".join(sorted({type(value).__name__ for value in leaf.flat}))
    if isinstance(leaf, np.ndarray | np.generic):
        return f"one {leaf.dtype}"
    return f"one {type(leaf).__name__}"
