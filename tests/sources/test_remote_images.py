"""Pictures on stores that fsspec knows: listed once, read together, the same as on disk."""

from __future__ import annotations

import functools
import http.server
import pickle
import threading
from collections import Counter

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import MissingSource, PipelineError, SourceChanged, SourceError
from playhead.testing import assert_resumes_exactly, difference

pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("cache")

NAMES = [
    "b/2.png",
    "b/10.PNG",
    "b/deep/er/0.jpg",
    "b/notes.txt",
    "a cat/x#1 é.gif",
    "c/0.bmp",
    "loose.png",
]
KINDS = [{}, {"labels": None}, {"class_names": ["c", "a cat", "b"]}, {"labels": [5, 4, 3, 2, 1, 0]}]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 9)
    return tmp_path / "data"


def same(here, there):
    assert there.operations() == here.operations()
    assert there.node.class_names == here.node.class_names
    order = np.random.default_rng(0).permutation(len(here))
    assert difference(there.node.gather(order).rows(), here.node.gather(order).rows()) is None


@pytest.mark.parametrize("options", KINDS)
def test_files_order_labels_and_description_are_those_of_the_same_files_on_disk(
    folder, memory, options
):
    for name in NAMES:
        memory.pipe(f"/pets/{name}", (folder / name).read_bytes())
    same(
        Dataset.from_image_folder(folder, **options),
        Dataset.from_image_folder("memory://pets/", **options),
    )


def test_a_directory_without_pictures_is_a_class_where_the_store_knows_directories(memory):
    memory.pipe("/pets/a/1.png", b"one")
    memory.makedirs("/pets/b")
    ds = Dataset.from_image_folder("memory://pets")
    assert ds.node.class_names == ("a", "b") and len(ds) == 1


def test_remote_pictures_resume_exactly_and_travel_through_pickle(folder, memory):
    for name in NAMES:
        memory.pipe(f"/pets/{name}", (folder / name).read_bytes())
    make = functools.partial(Dataset.from_image_folder, "memory://pets")
    assert_resumes_exactly(lambda: make().shuffle(seed=1).batch(2))
    node = make().node
    copy = pickle.loads(pickle.dumps(node))
    index = np.array([4, 0])
    assert difference(copy.gather(index).rows(), node.gather(index).rows()) is None
    (record,) = make().trace(0)
    assert record.file == "memory://pets/a cat/x#1 é.gif"


@pytest.mark.parametrize("data", [b"", b"another size", b"loose.pngx" * 9])
def test_a_file_replaced_or_removed_is_noticed(folder, memory, data):
    for name in NAMES:
        memory.pipe(f"/pets/{name}", (folder / name).read_bytes())
    node = Dataset.from_image_folder("memory://pets").node
    memory.pipe("/pets/b/2.png", data)
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([0, 2]))
    assert caught.value.file == "memory://pets/b/2.png"
    memory.rm("/pets/b/2.png")
    with pytest.raises(MissingSource) as caught:
        node.gather(np.array([2]))
    assert caught.value.file == "memory://pets/b/2.png"


def test_what_cannot_be_found_is_refused(folder, memory):
    memory.pipe("/pets/a/1.txt", b"")
    memory.pipe("/pets/file", b"")
    for url in ("memory://nothing", "memory://pets/file"):
        with pytest.raises(MissingSource, match="nothing lies in"):
            Dataset.from_image_folder(url)
    with pytest.raises(MissingSource, match="no picture"):
        Dataset.from_image_folder("memory://pets")
    with pytest.raises(PipelineError, match="not named: 'a'"):
        Dataset.from_image_folder("memory://pets", class_names=[])
    with pytest.raises(SourceError, match="fsspec"):
        Dataset.from_image_folder("nowhere://pets")


def test_a_web_server_that_lists_directories_will_do(folder):
    pytest.importorskip("aiohttp")
    asked = Counter()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked[self.command, self.path] += 1

    serve = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        there = Dataset.from_image_folder(f"http://127.0.0.1:{server.server_port}")
        assert asked["HEAD", "/loose.png"] == 1 and asked["HEAD", "/b/notes.txt"] == 0
        asked.clear()
        same(Dataset.from_image_folder(folder), there)
        assert len(asked) == 5 and set(asked.values()) == {1}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_pictures_in_a_bucket_are_found_and_read(folder, bucket):
    for name in NAMES:
        bucket.system.pipe(f"{bucket.url}/pets/{name}", (folder / name).read_bytes())
    bucket.system.pipe(f"{bucket.url}/pets/b/", b"")  # as consoles mark a directory
    there = Dataset.from_image_folder(f"{bucket.url}/pets", storage_options=bucket.options)
    same(Dataset.from_image_folder(folder), there)
