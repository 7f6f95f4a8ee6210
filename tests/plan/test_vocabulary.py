"""What the operations promise beyond resuming: shares, orders, sizes of positions, and what is read again."""

import collections
import itertools
import json
import tracemalloc
import warnings

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import (
    ElementError,
    IgnoredError,
    MissingSource,
    PipelineChanged,
    PipelineError,
    SlowResume,
    UnreadablePosition,
    UnrepeatableFunction,
)
from playhead.testing import equal


def plain(dataset, most=None):
    return [e.tolist() if hasattr(e, "tolist") else e for e in itertools.islice(dataset, most)]


def run(dataset, epochs=1, steps=None, position=None, **prefetch):
    """Elements from a position on, and the position after them."""
    dataset = dataset.prefetch(**prefetch) if prefetch else dataset
    with dataset.iterator(epochs=epochs) as iterator:
        if position is not None:
            iterator.load_state_dict(json.loads(position))
        elements = list(itertools.islice(iterator, steps))
        return elements, iterator.position.to_json()


# --- interleave -----------------------------------------------------------------------------------------


def files(cycle):
    """Five files of unequal lengths, read in turn."""
    lengths = [4, 2, 5, 1, 3]
    names = Dataset.range(5).shuffle(seed=7)
    return names.interleave(
        lambda f: Dataset.range(lengths[int(f)]).map(lambda r, f=f: 100 * f + r), cycle_length=cycle
    )


@pytest.mark.parametrize("cycle", [5, 2, 1])
def test_a_repeat_of_interleave_keeps_the_rest_of_its_epoch_and_the_next_ones(cycle):
    dataset = files(cycle).repeat(3)
    whole, _ = run(dataset)
    assert len(whole) == 45
    for epoch in range(3):
        found = sorted(int(x) for x in whole[15 * epoch : 15 * epoch + 15])
        assert found == [0, 1, 2, 3, 100, 101, 200, 201, 202, 203, 204, 300, 400, 401, 402]
    assert whole[:15] != whole[15:30] != whole[30:]
    for step in (16, 22, 29, 30, 31, 44):
        begun, position = run(dataset, steps=step)
        rest, _ = run(files(cycle).repeat(3), position=position)
        assert begun + rest == whole


def test_an_inner_dataset_with_a_shuffle_without_seed_cannot_be_repeated():
    dataset = Dataset.range(3).flat_map(lambda x: Dataset.range(4).shuffle())
    with pytest.raises(UnrepeatableFunction, match=r"flat_map.*shuffle that has no seed"):
        list(dataset)


@pytest.mark.parametrize("op", ["flat_map", "interleave"])
def test_a_function_that_returns_no_dataset_is_named(op):
    with pytest.raises(
        PipelineError, match=rf"{op}\(<lambda>\) must return a playhead.Dataset, not int"
    ):
        list(getattr(Dataset.range(3), op)(lambda x: 3))


# --- shuffles and random numbers ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 7, 19, 20, 50])
def test_a_windowed_shuffle_of_a_stream_gives_each_element_once(size):
    dataset = Dataset.range(30).filter(lambda x: x % 3 != 2).shuffle(size, seed=1)
    survivors = [x for x in range(30) if x % 3 != 2]
    first, second = plain(dataset), plain(dataset)
    assert sorted(first) == sorted(second) == survivors
    assert (first == second) is (size == 1)
    for k in range(0, 20, size):
        assert sorted(first[k : k + size]) == survivors[k : k + size]


def augmented(repeat, noop=False):
    dataset = Dataset.range(6).shuffle(seed=3)
    dataset = dataset.map(lambda x: x) if noop else dataset
    dataset = dataset.repeat(3) if repeat else dataset
    return dataset.map(lambda x, rng: (x, rng.random()), rng=True, seed=5)


