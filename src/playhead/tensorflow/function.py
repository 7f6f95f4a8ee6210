"""A function of TensorFlow operations, traced once and run on whole chunks of elements.

The function becomes one graph over one element. `MapDefun`, an operation of tf.data's own, runs it on every
row of a chunk in one call: each element is computed by itself, so no value depends on how the elements were
cut into chunks, in half the time of a `tf.while_loop`. Nothing rewrites the graph on the way there, so results
are bit for bit those of tf.data's map (grappler, in a loop, turns a division by 255 into another product).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from playhead.plan.aligned import aligned_empty
from playhead.plan.block import ArraySpec, Block, Columns, Nest, Rows, leaves, map_nest, stack
from playhead.plan.functions import Randomness, UserFunction
from playhead.plan.randomness import seed_pairs
from playhead.tensorflow.convert import eagerly
from playhead.tensorflow.repeatable import require_repeatable
from playhead.tensorflow.trace import Result, Signature, Traced, trace

Array = np.ndarray[Any, Any]

# One element at a time within a chunk: chunks run side by side in the pool. With two threads calling, more
# at once gave no more parsed examples a second, and decoding JPEGs took more processor time for it.
_AT_ONCE = 1

_CPU = "/CPU:0"


def block_form(function: UserFunction, one: Block, with_rng: bool) -> Chunks:
    """`function` traced for elements like the one in `one`, as a function of blocks.

    Where `with_rng`, its last argument is an int32[2] seed chosen by the element's place. Raises `FormError`
    where it cannot be traced, `UnrepeatableFunction` where its graph depends on more than its input.
    """
    signature = Signature.of(function, one)
    return eagerly(lambda: _built(function, signature, with_rng))


def _built(function: UserFunction, signature: Signature, with_rng: bool) -> Chunks:
    with tf.device(_CPU):
        traced = trace(function, signature, with_rng)
        require_repeatable(function, traced.graph)
        return Chunks(signature, with_rng, traced, _over_chunks(traced))


def _over_chunks(traced: Traced) -> tf.types.experimental.ConcreteFunction:
    graph = traced.graph
    inputs = graph.inputs[: len(graph.inputs) - len(graph.captured_inputs)]
    specs = [tf.TensorSpec([None, *part.shape], part.dtype) for part in inputs]

    def chunk(*columns: tf.Tensor) -> list[tf.Tensor]:
        results = tf.raw_ops.MapDefun(
            arguments=columns,
            captured_inputs=graph.captured_inputs,
            output_types=[part.dtype for part in graph.outputs],
            output_shapes=[part.shape for part in graph.outputs],
            f=graph,
            max_intra_op_parallelism=_AT_ONCE,
        )
        return list(results) if traced.fixed else _unpacked(results[0], traced.parts)

    return tf.function(chunk, input_signature=specs, autograph=False).get_concrete_function()


def _unpacked(packed: tf.Tensor, parts: list[tf.TensorSpec]) -> list[tf.Tensor]:
    """The parts of a chunk's results: those of fixed shape stacked, vectors of any length end to end."""
    count = tf.size(packed)
    arrays = [
        tf.TensorArray(part.dtype, size=count, element_shape=part.shape, infer_shape=False)
        for part in parts
    ]

    def body(k: tf.Tensor, *arrays: tf.TensorArray) -> tuple[Any, ...]:
        values = tf.raw_ops.OptionalGetValue(
            optional=packed[k],
            output_types=[part.dtype for part in parts],
            output_shapes=[part.shape for part in parts],
        )
        return (k + 1, *[a.write(k, value) for a, value in zip(arrays, values, strict=True)])

    whole = tf.while_loop(
        lambda k, *_: k < count,
        body,
        (0, *arrays),
        parallel_iterations=1,
        maximum_iterations=count,
    )[1:]
    return [
        array.stack() if part.shape.is_fully_defined() else array.concat()
        for array, part in zip(whole, parts, strict=True)
    ]


