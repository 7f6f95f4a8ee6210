"""Datasets made of datasets: flat_map, interleave, and choosing from several."""

from __future__ import annotations

import numpy as np
import pytest


def numbers(D, first, n):
    return D.range(first, first + n)


CHOICE = [0, 1, 2, 0, 1, 2, 0, 2, 1, 1, 0, 0, 0]


def choose(D, lengths, **options):
    datasets = [numbers(D, 10 * k, n) for k, n in enumerate(lengths)]
    choice = D.from_tensor_slices(np.array(CHOICE, np.int64))
    return D.choose_from_datasets(datasets, choice, **options)


NESTING = {
    "flat_map slices": lambda D: D.from_tensor_slices([[1, 2, 3], [4, 5, 6]]).flat_map(
        D.from_tensor_slices
    ),
    "flat_map ranges": lambda D: D.range(5).flat_map(lambda x: D.range(x)),
    "flat_map with a captured element": lambda D: D.range(4).flat_map(
        lambda x: D.range(3).map(lambda y: x * 10 + y)
    ),
    "flat_map to pairs": lambda D: D.range(3).flat_map(
        lambda x: D.zip(D.from_tensors(x).repeat(), D.range(x))
    ),
    "flat_map of pairs": lambda D: D.from_tensor_slices(([1, 2], [[3, 4], [5, 6]])).flat_map(
        lambda a, b: D.from_tensor_slices(b).map(lambda y: (a, y))
    ),
    "flat_map of dicts": lambda D: D.from_tensor_slices({"a": [[1, 2], [3, 4]]}).flat_map(
        lambda d: D.from_tensor_slices(d["a"])
    ),
    "flat_map to nothing": lambda D: D.range(3).flat_map(lambda x: D.range(0)),
    "flat_map nothing": lambda D: D.range(0).flat_map(lambda x: D.range(3)),
    "flat_map to endless datasets": lambda D: (
        D.range(3, 5).flat_map(lambda x: D.from_tensors(x).repeat()).take(4)
    ),
    "flat_map to batches": lambda D: D.range(5).flat_map(lambda x: D.range(x).batch(2)),
    "flat_map to filtered datasets": lambda D: D.range(6).flat_map(
        lambda x: D.range(x).filter(lambda y: y % 2 == 1)
    ),
    "flat_map in flat_map": lambda D: D.range(4).flat_map(
        lambda x: D.range(x).flat_map(lambda y: D.range(y + 1))
    ),
    "flat_map in each pass": lambda D: D.range(3).flat_map(lambda x: D.range(x)).repeat(2),
    "flat_map and batch": lambda D: D.range(5).flat_map(lambda x: D.range(x)).batch(3),
    "flat_map a stream": lambda D: (
        D.range(6).filter(lambda x: x % 2 == 1).flat_map(lambda x: D.range(x))
    ),
    "interleave": lambda D: D.range(1, 6).interleave(
        lambda x: D.from_tensors(x).repeat(6), cycle_length=2, block_length=4
    ),
    "interleave one at a time": lambda D: D.range(5).interleave(
        lambda x: D.range(x * 10, x * 10 + x), cycle_length=1
    ),
    "interleave more than there are": lambda D: D.range(5).interleave(
        lambda x: D.range(x * 10, x * 10 + x), cycle_length=9
    ),
    "interleave blocks longer than datasets": lambda D: D.range(5).interleave(
        lambda x: D.range(x * 10, x * 10 + x), cycle_length=2, block_length=10
    ),
    "interleave empty datasets": lambda D: D.range(6).interleave(
        lambda x: D.range(x * 10, x * 10 + x % 3), cycle_length=2, block_length=1
    ),
    "interleave only empty datasets": lambda D: D.range(6).interleave(
        lambda x: D.range(0), cycle_length=2
    ),
    "interleave nothing": lambda D: D.range(0).interleave(lambda x: D.range(3), cycle_length=2),
    "interleave in parallel": lambda D: D.range(6).interleave(
        lambda x: D.range(x * 10, x * 10 + x % 4),
        cycle_length=3,
        block_length=2,
        num_parallel_calls=2,
        deterministic=True,
    ),
    "interleave pairs": lambda D: D.from_tensor_slices(
        (["a", "b", "c"], [[1, 2], [3, 4], [5, 6]])
    ).interleave(
        lambda w, x: D.zip(D.from_tensors(w).repeat(), D.from_tensor_slices(x)),
        cycle_length=2,
    ),
    "interleave endless datasets": lambda D: (
        D.range(4).interleave(lambda x: D.from_tensors(x).repeat(), cycle_length=3).take(8)
    ),
    "interleave in each pass": lambda D: (
        D.range(4).interleave(lambda x: D.range(x), cycle_length=2).repeat(2)
    ),
    "interleave a stream": lambda D: (
        D.range(9)
        .filter(lambda x: x % 2 == 1)
        .interleave(lambda x: D.range(x), cycle_length=2, block_length=3)
    ),
    "interleave streams": lambda D: D.range(6).interleave(
        lambda x: D.range(x * 2).filter(lambda y: y % 2 == 1), cycle_length=3, block_length=2
    ),
    "choose": lambda D: choose(D, (5, 5, 5)),
    "choose until one ends": lambda D: choose(D, (5, 2, 5)),
    "choose past those that end": lambda D: choose(D, (5, 2, 5), stop_on_empty_dataset=False),
    "choose past all": lambda D: choose(D, (1, 0, 2), stop_on_empty_dataset=False),
    "choose from an empty dataset": lambda D: choose(D, (5, 0, 5), stop_on_empty_dataset=True),
    "choose without end": lambda D: D.choose_from_datasets(
        [D.from_tensors("a").repeat(), D.from_tensors("b").repeat()], D.range(2).repeat(3)
    ).filter(lambda word: True),  # tf.data counts endlessly many before the filter
    "choose by an endless choice": lambda D: D.choose_from_datasets(
        [D.range(3), D.range(10, 12)], D.range(2).repeat()
    ),
    "choose by an endless choice past those that end": lambda D: D.choose_from_datasets(
        [D.range(3), D.range(10, 12)], D.range(2).repeat(), stop_on_empty_dataset=False
    ),
    "choose nests": lambda D: D.choose_from_datasets(
        [D.zip({"a": D.range(3)}), D.zip({"a": D.range(5, 8)})], D.range(2).repeat(2)
    ),
    "choose from one": lambda D: D.choose_from_datasets([D.range(3)], D.range(1).repeat(2)),
    "choose by a filtered choice": lambda D: D.choose_from_datasets(
        [D.range(3), D.range(5, 8)], D.range(9).filter(lambda x: x < 2).repeat(2)
    ),
    "sample with one weight": lambda D: D.sample_from_datasets(
        [D.range(3), D.range(5, 8)], weights=[0.0, 1.0]
    ),
    "sample from one": lambda D: D.sample_from_datasets([D.range(3)]),
    "resample to what it is": lambda D: D.from_tensor_slices([0, 1, 0, 1, 1]).rejection_resample(
        class_func=lambda x: x, target_dist=[0.5, 0.5], initial_dist=[0.5, 0.5]
    ),
}