def test_a_random_map_after_repeat_augments_each_pass_anew_for_any_number_of_workers():
    elements, _ = run(augmented(repeat=True))
    by_record = {x: {r for y, r in elements if y == x} for x in range(6)}
    assert all(len(numbers) == 3 for numbers in by_record.values())
    for workers in (1, 3):
        others, _ = run(augmented(repeat=True), workers=workers)
        assert equal(tuple(elements), tuple(others))


def test_a_map_that_does_nothing_changes_neither_order_nor_random_numbers():
    assert equal(tuple(run(augmented(True))[0]), tuple(run(augmented(True, noop=True))[0]))


def test_random_numbers_are_spread_evenly_and_the_same_in_each_epoch_unless_told():
    dataset = Dataset.random(seed=9).take(40_000)
    numbers, _ = run(dataset, epochs=2)
    assert numbers[:40_000] == numbers[40_000:]
    values = np.array(numbers[:40_000])
    assert values.dtype == np.int64 and values.min() >= 0 and values.max() < 2**32
    counts = np.histogram(values, 16, (0, 2**32))[0]
    assert ((counts - 2500) ** 2 / 2500).sum() < 44  # chi-square of 15, one in ten thousand
    again, _ = run(Dataset.random(seed=9, rerandomize_each_iteration=True).take(5), epochs=2)
    assert set(again[:5]).isdisjoint(again[5:])


# --- mixtures -------------------------------------------------------------------------------------------


def labelled(n, label):
    return Dataset.range(n).map(lambda x: (np.int64(label), x))


def test_shares_of_a_mixture_are_exact_in_each_block():
    mixed = Dataset.sample_from_datasets(
        [labelled(50_000, 0), labelled(9_000, 1)], [0.9, 0.1], seed=4, stop_on_empty_dataset=True
    )
    labels = np.array([label for label, _ in run(mixed, workers=2)[0]])
    assert len(labels) == len(mixed)
    blocks = [labels[k : k + 4096] for k in range(0, len(labels) - 4096, 4096)]
    assert len(blocks) >= 10
    assert {int(block.sum()) for block in blocks} == {410}  # 0.1 * 4096 = 409.6
    assert len({block.tobytes() for block in blocks}) == len(blocks)


@pytest.mark.parametrize("stream", [False, True])
def test_a_mixture_ends_at_its_first_empty_dataset_or_goes_on_with_the_others(stream):
    def parts():
        sizes = [(30, 0), (4, 1), (0, 2)]
        made = [labelled(n, label) for n, label in sizes]
        return [ds.filter(lambda label, x: True) if stream else ds for ds in made]

    whole, _ = run(Dataset.sample_from_datasets(parts()[:2], [0.5, 0.5], seed=1))
    for label, size in ((0, 30), (1, 4)):
        assert [x for y, x in whole if y == label] == list(range(size))
    ends = Dataset.sample_from_datasets(parts()[:2], [0.5, 0.5], seed=1, stop_on_empty_dataset=True)
    short, _ = run(ends)
    assert short == whole[: len(short)]
    assert sum(label for label, _ in short) == 4 and len(short) < 30
    nothing = Dataset.sample_from_datasets(parts(), seed=1, stop_on_empty_dataset=True)
    assert len(run(nothing)[0]) <= 34
    rest, _ = run(Dataset.sample_from_datasets(parts(), seed=1))
    assert len(rest) == 34
    if not stream:
        assert len(ends) == len(short)


def test_a_mixture_drawn_anew_in_each_epoch_is_equally_long():
    mixed = Dataset.sample_from_datasets(
        [labelled(7_000, 0), labelled(90_000, 1)],
        [0.5, 0.5],
        seed=1,
        stop_on_empty_dataset=True,
        rerandomize_each_iteration=True,
    )
    first, second = ([label for label, _ in mixed.epoch(e)] for e in (0, 1))
    assert len(first) == len(second) == len(mixed) and first != second


