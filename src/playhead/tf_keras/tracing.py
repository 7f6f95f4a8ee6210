"""A training step traced before it runs, so that every variable is there and what it draws from is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from playhead.errors import TrainingError
from playhead.tf_keras.variables import parts

DatasetFunction = Callable[[Any], tf.data.Dataset]


def trace(model: Any, data: DatasetFunction) -> list[Any]:
    """Has `model` create all variables of its training step for elements as `data` gives them; runs nothing.

    Returns the plain variables that the step uses, without those by which tf_keras itself counts. Raises
    `TrainingError` where the step draws random numbers from a state that nothing can save.
    """
    if model.run_eagerly:
        raise TrainingError(
            "the model runs eagerly, and so nothing tells what its step draws from before it has run",
            help="compile it without run_eagerly=True",
        )
    strategy = model.distribute_strategy
    with strategy.scope():
        like = strategy.distribute_datasets_from_function(lambda context: _nothing(data(context)))
        step = model.make_train_function().get_concrete_function(iter(like))
    found = _unsaveable(step.graph.as_graph_def())
    if found is not None:
        raise TrainingError(
            f"the training step draws random numbers in a way that no checkpoint can keep: {found.op} "
            f"({found.name})",
            help="call tf_keras.backend.experimental.enable_tf_random_generator() before the model is made: "
            "dropout then has a generator that is saved; code of your own draws from a tf.random.Generator "
            "that is an attribute of its layer",
            operation=found.op,
        )
    counters = (model._train_counter, model._steps_per_execution)
    counting = {id(part) for counter in counters for part in parts(counter)}
    used = [part for variable in step.graph.variables for part in parts(variable)]
    return [variable for variable in used if id(variable) not in counting]


def _nothing(like: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset of the same type, which reads nothing."""
    made = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=like.element_spec)
    return made.apply(tf.data.experimental.assert_cardinality(like.cardinality()))


def _unsaveable(graph: Any) -> Any:
    """The first operation whose random numbers come from the memory of its kernel, or None."""
    for nodes in [graph.node, *(function.node_def for function in graph.library.function)]:
        for node in nodes:
            # LSTM and GRU bring the operation for GPUs along, and do their dropout outside of it.
            idle = node.op.startswith("CudnnRNN") and not node.attr["dropout"].f
            if node.op == "NonDeterministicInts" or ("seed2" in node.attr and not idle):
                return node
    return None
