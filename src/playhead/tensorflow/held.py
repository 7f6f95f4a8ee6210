"""Arrays of a graph that are held once, however many copies of the graph are made."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

_numbers = itertools.count()


class Arrays:
    """The values of constants, in memory of TensorFlow that goes with this object.

    `nodes` is a serialized GraphDef in which each constant is a node that hands out the array held here,
    under the constant's name. A graph that has been run with it keeps the arrays that it uses.
    """

    def __init__(self, constants: Sequence[Any]) -> None:
        graph = graph_pb2.GraphDef()
        handles = []
        for node in constants:
            name = f"playhead-array-{os.getpid()}-{next(_numbers)}"
            handles.append(_held(name, node.attr["value"].tensor))
            _hand_out(graph, node.name, name, handles[-1])
        self.nodes: bytes = graph.SerializeToString()
        freed = weakref.finalize(self, _let_go, [handle for handle, *_ in handles], os.getpid())
        freed.atexit = False


def _held(name: str, proto: Any) -> tuple[Any, int, Any]:
    """A variable's handle, its dtype and its shape."""
    with tf.init_scope(), tf.device("/CPU:0"):
        value = tf.io.parse_tensor(proto.SerializeToString(), tf.as_dtype(proto.dtype))
        handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=value.shape, shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle, proto.dtype, proto.tensor_shape


def _hand_out(graph: Any, constant: str, name: str, held: tuple[Any, int, Any]) -> None:
    _, dtype, shape = held
    handle = graph.node.add(name=f"{constant}/playhead_array", op="VarHandleOp")
    handle.attr["dtype"].type = dtype
    handle.attr["shape"].shape.CopyFrom(shape)
    handle.attr["shared_name"].s = name.encode()
    value = graph.node.add(name=constant, op="ReadVariableOp", input=[handle.name])
    value.attr["dtype"].type = dtype


def _let_go(handles: list[Any], process: int) -> None:
    if process != os.getpid():
        return
    with (
        tf.init_scope(),
        tf.device("/CPU:0"),
    ):  # the garbage may be collected while a function is traced
        for handle in handles:
            tf.raw_ops.DestroyResourceOp(resource=handle)
