"""A Ray cluster of two nodes with one CPU each, all on this machine, in a process of its own.

It lasts until its standard input ends: no longer than the process that asked for it, however that ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

NODES = 2
STORE = 256 << 20


def start() -> tuple[str, Callable[[], None]]:
    """The address of a new cluster, and what shuts it down. Raises `RuntimeError` where none comes up."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C must not reach the nodes before those who use them
    )
    assert process.stdin is not None and process.stdout is not None
    begin, said = process.stdin, process.stdout

    def end() -> None:
        begin.close()
        process.wait()
        said.close()

    address = said.readline().strip()
    if not address:
        end()
        raise RuntimeError("the Ray cluster did not start")
    return address, end


def _serve() -> None:
    # A short path: those of Ray's sockets begin with it, and must not be longer than some hundred bytes.
    short = "/tmp" if os.path.isdir("/tmp") else None
    with tempfile.TemporaryDirectory(prefix="ray", dir=short, ignore_cleanup_errors=True) as folder:
        # Not where Ray writes the address at which programs of this machine look for a cluster.
        os.environ["RAY_TMPDIR"] = folder
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": STORE}
        cluster: Any = Cluster(
            initialize_head=True, head_node_args={**node, "include_dashboard": False}
        )
        try:
            for _ in range(NODES - 1):
                cluster.add_node(**node)
            print(cluster.address, flush=True)
            sys.stdin.read()
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    _serve()
