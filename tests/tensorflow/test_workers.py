"""MultiWorkerMirroredStrategy in real processes."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
import tensorflow as tf
from cluster import Ended, run_workers
from worker_run import after, dataset

import playhead as ph

BATCHES = [batch["x"].tolist() for batch in dataset().iterator(epochs=3)]
WEIGHTS = list(accumulate(map(sum, BATCHES), after, initial=0))


def logs(directory: Path, name: str) -> Path:
    made = directory / name
    made.mkdir()
    return made


def require_exact(workers: list[Ended], steps: range) -> None:
    """Each step's weight, and the batch that the workers' parts are of."""
    for worker in workers:
        found = {line["step"]: line["weight"] for line in worker.told if "weight" in line}
        assert found and found == {step: WEIGHTS[step] for step in found}, worker.errors
        assert max(found) == steps[-1]
    told = [{line["step"]: line for line in worker.told if "parts" in line} for worker in workers]
    for step in told[0]:
        parts = [part for one in told for part in one[step]["parts"]]
        assert [x for part in parts for x in part] == BATCHES[step - 1]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended], list[Ended]]:
    """Two workers save at step 6, and one is killed after step 8; three go on, and save at step 12."""
    directory = tmp_path_factory.mktemp("run")
    place = directory / "checkpoint"
    two = [["python", 6], ["save", 0], ["graph", 2], ["die", 1], ["graph", 4]]
    three = [["graph", 2], ["python", 4], ["save", 0], ["graph", 2]]
    first = run_workers(2, logs(directory, "two"), directory=str(place), loops=two)
    second = run_workers(3, logs(directory, "three"), directory=str(place), loops=three)
    return place, first, second


def test_two_workers_take_the_parts_of_each_batch_and_trace_uneven_ones_once(
    run: tuple[Path, list[Ended], list[Ended]],
) -> None:
    _, workers, _ = run
    require_exact(workers, range(1, 9))
    assert [worker.all("traced") for worker in workers] == [[1] * 6] * 2
    sizes = [[len(parts[0]) for parts in worker.all("parts")] for worker in workers]
    assert sizes == [[2, 2, 2, 2, 2, 2], [3, 3, 3, 3, 2, 3]]


def test_when_a_worker_is_killed_the_other_stops_with_an_error_that_says_what_to_do(
    run: tuple[Path, list[Ended], list[Ended]],
) -> None:
    _, (left, killed), _ = run
    assert killed.code == -9 and left.code == 7
    (kind,), (notes,) = left.all("error"), left.all("notes")
    assert kind == "UnavailableError"
    assert len(notes) == 1 and "Start all 2 again" in notes[0] and "last checkpoint" in notes[0]


def test_three_workers_go_on_exactly_where_two_had_saved(
    run: tuple[Path, list[Ended], list[Ended]],
) -> None:
    _, _, workers = run
    assert [worker.code for worker in workers] == [0, 0, 0], [w.errors for w in workers]
    assert [worker.all("restored") for worker in workers] == [[6]] * 3
    require_exact(workers, range(7, 15))


def test_one_process_goes_on_exactly_where_three_workers_had_saved(
    run: tuple[Path, list[Ended], list[Ended]],
) -> None:
    place, _, _ = run
    weight, step = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
    it = ph.tensorflow.iterator(dataset(), epochs=3, step=step)
    checkpoint = tf.train.Checkpoint(weight=weight, step=step, data=it)
    checkpoint.restore(tf.train.latest_checkpoint(str(place))).assert_consumed()
    assert (int(step), int(weight)) == (12, WEIGHTS[12])
    assert [batch["x"].numpy().tolist() for batch in it] == BATCHES[12:]


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """What two workers were given and refused; at the end the second is killed."""
    return run_workers(2, tmp_path_factory.mktemp("checks"), run="checks")


def test_each_worker_walks_a_stream_and_takes_its_part(checks: list[Ended]) -> None:
    ds = dataset("stream")
    told = [worker.all("stream")[0] for worker in checks]
    for epoch in range(2):
        whole = [batch["x"].tolist() for batch in ds.epoch(epoch)]
        parts = zip(told[0][epoch], told[1][epoch], strict=True)
        assert [first + second for first, second in parts] == whole
    first, second = (worker.all("position")[0] for worker in checks)
    assert first == second and first["step"] == 8
    again = ds.iterator(epochs=3)
    again.load_state_dict(first)
    assert next(again)["x"].tolist() == ds.epoch(2).iterator().__next__()["x"].tolist()


def test_a_loop_in_a_graph_ends_on_all_workers_with_the_data(checks: list[Ended]) -> None:
    assert [worker.all("counted") for worker in checks] == [[[10, 48]]] * 2


def test_a_worker_that_was_not_restored_is_an_error_on_all_which_names_it(
    checks: list[Ended],
) -> None:
    for worker in checks:
        (message,) = worker.all("behind")
        assert "worker 0 at step 3, worker 1 at step 0" in message
        assert "restore all from one checkpoint" in message
    assert [worker.all("together") for worker in checks] == [[[12, 13]], [[14, 15]]]


def test_a_worker_over_other_data_is_an_error_on_all(checks: list[Ended]) -> None:
    for worker in checks:
        assert "worker 1 reads other records or other operations" in worker.all("other_data")[0]


def test_what_would_lose_data_under_several_workers_is_refused_on_all(
    checks: list[Ended],
) -> None:
    for worker in checks:
        assert "has no seed" in worker.all("unseeded")[0]
        assert "would lose rows" in worker.all("unseeded_to_tf")[0]
        assert "leave split(...) out" in worker.all("split")[0]
        assert "a batch of 1 rows has no part for each of 2 replicas" in worker.all("short")[0]


def test_dataset_fn_gives_each_worker_its_part_and_goes_on_where_it_was_saved(
    checks: list[Ended],
) -> None:
    first, second = (worker.all("function")[0] for worker in checks)
    assert [a + b for a, b in zip(first, second, strict=True)] == BATCHES[:7]
    assert [line["step"] for worker in checks for line in worker.told if "function" in line] == [
        7,
        7,
    ]


def test_a_plain_tf_dataset_that_tensorflow_distributes_loses_no_rows(checks: list[Ended]) -> None:
    """TensorFlow's own cut: the longer part first, and no position."""
    first, second = (worker.all("to_tf")[0] for worker in checks)
    assert [a + b for a, b in zip(first, second, strict=True)] == BATCHES[:5]


def test_a_worker_that_is_gone_before_the_first_batch_is_named_by_the_others(
    checks: list[Ended],
) -> None:
    assert [worker.code for worker in checks] == [0, -9], checks[0].errors
    assert "worker 1 is gone" in checks[0].all("lonely")[0]
    assert "start all workers again" in checks[0].all("lonely")[0]
