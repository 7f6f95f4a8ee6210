"""Stores that sources read from: a file system in memory, a web server, an object store.

Brokers that several files of tests here use are in a file beside this one.
"""

from __future__ import annotations

import gzip
import http.server
import re
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from playhead.sources.files import silence

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    """Where this machine keeps indexes: nowhere that another test looks."""
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    monkeypatch.setattr(silence, "_FIRST_PAUSE", 0.001)
    return directory / "playhead" / "index"


@pytest.fixture
def memory():
    system = pytest.importorskip("fsspec").filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@dataclass
class Site:
    """What a web server holds, how it behaves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    version: Counter = field(default_factory=Counter)
    etags: bool = True
    latency: float = 0.0
    ranges: bool = True
    squeezes: bool = False
    failures: int = 0
    out: bool = False
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    now: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def gets(self):
        """The ranges that were asked for since the last call."""
        with self.lock:
            found = [(path, what) for method, path, what in self.asked if method == "GET"]
            self.asked.clear()
        return found


@pytest.fixture
def site():
    pytest.importorskip("aiohttp")
    served = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked = self.headers.get("Range")
            with served.lock:
                served.asked.append((self.command, self.path, asked))
                served.now += 1
                served.most = max(served.most, served.now)
                failing = served.failures > 0 and asked is not None
                served.failures -= failing
            time.sleep(served.latency)
            try:
                if served.out:
                    self.close_connection = True
                else:
                    self.answer(asked, failing)
            finally:
                with served.lock:
                    served.now -= 1

        do_HEAD = do_GET

        def answer(self, asked, failing):
            name = self.path[1:]
            if name.startswith("moved/"):
                return self.reply(302, b"", {"Location": f"/{name[6:]}"})
            if failing:
                return self.reply(503, b"busy", {})
            if name not in served.files:
                return self.reply(404, b"", {})
            data, headers = served.files[name], {}
            if served.etags:
                headers["ETag"] = f'"{served.version[name]}"'
            if asked is None or not served.ranges:
                return self.reply(200, data, headers)
            start, stop = map(int, re.match(r"bytes=(\d+)-(\d+)", asked).groups())
            if start >= len(data):
                return self.reply(416, b"", headers)
            part = data[start : stop + 1]
            headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
            if served.squeezes and self.headers.get("Accept-Encoding") != "identity":
                headers["Content-Encoding"] = "gzip"
                part = gzip.compress(data)[start : stop + 1]
            return self.reply(206, part, headers)

        def reply(self, status, body, headers):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_):
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


@dataclass
class Bucket:
    """A bucket of an S3 server: its URL, what fsspec is told of the server, and its file system."""

    url: str
    options: dict[str, Any]
    system: Any
    server: Any

    def stop(self):
        """The server is gone; what it holds is kept."""
        self.port = self.server.get_host_and_port()[1]
        self.server.stop()

    def start(self):
        self.server = type(self.server)(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()


@pytest.fixture
def bucket(monkeypatch):
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        options = {"endpoint_url": "http://{}:{}".format(*server.get_host_and_port())}
        system = pytest.importorskip("fsspec").filesystem("s3", **options)
        name = f"bucket-{uuid.uuid4().hex}"  # servers of one process share them
        system.mkdir(name)
        served = Bucket(f"s3://{name}", options, system, server)
        yield served
        server = served.server
    finally:
        server.stop()
