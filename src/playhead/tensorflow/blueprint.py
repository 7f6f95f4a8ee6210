"""The serialized graph of a tf.data pipeline: fresh copies of it, its digest, and what a pass leaves behind.

A `tf.data.Dataset` is not a value: a shuffle that reshuffles draws its next seed from a generator inside the
dataset object whenever an iterator is opened over it, and `cache()` keeps its elements there. A copy made of
the graph, with resources under names of its own, begins anew, however often the original was iterated.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from playhead.errors import PipelineError
from playhead.plan.block import Nest
from playhead.plan.randomness import key
from playhead.tensorflow.held import Arrays

_IGNORE = 1  # the external state policy of DatasetToGraphV2 that serializes what is stateful, too
_HELD = ("SeedGenerator", "MemoryCache")  # resources in which a dataset object remembers
_NAMES = (
    "container",
    "metadata",
    "shared_name",
    "token",
)  # attributes that name things in a process
_LARGE = 1 << 16  # bytes of a constant
_copies = itertools.count()

# Kinds of datasets that open all they read from when they are opened; the others open some of it later
_AT_ONCE = frozenset({
    "AssertCardinality", "AssertNext", "Batch", "Filter", "FlatMap", "GroupByWindow", "IgnoreErrors",
    "Interleave", "Map", "MapAndBatch", "Model", "Options", "PaddedBatch", "ParallelBatch", "ParallelFilter",
    "ParallelInterleave", "ParallelMap", "Prefetch", "Rebatch", "Scan", "Shard", "Skip", "Take", "TakeWhile",
    "Unbatch", "Unique", "Window",
})  # fmt: skip
_ALL_AT_ONCE = frozenset({"DirectedInterleave", "Zip"})
_CUT = frozenset({"DirectedInterleave", "Take", "TakeWhile", "Zip"})
_AHEAD = frozenset({
    "MapAndBatch", "ParallelBatch", "ParallelFilter", "ParallelInterleave", "ParallelMap", "Prefetch",
})  # fmt: skip


class Leaves(enum.Enum):
    """What a pass over a dataset object changes for the next one."""

    NOTHING = "nothing"
    AN_OPENING = "one opening"  # opening an iterator has the whole effect of a pass
    A_FIRST_PASS = "a cache"  # the first pass fills a cache; later ones as above
    A_PASS = "a whole pass"
    CHANCE = "chance"  # how far read-ahead got when the pass was cut short


class Blueprint:
    """The graph of a tf.data pipeline; `content` is its digest.

    Raises `PipelineError` where TensorFlow cannot serialize it.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            try:
                text = tf.raw_ops.DatasetToGraphV2(
                    input_dataset=tf.data.experimental.to_variant(dataset),
                    external_state_policy=_IGNORE,
                    strip_device_assignment=True,
                ).numpy()
                whole = graph_pb2.GraphDef.FromString(text)
            except Exception as error:  # protobuf has its own for what is too large
                raise PipelineError(
                    f"from_tf: TensorFlow cannot serialize this pipeline: {getattr(error, 'message', error)}",
                    help="arrays of more than 2 GB go in by playhead.Dataset.from_tensor_slices, files by "
                    "from_tfrecords",
                ) from error
        self.definition = whole
        self.content = self._digest()
        large = [node for node in whole.node if _is_large(node)]
        self.arrays = Arrays(large)
        if large:
            small = [node for node in whole.node if not _is_large(node)]
            rest = graph_pb2.GraphDef(node=small, library=whole.library, versions=whole.versions)
            self.definition = rest
            self.__dict__.pop("nodes", None)  # those of the whole
        self.spec: Nest = dataset.element_spec
        # Python functions, tables and variables in the graph live as long as it.
        self._original = dataset

    @cached_property
    def nodes(self) -> dict[str, Any]:
        """The nodes of the pipeline itself, by name."""
        return {node.name: node for node in self.definition.node}

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The functions that they call, by name; the library may hold others."""
        library = {part.signature.name: part for part in self.definition.library.function}
        found: dict[str, Any] = {}
        waiting = list(_called(self.definition.node))
        while waiting:
            name = waiting.pop()
            if name in library and name not in found:
                found[name] = library[name]
                waiting += _called(library[name].node_def)
        return found

    # --- copies -----------------------------------------------------------------------------------------

    def copy(self, seed: int | None) -> tf.data.Dataset:
        """A dataset over which nobody has iterated; `seed` is for the shuffles that have none."""
        made = graph_pb2.GraphDef()
        made.CopyFrom(self.definition)
        mark = f"playhead-{os.getpid()}-{next(_copies)}"
        for node in made.node:
            for handle in _handles(node):
                handle.name = f"{handle.name}/{mark}"
        if seed is not None:
            for number, node in enumerate(self.unseeded):
                _plant(made, node.name, (key(seed, "from_tf", number) & (2**63 - 1)) or 1)
        with tf.init_scope(), tf.device("/CPU:0"):
            variant = tf.raw_ops.DatasetFromGraph(
                graph_def=made.SerializeToString() + self.arrays.nodes
            )
            return tf.data.experimental.from_variant(variant, self.spec)

    @cached_property
    def unseeded(self) -> list[Any]:
        """The nodes of the pipeline itself that TensorFlow gives a seed of its own in each process."""
        return [n for n in self.definition.node if is_unseeded(n, self.nodes)]

    # --- what it is -------------------------------------------------------------------------------------

    def _digest(self) -> str:
        """32 hexadecimal digits of its operations, constants and functions, without the names in it.

        The same in every process that builds the pipeline alike. Variables count by the value that they had
        when the graph was made, and keep in it. Not in it: what files hold, what tables hold, Python code
        behind py_function and from_generator.
        """
        return _Digest(self.functions).of_outputs(self.nodes, self._roots()).hex()

    def _roots(self) -> list[str]:
        return [node.name for node in self.definition.node if node.op == "_Retval"]

    @cached_property
    def leaves(self) -> Leaves:
        """What a pass changes for the next: decided by the reshuffling operations and what stands over them."""
        found = {self._left_by(visit) for visit in self._visited()}
        for kind in (Leaves.CHANCE, Leaves.A_PASS, Leaves.A_FIRST_PASS, Leaves.AN_OPENING):
            if kind in found:
                return kind
        return Leaves.NOTHING

    def _left_by(self, visit: tuple[str, bool, bool, int]) -> Leaves:
        name, late, cached, stage = visit
        if not _reshuffles(self.nodes[name]):
            return Leaves.NOTHING
        if stage == 3:
            return Leaves.CHANCE
        if late:
            return Leaves.A_PASS
        return Leaves.A_FIRST_PASS if cached else Leaves.AN_OPENING

    def _visited(self) -> Iterator[tuple[str, bool, bool, int]]:
        """(name, opened late, under a cache, stage) of each node, for each way that leads to it.

        stage 1: under what may end early; 2: and under what reads ahead; 3: and opened late.
        """
        seen: set[tuple[str, bool, bool, int]] = set()
        waiting = [(name, False, False, 0) for name in self._roots()]
        while waiting:
            visit = waiting.pop()
            if visit in seen:
                continue
            seen.add(visit)
            yield visit
            name, late, cached, stage = visit
            node = self.nodes[name]
            kind = kind_of(node)
            stage = {0: 1 if kind in _CUT else 0, 1: 2 if kind in _AHEAD else 1}.get(stage, stage)
            if kind == "Cache" and self._in_file(node):
                continue  # read from the file by whoever comes later
            for number, source in enumerate(_sources(node, self.nodes)):
                at_once = kind in _ALL_AT_ONCE or (kind in _AT_ONCE and number == 0)
                behind = at_once or kind in ("Cache", "_Retval", "Identity")
                further = 3 if stage == 2 and not behind else stage
                waiting.append((source, late or not behind, cached or kind == "Cache", further))

    def _in_file(self, node: Any) -> bool:
        value = constant(node, 1, self.nodes)
        return value is not None and value.size == 1 and bool(value.item())


def _is_large(node: Any) -> bool:
    resource = tf.resource.as_datatype_enum
    return bool(
        node.op == "Const" and node.attr["dtype"].type != resource and node.ByteSize() > _LARGE
    )


def kind_of(node: Any) -> str:
    """`Shuffle` for `ShuffleDatasetV3`: what a dataset operation is called in all its versions."""
    return re.sub(r"(Dataset)?(V\d+)?$", "", node.op)


def is_unseeded(node: Any, nodes: dict[str, Any]) -> bool:
    """Whether a node has two seeds as inputs and both are 0, which to TensorFlow means any."""
    at = _seeds(node.op)
    values = [constant(node, number, nodes) for number in at]
    return bool(at) and all(v is not None and v.size == 1 and v.item() == 0 for v in values)


def _seeds(op: str) -> list[int]:
    definition = _definition(op)
    if definition is None:
        return []
    names = [argument.name for argument in definition.input_arg]
    return [names.index(n) for n in ("seed", "seed2")] if {"seed", "seed2"} <= {*names} else []


def _definition(op: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def constant(node: Any, number: int, nodes: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    """The value of a node's input where that is a constant."""
    if number >= len(node.input):
        return None
    source = nodes.get(_name(node.input[number]))
    if (
        source is None
        or source.op != "Const"
        or source.attr["dtype"].type == tf.resource.as_datatype_enum
    ):
        return None
    value: np.ndarray[Any, Any] = tf.make_ndarray(source.attr["value"].tensor)
    return value


