"""Whether a graph gives the same result whenever it is run."""

from __future__ import annotations

import tensorflow as tf

from playhead.errors import UnrepeatableFunction
from playhead.plan.functions import UserFunction
from playhead.tensorflow.trace import PYTHON, called

_RANDOM = frozenset({
    "Multinomial", "NonDeterministicInts", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson",
    "RandomPoissonV2", "RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
    "RngReadAndSkip", "RngSkip", "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2",
    "StatefulRandomBinomial", "StatefulStandardNormal", "StatefulStandardNormalV2",
    "StatefulTruncatedNormal", "StatefulUniform", "StatefulUniformFullInt", "StatefulUniformInt",
    "TruncatedNormal",
})  # fmt: skip
_PYTHON_CALLS = frozenset({"EagerPyFunc", "PyFunc"})
_REMEMBERING = frozenset({
    "AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "IteratorGetNext",
    "IteratorGetNextAsOptional", "ResourceScatterAdd", "ResourceScatterUpdate", "Timestamp",
})  # fmt: skip


def require_repeatable(
    function: UserFunction, graph: tf.types.experimental.ConcreteFunction
) -> None:
    definition = graph.graph.as_graph_def()
    nodes = [definition.node, *(part.node_def for part in definition.library.function)]
    for node in (node for part in nodes for node in part):
        if node.op in _PYTHON_CALLS:
            what = "calls back into Python"
            help = f"{PYTHON}; tf.numpy_function(..., stateful=False) promises to depend on its input alone"
        elif node.op in _REMEMBERING:
            what = "depends on what was computed before it"
            help = "keep no state in the function; take random numbers from map(fn, rng=True)"
        elif node.op in _RANDOM or "seed2" in node.attr:
            what = "draws random numbers that nothing can repeat"
            help = (
                "map(fn, rng=True) gives the function a seed as last argument, for tf.random.stateless_* "
                "and tf.image.stateless_random_*; a Keras layer that augments belongs in the model"
            )
        else:
            continue
        raise UnrepeatableFunction(
            f"{called(function)} {what}: its graph holds {node.op} ({node.name})",
            help=help,
            operation=node.op,
        )