def test_resampling_draws_by_weight_and_others_in_each_epoch():
    weights = np.array([1.0, 0.0, 3.0, 6.0])
    dataset = Dataset.range(4).resample(weights, seed=2, num=20_000).batch(500)
    for epoch in (0, 1):
        drawn = np.concatenate(list(dataset.epoch(epoch)))
        counts = np.bincount(drawn, minlength=4)
        assert counts[1] == 0
        expected = np.array([2000, 6000, 12000])
        assert ((counts[[0, 2, 3]] - expected) ** 2 / expected).sum() < 18.4  # one in ten thousand
    assert (dataset.epoch(0)[3] != dataset.epoch(1)[3]).any()
    assert (dataset[7] == list(dataset.epoch(0))[7]).all()


@pytest.mark.parametrize("initial", [[0.9, 0.1], None])
def test_rejection_resample_reaches_its_target(initial):
    source = Dataset.range(30_000).shuffle(seed=1)
    dataset = source.rejection_resample(
        lambda x: x % 10 == 0, [0.4, 0.6], initial_dist=initial, seed=3
    )
    classes = np.array([int(c) for c, x in dataset])
    assert all(int(c) == (x % 10 == 0) for c, x in dataset.take(200))
    kept = len(classes)
    share = classes[kept // 10 :].mean()  # the estimate has settled
    assert abs(share - 0.6) < 4 * np.sqrt(0.24 / kept) + (0 if initial else 0.01)
    assert 4_000 < kept < 6_000  # 3,000 of the rare class, and two thirds as many of the other
    assert int(classes.sum()) in range(2_900, 3_001)


# --- generators -----------------------------------------------------------------------------------------


def test_an_endless_generator_with_start_resumes_at_once_and_without_it_says_once_that_it_replays():
    pulled = []

    def ticks(start=0):
        for number in itertools.count(start):
            pulled.append(number)
            yield number

    def ticks_from_the_beginning():
        yield from itertools.count()

    _, position = run(Dataset.from_generator(ticks).batch(4), steps=250)
    pulled.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest, _ = run(Dataset.from_generator(ticks).batch(4), steps=1, position=position)
    assert rest[0].tolist() == [1000, 1001, 1002, 1003] and min(pulled) == 1000
    dataset = Dataset.from_generator(ticks_from_the_beginning).batch(4)
    _, position = run(dataset, steps=250)
    with pytest.warns(SlowResume, match="replays 1000 elements") as said:
        rest, _ = run(dataset, steps=3, position=position)
    assert rest[0].tolist() == [1000, 1001, 1002, 1003] and len(said) == 1


# --- states ---------------------------------------------------------------------------------------------


def test_the_state_of_a_scan_is_small_and_like_the_initial_one():
    grows = Dataset.range(3).scan(np.zeros(1), lambda s, x: (np.zeros(2**14), x))
    with grows.iterator() as iterator:
        next(iterator)
        with pytest.raises(PipelineError, match="scan carries 131072 bytes"):
            iterator.position.to_json()
    changes = Dataset.range(3).scan(np.int64(0), lambda s, x: (float(s), x))
    with pytest.raises(PipelineError, match="the state was int64 and became float32"):
        list(changes)
    with pytest.raises(PipelineError, match=r"scan\(<lambda>\) must return \(state, output\)"):
        list(Dataset.range(3).scan(np.int64(0), lambda s, x: s))


def waiting_size(dataset, steps, waiting):
    """Bytes of the position, beyond 4 KB, for each element that waits."""
    _, position = run(dataset, steps=steps)
    return max(0, len(position) - 4096) / waiting


@pytest.mark.parametrize("over", ["seekable", "filter", "generator"])
def test_a_position_takes_some_bytes_for_each_element_that_waits(over):
    def count():
        yield from range(5000)

    made = {
        "seekable": lambda: Dataset.range(5000).shuffle(seed=1),
        "filter": lambda: Dataset.range(5000).shuffle(seed=1).filter(lambda x: x >= 0),
        "generator": lambda: Dataset.from_generator(count),
    }
    dataset = made[over]().group_by_window(
        lambda x: x % 2000, lambda key, w: w.batch(3), window_size=3
    )
    with dataset.iterator() as iterator:
        next(iterator)
        assert len(iterator.position.to_json()) < 4096 + 16 * 4100
    assert waiting_size(dataset, 1, 2000) < 16 * 2.1


def test_datasets_under_way_are_found_again_in_one_walk():
    read = collections.deque()

    def noted(x):
        read.append(int(x))
        return x

    def build():
        names = Dataset.range(5000).map(noted).filter(lambda x: True).shuffle(100, seed=1)
        return names.interleave(lambda x: Dataset.range(10), cycle_length=16)

    whole, _ = run(build(), steps=400)
    _, position = run(build(), steps=300)
    read.clear()
    rest, _ = run(build(), steps=100, position=position)
    assert (
        rest == whole[300:] and len(read) <= 200
    )  # the window of the oldest, and the one after it


def test_only_what_waits_is_read_again():
    read = collections.deque()

    def noted(x):
        read.append(int(x))
        return x

    def dataset():
        rare = Dataset.range(1000).map(noted)
        return rare.group_by_window(lambda x: x == 3, lambda key, w: w.batch(10), window_size=10)

    _, position = run(dataset(), steps=60)
    read.clear()
    rest, _ = run(dataset(), position=position)
    assert list(read) == [3, *range(read[1], 1000)] and read[1] > 590
    assert rest[-1].tolist() == [3]


def test_elements_of_a_filter_that_wait_are_read_again_by_their_places():
    read = collections.deque()

    def noted(x):
        read.append(int(x))
        return x != 5

    def dataset():
        some = (
            Dataset.range(400)
            .filter(noted)
            .map(lambda x, r: x + 1000 * r.integers(3), rng=True, seed=1)
        )
        return some.group_by_window(
            lambda x: x % 1000 == 3, lambda key, w: w.batch(10), window_size=10
        )

    whole, _ = run(dataset())
    _, position = run(dataset(), steps=20)
    read.clear()
    rest, _ = run(dataset(), position=position)
    assert all((a == b).all() for a, b in zip(rest, whole[20:], strict=True))
    assert min(read) > 190


# --- errors and edges -----------------------------------------------------------------------------------


def test_what_is_left_out_is_counted_and_told():
    def fails(x):
        if x in (2, 5):
            raise OSError(f"no {x}")
        return x

    dataset = Dataset.range(8).map(fails).ignore_errors(log_warning=True, name="bad pictures")
    with dataset.iterator() as iterator:
        with pytest.warns(IgnoredError) as said:
            assert [int(x) for x in iterator] == [0, 1, 3, 4, 6, 7]
        assert iterator.position.cursor["ignored"] == 2
    texts = [str(w.message) for w in said]
    assert len(texts) == 2
    assert "[bad pictures]" in texts[0] and "range[2]" in texts[0] and "OSError: no 2" in texts[0]


def test_an_error_that_is_not_about_an_element_is_not_ignored():
    dataset = Dataset.from_generator(lambda: iter(())).map(lambda x: x).ignore_errors()
    assert list(dataset) == []

    def broken():
        yield 1
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone") as caught:
        list(Dataset.from_generator(broken).ignore_errors())
    assert any("cannot go on behind it" in note for note in caught.value.__notes__)


def test_elements_of_unequal_lengths_are_cached_as_they_are_whatever_is_known_of_them(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = [[1], [], [2, 3, 4]] * 3
    parquet.write_table(pa.table({"x": lists}), tmp_path / "a.parquet")
    cached = Dataset.from_parquet(tmp_path / "a.parquet").cache()
    for _ in range(2):
        assert [row["x"].tolist() for row in cached] == lists
    padded = cached.padded_batch(3)
    assert [batch["x"].tolist() for batch in padded] == [[[1, 0, 0], [0, 0, 0], [2, 3, 4]]] * 3
    assert [batch.tolist() for batch in Dataset.range(7).batch(4).cache()] == [
        [0, 1, 2, 3],
        [4, 5, 6],
    ]


def test_lists_in_a_cache_are_not_handed_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": ["a", ["b"]]}\n' * 3)
    cached = Dataset.from_json_lines(tmp_path / "a.jsonl", dtypes={"x": object}).cache()
    for _ in range(2):
        for row in cached:
            assert row["x"] == ["a", ["b"]]
            row["x"][1].append("mine")


def test_a_cached_pipeline_computes_each_element_once():
    calls = []

    def noted(x):
        calls.append(int(x))
        return np.full(3, x)

    for build in (
        lambda: Dataset.range(9).map(noted).cache().shuffle(seed=1).batch(2),
        lambda: Dataset.range(9).filter(lambda x: True).map(noted).cache().batch(2),
    ):
        calls.clear()
        dataset = build()
        passes = [list(dataset) for _ in range(3)]
        assert sorted(calls) == list(range(9))
        for batch in passes[0]:
            batch[...] = -1  # the consumer's own
        assert sorted(x for batch in passes[1] for x in batch[:, 0]) == list(range(9))


def test_map_batches_sees_the_sizes_that_were_asked_for():
    sizes = []

    def noted(batch):
        sizes.append(len(batch))
        return batch * 2

    dataset = Dataset.range(10).map_batches(noted, 4).batch(4)
    assert plain(dataset) == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert sizes == [4, 4, 2] and dataset.seekable
    with pytest.raises(
        ElementError, match=r"map_batches\(<lambda>\) was given 4 elements and returned 3"
    ):
        list(Dataset.range(10).map_batches(lambda b: b[1:], 4))


def test_parts_of_a_batch_together_are_the_batch():
    dataset = Dataset.range(40).shuffle(seed=2).batch(10).map(lambda b: {"x": b, "y": (b * 2,)})
    for count in (1, 2, 3, 10):
        parts = [list(dataset.split(count, index)) for index in range(count)]
        for k, whole in enumerate(dataset.epoch(0)):
            joined = np.concatenate([part[k]["x"] for part in parts])
            assert (joined == whole["x"]).all()
            assert (np.concatenate([part[k]["y"][0] for part in parts]) == whole["y"][0]).all()


def test_a_position_saved_by_two_processes_is_restored_by_three():
    def batches():
        return Dataset.range(60).shuffle(seed=2).batch(12)

    _, position = run(batches().split(2, 1), steps=2)
    rest = [run(batches().split(3, index), position=position)[0] for index in range(3)]
    whole = list(batches())[2:]
    for k, batch in enumerate(whole):
        assert np.concatenate([part[k] for part in rest]).tolist() == batch.tolist()


def test_what_would_depend_on_the_number_of_processes_is_refused():
    parts = Dataset.range(12).batch(4).split(2, 0)
    for refused in (
        lambda: parts.shuffle(seed=1),
        lambda: parts.batch(2),
        lambda: parts.filter(lambda b: True),
        lambda: parts.map(lambda b, rng: b, rng=True),
        lambda: parts.repeat(2),
    ):
        with pytest.raises(PipelineError, match="after split would depend on"):
            refused()
    with pytest.raises(PipelineError, match="has no seed, and would differ between processes"):
        Dataset.range(12).shuffle().batch(4).split(2, 0)
    with pytest.raises(PipelineError, match="a batch of 2 has no part for each of 3"):
        Dataset.range(12).batch(2, True).split(3, 0)
    with pytest.raises(ElementError, match="a batch of 2 has no part for each of 3"):
        list(Dataset.range(8).batch(6).split(3, 0))


def test_files_are_listed_sorted_unless_a_seed_shuffles_them(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text(name)
    pattern = str(tmp_path / "*.txt")
    assert list(Dataset.list_files(pattern)) == [str(tmp_path / n) for n in ("a.txt", "b.txt")]
    both = Dataset.list_files([pattern, str(tmp_path / "*.csv")], seed=1)
    assert sorted(both) == sorted(map(str, tmp_path.iterdir()))
    with pytest.raises(MissingSource, match="no file matches"):
        Dataset.list_files(str(tmp_path / "*.png"))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda ds: ds.select([5]), "index 5 of a dataset of 5"),
        (lambda ds: ds.select([-6]), "index -1 of a dataset of 5"),
        (lambda ds: ds.select([True]), "a mask of 1 for a dataset of 5"),
        (lambda ds: ds.select([0.5]), "a list of whole numbers"),
        (lambda ds: ds.filter(lambda x: True).select([0]), "select needs a seekable dataset"),
        (lambda ds: ds.repeat().select([0]), "select over an endless dataset"),
        (lambda ds: ds.resample([1, 2]), "2 weights of shape"),
        (lambda ds: ds.resample([0] * 5), "not all zero"),
        (lambda ds: ds.resample([1, 2, 3, 4, np.nan]), "finite"),
        (lambda ds: Dataset.sample_from_datasets([ds], [1, 2]), "weights .* for 1 datasets"),
        (lambda ds: Dataset.sample_from_datasets([ds, ds.enumerate()]), "different elements"),
        (lambda ds: Dataset.sample_from_datasets([]), "at least one dataset"),
        (lambda ds: ds.group_by_window(len, len), "one of window_size and window_size_func"),
        (lambda ds: ds.bucket_by_sequence_length(len, [3], [1]), "1 boundaries part 2 buckets"),
        (lambda ds: ds.bucket_by_sequence_length(len, [3, 2], [1, 1, 1]), "boundaries ascend"),
        (lambda ds: ds.rejection_resample(len, [1, -1]), "shares, not negative"),
        (lambda ds: ds.rejection_resample(len, [1], [1, 2]), "of one length"),
        (lambda ds: ds.window(0), "at least 1"),
        (lambda ds: ds.split(2, 2), "split index 2 is not in"),
        (lambda ds: ds.get_single_element(), "more than one"),
        (lambda ds: ds.take(0).get_single_element(), "no element"),
    ],
)
def test_what_makes_no_pipeline_is_told(build, said):
    with pytest.raises(PipelineError, match=said):
        build(Dataset.range(5))


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda ds: ds.unbatch(), ElementError, "has none"),
        (
            lambda ds: ds.map(lambda x: (np.zeros(2), np.zeros(3))).rebatch(2),
            ElementError,
            "equally",
        ),
        (
            lambda ds: ds.group_by_window(lambda x: x / 2, lambda k, w: w, 2),
            PipelineError,
            "must return an int",
        ),
        (
            lambda ds: ds.group_by_window(
                lambda x: 0, lambda k, w: w, window_size_func=lambda k: 0
            ),
            PipelineError,
            "has size 0",
        ),
        (
            lambda ds: Dataset.choose_from_datasets([ds], Dataset.range(2)),
            PipelineError,
            "choice 1 of 1 datasets",
        ),
        (
            lambda ds: ds.rejection_resample(lambda x: 2, [1, 1], seed=1),
            PipelineError,
            "gave class 2; target_dist has 2 classes",
        ),
        (
            lambda ds: ds.map(np.arange).bucket_by_sequence_length(
                len, [2], [9, 9], pad_to_bucket_boundary=True
            ),
            PipelineError,
            "an element of length 2 is in no bucket",
        ),
    ],
)
def test_elements_that_do_not_fit_are_named_with_their_record(build, error, said):
    with pytest.raises(error, match=said) as caught:
        list(build(Dataset.range(5)))
    notes = " ".join(getattr(caught.value, "__notes__", ()))
    assert "size 0" in said or "made from" in notes


