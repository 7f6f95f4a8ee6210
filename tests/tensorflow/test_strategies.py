"""Strategies of one process, each replica with a device of its own; and how batches are cut for replicas."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import playhead as ph
from playhead.errors import ElementError
from playhead.tensorflow.distribute import Replicas, Share

SCRIPT = Path(__file__).with_name("mirrored_run.py")
HELPERS = {"data", "whole", "parts", "joined", "cut", "main"}
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name not in HELPERS
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each check had to say; all run in one process, whose CPU is three devices."""
    report = tmp_path_factory.mktemp("mirrored") / "found.json"
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(report)],
        capture_output=True,
        text=True,
        env=quiet,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(report.read_text())
    return said


@pytest.mark.parametrize("check", CHECKS)
def test_under_a_strategy(found: dict[str, str], check: str) -> None:
    assert not found[check], found[check]


def taken(ds: ph.Dataset, workers: int, here: int, epochs: int = 2) -> list[list[list[list[int]]]]:
    """For each batch, each worker's parts, as each worker reads them by itself."""
    steps = []
    for worker in range(workers):
        share = Share.of(ds, Replicas(("/CPU:0",) * here, workers, worker, True))
        it = share.read.iterator(epochs=epochs)
        steps.append([])
        for batch in it:
            parts = share.parts(batch, it._node, it._state.epoch, it._state.inner - 1)
            steps[-1].append([part["x"].tolist() for part in parts])
    return [list(each) for each in zip(*steps, strict=True)]


def pipelines(count: int, size: int) -> list[ph.Dataset]:
    """Read in parts, read whole and cut, and walked."""
    plain = ph.Dataset.range(count).shuffle(seed=3).map(lambda x: {"x": x})
    batches = plain.batch(size)
    return [
        batches.prefetch(2),
        batches.map(lambda batch: {"x": batch["x"] + 1000}),
        plain.filter(lambda e: e["x"] >= 0).batch(size),
    ]


@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_parts_of_all_replicas_are_the_batch_and_differ_by_one_row_at_most(
    workers: int, here: int, draw: st.DataObject
) -> None:
    least = workers * here
    size = draw.draw(st.integers(least, least + 9))
    count = size + draw.draw(st.integers(least, size))
    for ds in pipelines(count, size):
        expected = [batch["x"].tolist() for batch in ds.iterator(epochs=2)]
        found = taken(ds, workers, here)
        assert [[x for w in step for part in w for x in part] for step in found] == expected
        for step in found:
            lengths = [len(part) for w in step for part in w]
            assert len(lengths) == least and max(lengths) - min(lengths) <= 1 and min(lengths) > 0


@pytest.mark.parametrize("kind", range(3))
def test_every_worker_refuses_the_batch_that_leaves_any_replica_without_rows(kind: int) -> None:
    """Two workers of two replicas: of 3 rows, the second worker has 2, enough for its own."""
    ds = pipelines(11, 4)[kind]
    for worker in range(2):
        replicas = Replicas(("/CPU:0",) * 2, 2, worker, True)
        if kind == 0:
            with pytest.raises(ElementError, match="3 rows has no part for each of 4 replicas"):
                Share.of(ds, replicas)
            continue
        share = Share.of(ds, replicas)
        it = share.read.iterator()
        next(it), next(it)
        batch = next(it)
        with pytest.raises(ElementError, match="3 rows has no part for each of 4 replicas"):
            share.parts(batch, it._node, it._state.epoch, it._state.inner - 1)


def test_a_batch_cut_anew_by_record_is_refused_where_it_leaves_a_worker_without_rows() -> None:
    """12 rows of 20 were read, in 4s; the other 8 are cut in 7s: of the last row, one worker has none."""
    saved = ph.Dataset.range(20).batch(4).iterator()
    next(saved), next(saved), next(saved)
    share = Share.of(ph.Dataset.range(20).batch(7), Replicas(("/CPU:0",), 2, 0, True))
    it = share.read.iterator()
    it.load_state_dict(saved.position, on_change="by_record")
    with pytest.raises(ElementError, match="1 rows"):
        share.require_last(it._node, it.position.epoch)


def test_a_worker_reads_the_records_of_its_part_only() -> None:
    read: list[int] = []

    class Records:
        def __len__(self) -> int:
            return 32

        def __getitem__(self, k: int) -> np.int64:
            read.append(k)
            return np.int64(k)

    ds = ph.Dataset.from_sequence(Records()).batch(8).prefetch(1)
    share = Share.of(ds, Replicas(("/CPU:0",), 2, 1, True))
    read.clear()
    assert [batch.tolist() for batch in share.read.iterator()] == [
        [4, 5, 6, 7],
        [12, 13, 14, 15],
        [20, 21, 22, 23],
        [28, 29, 30, 31],
    ]
    assert sorted(set(read)) == [k for k in range(32) if k % 8 >= 4]


@pytest.mark.parametrize("kind", range(3))
def test_a_position_is_that_of_the_whole_batches_for_any_number_of_workers(kind: int) -> None:
    ds = pipelines(23, 6)[kind]
    expected = [batch["x"].tolist() for batch in ds.iterator(epochs=2)]
    state = None
    seen = []
    for workers in (2, 3, 1, 2):
        positions = []
        step = [[] for _ in range(2)]
        for worker in range(workers):
            share = Share.of(ds, Replicas(("/CPU:0",), workers, worker, True))
            it = share.read.iterator(epochs=2)
            if state is not None:
                it.load_state_dict(state)
            for k in range(2):
                batch = next(it)
                parts = share.parts(batch, it._node, it._state.epoch, it._state.inner - 1)
                step[k] += parts[0]["x"].tolist()
            positions.append(it.state_dict())
        assert all(position == positions[0] for position in positions)
        state = positions[0]
        seen += step
    assert seen == expected
    plain = ds.iterator(epochs=2)
    plain.load_state_dict(state)
    assert plain.position.step == 8 and next(plain, None) is None