def _name(reference: str) -> str:
    return reference.lstrip("^").split(":")[0]


def _sources(node: Any, nodes: dict[str, Any]) -> list[str]:
    """The datasets among a node's inputs."""
    names = [_name(reference) for reference in node.input if not reference.startswith("^")]
    return [n for n in names if n in nodes and nodes[n].op not in ("Const", "Placeholder")]


def _reshuffles(node: Any) -> bool:
    return any(
        node.attr[name].b
        for name in ("reshuffle_each_iteration", "rerandomize_each_iteration")
        if name in node.attr
    )


def _called(nodes: Any) -> Iterator[str]:
    for node in nodes:
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            yield from (part.name for part in value.list.func)


def _handles(node: Any) -> list[Any]:
    """The resources in a constant in which a dataset object remembers something."""
    if node.op != "Const":
        return []
    found = node.attr["value"].tensor.resource_handle_val
    return [h for h in found if any(kind in h.maybe_type_name + h.name for kind in _HELD)]


def _plant(graph: Any, name: str, seed: int) -> None:
    """Give the node `name` seeds of its own."""
    node = next(n for n in graph.node if n.name == name)
    for number, at in enumerate(_seeds(node.op)):
        added = graph.node.add(name=f"{name}/playhead_seed_{number}", op="Const")
        added.attr["dtype"].type = tf.int64.as_datatype_enum
        value = seed if number == 0 else seed >> 31
        added.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
        node.input[at] = added.name


