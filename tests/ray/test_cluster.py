"""What is read over a Ray cluster: the same as without one."""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys
import threading
import time

import google_crc32c
import numpy as np
import pytest

import playhead as ph
from playhead.execution.cluster import AHEAD, RayPool
from playhead.plan.block import leaves
from playhead.plan.node import Piece, Reading
from playhead.plan.places import Places

ray = pytest.importorskip("ray")
HOST = f"raised on {platform.node()}, a node of the Ray cluster"
pytestmark = pytest.mark.usefixtures("cluster")


def pieces(node, count, each=1):
    for start in range(0, count * each, each):
        places = Places(0, np.arange(start, start + each, dtype=np.int64))
        yield Piece(0, start, node.locate(places))


def all_leaves(elements):
    return [leaf for element in elements for leaf in leaves(element)]


def images():
    rows = {
        "image": np.arange(90 * 40 * 50, dtype=np.uint8).reshape(90, 40, 50),
        "label": np.arange(90),
    }
    ds = ph.Dataset.from_tensor_slices(rows).shuffle(seed=5)
    return ds.map(lambda e: {"image": e["image"] / np.float32(255), "label": e["label"]}).batch(16)


def drawn():
    return ph.Dataset.range(60).map(lambda x, rng: x + rng.random(3), rng=True, seed=9).batch(7)


def words():
    rows = [b"\x00%d\x00" % k for k in range(50)]
    return ph.Dataset.from_sequence(rows).shuffle(seed=2).map(lambda b: (b, b.decode() * 2))


def kept():
    return ph.Dataset.range(80).map(lambda x: x * 3).filter(lambda x: x % 2 == 0).batch(6)


def walked():
    numbers = ph.Dataset.from_generator(lambda: (np.full(300, k) for k in range(30)))
    return numbers.map(lambda x: x + 1).batch(4)


@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
@pytest.mark.parametrize("make", [images, drawn, words, kept, walked])
def test_a_pipeline_gives_what_it_gives_in_process(make):
    alone = list(make().iterator(epochs=2))
    with make().prefetch(on="ray", workers=2).iterator(epochs=2) as it:
        over_ray = list(it)
    assert len(over_ray) == len(alone) > 4
    for mine, theirs in zip(all_leaves(over_ray), all_leaves(alone), strict=True):
        assert type(mine) is type(theirs)
        np.testing.assert_array_equal(mine, theirs, strict=True)


def test_results_are_writable_and_aligned_and_hold_nothing_of_the_object_store():
    whole = ray.cluster_resources()["object_store_memory"] - (4 << 20)
    assert wait_until(lambda: free() >= whole)
    held = ray.put(np.zeros(20 << 20, np.uint8))
    assert wait_until(lambda: free() < whole - (16 << 20))
    del held

    def large(x):
        return np.full((1 << 20,), x, np.float32)

    with ph.Dataset.range(30).map(large).prefetch(4, on="ray", workers=2).iterator(epochs=1) as it:
        elements = list(it)
    for k, array in enumerate(elements):
        assert array.flags.writeable and array.ctypes.data % 64 == 0
        assert array[0] == array[-1] == k
        array[:] = -1
    assert sum(array.nbytes for array in elements) > 100 << 20
    assert wait_until(lambda: free() >= whole)


def free():
    return ray.available_resources()["object_store_memory"]


