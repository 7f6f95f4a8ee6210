"""What happens where the pipeline that is restored is not the one that was saved."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import playhead as ph
from playhead import Dataset
from playhead.errors import (
    FunctionChanged,
    LibraryChanged,
    OutOfReach,
    PipelineChanged,
    UnreadablePosition,
)


def lists(elements):
    return [element.tolist() for element in elements]


def after(dataset, steps, epochs=1, position=None, **options):
    """The position after `steps` more elements."""
    iterator = dataset.iterator(epochs=epochs)
    if position is not None:
        iterator.load_state_dict(position, **options)
    for _ in range(steps):
        next(iterator)
    return iterator.position


def restored(dataset, position, epochs=1, **options):
    iterator = dataset.iterator(epochs=epochs)
    iterator.load_state_dict(position.to_json(), **options)
    return iterator


def numbers(n=23, seed=2):
    return Dataset.range(n).shuffle(seed=seed)


# What is refused


@pytest.mark.parametrize(
    ("saved", "now", "told"),
    [
        (numbers(), numbers(seed=3), ["seed=2", "-> seed=3"]),
        (numbers(20), numbers(22), ["stop=20", "-> stop=22"]),
        (
            Dataset.from_tensor_slices(np.arange(20)),
            Dataset.from_tensor_slices(np.arange(20)[::-1]),
            ["tensor_slices", "content="],
        ),
        (
            Dataset.from_tensor_slices(["a", "b"]),
            Dataset.from_tensor_slices([b"a", b"b"]),
            ["content="],
        ),
        (
            Dataset.from_tensor_slices(np.arange(20)),
            Dataset.from_tensor_slices(np.arange(22)),
            ["records=20", "-> records=22"],
        ),
        (
            Dataset.from_sequence([1, 2], version="a"),
            Dataset.from_sequence([1, 2], version="b"),
            ["version=a", "-> version=b"],
        ),
        (numbers().batch(4), numbers().batch(5), ["size=4", "-> size=5", "by_record"]),
        (
            numbers().batch(4),
            numbers().batch(4, True),
            ["no drop_remainder", "drop_remainder=True"],
        ),
        (numbers(), Dataset.range(23), ["shuffle", "-> absent"]),
        (Dataset.range(23), numbers(), ["absent", "shuffle"]),
        (numbers(), numbers().skip(1), ["absent", "skip"]),
        (numbers(), Dataset.range(23).shuffle(5, seed=2), ["algorithm=sort-1", "window-1"]),
        (
            Dataset.range(9).shuffle(seed=1),
            Dataset.range(9).shuffle(seed=1, reshuffle_each_iteration=False),
            ["no reshuffle_each_iteration", "=False"],
        ),
        (numbers().shard(2, 0), numbers().shard(2, 1), ["index=0", "-> index=1"]),
        (
            Dataset.zip(numbers(), numbers(30)),
            Dataset.zip({"a": numbers(), "b": numbers(30)}),
            ["structure="],
        ),
        (
            Dataset.zip(Dataset.zip(numbers(), numbers())),
            Dataset.zip((numbers(), (numbers(),))),
            ["zip"],
        ),
        (
            numbers().map(lambda x, rng: x, rng=True, seed=1),
            numbers().map(lambda x, rng: x, rng=True, seed=2),
            ["seed=1", "-> seed=2"],
        ),
        (
            Dataset.range(9).filter(lambda x: True),
            Dataset.range(9),
            ["filter", "-> absent"],
        ),
    ],
)
def test_a_change_that_moves_places_is_refused_and_named(saved, now, told):
    position = after(saved, 2)
    iterator = now.iterator()
    with pytest.raises(PipelineChanged) as caught:
        iterator.load_state_dict(position.to_json())
    message = str(caught.value)
    for part in [*told, "At step 2:", "help:", "from_here"]:
        assert part in message
    assert caught.value.step == 2 and len(caught.value.differences) >= 1
    assert iterator.position.step == 0


def test_the_message_is_a_table_of_the_pipeline():
    saved = Dataset.range(100).shuffle(seed=7).batch(32)
    position = after(saved, 2)
    now = Dataset.range(100).shuffle(seed=8).batch(32)
    with pytest.raises(PipelineChanged) as caught:
        now.iterator().load_state_dict(position)
    lines = str(caught.value).splitlines()
    assert lines[0] == "PipelineChanged [P01]: the saved position does not fit this pipeline"
    assert lines[2].split()[:4] == ["shuffle", "seed=7", "->", "seed=8"]
    assert lines[2].split()[4].startswith("test_changes.py:")
    assert lines[3].split() == ["batch", "size=32", "same", lines[3].split()[3]]


def test_a_drawn_seed_against_a_written_one_is_a_difference():
    drawn = Dataset.range(9).shuffle()
    position = after(drawn, 3)
    seed = position.pipeline["operations"][1]["seed"]
    assert position.pipeline["operations"][1]["drawn"] is True
    with pytest.raises(PipelineChanged, match="drawn"):
        Dataset.range(9).shuffle(seed=seed).iterator().load_state_dict(position)
    written = after(Dataset.range(9).shuffle(seed=seed), 3)
    with pytest.raises(PipelineChanged, match="drawn"):
        drawn.iterator().load_state_dict(written)


def test_seeds_are_adopted_one_by_one():
    def make():
        return (
            Dataset.range(9)
            .shuffle()
            .shuffle(seed=4)
            .map(lambda x, rng: x + rng.random(), rng=True)
        )

    first = make()
    straight = lists(first.iterator())
    assert lists(restored(make(), after(first, 3))) == straight[3:]
    assert lists(make().iterator()) != straight


def test_seeds_behind_many_branches_are_adopted():
    def make():
        return Dataset.zip(*[Dataset.range(9) for _ in range(9)]).map(lambda *x: x[0]).shuffle()

    first = make()
    assert lists(restored(make(), after(first, 3))) == lists(first.iterator())[3:]


# What is no change


def test_what_only_says_when_or_how_it_is_called_is_no_change():
    position = after(numbers().map(lambda x: x * 2).batch(4), 2)
    for dataset in (
        numbers().map(lambda x: x * 2).batch(4).prefetch(4),
        numbers().prefetch(1).map(lambda x: x * 2).prefetch(0).batch(4).prefetch(2, workers=3),
        numbers().map(lambda x: x * 2, name="double").batch(4, name="batches"),
    ):
        assert lists(restored(dataset, position)) == lists(dataset.iterator())[2:]


def test_more_epochs_are_no_change():
    dataset = numbers(10).batch(4)
    position = after(dataset, 3)
    assert lists(restored(dataset, position, epochs=1)) == []
    assert lists(restored(dataset, position, epochs=3)) == lists(dataset.iterator(epochs=3))[3:]


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    [
        (lambda: numbers(5).repeat(2), lambda: numbers(5).repeat(3), range(11)),
        (lambda: numbers(5).repeat(2), lambda: numbers(5).repeat(), range(11)),
        (lambda: numbers(5).repeat(3), lambda: numbers(5).repeat(2), range(11)),
        (lambda: numbers(9).take(4), lambda: numbers(9).take(6), range(5)),
        (lambda: numbers(9).take(6), lambda: numbers(9).take(-1), range(7)),
        (lambda: numbers(9).batch(2).take(2), lambda: numbers(9).batch(2).take(4), range(3)),
        (lambda: numbers(9).take(4).batch(2), lambda: numbers(9).take(7).batch(2), range(3)),
        (lambda: numbers(9).take(5).batch(2), lambda: numbers(9).take(7).batch(2), range(3)),
        (lambda: numbers(9).batch(2).repeat(1), lambda: numbers(9).batch(2).repeat(3), range(6)),
        (lambda: numbers(9).repeat(2).batch(4), lambda: numbers(9).repeat(4).batch(4), range(5)),
        (
            lambda: numbers(5).repeat(2).take(7).batch(2).map(lambda x: x),
            lambda: numbers(5).repeat(3).take(12).batch(2).map(lambda x: x),
            range(4),
        ),
        (lambda: numbers(9).take(4).repeat(2), lambda: numbers(9).take(6).repeat(2), range(5)),
        (
            lambda: numbers(9).filter(lambda x: x != 4).repeat(1),
            lambda: numbers(9).filter(lambda x: x != 4).repeat(3),
            range(9),
        ),
        (
            lambda: numbers(9).filter(lambda x: x != 4).take(3).enumerate(),
            lambda: numbers(9).filter(lambda x: x != 4).take(5).enumerate(),
            range(4),
        ),
    ],
)
def test_a_longer_repeat_or_take_is_no_change_as_long_as_no_earlier_place_moves(old, new, steps):
    straight = plain(x for _, x in zip(range(30), new().iterator(), strict=False))
    for step in steps:
        position = after(old(), step)
        again = restored(new(), position)
        rest = plain(x for _, x in zip(range(30 - step), again, strict=False))
        assert rest == straight[step:]


def plain(elements):
    return [json.dumps(x, default=lambda leaf: leaf.tolist()) for x in elements]


@pytest.mark.parametrize(
    ("old", "new", "step", "epochs"),
    [
        # A short batch at the old end would be a full one now.
        (lambda: numbers(9).take(5).batch(2), lambda: numbers(9).take(7).batch(2), 3, 1),
        (lambda: numbers(5).repeat(1).batch(2), lambda: numbers(5).repeat(2).batch(2), 3, 1),
        (
            lambda: numbers(9).batch(2).shuffle(seed=1).take(3).batch(2),
            lambda: numbers(9).batch(2).shuffle(seed=1).take(4).batch(2),
            2,
            1,
        ),
        # Shorter than the position.
        (lambda: numbers(5).repeat(3), lambda: numbers(5).repeat(2), 11, 1),
        (lambda: numbers(9).take(6), lambda: numbers(9).take(4), 5, 1),
        # Places behind the first pass do move.
        (lambda: numbers(9).take(4).repeat(2), lambda: numbers(9).take(6).repeat(2), 5, 1),
        (
            lambda: Dataset.range(9).take(4).repeat(3),
            lambda: Dataset.range(9).take(5).repeat(3),
            9,
            1,
        ),
        (lambda: numbers(4).repeat(2).repeat(2), lambda: numbers(4).repeat(3).repeat(2), 9, 1),
        (lambda: numbers(9).take(4), lambda: numbers(9).take(6), 5, 2),
        (lambda: numbers(5).repeat(2), lambda: numbers(5).repeat(3), 11, 2),
        # What stands behind it moves.
        (
            lambda: numbers(9).take(4).shuffle(seed=1),
            lambda: numbers(9).take(6).shuffle(seed=1),
            1,
            1,
        ),
        (
            lambda: numbers(9).take(4).concatenate(numbers(9)),
            lambda: numbers(9).take(6).concatenate(numbers(9)),
            1,
            1,
        ),
        # A stream cannot be compared.
        (
            lambda: numbers(9).filter(lambda x: True).take(3).batch(2),
            lambda: numbers(9).filter(lambda x: True).take(5).batch(2),
            2,
            1,
        ),
        (
            lambda: numbers(9).filter(lambda x: True).take(3).repeat(2),
            lambda: numbers(9).filter(lambda x: True).take(5).repeat(2),
            4,
            1,
        ),
        (
            lambda: numbers(9).filter(lambda x: True).take(5),
            lambda: numbers(9).filter(lambda x: True).take(3),
            4,
            1,
        ),
    ],
)
def test_a_longer_repeat_or_take_that_moves_an_earlier_place_is_refused(old, new, step, epochs):
    position = after(old(), step, epochs=epochs)
    with pytest.raises(PipelineChanged, match="count="):
        restored(new(), position, epochs=epochs)


# Functions


def saved_with(function, **options):
    return after(Dataset.range(9).map(function, **options), 2)


def test_other_code_in_a_map_is_a_warning_that_names_it():
    position = saved_with(lambda x: x + 1)
    changed = Dataset.range(9).map(lambda x: x + 2)
    with pytest.warns(FunctionChanged, match=r"map\(<lambda>\) test_changes.py:\d+ has other code"):
        iterator = restored(changed, position)
    assert next(iterator) == 4


def test_the_same_code_elsewhere_or_under_another_name_is_no_change():
    def first(x, by=2):
        return [x * by for x in (x, x)]

    def second(x, by=2):
        return [x * by for x in (x, x)]

    position = saved_with(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored(Dataset.range(9).map(second), position)


def test_another_function_without_python_code_is_told_by_its_name():
    position = saved_with(np.negative)
    with pytest.warns(FunctionChanged, match="positive"):
        restored(Dataset.range(9).map(np.positive), position)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored(Dataset.range(9).map(np.negative), position)


def test_other_code_in_a_filter_is_a_warning_that_other_elements_follow():
    position = after(Dataset.range(9).filter(lambda x: x > 1), 2)
    with pytest.warns(FunctionChanged, match="other elements may follow"):
        iterator = restored(Dataset.range(9).filter(lambda x: x > 5), position)
    assert lists(iterator) == [6, 7, 8]


def test_other_datasets_among_the_elements_are_another_source():
    def build(first):
        return Dataset.from_tensor_slices([first, Dataset.range(5, 8)]).flat_map(lambda ds: ds)

    position = after(build(Dataset.range(2)), 1)
    assert next(restored(build(Dataset.range(2)), position)) == 1
    with pytest.raises(PipelineChanged, match="tensor_slices"):
        restored(build(Dataset.range(100, 200)), position)


def test_a_difference_says_what_the_user_called_the_operation():
    position = after(Dataset.range(20).shuffle(seed=1, name="days"), 2)
    with pytest.raises(PipelineChanged, match=r"seed=1 +-> seed=2 +\[days\] test_changes.py:\d+"):
        restored(Dataset.range(20).shuffle(seed=2, name="days"), position)


@pytest.mark.parametrize(
    ("op", "build", "ks"),
    [
        ("flat_map", lambda ds, k: ds.flat_map(lambda x: Dataset.range(k)), (2, 3)),
        ("interleave", lambda ds, k: ds.interleave(lambda x: Dataset.range(k)), (2, 3)),
        ("scan", lambda ds, k: ds.scan(np.int64(0), lambda s, x: (s + k, x)), (2, 3)),
        (
            "group_by_window",
            lambda ds, k: ds.group_by_window(lambda x: x % k, lambda _, w: w.batch(2), 2),
            (2, 3),
        ),
        (
            "group_by_window",
            lambda ds, k: ds.group_by_window(lambda x: x % 2, lambda _, w: w.batch(k), 2),
            (1, 2),
        ),
        (
            "rejection_resample",
            lambda ds, k: ds.rejection_resample(lambda x: x % k, [1, 1, 1], seed=1),
            (2, 3),
        ),
    ],
)
def test_other_code_where_it_decides_which_elements_there_are_is_refused(op, build, ks):
    saved, now = (build(numbers(), k) for k in ks)
    position = after(saved, 2)
    with pytest.raises(PipelineChanged, match=op):
        restored(now, position)
    assert next(restored(saved, position)) is not None
    restored(now, position, override=[op])


def test_code_of_another_python_is_not_compared():
    said = saved_with(lambda x: x + 1).to_dict()
    said["pipeline"]["operations"][1]["code"] = "2.7:" + "0" * 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset.range(9).map(lambda x: x + 2).iterator().load_state_dict(said)


def test_random_numbers_of_another_numpy_are_a_warning():
    dataset = Dataset.range(9).map(lambda x, rng: x, rng=True, seed=1)
    said = after(dataset, 2).to_dict()
    said["pipeline"]["operations"][1]["numpy"] = "1.26"
    with pytest.warns(LibraryChanged, match=r"numpy \d.*, the position from 1.26"):
        dataset.iterator().load_state_dict(said)


def test_a_map_that_came_or_went_moves_no_place_and_is_a_warning():
    def double(x):
        return x * 2

    with_it, without = numbers().map(double).batch(4), numbers().batch(4)
    with pytest.warns(FunctionChanged, match=r"map\(double\) was added"):
        iterator = restored(with_it, after(without, 2))
    assert lists(iterator) == lists(with_it.iterator())[2:]
    with pytest.warns(FunctionChanged, match=r"map\(double\) was removed"):
        iterator = restored(without, after(with_it, 2))
    assert lists(iterator) == lists(without.iterator())[2:]


def test_a_map_that_came_is_not_taken_for_the_random_one_behind_it():
    def augment(x, rng):
        return x + rng.random()

    def make(*functions):
        dataset = Dataset.range(9)
        for function in functions:
            dataset = dataset.map(function)
        return dataset.map(augment, rng=True)

    first = make(abs)
    position = after(first, 3)
    with pytest.warns(FunctionChanged, match=r"map\(positive\) was added"):
        iterator = restored(make(abs, np.positive), position)
    assert [float(x) for x in iterator] == [float(x) for x in first.iterator()][3:]


# By record


class Oracle:
    """The run as one would do it by hand: the records of pass after pass, cut by whatever size holds now."""

    def __init__(self, n, passes, drop):
        self.n, self.passes, self.drop = n, passes, drop
        self.number, self.record = 0, 0

    def next(self, size):
        before = self.number, self.record
        while self.number < self.passes:
            left = self.n - self.record
            if left >= size or (left and not self.drop):
                order = [int(numbers(self.n).epoch(self.number)[k]) for k in range(self.n)]
                batch = order[self.record : self.record + size]
                self.record += size if self.drop else len(batch)
                if (self.n - self.record < size and self.drop) or self.record == self.n:
                    self.record = self.n  # a pass that is over stays over
                return batch
            self.number, self.record = self.number + 1, 0
        self.number, self.record = before  # looking for more moves nothing
        return None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_by_record_goes_on_without_loss_or_repeat(data):
    n = data.draw(st.integers(1, 23), "records")
    passes = data.draw(st.sampled_from([None, 1, 3]), "repeat")
    drop = data.draw(st.booleans(), "drop_remainder")

    def make(size):
        dataset = numbers(n).batch(size, drop)
        return dataset if passes is None else dataset.map(lambda b: b).repeat(passes).prefetch(0)

    oracle = Oracle(n, 2 * (passes or 1), drop)
    position, step, records = make(1).iterator(epochs=2).position, 0, 0
    for _ in range(data.draw(st.integers(1, 5), "changes")):
        size = data.draw(st.integers(1, n + 1), "size")
        iterator = restored(make(size), position, 2, on_change="by_record")
        assert (iterator.position.step, iterator.position.records) == (step, records)
        for _ in range(data.draw(st.integers(0, 6), "steps")):
            expected, batch = oracle.next(size), next(iterator, None)
            assert expected == (None if batch is None else batch.tolist())
            if batch is None:
                break
            step, records = step + 1, records + len(expected)
            assert (iterator.position.step, iterator.position.records) == (step, records)
            assert [r.index for r in iterator.trace(step)] == expected
        position = iterator.position
        again = restored(make(size), position, 2)
        assert again.position == position
        rest = lists(again)
        assert lists(iterator) == rest
        iterator.seek(step)
        assert iterator.position.step == step and lists(iterator) == rest
    while (expected := oracle.next(size)) is not None:
        assert rest.pop(0) == expected
    assert rest == []


def test_by_record_cuts_the_pass_under_way_anew_and_no_other():
    def make(size):
        return Dataset.range(10).batch(size).repeat(2)

    position = after(make(4), 1)
    iterator = restored(make(3), position, on_change="by_record")
    assert lists(iterator) == [[4, 5, 6], [7, 8, 9], [0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    # Once more inside the same pass, then in the next one.
    position = after(make(3), 1, position=position, on_change="by_record")
    position = after(make(2), 2, position=position, on_change="by_record")
    assert (position.step, position.records) == (4, 10)
    iterator = restored(make(8), position, on_change="by_record")
    assert lists(iterator) == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]


def test_by_record_at_an_epochs_end_goes_on_with_the_next_one():
    def make(size, drop=False):
        return Dataset.range(10).batch(size, drop)

    position = after(make(4), 3, epochs=2)
    assert (position.epoch, position.step_in_epoch) == (0, 3)
    iterator = restored(make(5), position, epochs=2, on_change="by_record")
    assert [lists(e) for e in iterator.epochs()] == [[], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]]
    # What drop_remainder has dropped stays dropped, though it would fit into smaller batches.
    position = after(make(4, True), 2, epochs=2)
    iterator = restored(make(2, True), position, epochs=2, on_change="by_record")
    assert lists(iterator)[:2] == [[0, 1], [2, 3]]


def test_after_by_record_the_position_restores_in_the_new_pipeline_without_saying_so_again():
    def make(size):
        return numbers(20).batch(size)

    position = after(make(4), 2)
    iterator = restored(make(3), position, epochs=2, on_change="by_record")
    straight = [iterator.position] + [iterator.position for _ in iterator]
    for saved in straight:
        again = restored(make(3), saved, epochs=2)
        assert again.position == saved
        assert (
            lists(again)
            == lists(restored(make(3), position, 2, on_change="by_record"))[saved.step - 2 :]
        )
    with pytest.raises(PipelineChanged):
        restored(make(4), straight[2], epochs=2)
    assert iterator.position_at(2) == straight[0]
    with pytest.raises(OutOfReach):
        iterator.position_at(1)
    assert iterator.dataset[0].tolist() == make(3)[0].tolist()
    assert lists(iterator.dataset.iterator()) == lists(make(3).iterator())


def test_by_record_takes_no_other_change_and_no_other_shape():
    position = after(numbers().batch(4), 2)
    with pytest.raises(PipelineChanged, match="seed=3"):
        restored(numbers(seed=3).batch(5), position, on_change="by_record")
    position = after(numbers().batch(4).take(3), 2)
    with pytest.raises(PipelineChanged, match="take after batch"):
        restored(numbers().batch(5).take(3), position, on_change="by_record")
    position = after(numbers().batch(2).batch(4), 2)
    with pytest.raises(PipelineChanged, match="two batch operations"):
        restored(numbers().batch(2).batch(3), position, on_change="by_record")
    position = after(numbers().filter(lambda x: True).batch(4), 2)
    with pytest.raises(PipelineChanged):
        restored(numbers().filter(lambda x: True).batch(5), position, on_change="by_record")
    with pytest.raises(ValueError, match="by_record"):
        numbers().iterator().load_state_dict(position, on_change="by record")


def test_by_record_goes_through_padded_batches():
    def make(size):
        return Dataset.range(7).map(lambda x: np.arange(x)).padded_batch(size)

    iterator = restored(make(2), after(make(3), 1), on_change="by_record")
    assert [batch.shape for batch in iterator] == [(2, 4), (2, 6)]


# From here


def test_from_here_begins_the_new_pipeline_and_the_step_runs_on():
    old, new = numbers(20).batch(4), Dataset.range(6).batch(2)
    position = after(old, 3)
    iterator = restored(new, position, epochs=2, on_change="from_here")
    assert (iterator.position.step, iterator.position.epoch) == (3, 0)
    assert lists(iterator) == [[0, 1], [2, 3], [4, 5]] * 2
    assert (iterator.position.step, iterator.position.records) == (9, 24)
    with pytest.raises(OutOfReach):
        iterator.seek(2)
    iterator.seek(4)
    assert lists(iterator) == [[2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]


def test_from_here_is_said_once_and_the_same_command_line_can_be_run_again():
    old, new = numbers(20).batch(4), numbers(6).batch(2)
    position = after(old, 3)
    first = restored(new, position, on_change="from_here")
    straight = lists(first)
    position = after(new, 1, position=position, on_change="from_here")
    for on_change in ("error", "from_here", "by_record"):
        again = restored(new, position, on_change=on_change)
        assert again.position == position
        assert lists(again) == straight[1:]
    assert [past["until_step"] for past in position.lineage] == [3]


def test_older_steps_stay_traceable_through_every_change_from_here():
    def make(k):
        return [
            lambda: Dataset.range(20).shuffle().batch(4),
            lambda: Dataset.range(30).shuffle().batch(3),
            lambda: Dataset.range(6).shuffle(seed=1).batch(2),
        ][k]()

    made, position = {}, None
    for k, steps in enumerate([3, 4, 5]):
        iterator = make(k).iterator(epochs=2)
        if position is not None:
            iterator.load_state_dict(position.to_json(), on_change="from_here")
        for _ in range(steps):
            batch = next(iterator).tolist()
            made[iterator.position.step] = (k, batch)
        position = iterator.position
    assert [past["until_step"] for past in position.lineage] == [3, 7]
    assert sorted(made) == list(range(1, 13))
    for step, (k, batch) in made.items():
        assert [record.index for record in ph.trace(position, make(k), step=step)] == batch
        with pytest.raises(PipelineChanged):
            ph.trace(position, make((k + 1) % 3), step=step)
    for step in (0, 13):
        with pytest.raises(OutOfReach, match="steps 1 to 12"):
            ph.trace(position, make(2), step=step)


def test_steps_of_a_past_whose_batches_were_cut_anew_are_traced_on_that_grid():
    def make(size):
        return numbers(20).batch(size)

    position = after(make(4), 2)
    iterator = restored(make(3), position, on_change="by_record")
    made = {}
    for _ in range(3):
        batch = next(iterator).tolist()
        made[iterator.position.step] = batch
    position = after(Dataset.range(5), 2, position=iterator.position, on_change="from_here")
    assert position.lineage[0]["origin"]["step"] == 2
    for step, batch in made.items():
        assert [record.index for record in ph.trace(position, make(3), step=step)] == batch
    with pytest.raises(OutOfReach):
        ph.trace(position, make(3), step=2)
    assert [record.index for record in ph.trace(position, Dataset.range(5), step=6)] == [0]


def test_from_here_to_a_stream_and_back():
    seekable, stream = numbers(9), Dataset.range(9).filter(lambda x: x % 2 == 0)
    position = after(seekable, 4)
    iterator = restored(stream, position, on_change="from_here")
    assert lists(iterator) == [0, 2, 4, 6, 8] and iterator.position.step == 9
    back = restored(seekable, iterator.position, on_change="from_here")
    assert next(back) == seekable[0] and back.position.step == 10
    assert [r.index for r in ph.trace(back.position, seekable, step=2)] == [int(seekable[1])]
    with pytest.raises(ph.PlayheadError, match="stream"):
        ph.trace(back.position, stream, step=6)


# Override


def test_override_takes_the_differences_of_one_operation_as_they_are():
    position = after(numbers().batch(4), 2)
    changed = numbers(seed=3).batch(4)
    iterator = restored(changed, position, override=["shuffle"])
    assert lists(iterator) == lists(changed.iterator())[2:]
    with pytest.raises(PipelineChanged):
        restored(changed, position, override=["batch"])
    with pytest.raises(PipelineChanged):
        restored(numbers().batch(5), position, override=["batch"])
    assert issubclass(UnreadablePosition, ValueError)


# What from_here and epochs leave alone


def test_from_here_goes_on_where_an_extension_moved_nothing():
    saved = after(Dataset.range(10).repeat(2), 5)
    iterator = Dataset.range(10).repeat(3).iterator()
    iterator.load_state_dict(saved, on_change="from_here")
    assert lists(iterator) == [*range(5, 10), *range(10), *range(10)]
    assert iterator.position.lineage == ()


@pytest.mark.parametrize("stream", [False, True])
def test_fewer_epochs_than_the_position_has_done_are_refused(stream):
    dataset = Dataset.range(10)
    dataset = dataset.filter(lambda x: True) if stream else dataset
    saved = after(dataset, 25, epochs=None)
    with pytest.raises(PipelineChanged, match=r"stands in epoch 2.*ends before it") as raised:
        dataset.iterator(epochs=1).load_state_dict(saved)
    assert "epochs=3" in str(raised.value)
    again = dataset.iterator(epochs=3)
    again.load_state_dict(saved)
    assert lists(again) == [5, 6, 7, 8, 9]


def test_the_end_of_all_epochs_is_no_epoch_too_far():
    dataset = Dataset.range(3)
    iterator = dataset.iterator(epochs=2)
    for epoch in iterator.epochs():
        list(epoch)
    again = dataset.iterator(epochs=2)
    again.load_state_dict(iterator.position)
    assert again.position.epoch == 2
    assert list(again) == []


def test_columns_that_changed_names_are_another_dataset_and_another_order_of_names_is_not():
    a, b = np.arange(6), np.arange(6) * 10
    saved = after(Dataset.from_tensor_slices({"x": a, "y": b}), 2)
    with pytest.raises(PipelineChanged, match="content"):
        Dataset.from_tensor_slices({"x": b, "y": a}).iterator().load_state_dict(saved)
    same = Dataset.from_tensor_slices({"y": b, "x": a}).iterator()
    same.load_state_dict(saved)
    assert next(same) == {"x": 2, "y": 20}


def test_a_table_of_objects_says_that_its_content_is_only_declared():
    column = np.array([1, 2, 3, 4], object)
    assert Dataset.from_tensor_slices(column).operations()[0]["kind"] == "declared"


def test_a_run_is_traced_from_the_file_in_which_its_position_was_saved(tmp_path):
    run = Dataset.range(30).shuffle().batch(4).iterator(epochs=2)
    batches = [next(run).tolist() for _ in range(11)]
    run.position.save(tmp_path / "position.json")
    again = Dataset.range(30).shuffle().batch(4)  # its drawn seed is another
    for step in (1, 8, 11):
        found = ph.trace(tmp_path / "position.json", again, step=step)
        assert [record.index for record in found] == batches[step - 1]
