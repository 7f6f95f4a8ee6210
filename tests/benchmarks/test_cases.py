"""Every case of the benchmark, tiny, with the peers that the tests install."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import frame, peers, report

HERE = ("playhead", "tf.data", "numpy")
# Left to the benchmark: what starts processes, walks a thousand steps, traces, or sets up the whole process.
SLOW = ("processes", "ray", "skip", "step", "checkpoint", "TensorFlow", "without C")


def small(case: str) -> list[str]:
    """The peers of a case that can take part in a test."""
    every: list[str] = list(frame.load(case).PEERS)
    mine = [peer for peer in every if peer.split(",")[0].split(" ")[0] in HERE]
    return [peer for peer in mine if not any(word in peer for word in SLOW)]


def tried(case: str, peer: str, data: Path) -> float | None:
    """What the peer measures on the data of a quick run; None where it needs what is not installed."""
    try:
        measure: Callable[[], float] = frame.load(case).PEERS[peer](data, True)
        return measure()
    except ModuleNotFoundError:
        return None


# What Keras says to everybody who gives it a tf.data.Dataset.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed, but will be ignored")
@pytest.mark.parametrize("case", frame.NAMES)
def test_each_peer_of_a_case_delivers_what_was_expected_of_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    frame.load(case).prepare(tmp_path, True)
    names = small(case)
    assert frame.OURS in names
    found = {peer: tried(case, peer, tmp_path) for peer in names}
    values = {peer: value for peer, value in found.items() if value is not None}
    assert values
    assert all(math.isfinite(value) and value > 0 for value in values.values()), values


def test_a_peer_that_delivers_too_few_elements_has_no_rate() -> None:
    with pytest.raises(RuntimeError, match="7 elements came where 8 were expected"):
        frame.rate([[0] * 4, [0] * 3], len, 8)


def test_a_case_runs_in_turns_and_says_which_peers_could_not_take_part(tmp_path: Path) -> None:
    found = frame.run("index", tmp_path, repeats=2, quick=True, say=lambda text: None)
    assert set(found.values) | set(found.absent) == set(frame.load("index").PEERS)
    assert all(len(values) == 2 for values in found.values.values())
    assert found.ratio(frame.OURS) == 1
    assert found.rss[frame.OURS] > 1e6


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
    for name in ("tensorflow-cpu", "grain", "torchdata", "mosaicml-streaming", "datasets"):
        assert name in wanted
