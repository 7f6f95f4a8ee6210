"""A real Ray cluster of two nodes with one CPU each, all on this machine."""

from __future__ import annotations

import pytest

STORE = 100 << 20


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=1, object_store_memory=STORE)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def soon(monkeypatch):
    """Looks at the cluster, and sends lost tasks again, without waiting long."""
    from playhead.execution import courier

    monkeypatch.setattr(courier, "LOOK", 0.2)
    monkeypatch.setattr(courier, "FIRST_REST", 0.01)


def pytest_collection_modifyitems(items):
    """Ray starts its processes with fork and exec, of which JAX warns where another test has imported it."""
    for item in items:
        if item.path.parent.name == "ray":
            item.add_marker(
                pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")
            )