@pytest.mark.parametrize("make", NESTING.values(), ids=NESTING)
def test_datasets_made_of_datasets_are_tf_datas(make, alike):
    alike(make)


REFUSED = {
    "flat_map to a number": lambda D: D.range(3).flat_map(lambda x: x),
    "interleave to a number": lambda D: D.range(3).interleave(lambda x: x, cycle_length=2),
    "interleave none": lambda D: D.range(3).interleave(lambda x: D.range(x), cycle_length=0),
    "interleave blocks of none": lambda D: D.range(3).interleave(
        lambda x: D.range(x), cycle_length=2, block_length=0
    ),
    "choose from none": lambda D: D.choose_from_datasets([], D.range(2)),
    "choose beyond the last": lambda D: D.choose_from_datasets([D.range(3)], D.range(2)),
    "choose by words": lambda D: D.choose_from_datasets([D.range(3)], D.from_tensor_slices(["a"])),
    "choose from two types": lambda D: D.choose_from_datasets(
        [D.range(3), D.from_tensor_slices(["a"])], D.range(2)
    ),
    "sample from none": lambda D: D.sample_from_datasets([]),
    "sample with a weight too few": lambda D: D.sample_from_datasets(
        [D.range(3), D.range(3)], weights=[1.0]
    ),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_tf_data_refuses_is_refused(make, both_refuse):
    both_refuse(make)