class _Digest:
    """Hashes nodes by what they compute: names do not count, functions do."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self._functions = functions
        self._known: dict[str, bytes] = {}

    def of_outputs(self, nodes: dict[str, Any], roots: list[str]) -> bytes:
        known: dict[str, bytes] = {}
        return _hash(*(self._of_node(nodes, root, known) for root in roots))

    def _of_function(self, name: str) -> bytes:
        if name not in self._known:
            self._known[name] = b"recursive"
            function = self._functions.get(name)
            if function is None:
                return name.encode()
            nodes = {node.name: node for node in function.node_def}
            arguments = [a.name for a in function.signature.input_arg]
            known = {n: _hash(b"argument", str(k).encode()) for k, n in enumerate(arguments)}
            parts = []
            for output in function.signature.output_arg:
                parts.append(self._of_reference(nodes, function.ret[output.name], known))
            effects = [self._of_node(nodes, _name(v), known) for v in function.control_ret.values()]
            self._known[name] = _hash(*parts, b"effects", *sorted(effects))
        return self._known[name]

    def _of_reference(
        self, nodes: dict[str, Any], reference: str, known: dict[str, bytes]
    ) -> bytes:
        port = reference.lstrip("^").partition(":")[2].encode()
        return _hash(self._of_node(nodes, _name(reference), known), port)

    def _of_node(self, nodes: dict[str, Any], root: str, known: dict[str, bytes]) -> bytes:
        """Bottom up, without recursion: graphs may be deep."""
        waiting = [root]
        while waiting:
            name = waiting[-1]
            if name in known:
                waiting.pop()
                continue
            node = nodes[name]
            missing = [n for n in map(_name, node.input) if n not in known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            data: list[bytes] = []
            after: list[bytes] = []
            for reference in node.input:
                port = reference.lstrip("^").partition(":")[2].encode()
                (after if reference.startswith("^") else data).append(
                    _hash(known[_name(reference)], port)
                )
            known[name] = _hash(
                node.op.encode(), *self._attributes(node), b"in", *data, b"^", *sorted(after)
            )
        return known[root]

    def _attributes(self, node: Any) -> Iterator[bytes]:
        for name in sorted(node.attr):
            if name in _NAMES or name.startswith("_") or _handles(node):
                continue
            value = node.attr[name]
            yield name.encode()
            if value.HasField("func"):
                yield self._of_function(value.func.name)
            elif value.list.func:
                yield from (self._of_function(part.name) for part in value.list.func)
            elif value.HasField("tensor") and value.tensor.resource_handle_val:
                yield b"resource"
            else:
                yield value.SerializeToString(deterministic=True)


def _hash(*parts: bytes) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()
