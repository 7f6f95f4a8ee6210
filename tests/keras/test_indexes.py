"""A run's directory holds the indexes of the remote files that it reads."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remote_run

import playhead as ph
from playhead.keras import checkpoint, fit, storage
from playhead.sources.tfrecord import building

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

PROGRAM = Path(__file__).with_name("remote_run.py")
RNG = np.random.default_rng(0)
ROWS = [
    {"x": RNG.random(4096, np.float32), "y": np.float32(RNG.random())} for _ in range(16)
]  # 16 KB each


class Site:
    """A web server's files, and the parts of them that were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.read: list[tuple[str, int, int]] = []
        self.url = ""

    def taken(self) -> list[tuple[str, int, int]]:
        """File, first and last byte of each request since the last call."""
        found, self.read = self.read, []
        return found


@pytest.fixture
def site() -> Iterator[Site]:
    pytest.importorskip("aiohttp")
    served = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = served.files.get(self.path[1:])
            if data is None:
                return self.reply(404, b"", {})
            asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data))
            if self.command == "GET":
                served.read.append((self.path[1:], start, stop))
            part = data[start:stop]
            span = {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"}
            return self.reply(
                206 if asked else 200, part, {"ETag": '"1"', **(span if asked else {})}
            )

        do_HEAD = do_GET

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def written(tmp_path: Path, rows: list[dict[str, Any]]) -> bytes:
    (path,) = ph.write_tfrecords(rows, tmp_path / "made", overwrite=True)
    return Path(path).read_bytes()


def test_a_fresh_machine_that_takes_a_run_over_scans_none_of_its_remote_files(
    tmp_path: Path, site: Site
) -> None:
    site.files = {"train": written(tmp_path, ROWS), "validation": written(tmp_path, ROWS[:4])}
    where = tmp_path / "run"

    def machine(name: str) -> dict[str, Any]:
        """A process with nothing on its disk but the program."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "XDG_CACHE_HOME": str(tmp_path / name),
        }
        urls = [f"{site.url}/{name}" for name in ("train", "validation")]
        child = subprocess.run(
            [sys.executable, str(PROGRAM), *urls, str(where), "2"],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
        )
        assert child.returncode == 0, child.stderr
        found: dict[str, Any] = json.loads(child.stdout)
        return found

    first = machine("first")
    scans = {(name, 0, len(data)) for name, data in site.files.items()}
    assert scans <= set(site.taken())
    assert len(list((where / "index").iterdir())) == 2
    assert not (tmp_path / "first" / "playhead").exists()

    # The run is finished: what describes the data is all that is needed of them.
    assert machine("second") == first
    assert sum(stop - start for _, start, stop in site.taken()) < 100
    assert not (tmp_path / "second" / "playhead").exists()


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were scanned."""
    seen: list[str] = []
    build = building.build

    def counting(path: str, *rest: Any) -> Any:
        seen.append(path)
        return build(path, *rest)

    monkeypatch.setattr(building, "build", counting)
    return seen


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Empties this machine's cache."""

    def anew() -> Path:
        cache = tmp_path / uuid.uuid4().hex
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        return cache

    anew()
    return anew


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of data in a store that takes nothing where they lie."""
    url = f"memory://{uuid.uuid4().hex}"
    root = MemoryFileSystem._strip_protocol(url)
    system = fsspec.filesystem("memory")
    system.pipe_file(f"{root}/train", written(tmp_path, ROWS))
    system.pipe_file(f"{root}/other", written(tmp_path, ROWS[:4]))
    pipe = MemoryFileSystem.pipe_file

    def guarded(self: Any, path: str, value: bytes, **options: Any) -> Any:
        if path.startswith(root):
            raise PermissionError("read-only")
        return pipe(self, path, value, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", guarded)
    return url


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_indexes_that_were_there_before_the_run_are_copied_into_its_directory(
    tmp_path: Path, bucket: str, scanned: list[str], fresh: Callable[[], Path], store: str
) -> None:
    where = str(tmp_path / "run") if store == "disk" else f"memory://{uuid.uuid4().hex}/run"

    def run(epochs: int, *, look: bool) -> None:
        ds, validation = (remote_run.pairs(f"{bucket}/{name}") for name in ("train", "other"))
        if look:
            assert (len(ds), len(validation)) == (4, 1)
        fit(
            remote_run.model(),
            ds,
            checkpoint=where,
            epochs=epochs,
            save_every=1,
            validation_data=validation,
            verbose=0,
        )

    run(1, look=True)
    assert sorted(scanned) == [f"{bucket}/other", f"{bucket}/train"]
    fresh()
    run(2, look=False)
    assert len(scanned) == 2

    root = storage.at(where)
    root.sweep(alone=True)
    names = [save.name for save in checkpoint.saves(where)]
    assert names == ["step-0000000008", "step-0000000008.1"]
    assert len(root.files("index")) == 2
    assert checkpoint.latest(where)[1]["step"] == 8
