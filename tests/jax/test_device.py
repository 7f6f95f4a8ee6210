"""Elements on JAX's devices."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import playhead as ph

jax = pytest.importorskip("jax")


def test_arrays_become_jax_arrays_on_the_device_and_the_rest_stays() -> None:
    def everything(x: np.int64) -> dict[str, object]:
        return {
            "f": np.full((2,), x, np.float32),
            "b": np.bool_(x > 0),
            "s": str(x),
            "raw": b"\x00" * int(x),
            "when": np.datetime64("2020-01-01") + np.timedelta64(int(x), "D"),
        }

    ds = ph.Dataset.range(4).map(everything, form="python").batch(2)
    device = jax.devices()[0]
    for batch, expected in zip(
        ph.jax.prefetch_to_device(ds.iterator(), device=device), ds.iterator(), strict=True
    ):
        for key in ("f", "b"):
            assert isinstance(batch[key], jax.Array) and batch[key].devices() == {device}
            assert batch[key].dtype == expected[key].dtype
        for key in ("s", "raw", "when"):
            assert type(batch[key]) is np.ndarray
        assert all(np.array_equal(batch[key], expected[key]) for key in expected)


def test_int64_becomes_int32_unless_x64_is_enabled() -> None:
    ds = ph.Dataset.range(4).batch(4)
    assert next(ph.jax.prefetch_to_device(ds.iterator())).dtype == np.int32
    with jax.enable_x64(True):
        assert next(ph.jax.prefetch_to_device(ds.iterator())).dtype == np.int64


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(TypeError, match=r"jax\.devices\(\)"):
        ph.jax.prefetch_to_device(ph.Dataset.range(4).iterator(), device="cpu")


TWO_DEVICES = """
from itertools import islice

import jax, numpy as np, playhead as ph
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

first, second = jax.devices()
ds = ph.Dataset.range(11).shuffle(seed=2).map(lambda x: {"x": np.float32(x), "s": str(x)}).batch(4)
whole = [batch["x"] for batch in ds.iterator(epochs=2)]

def put(device, take=6):
    it = ph.jax.prefetch_to_device(ds.iterator(epochs=2), device=device)
    return it, list(islice(it, take))

for device in (second, SingleDeviceSharding(second)):
    _, batches = put(device)
    assert [b["x"].devices() for b in batches] == [{second}] * 6
    assert all(np.array_equal(b["x"], w) for b, w in zip(batches, whole, strict=True))

sharding = NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec("data"))
it, batches = put(sharding, 2)
for batch, expected in zip(batches, whole):
    assert batch["x"].sharding == sharding and type(batch["s"]) is np.ndarray
    parts = {part.device: np.asarray(part.data) for part in batch["x"].addressable_shards}
    assert np.array_equal(parts[first], expected[:2]) and np.array_equal(parts[second], expected[2:])

# The last batch of an epoch has 3 elements, which no two devices share evenly.
try:
    next(it)
except ValueError as error:
    assert error.__notes__ == ["playhead: while putting step 3 on the device"]
    assert it.step == it.position.step == 2
else:
    raise AssertionError

even = ds.take(2)
run = ph.jax.prefetch_to_device(even.iterator(epochs=3), device=sharding)
texts = [run.state_dict()]
values = []
for batch in run:
    values.append(np.asarray(batch["x"]))
    texts.append(run.state_dict())
assert len(values) == 6
for step, text in enumerate(texts):
    again = ph.jax.prefetch_to_device(even.iterator(epochs=3), device=sharding)
    again.load_state_dict(text)
    tail = [np.asarray(batch["x"]) for batch in again]
    assert all(map(np.array_equal, tail, values[step:])) and len(tail) == 6 - step
print("held")
"""


def test_batches_lie_sharded_over_two_devices_and_resume_there() -> None:
    found = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
    )
    assert found.returncode == 0 and found.stdout == "held\n", found.stderr


def test_what_was_handed_out_is_never_written_again() -> None:
    ds = ph.Dataset.range(4000).map(lambda x: np.full(64, x, np.float32)).batch(50).prefetch(4)
    kept = list(ph.jax.prefetch_to_device(ds.iterator(epochs=2), size=4))
    for k, batch in enumerate(kept):
        first = 50 * (k % 80)
        assert np.array_equal(np.asarray(batch)[:, 0], np.arange(first, first + 50))
