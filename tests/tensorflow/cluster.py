"""Worker processes of one TensorFlow cluster on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("worker_run.py")
PATIENCE = 240  # seconds


@dataclass(frozen=True)
class Ended:
    """How a worker ended, and the lines it told."""

    code: int
    told: list[dict[str, Any]]
    errors: str

    def all(self, key: str) -> list[Any]:
        """What was told under a key, in order."""
        return [line[key] for line in self.told if key in line]


def run_workers(count: int, logs: Path, **settings: Any) -> list[Ended]:
    """Run `count` workers to their ends; what has not ended in time is killed."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(count)]
    processes = []
    files = []
    for worker in range(count):
        task = {"type": "worker", "index": worker}
        environment = os.environ | {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        out, errors = (logs / f"{worker}.{end}" for end in ("out", "err"))
        files.append((out, errors))
        with out.open("w") as told, errors.open("w") as said:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), json.dumps(settings)],
                    stdout=told,
                    stderr=said,
                    env=environment,
                )
            )
    until = time.monotonic() + PATIENCE
    try:
        codes = [process.wait(max(0.1, until - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        Ended(code, [json.loads(line) for line in out.read_text().splitlines()], errors.read_text())
        for code, (out, errors) in zip(codes, files, strict=True)
    ]


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