@pytest.mark.parametrize("take", [None, 3])
def test_without_prefetch_no_element_is_computed_that_nobody_needs(take):
    calls = collections.deque()

    def noted(x):
        calls.append(int(x))
        return x % 3 != 2

    dataset = Dataset.range(1000).filter(noted).map(lambda x: x + 1)
    dataset = dataset if take is None else dataset.take(take)
    with dataset.batch(8).iterator() as iterator:
        batch = next(iterator)
        if take is None:
            assert batch.tolist() == [1, 2, 4, 5, 7, 8, 10, 11] and list(calls) == list(range(11))
        else:
            assert batch.tolist() == [1, 2, 4] and list(calls) == [0, 1, 2, 3]


# --- positions ------------------------------------------------------------------------------------------


def test_a_choice_that_ends_when_all_have_ended_ends_after_a_restart_too():
    def build():
        choices = Dataset.from_tensor_slices(np.array([0, 0, 1]))
        choices = choices.concatenate(Dataset.from_tensors(np.int64(1)).repeat())
        parts = [Dataset.range(1), Dataset.range(3)]
        return Dataset.choose_from_datasets(parts, choices, stop_on_empty_dataset=False)

    begun, position = run(build(), steps=2)
    rest, _ = run(build(), position=position)
    assert begun + rest == [0, 0, 1, 2]


