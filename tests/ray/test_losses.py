"""Workers and nodes that die, and nodes that come."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import playhead as ph

ray = pytest.importorskip("ray")


def everywhere(count):
    """Each number, the node it was computed on, and so many bytes that they lie in that node's store."""

    def on_its_node(x):
        time.sleep(0.005)
        return x, ray.get_runtime_context().get_node_id(), np.full(50_000, x)

    return ph.Dataset.range(count).map(on_its_node)


def test_a_worker_that_dies_is_replaced(cluster, soon, tmp_path):
    flag = str(tmp_path / "died")

    def dies_once(x):
        if x == 20 and not os.path.exists(flag):
            open(flag, "x").close()
            os.kill(os.getpid(), 9)
        return x

    with ph.Dataset.range(60).map(dies_once).prefetch(on="ray", workers=2).iterator(epochs=1) as it:
        assert [int(x) for x in it] == list(range(60))
    assert os.path.exists(flag)


def test_a_record_that_kills_every_worker_is_named(cluster, soon, monkeypatch):
    from playhead.execution import courier

    monkeypatch.setattr(courier, "DEATHS", 3)

    def dies(x):
        if x == 11:
            os._exit(3)
        return x

    it = ph.Dataset.range(30).map(dies).prefetch(on="ray", workers=1).iterator(epochs=1)
    got = []
    with pytest.raises(ph.errors.WorkerLost, match=r"3 workers .* died over range\[11\]") as raised:
        got.extend(map(int, it))
    it.close()
    assert got == list(range(11))
    assert raised.value.records == ["range[11]"]


def test_a_node_that_joins_is_used(cluster, soon):
    with everywhere(10**6).prefetch(on="ray").iterator(epochs=1) as it:
        for _ in range(10):
            next(it)
        joined = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        deadline, expected = time.monotonic() + 180, 10
        while True:
            x, node, _ = next(it)
            assert x == expected
            expected += 1
            if node == joined.node_id:
                break
            assert time.monotonic() < deadline
        while it.stats()["workers"] != 3:
            next(it)
            assert time.monotonic() < deadline
    cluster.remove_node(joined)


def test_a_node_that_is_killed_changes_nothing(cluster, soon):
    doomed = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    got, nodes = [], []
    with everywhere(500).prefetch(on="ray", workers=4).iterator(epochs=1) as it:
        for x, node, array in it:
            assert (array == x).all()
            got.append(int(x))
            nodes.append(node)
            if len(got) == 60:
                cluster.remove_node(doomed, allow_graceful=False)
    assert got == list(range(500))
    assert doomed.node_id in nodes
    assert doomed.node_id not in nodes[-100:]
