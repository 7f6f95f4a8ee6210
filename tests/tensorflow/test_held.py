"""What TensorFlow holds for us: arrays once for all copies of a pipeline, iterators until Python ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import playhead as ph
from playhead.tensorflow.blueprint import Blueprint

LARGE = {
    "floats": np.random.default_rng(0).random((300, 100)).astype(np.float32),
    "flags": np.arange(300 * 300).reshape(300, 300) % 3 == 0,
    "halves": np.arange(60_000, dtype=np.float16).reshape(300, 200),
    "longs": np.arange(-30_000, 30_000).reshape(300, 200),
    "words": np.array([b"%d\0x" % k for k in range(30_000)], object).reshape(300, 100),
}


def test_large_arrays_of_any_dtype_come_through_every_copy() -> None:
    ds = ph.Dataset.from_tf(tf.data.Dataset.from_tensor_slices(LARGE).batch(100))
    for epoch in (0, 1, 2):
        found = list(ds.epoch(epoch))
        for name, array in LARGE.items():
            whole = np.concatenate([batch[name] for batch in found])
            assert whole.dtype == array.dtype
            assert whole.tolist() == array.tolist()


def test_arrays_that_a_function_captures_come_through_too() -> None:
    table = tf.constant(LARGE["floats"])
    made = tf.data.Dataset.range(300).shuffle(50, seed=1).map(lambda k: (k, table[k]))
    for number, row in ph.Dataset.from_tf(made).iterator(epochs=2):
        assert row.tolist() == LARGE["floats"][number].tolist()


def names(blueprint: Blueprint) -> list[str]:
    """What the arrays of a pipeline are called where TensorFlow holds them."""
    graph = graph_pb2.GraphDef.FromString(blueprint.arrays.nodes)
    return [n.attr["shared_name"].s.decode() for n in graph.node if n.op == "VarHandleOp"]


def is_there(name: str) -> bool:
    with tf.device("/CPU:0"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(300, 100), shared_name=name)
        return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def test_a_copy_holds_no_array_of_its_own_and_arrays_go_with_the_pipeline() -> None:
    array = LARGE["floats"]
    blueprint = Blueprint(tf.data.Dataset.from_tensor_slices(array))
    assert len(blueprint.arrays.nodes) < array.nbytes // 100
    (name,) = names(blueprint)
    assert is_there(name)
    elements = iter(blueprint.copy(None))
    first = next(elements)
    del blueprint
    gc.collect()
    assert not is_there(name)
    rest = [first, *elements]  # what was opened goes on
    assert np.array_equal(np.stack([x.numpy() for x in rest]), array)


LEAVING = """
import sys
import tensorflow as tf
import playhead as ph

@tf.function
def taken(it):
    return next(it)

plain = ph.tensorflow.iterator(ph.Dataset.range(100).batch(4).prefetch(2))
with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    split = ph.tensorflow.iterator(ph.Dataset.range(100).batch(4), strategy=tf.distribute.get_strategy())
print(taken(plain).numpy().tolist(), taken(split).numpy().tolist(), plain.position.step)
"""


def test_iterators_that_are_open_when_python_ends_say_nothing(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(LEAVING)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert done.stdout.splitlines()[-1] == "[0, 1, 2, 3] [0, 1, 2, 3] 1"
    assert "GeneratorDataset" not in done.stderr
