"""What a user reads when a store refuses, is silent, or was named or told wrong."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest

from playhead import Dataset
from playhead.errors import MissingSource, PipelineError, SourceError
from playhead.sources.files import silence, stores

pytest.importorskip("aiohttp")


@pytest.fixture
def refusing(monkeypatch):
    """A web server that answers every request with the number in its path."""
    monkeypatch.setattr(silence, "PATIENCE", 0.2)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(int(self.path.split("/")[1]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def silent():
    """The URL of a server that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_told_from_a_file_that_is_not_there(refusing, status):
    with pytest.raises(MissingSource, match=rf"cannot be read: .*{status}") as caught:
        Dataset.from_lines(f"{refusing}/{status}/a.txt")
    assert "credentials" in str(caught.value) and "storage_options" in str(caught.value)
    with pytest.raises(MissingSource, match=r"no file http://\S+/404/a.txt"):
        Dataset.from_lines(f"{refusing}/404/a.txt")


def test_what_a_server_answers_and_why_none_does_is_said(refusing):
    with pytest.raises(SourceError, match="500") as caught:
        Dataset.from_lines(f"{refusing}/500/a.txt")
    assert not isinstance(caught.value, MissingSource)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(SourceError, match="Cannot connect to host"):
            Dataset.from_lines(f"http://127.0.0.1:{free.getsockname()[1]}/a.txt")


def test_a_silent_server_is_said_to_be_waited_for_and_given_up(silent, monkeypatch, capsys):
    monkeypatch.setattr(stores, "_SILENCE", 0.3)
    monkeypatch.setattr(silence, "PATIENCE", 0.2)
    monkeypatch.setattr(silence, "_SAID_AFTER", 0.01)
    with pytest.raises(SourceError, match=f"{silent}/a.txt cannot be read: .*[Tt]imeout"):
        Dataset.from_lines(f"{silent}/a.txt")
    said = f"playhead: {silent} has not answered for 0 s; waiting (Ctrl-C ends it)"
    assert capsys.readouterr().err.splitlines() == [said]


def test_limits_that_the_user_sets_stand():
    own = {"client_kwargs": {"timeout": "own"}, "headers": {"a": "b"}}
    assert stores.bounded("https://host/a", own) is own
    assert stores.bounded("gs://bucket/a", {}) == {}
    own = {"config_kwargs": {"retries": {"mode": "adaptive"}}}
    assert stores.bounded("s3://bucket/a", own) is own
    made = stores.bounded("s3://bucket/a", {"anon": True, "config_kwargs": {"read_timeout": 1}})
    assert made["anon"] and made["config_kwargs"]["read_timeout"] == 1
    made = stores.bounded("https://host/a", {"client_kwargs": {"trust_env": True}})
    assert made["client_kwargs"]["trust_env"] and made["client_kwargs"]["timeout"].sock_read == 30


def test_storage_options_that_are_none_of_the_store_s_are_said(refusing):
    with pytest.raises(PipelineError, match="storage_options is a dict"):
        Dataset.from_lines("memory://a.txt", storage_options="anon")
    with pytest.raises(SourceError, match="nonsense") as caught:
        Dataset.from_lines(f"{refusing}/200/a.txt", storage_options={"nonsense": 1})
    assert "check storage_options" in str(caught.value)


def test_a_pattern_over_a_server_that_lists_nothing_says_how_to_name_files(refusing):
    with pytest.raises(MissingSource, match=r"train-\{000\.\.146\}\.tar"):
        Dataset.from_lines(f"{refusing}/404/*.txt")
