"""Whether a graph, or a tf.data pipeline, gives the same result whenever it is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from playhead.errors import PipelineError, PlayheadWarning, UnrepeatableFunction, warn
from playhead.plan.functions import UserFunction
from playhead.tensorflow.blueprint import Blueprint, Leaves, is_unseeded, kind_of
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


Doubt = Literal["python", "memory", "random"]


def require_repeatable(
    function: UserFunction, graph: tf.types.experimental.ConcreteFunction
) -> None:
    """Raises `UnrepeatableFunction` where a traced function depends on more than its input."""
    definition = graph.graph.as_graph_def()
    nodes = [definition.node, *(part.node_def for part in definition.library.function)]
    for node in (node for part in nodes for node in part):
        doubt = _doubt(node)
        if doubt is None:
            continue
        what, help = {
            "python": (
                "calls back into Python",
                f"{PYTHON}; tf.numpy_function(..., stateful=False) promises to depend on its input alone",
            ),
            "memory": (
                "depends on what was computed before it",
                "keep no state in the function; take random numbers from map(fn, rng=True); "
                "a Keras layer that augments belongs in the model",
            ),
            "random": (
                "draws random numbers that nothing can repeat",
                "map(fn, rng=True) gives the function a seed as last argument, for tf.random.stateless_* "
                "and tf.image.stateless_random_*; a Keras layer that augments belongs in the model",
            ),
        }[doubt]
        raise UnrepeatableFunction(
            f"{called(function)} {what}: its graph holds {node.op} ({node.name})",
            help=help,
            operation=node.op,
        )


def _doubt(node: Any) -> Doubt | None:
    """Why what a node gives may not be told by its inputs."""
    if node.op in _PYTHON_CALLS:
        return "python"
    if node.op in _REMEMBERING:
        return "memory"
    return "random" if node.op in _RANDOM or "seed2" in node.attr else None


def require_repeatable_pipeline(blueprint: Blueprint, *, saves_state: bool) -> None:
    """Raises where a fresh copy of a tf.data pipeline would not give the same elements once more.

    `saves_state`: with tf.data's own iterator state, which holds a shuffle's seeds. Then also where TensorFlow
    does not restore that state exactly. Warns of Python in the pipeline, which is called again.
    """
    python = None
    for node, scope in _scoped(blueprint):
        if kind_of(node) == "DataService":
            raise PipelineError(
                f"from_tf: {node.op} gives what the tf.data service has ready, in no order of its own",
                help="wrap the pipeline without distribute(...); playhead's workers read ahead of it",
                operation=node.op,
            )
        inside = scope is not blueprint.nodes
        if is_unseeded(node, scope) and (inside or not saves_state):
            raise _unseeded(node, inside)
        if _is_hasty(node, scope):
            raise PipelineError(
                f"from_tf: {node.op} gives elements in the order in which they are ready "
                "(deterministic=False)",
                help="leave deterministic=False out: then the order never depends on the machine",
                operation=node.op,
            )
        doubt = (
            _doubt(node) if inside else None
        )  # outside, a graph only gives variables their values
        if doubt == "python":
            python = python or node
        elif doubt is not None:
            raise UnrepeatableFunction(
                f"from_tf: {node.op} in a function of the pipeline "
                + ("draws random numbers" if doubt == "random" else "depends on what ran before it")
                + ", which neither replaying nor tf.data's own iterator state repeats",
                help="use tf.random.stateless_* with a seed that is part of the element, or move the function "
                "into playhead: from_tf(ds).map(fn, rng=True)",
                operation=node.op,
            )
    if blueprint.leaves is Leaves.CHANCE:
        raise PipelineError(
            "from_tf: a shuffle that is repeated is read ahead and then cut short, so the order of later "
            "passes depends on how far tf.data had read",
            help="put take (or zip) before prefetch and parallel calls, or say "
            "shuffle(reshuffle_each_iteration=False)",
        )
    if saves_state:
        _require_exact_state(blueprint, python)
    elif python is not None:
        warn(
            f"from_tf: this pipeline calls Python ({python.op}): resuming calls it again for the elements "
            "before, and repeats them only where the function depends on nothing but its input; "
            "playhead's from_generator(fn) with start= resumes at once",
            PlayheadWarning,
        )


def calls_python(blueprint: Blueprint) -> str | None:
    """ "from_generator" or "py_function" where a pipeline runs Python code, else None."""
    found = [node.op for node, _ in _scoped(blueprint)]
    if "GeneratorDataset" in found:
        return "from_generator"
    return "py_function" if any(op in _PYTHON_CALLS for op in found) else None


def _require_exact_state(blueprint: Blueprint, python: Any) -> None:
    why = None
    if python is not None:
        why = f"{python.op} calls Python, whose state TensorFlow cannot save ({python.op} is stateful)"
    for node in blueprint.nodes.values():
        if kind_of(node) == "DirectedInterleave":
            why = (
                f"{node.op} (sample_from_datasets, choose_from_datasets, rejection_resample) does not "
                "come back where one of its datasets has ended: TensorFlow then hangs"
            )
        elif kind_of(node) == "Concatenate" and blueprint.leaves is not Leaves.NOTHING:
            why = (
                f"{node.op} of datasets that are shuffled anew: TensorFlow loses the seed of a later "
                "one that was not begun"
            )
    if why is not None:
        raise PipelineError(
            f'from_tf(state="iterator"): {why}',
            help='state="skip" counts elements instead, and needs nothing saved',
        )


def _unseeded(node: Any, inside: bool) -> PipelineError:
    """The shuffle may be called another thing in TensorFlow: a RandomDataset is sample_from_datasets."""
    where = "in a function of the pipeline " if inside else ""
    ways = "give it seed=..., and the position counts elements"
    if not inside:
        ways += '; or from_tf(ds, state="iterator") saves tf.data\'s own iterator state, which holds the seeds'
    return PipelineError(
        f"from_tf: {node.op} {where}has no seed: a restored run would have another order",
        help=ways,
        operation=node.op,
    )


def _is_hasty(node: Any, scope: dict[str, Any]) -> bool:
    """Whether a node may give elements in another order than they were asked for."""
    if node.attr["deterministic"].s == b"false" if "deterministic" in node.attr else False:
        return True
    if "serialized_options" in node.attr:
        options = dataset_options_pb2.Options.FromString(node.attr["serialized_options"].s)
        return bool(options.HasField("deterministic") and not options.deterministic)
    return "sloppy" in node.attr and bool(node.attr["sloppy"].b)


def _scoped(blueprint: Blueprint) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each node of the pipeline and of its functions, with the nodes around it by name."""
    scopes = [blueprint.nodes]
    scopes += [{node.name: node for node in f.node_def} for f in blueprint.functions.values()]
    for scope in scopes:
        for node in scope.values():
            yield node, scope