class Chunks:
    """A traced function that runs on blocks, in any number of threads at once.

    Results of fixed shape come as `Columns`, others as `Rows`; strings come as bytes.
    """

    def __init__(
        self,
        signature: Signature,
        with_rng: bool,
        traced: Traced,
        chunk: Callable[..., list[tf.Tensor]],
    ) -> None:
        self._signature = signature
        self._specs = signature.specs
        self._with_rng = with_rng
        self._traced = traced  # holds what the graph captured
        self._kinds: list[Result] = list(leaves(traced.results))
        self._chunk = chunk
        known = all(kind.shape is not None for kind in self._kinds)
        self.spec: Nest | None = map_nest(_spec, traced.results) if known else None

    def __call__(self, block: Block, randomness: Randomness | None) -> Block:
        seeds = None
        if self._with_rng:
            assert randomness is not None
            seeds = seed_pairs(randomness.wide, randomness.places.epochs(), randomness.places.index)
        try:
            return self._results_of(block, seeds)
        except tf.errors.OpError:
            if len(block) > 1:
                self._blame(block, seeds)
            raise

    def _blame(self, block: Block, seeds: Array | None) -> None:
        """Raises the error of the first element that fails by itself, marked with which it is."""
        for k in range(len(block)):
            try:
                self._results_of(block.slice(k, k + 1), None if seeds is None else seeds[k : k + 1])
            except tf.errors.OpError as error:
                error.__dict__["playhead_element"] = k
                raise

    def _results_of(self, block: Block, seeds: Array | None) -> Block:
        if isinstance(block, Columns):
            return self._run(self._signature.flat(block.nest), seeds, len(block))
        return self._of_rows(block.rows(), seeds)

    def _of_rows(self, elements: list[Any], seeds: Array | None) -> Block:
        """Elements of equal shapes go together; the results come in the elements' order."""
        rows = [self._signature.flat(element) for element in elements]
        alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, row in enumerate(rows):
            for leaf, spec in zip(row, self._specs, strict=True):
                self._signature.check(leaf, spec)
            alike.setdefault(tuple(getattr(leaf, "shape", ()) for leaf in row), []).append(place)
        blocks = []
        for chosen in alike.values():
            columns = [_column([rows[k][j] for k in chosen]) for j in range(len(self._specs))]
            blocks.append(self._run(columns, None if seeds is None else seeds[chosen], len(chosen)))
        return blocks[0] if len(blocks) == 1 else _in_place(blocks, list(alike.values()), len(rows))

    def _run(self, columns: list[Any], seeds: Array | None, length: int) -> Block:
        return eagerly(lambda: self._run_eagerly(columns, seeds, length))

    def _run_eagerly(self, columns: list[Any], seeds: Array | None, length: int) -> Block:
        with tf.device(_CPU):
            given = [tf.constant(c, s.dtype) for c, s in zip(columns, self._specs, strict=True)]
            if seeds is not None:
                given.append(tf.constant(seeds))
            arrays = iter([_own(tensor) for tensor in self._chunk(*given)])
        results = [self._taken(kind, arrays, length) for kind in self._kinds]
        if self._traced.fixed:
            each = iter(results)
            return Columns(map_nest(lambda _: next(each), self._traced.results), length)
        rows = []
        for parts in zip(*results, strict=True):
            values = iter(parts)
            rows.append(map_nest(lambda _, values=values: next(values), self._traced.results))
        return Rows(rows)

    def _taken(self, kind: Result, arrays: Iterator[Array], length: int) -> Any:
        """One result of each of the chunk's elements."""
        values = next(arrays)
        if kind.fixed:
            return values
        shapes: Any = next(arrays)
        if kind.shape is None:
            shapes = np.split(shapes, np.cumsum(next(arrays))[:-1])
        stops = np.cumsum([np.prod(shape, dtype=np.int64) for shape in shapes])
        cut = np.split(values, stops[:-1])
        parts = [part.reshape(shape) for part, shape in zip(cut, shapes, strict=True)]
        return [part[()] for part in parts] if kind.shape is None else parts


def _own(tensor: tf.Tensor) -> Array:
    """A tensor's values as an array that may be written to.

    The chunk's results were made by this call and nobody else holds them, so their memory itself can be
    handed out: copying it, as `numpy` does, would cost a third of decoding a JPEG.
    """
    view = getattr(tensor, "_numpy", None)
    array: Any = tensor.numpy() if view is None or tensor.dtype == tf.string else view()
    return array if isinstance(array, np.ndarray) and array.flags.writeable else np.array(array)


def _column(values: list[Any]) -> Array:
    if len(values) == 1 and isinstance(values[0], np.ndarray):
        return values[0][None]
    column: Array = stack(values)
    return column


def _in_place(blocks: list[Block], places: list[list[int]], length: int) -> Block:
    """Results that were computed in groups, as one block in which those of `blocks[k]` stand at `places[k]`."""
    columns = [block.nest for block in blocks if isinstance(block, Columns)]
    if len(columns) < len(blocks):
        rows: list[Any] = [None] * length
        for block, chosen in zip(blocks, places, strict=True):
            for place, row in zip(chosen, block.rows(), strict=True):
                rows[place] = row
        return Rows(rows)

    def placed(*parts: Array) -> Array:
        out = aligned_empty((length, *parts[0].shape[1:]), parts[0].dtype)
        for part, chosen in zip(parts, places, strict=True):
            out[chosen] = part
        return out

    return Columns(map_nest(placed, *columns), length)


def _spec(kind: Result) -> ArraySpec:
    assert kind.shape is not None
    return ArraySpec(
        kind.shape, bytes if kind.dtype == tf.string else np.dtype(kind.dtype.as_numpy_dtype)
    )
