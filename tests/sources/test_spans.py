"""Parts of numbered files, local and remote, read together."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead.errors import SourceChanged
from playhead.sources.files import blocks, remote, spans
from playhead.sources.files.maps import Maps
from playhead.sources.files.opening import Opening
from playhead.sources.files.spans import Spans

pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("cache")


def always(number, buffer):
    return True


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    gap=st.integers(0, 40),
    most=st.integers(1, 100),
    block=st.integers(1, 64),
    touches=st.integers(1, 3),
    kept=st.integers(1, 4),
    draw=st.data(),
)
def test_any_parts_are_what_the_files_hold_there(
    tmp_path_factory, memory, sizes, gap, most, block, touches, kept, draw
):
    rng = np.random.default_rng(len(sizes))
    directory = tmp_path_factory.mktemp("data")
    held, paths = [], []
    for number, size in enumerate(sizes):
        held.append(rng.bytes(size))
        if number % 2:
            (directory / str(number)).write_bytes(held[-1])
            paths.append(str(directory / str(number)))
        else:
            memory.pipe(f"/data/{number}", held[-1])
            paths.append(f"memory://data/{number}")
    opening = Opening()
    part = st.integers(0, len(sizes) - 1).flatmap(
        lambda number: st.tuples(
            st.just(number), st.integers(0, sizes[number]), st.integers(0, sizes[number])
        )
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote, "GAP", gap)
        patched.setattr(remote, "MOST", most)
        patched.setattr(blocks, "BLOCK", block)
        patched.setattr(blocks, "TOUCHES", touches)
        patched.setattr(blocks, "KEPT", kept)
        patched.setattr(spans, "FILES_AT_ONCE", 2)
        reading = Spans(Maps(tuple(opening.look(paths)), always), opening.remote)
        assert reading.far == frozenset(range(0, len(sizes), 2))
        for _ in range(3):
            wanted = [
                (number, min(a, b), max(a, b))
                for number, a, b in draw.draw(st.lists(part, max_size=8))
            ]
            table = np.array(wanted, np.int64).reshape(-1, 3)
            expected = [held[number][start:stop] for number, start, stop in wanted]
            assert reading.read(*table.T) == expected
        assert pickle.loads(pickle.dumps(reading)).read(*table.T) == expected


def test_a_set_that_fits_among_the_blocks_that_are_kept_is_soon_there_as_a_whole(site):
    data = np.random.default_rng(0).bytes(5 << 20)
    site.files["a"] = data
    opening = Opening()
    reading = Spans(Maps(tuple(opening.look([f"{site.url}/a"])), always), opening.remote)
    rng = np.random.default_rng(1)
    asked = []
    for _ in range(20):
        starts = np.sort(rng.integers(0, len(data) - 100, 300))
        site.gets()
        found = reading.read(np.zeros(300, np.int64), starts, starts + 100)
        assert found == [data[start : start + 100] for start in starts.tolist()]
        asked.append(len(site.gets()))
    assert asked[: blocks.TOUCHES].count(0) == 0 and asked[blocks.TOUCHES + 1 :] == [0] * 16


def test_blocks_that_came_between_two_looks_are_looked_after_though_all_are_kept(site, monkeypatch):
    monkeypatch.setattr(blocks, "TOUCHES", 1)
    monkeypatch.setattr(blocks, "PATIENCE", 1e9)
    size = 3 * blocks.BLOCK
    site.files["a"] = b"a" * size
    opening = Opening()
    reading = Spans(Maps(tuple(opening.look([f"{site.url}/a"])), always), opening.remote)

    def read(block):
        at = np.array([block * blocks.BLOCK])
        return reading.read(np.zeros(1, np.int64), at, at + 1)

    assert read(0) == [b"a"]
    site.files["a"], site.version["a"] = b"b" * size, 1
    assert read(1) == [b"b"]  # patient so far
    site.asked.clear()
    monkeypatch.setattr(blocks, "PATIENCE", 0.0)
    for _ in range(2):
        with pytest.raises(SourceChanged, match="while it was in use"):
            read(0)
    site.files["a"], site.version["a"] = b"a" * size, 0
    assert read(0) == [b"a"] and {method for method, _, _ in site.asked} == {"HEAD"}
    site.asked.clear()
    assert read(0) == [b"a"] and not site.asked