def test_a_position_can_be_asked_for_however_often_a_chunk_was_cut():
    dataset = Dataset.zip(
        Dataset.range(9000).filter(lambda x: True),
        Dataset.range(9000).window(1).flat_map(lambda w: w),
    ).prefetch(-1)
    with dataset.iterator() as iterator:
        for step in range(1, 9001):
            next(iterator)
            if step % 100 == 0:
                assert iterator.position.step == step


STREAMS = {
    "choose": lambda ds: Dataset.choose_from_datasets([ds, ds], Dataset.range(2).repeat()),
    "flat_map": lambda ds: Dataset.range(300).flat_map(lambda x: ds.take(2)),
    "interleave": lambda ds: Dataset.range(9).interleave(lambda x: ds, cycle_length=3),
    "shuffle": lambda ds: ds.filter(lambda x: True).shuffle(4, seed=1),
    "rebatch": lambda ds: ds.map(lambda x: x[None]).rebatch(2),
    "window": lambda ds: ds.window(2).flat_map(lambda w: w),
    "group_by_window": lambda ds: ds.group_by_window(lambda x: 0, lambda k, w: w.batch(2), 2),
    "sample": lambda ds: Dataset.sample_from_datasets([ds.filter(lambda x: True), ds], seed=1),
    "unbatch": lambda ds: ds.map(lambda x: x[None]).unbatch(),
    "scan": lambda ds: ds.scan(np.int64(0), lambda s, x: (s + 1, x)),
    "pack": lambda ds: ds.pack(5000),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_cursors_that_a_stream_keeps_hold_no_elements(name):
    made = STREAMS[name](Dataset.range(600).map(lambda x: np.full(4000, x)))
    tracemalloc.start()
    try:
        with made.iterator() as iterator:
            for _ in itertools.islice(iterator, 40):
                pass
            before = tracemalloc.get_traced_memory()[0]
            for _ in itertools.islice(iterator, 200):
                pass
            grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 40 * 32_000  # of 200 elements of 32 KB and more


def test_a_stream_with_a_cache_of_its_own_cursor_is_told_from_one_without():
    plain, cached = (
        Dataset.range(40).filter(lambda x: x % 7 != 3),
        Dataset.range(40).filter(lambda x: x % 7 != 3).cache(),
    )
    _, position = run(plain, steps=3)
    with pytest.raises(PipelineChanged, match=r"cache +absent"):
        run(cached, position=position)


@pytest.mark.parametrize(
    ("build", "change"),
    [
        (lambda: Dataset.range(5).flat_map(lambda x: Dataset.range(3)), lambda c: c.pop("inner")),
        (lambda: grouped(Dataset.range(40)), lambda c: c.pop("inner")),
        (lambda: grouped(Dataset.range(40)), lambda c: c.update(waiting=[[]])),
        (lambda: grouped(Dataset.range(40)), lambda c: c.update(waiting=[[0, 99999]])),
        (lambda: grouped(Dataset.range(40)), lambda c: c.update(waiting={"at": 3})),
        (
            lambda: Dataset.range(5).interleave(lambda x: Dataset.range(3)),
            lambda c: c.update(slot=99),
        ),
        (
            lambda: Dataset.range(5).interleave(lambda x: Dataset.range(3)),
            lambda c: c.update(open=[3]),
        ),
        (lambda: Dataset.range(9).scan(np.int64(0), lambda s, x: (s, x)), lambda c: c.pop("state")),
        (
            lambda: Dataset.range(9).scan(np.int64(0), lambda s, x: (s, x)),
            lambda c: c.update(state=3),
        ),
    ],
)
def test_a_damaged_cursor_is_told(build, change):
    _, position = run(build(), steps=2)
    state = json.loads(position)
    change(state["cursor"])
    with pytest.raises(UnreadablePosition):
        run(build(), position=json.dumps(state))


def grouped(dataset):
    return dataset.group_by_window(lambda x: x % 3, lambda key, w: w.batch(2), 2)


# --- what elements are made of --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda ds: ds.batch(4).rebatch(2),
        lambda ds: ds.batch(5).rebatch([1, 3]),
        lambda ds: ds.batch(4).unbatch(),
        lambda ds: ds.batch(2).group_by_window(lambda b: 0, lambda k, w: w.padded_batch(3), 3),
        lambda ds: ds.group_by_window(lambda x: x % 2, lambda k, w: w.batch(2), 4),
        lambda ds: ds.bucket_by_sequence_length(lambda x: x, [3, 6], [2, 3, 4]),
        lambda ds: ds.shuffle(5, seed=1).batch(4),
    ],
)
def test_records_are_counted_through_what_regroups_them(build):
    with build(Dataset.range(12).filter(lambda x: True)).iterator() as iterator:
        for _ in iterator:
            pass
        assert iterator.position.records == 12