def wait_until(holds, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def test_small_batches_are_aligned_too():
    pool = RayPool(ph.Dataset.range(64).batch(8).node, 1)
    node = pool._plan.root
    outcome = pool.submit(Reading(node), next(pieces(node, 1))).result(60)
    pool.close()
    (batch,) = outcome.result.rows()
    assert batch.tolist() == list(range(8))
    assert batch.flags.writeable and batch.ctypes.data % 64 == 0


def test_the_plan_is_sent_once():
    pickled = []

    class Records:
        def __len__(self):
            return 100

        def __getitem__(self, k):
            return k

        def __reduce__(self):
            pickled.append(self)
            return list, (range(100),)

    ds = ph.Dataset.from_sequence(Records()).map(lambda x: x + 1)
    pool = RayPool(ds.node, 2)
    futures = [pool.submit(Reading(ds.node), piece) for piece in pieces(ds.node, 100)]
    values = [int(future.result(60).result.rows()[0]) for future in futures]
    pool.close()
    assert values == list(range(1, 101))
    assert len(pickled) == 1


def test_few_tasks_are_at_ray_at_once_and_the_others_can_be_cancelled():
    def slow(x):
        time.sleep(0.02)
        return x

    ds = ph.Dataset.range(60).map(slow)
    pool = RayPool(ds.node, 2)
    futures = [pool.submit(Reading(ds.node), piece) for piece in pieces(ds.node, 60)]
    assert sum(future.cancel() for future in futures[40:]) == 20
    most = 0
    while not all(future.done() for future in futures[:40]):
        most = max(most, sum(future.running() for future in futures))
        time.sleep(0.001)
    pool.close()
    assert 2 <= most <= 2 + AHEAD
    assert [int(f.result().result.rows()[0]) for f in futures[:40]] == list(range(40))


def test_an_error_comes_where_it_arose_with_its_record_and_its_node():
    def fails(x):
        if x == 37:
            raise KeyError(f"no {x}")
        return x

    it = ph.Dataset.range(60).map(fails).prefetch(on="ray", workers=2).iterator(epochs=1)
    got = []
    with pytest.raises(KeyError, match="no 37") as raised:
        got.extend(map(int, it))
    it.close()
    assert got == list(range(37))
    notes = "\n".join(raised.value.__notes__)
    assert "range[37]" in notes
    assert HOST in notes
    assert "in fails" in str(raised.value.__cause__)


def tfrecord(records):
    def masked(data):
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    lengths = [struct.pack("<Q", len(record)) for record in records]
    parts = zip(lengths, records, strict=True)
    return b"".join(size + masked(size) + record + masked(record) for size, record in parts)


def test_a_file_that_a_node_does_not_have_is_named_with_the_node(tmp_path):
    path = tmp_path / "numbers.tfrecord"
    path.write_bytes(tfrecord([b"%d" % k for k in range(20)]))
    ds = ph.Dataset.from_tfrecords(str(path))
    with ds.prefetch(on="ray", workers=1).iterator(epochs=1) as it:
        assert list(it) == [b"%d" % k for k in range(20)]
    path.rename(tmp_path / "elsewhere")
    it = ds.prefetch(on="ray", workers=1).iterator(epochs=1)
    with pytest.raises(ph.errors.SourceError, match=r"numbers\.tfrecord") as raised:
        next(it)
    it.close()
    assert HOST in raised.value.__notes__


def test_closing_stops_what_runs_and_leaves_no_thread():
    def hangs(x):
        time.sleep(600)
        return x

    ds = ph.Dataset.range(20).map(hangs)
    pool = RayPool(ds.node, 2)
    futures = [pool.submit(Reading(ds.node), piece) for piece in pieces(ds.node, 20)]
    assert wait_until(lambda: sum(future.running() for future in futures) == 2 + AHEAD)
    pool.close()
    assert all(future.done() for future in futures)
    assert "playhead_ray" not in {thread.name for thread in threading.enumerate()}
    assert wait_until(lambda: ray.available_resources().get("CPU") == 2)
    assert pool.submit(Reading(ds.node), next(pieces(ds.node, 1))).cancelled()


def test_a_pool_that_nobody_holds_ends():
    pool = RayPool(ph.Dataset.range(4).node, 1)
    thread = pool._courier.thread
    del pool
    thread.join(120)
    assert not thread.is_alive()


def test_what_cannot_be_pickled_is_refused_and_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    with pytest.raises(ph.errors.PipelineError, match="locked"):
        next(ph.Dataset.range(4).map(locked).prefetch(on="ray").iterator())


def test_another_playhead_on_a_node_is_refused(monkeypatch):
    from playhead.execution import courier

    monkeypatch.setattr(courier, "version", lambda: "0.0.0")
    it = ph.Dataset.range(4).map(lambda x: x).prefetch(on="ray", workers=1).iterator()
    with pytest.raises(ph.errors.PipelineError, match=rf"{ph.__version__}, .* 0\.0\.0"):
        next(it)
    it.close()


def test_a_plan_that_the_object_store_lost_is_sent_again():
    class Owner:
        def put(self, value):
            return [ray.put(value)]

    owner = ray.remote(Owner).options(num_cpus=0, max_restarts=3, max_task_retries=3).remote()
    ds = ph.Dataset.from_tensor_slices(np.arange(500_000)).map(lambda x: x + 1)
    pool = RayPool(ds.node, 1)
    letter = pool._courier.letter
    letter.ref = ray.get(owner.put.remote(ray.get(letter.ref)))[0]
    ray.kill(owner)
    outcome = pool.submit(Reading(ds.node), next(pieces(ds.node, 1))).result(60)
    pool.close()
    assert outcome.error is None
    assert int(outcome.result.rows()[0]) == 1


PROGRAM = """
import ray, playhead as ph
it = ph.Dataset.range(20).map(lambda x: x + 1).prefetch(on="ray", workers=1).iterator(epochs=1)
print([int(x) for x in it], len(ray.nodes()), ray.is_initialized())
unfinished = ph.Dataset.range(10**6).map(lambda x: x + 1).prefetch(on="ray").iterator()
print(int(next(unfinished)))
"""


def test_a_program_finds_the_cluster_by_its_address_and_ends_in_silence(cluster):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "RAY_LOG_TO_DRIVER": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.strip()]
    assert said == [f"{list(range(1, 21))} 2 True", "1"]
    assert "Traceback" not in done.stderr and "Error" not in done.stderr
    assert ray.is_initialized()
