"""How `fit` feeds Keras: epoch after epoch, each from the first batch that is not trained on yet."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator as IteratorABC
from typing import Any

import keras
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

from playhead.dataset import Dataset
from playhead.errors import PipelineError, TrainingError
from playhead.indexes import settle
from playhead.iterator import Iterator
from playhead.keras.adapter import Adapter, Pass, as_keras_batch, packed
from playhead.keras.arguments import capped
from playhead.keras.asked import steps_of
from playhead.keras.reader import Call, calling, let_end
from playhead.keras.to_keras import Batches, FirstPass
from playhead.plan.block import ArraySpec, Nest, leaves

# What Keras is told where only the end of a pass will tell: a number of steps that no epoch reaches.
_UNCOUNTED = 2**62


class Feed(Adapter):
    """The batches of `iterator` for one `fit`. What Keras has pulled and not trained on yet is kept.

    So Keras may look ahead, drop a reader and begin another: each begins at the first batch that is not
    trained on. `begin` says how long the coming epoch is; with `by_pass`, it ends where a pass over the data
    does. Batches are pulled from any thread, and what the run asks comes from one.
    """

    def __init__(
        self, iterator: Iterator, *, by_pass: bool = False, class_weight: dict[int, float] | None
    ) -> None:
        self._iterator = iterator
        self._by_pass, self._class_weight = by_pass, class_weight
        # Held while a batch is computed, so nothing the training loop calls at each step may ask for it.
        self._pulling = threading.RLock()
        self._waiting: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # step: (batch, its pass)
        self._pulled = self._trained = int(iterator.position.step)
        self._left: int | None = None
        self._reader: Any = None
        self._closed = False
        self._over: PipelineError | None = None
        self.failure: Exception | None = None

    # --- as the run asks --------------------------------------------------------------------------------

    def first(self) -> Any:
        """The first batch that is not trained on, as Keras gets it."""
        with self._pulling:
            return self._at(self._trained)[0]

    def begin(self, left: int | None) -> None:
        """So many steps are left of the epoch that begins; None where the end of the pass will tell.

        Where none are, Keras makes one all the same, which must not ask for a batch.
        """
        self._left = left

    def trained(self, step: int) -> None:
        """The first `step` batches of the run are learned, and nobody asks for them again."""
        self._trained = step

    def ends_after(self, step: int) -> bool:
        """Whether a pass ends with the first `step` batches; waits for the next one to know.

        Where none follows since the next pass is empty, nobody has asked for its batches yet.
        """
        with self._pulling:
            before = self._at(step - 1)[1]
            try:
                return self._at(step)[1] != before
            except PipelineError as error:
                if error is not self._over:
                    raise
                return step == self._pulled

    def end(self) -> None:
        """The epoch ends with the steps that Keras has made."""
        let_end(self._reader, self._reader._steps_seen)

    @property
    def has_open_axes(self) -> bool:
        """Whether batches differ in more than their number of rows."""
        return any(None in leaf.shape[1:] for leaf in leaves(self.spec))

    def close(self) -> None:
        """Nothing more is read."""
        self._closed = True
        with self._pulling:
            self._iterator.close()
        self._reader = None

    # --- as Keras asks ----------------------------------------------------------------------------------

    @property
    def spec(self) -> Nest:
        spec = packed(self._iterator.dataset.element_spec)
        if self._class_weight is None or len(spec) != 2:
            return spec
        return (*spec, ArraySpec((None,), keras.config.floatx()))

    def _traced(self) -> Nest | None:
        spec = self.spec
        open_axes = any(None in leaf.shape for leaf in leaves(spec))
        return spec if open_axes else None

    @property
    def num_batches(self) -> None:
        return None

    def on_epoch_begin(self) -> None:
        call = calling()
        assert call is not None
        self._reader = call.reader
        left = _UNCOUNTED if self._left is None else self._left
        let_end(self._reader, max(1, capped(left, "max_steps_per_epoch")))

    def on_epoch_end(self) -> None:
        pass

    def _coming(self, call: Call | None) -> Pass:
        return self._rest

    def _rest(self) -> IteratorABC[Any]:
        """What is left of the epoch that has begun.

        Keras and TensorFlow may begin several at any time and read on in those that nobody listens to: each
        counts for itself, and ends where what it would read is learned already.
        """
        first, left = self._trained, self._left
        step = first
        while left is None or step < first + left:
            with self._pulling:
                if self._closed or step < self._trained:
                    return
                if self._by_pass and step > first and self.ends_after(step):
                    return
                batch = self._at(step)[0]
            yield batch
            step += 1

    def _at(self, step: int) -> tuple[Any, int]:
        """The batch after the first `step`, and which pass it is of."""
        while step >= self._pulled:
            try:
                if self._over is not None:
                    raise self._over
                batch = self._weighed(as_keras_batch(next(self._iterator)))
            except StopIteration:
                self._over = self.failure = self._nothing_given()
                raise self._over from None
            except Exception as error:
                self.failure = error  # TensorFlow may report it as text in an error of its own
                raise
            number = self._iterator.position.epoch if self._by_pass else 0
            self._waiting[self._pulled] = batch, number
            self._pulled += 1
            # The last one learned stays: where the next is of another pass, its own is asked for.
            for learned in [known for known in self._waiting if known < self._trained - 1]:
                del self._waiting[learned]
        return self._waiting[step]

    def _weighed(self, batch: Any) -> Any:
        """`batch` with the weights of its classes, which Keras leaves to an adapter."""
        if self._class_weight is None:
            return batch
        if isinstance(batch, dict) or len(batch) != 2:
            raise TrainingError(
                "class_weight= needs elements of (inputs, targets)",
                help="give each example its weight in a map, as the third part of an element",
            )
        return (*batch, class_weight_to_sample_weights(batch[1], self._class_weight))

    def _nothing_given(self) -> PipelineError:
        position = self._iterator.position
        number = position.epoch + (1 if position.step_in_epoch else 0)
        return PipelineError(
            f"pass {number + 1} over the dataset gave no element",
            help="look at what a filter keeps" + (", or say fewer epochs" if number else ""),
        )


def epoch_length(ds: Dataset, given: int | None, steps_per_execution: int) -> int | None:
    """Steps in a Keras epoch; None where the end of each pass over a stream decides."""
    length = steps_of(ds, given)
    known = None if length == -2 else capped(length, "max_steps_per_epoch")
    if steps_per_execution > 1 and (known is None or known % steps_per_execution):
        raise TrainingError(
            f"steps_per_execution={steps_per_execution} does not divide an epoch of "
            f"{'unknown length' if known is None else f'{known} steps'}: the last execution would run into "
            "the next epoch",
            help="choose a divisor, or say steps_per_epoch= as a multiple of it",
        )
    return known


def validation(rest: dict[str, Any]) -> FirstPass | None:
    """Has a dataset among the arguments of fit read from the beginning of its first pass each time."""
    given = rest.get("validation_data")
    if not isinstance(given, Dataset | Batches):
        return None
    if rest.get("validation_batch_size") is not None:
        raise TypeError(
            "validation_batch_size= is refused: the batch(...) of the validation pipeline says it"
        )
    found = rest["validation_data"] = FirstPass(
        given.dataset if isinstance(given, Batches) else given
    )
    settle(found.dataset)
    if found.dataset.cardinality() == -1 and rest.get("validation_steps") is None:
        raise PipelineError(
            "validation_data has no end, so its first pass has none",
            help="say validation_steps=, or leave out repeat()",
        )
    return found
