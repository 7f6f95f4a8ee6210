"""Elements on TensorFlow's devices."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph
from playhead.errors import PipelineError, WrongDoor


def test_elements_become_tensors_on_the_device_that_was_asked_for() -> None:
    def everything(x: np.int64) -> dict[str, object]:
        return {"f": np.full((2,), x, np.float32), "i": x, "b": np.bool_(x > 0), "s": f"é{x}"}

    ds = ph.Dataset.range(4).map(everything, form="python").batch(2)
    whole = list(ds.iterator())
    place = tf.config.list_logical_devices("CPU")[0]
    for device in ("/CPU:0", "CPU:0", "cpu:0", "/device:CPU:0", "/CPU", place):
        it = ph.tensorflow.prefetch_to_device(ds.iterator(), device)
        for batch, expected in zip(it, whole, strict=True):
            assert all("CPU:0" in batch[key].device for key in "fibs")
            assert [batch[key].dtype for key in "fib"] == [tf.float32, tf.int64, tf.bool]
            assert all(np.array_equal(batch[key], expected[key]) for key in "fib")
            assert [text.decode() for text in batch["s"].numpy()] == list(expected["s"])


@pytest.mark.parametrize("device", ["/GPU:7", "/CPU:3", "TPU:0", "nonsense", "/job:worker/GPU:0/x"])
def test_a_device_that_is_not_there_is_refused_and_those_that_are_get_named(device: str) -> None:
    with pytest.raises(PipelineError, match="/device:CPU:0"):
        ph.tensorflow.prefetch_to_device(ph.Dataset.range(4).iterator(), device)


def test_an_object_that_no_tensor_holds_is_an_error_at_its_step() -> None:
    ds = ph.Dataset.range(4).map(lambda x: object() if x == 2 else x, form="python")
    it = ph.tensorflow.prefetch_to_device(ds.iterator(), "/CPU:0")
    assert [int(next(it)), int(next(it))] == [0, 1]
    with pytest.raises(PipelineError, match="TensorFlow cannot hold") as raised:
        next(it)
    assert raised.value.__notes__ == ["playhead: while putting step 3 on the device"]
    assert it.step == it.position.step == 2


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_inside_a_graph_it_is_refused_and_nothing_is_taken(taken: int) -> None:
    it = ph.tensorflow.prefetch_to_device(ph.Dataset.range(4).iterator(), "/CPU:0")
    for _ in range(taken):
        next(it)
    with pytest.raises(WrongDoor):
        tf.function(lambda: next(it), autograph=False)()
    assert it.step == taken
    assert [int(x) for x in it] == list(range(taken, 4))


TWO_DEVICES = """
import numpy as np, tensorflow as tf, playhead as ph

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
ds = ph.Dataset.range(11).shuffle(seed=2).map(lambda x: {"x": np.float32(x), "s": str(x)}).batch(4)
whole = [batch["x"] for batch in ds.iterator(epochs=2)]

run = ph.tensorflow.prefetch_to_device(ds.iterator(epochs=2), "/CPU:1")
texts = [run.state_dict()]
for number, batch in enumerate(run):
    assert batch["x"].device.endswith("CPU:1") and batch["s"].device.endswith("CPU:0")
    assert np.array_equal(batch["x"], whole[number])
    texts.append(run.state_dict())
assert len(texts) == 7
for step, text in enumerate(texts):
    again = ph.tensorflow.prefetch_to_device(ds.iterator(epochs=2), "/CPU:1")
    again.load_state_dict(text)
    tail = list(again)
    assert all(batch["x"].device.endswith("CPU:1") for batch in tail) and len(tail) == 6 - step
    assert all(np.array_equal(batch["x"], w) for batch, w in zip(tail, whole[step:]))
print("held")
"""


def test_batches_lie_on_the_second_device_and_resume_there() -> None:
    found = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True)
    assert found.returncode == 0 and found.stdout == "held\n", found.stderr