def test_random_operations_inside_datasets_differ_between_them_and_repeat():
    def inside(x):
        return Dataset.range(4).shuffle(seed=7).map(lambda y, r: (y, r.random()), rng=True, seed=7)

    dataset = Dataset.range(6).flat_map(inside)
    elements, _ = run(dataset, epochs=2)
    assert len({number for _, number in elements}) == 48
    orders = {tuple(int(y) for y, _ in elements[k : k + 4]) for k in range(0, 48, 4)}
    assert len(orders) > 3
    assert equal(tuple(elements), tuple(run(dataset, epochs=2, workers=3)[0]))


def test_neighbouring_rows_call_the_function_of_their_batch_once():
    calls = collections.deque()

    def noted(batch):
        calls.append(len(batch))
        return batch

    assert len(list(Dataset.range(512).map_batches(noted, 128))) == 512
    assert list(calls) == [128] * 4


def test_elements_before_one_that_fails_come_first_whatever_the_chunks():
    def build():
        return Dataset.range(1000).rejection_resample(
            lambda x: 0 if x < 50 else 9, [0.5, 0.5], [0.5, 0.5], seed=1
        )

    for workers in (0, 1, 4):
        dataset = build().prefetch(workers=workers) if workers else build()
        with dataset.iterator() as iterator:
            for expected in range(50):
                assert next(iterator)[1] == expected
            with pytest.raises(PipelineError, match="gave class 9"):
                next(iterator)


def test_specs_of_batches_made_by_functions_fit_the_last_short_one():
    uneven = Dataset.range(23).batch(5).map(lambda b: (b * 2, b.sum()))
    assert [leaf.shape for leaf in uneven.element_spec] == [(None,), ()]
    even = Dataset.range(20).batch(5, True).map(lambda b: b * 2)
    assert even.element_spec.shape == (5,)
    buckets = Dataset.range(20).map(lambda x: np.zeros((x % 7 + 1, 3)))
    buckets = buckets.bucket_by_sequence_length(len, [4], [3, 3])
    assert buckets.element_spec.shape == (None, None, 3)
