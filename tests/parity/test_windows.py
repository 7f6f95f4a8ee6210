"""Windows, groups and buckets: datasets inside datasets."""

from __future__ import annotations

import numpy as np
import pytest


def rows(D, f, *lengths):
    """Rows of these lengths, counting from 0."""
    return D.from_tensor_slices(list(lengths)).map(lambda n: f.arange(n))


def pair_windows(D, **options):
    return D.from_tensor_slices(([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])).window(2, **options)


WINDOWS = {
    "window": lambda D: D.range(7).window(3),
    "window evenly": lambda D: D.range(6).window(3),
    "window with a shift": lambda D: D.range(7).window(3, shift=1),
    "window with a shift, whole": lambda D: D.range(7).window(3, shift=1, drop_remainder=True),
    "window with a stride": lambda D: D.range(7).window(3, shift=1, stride=2),
    "window with a stride, whole": lambda D: D.range(7).window(3, 1, 2, True),
    "window with a stride alone": lambda D: D.range(12).window(3, stride=2),
    "window with a shift beyond its size": lambda D: D.range(11).window(2, shift=5),
    "window with a shift beyond its size, whole": lambda D: D.range(11).window(
        2, shift=5, drop_remainder=True
    ),
    "window with a shift and a longer stride": lambda D: D.range(11).window(2, shift=3, stride=4),
    "window larger than the dataset": lambda D: D.range(2).window(5),
    "window larger than the dataset, whole": lambda D: D.range(2).window(5, drop_remainder=True),
    "window of one": lambda D: D.range(3).window(1),
    "window of nothing": lambda D: D.range(0).window(3),
    "window of pairs": lambda D: pair_windows(D),
    "window of dicts": lambda D: D.from_tensor_slices({"a": [1, 2, 3], "b": [4, 5, 6]}).window(2),
    "window of words": lambda D: D.from_tensor_slices(["a", "b", "c"]).window(2),
    "window of ragged arrays": lambda D, f: rows(D, f, 2, 0, 3).window(2),
    "window in each pass": lambda D: D.range(4).window(3).repeat(2),
    "window across passes": lambda D: D.range(4).repeat(2).window(3),
    "window of a stream": lambda D: D.range(9).filter(lambda x: x % 3 != 2).window(4),
    "window and batch": lambda D: (
        D.range(7).window(3, shift=1, drop_remainder=True).flat_map(lambda w: w.batch(3))
    ),
    "window and batch, the last ones short": lambda D: (
        D.range(7).window(3, shift=2).flat_map(lambda w: w.batch(2))
    ),
    "window of pairs and zip": lambda D: pair_windows(D, shift=1).flat_map(
        lambda a, b: D.zip((a.batch(2), b.batch(2)))
    ),
    "window of dicts and zip": lambda D: (
        D.from_tensor_slices({"a": [1, 2, 3], "b": [4, 5, 6]})
        .window(2)
        .flat_map(lambda w: D.zip(w))
        .batch(2)
    ),
    "window and skip": lambda D: D.range(7).window(3).flat_map(lambda w: w.skip(1)),
    "window and interleave": lambda D: (
        D.range(9).window(4).interleave(lambda w: w, cycle_length=2, block_length=1)
    ),
    "window and enumerate": lambda D: (
        D.range(7).window(3).enumerate().flat_map(lambda k, w: w.map(lambda x: (k, x)))
    ),
    "window without end": lambda D: D.range(3).repeat().window(2).take(4),
    "window and shuffle inside": lambda D: D.range(6).window(3).flat_map(lambda w: w.repeat(2)),
}


@pytest.mark.parametrize("make", WINDOWS.values(), ids=WINDOWS)
def test_windows_are_tf_datas(make, alike):
    alike(make)


def by_remainder(D, n=11, by=4, size=2, **options):
    return D.range(n).group_by_window(
        key_func=lambda x: by - 1 - x % by,
        reduce_func=lambda key, window: window.batch(size),
        **({"window_size": size} | options),
    )


GROUPS = {
    "group_by_window": lambda D: by_remainder(D, 10, 2, 5),
    "group_by_window with rests": lambda D: by_remainder(D),
    "group_by_window with one group": lambda D: by_remainder(D, 7, 1, 3),
    "group_by_window with windows that never fill": lambda D: by_remainder(D, 11, 4, 50),
    "group_by_window of windows of one": lambda D: by_remainder(D, 5, 2, 1),
    "group_by_window of nothing": lambda D: by_remainder(D, 0),
    "group_by_window with a size for each key": lambda D: by_remainder(
        D, 23, 3, 100, window_size=None, window_size_func=lambda key: key + 1
    ),
    "group_by_window with the key": lambda D: D.range(9).group_by_window(
        lambda x: x % 3, lambda key, window: window.map(lambda x: (key, x)), 2
    ),
    "group_by_window that gives less": lambda D: D.range(11).group_by_window(
        lambda x: x % 2, lambda key, window: window.take(1), 3
    ),
    "group_by_window that gives more": lambda D: D.range(7).group_by_window(
        lambda x: x % 2, lambda key, window: window.repeat(2), 2
    ),
    "group_by_window of pairs": lambda D: D.from_tensor_slices(
        (np.array([1, 2, 1, 2, 1]), ["a", "b", "c", "d", "e"])
    ).group_by_window(lambda k, w: k, lambda key, window: window.batch(2), window_size=2),
    "group_by_window with keys below zero": lambda D: D.range(9).group_by_window(
        lambda x: x % 3 - 1, lambda key, window: window.batch(9), 9
    ),
    "group_by_window in each pass": lambda D: by_remainder(D, 5, 2, 2).repeat(2),
    "group_by_window of a repeat": lambda D: (
        D.range(5)
        .repeat(2)
        .group_by_window(lambda x: x % 2, lambda key, window: window.batch(3), window_size=3)
    ),
    "group_by_window of a stream": lambda D: (
        D.range(15)
        .filter(lambda x: x % 3 != 2)
        .group_by_window(lambda x: x % 2, lambda key, window: window.batch(3), window_size=3)
    ),
    "group_by_window of rows, padded": lambda D, f: rows(D, f, 1, 3, 2, 5, 4).group_by_window(
        lambda x: f.cast(f.size(x) % 2, "int64"),
        lambda key, window: window.padded_batch(2),
        window_size=2,
    ),
}


@pytest.mark.parametrize("make", GROUPS.values(), ids=GROUPS)
def test_groups_are_tf_datas(make, alike):
    alike(make)


LENGTHS = (1, 4, 3, 5, 6, 2, 1, 7, 2, 3, 2)


def buckets(D, f, lengths=LENGTHS, sizes=(2, 2, 3), **options):
    return rows(D, f, *lengths).bucket_by_sequence_length(
        element_length_func=lambda x: f.size(x),
        bucket_boundaries=[3, 5],
        bucket_batch_sizes=list(sizes),
        **options,
    )


BUCKETS = {
    "bucket": lambda D, f: buckets(D, f),
    "bucket without remainder": lambda D, f: buckets(D, f, drop_remainder=True),
    "bucket by one": lambda D, f: buckets(D, f, sizes=(1, 1, 1)),
    "bucket nothing": lambda D, f: buckets(D, f, (1,)).take(0),
    "bucket at the boundaries": lambda D, f: buckets(D, f, (2, 3, 4, 5, 3, 5, 0)),
    "bucket padded to the boundary": lambda D, f: buckets(
        D, f, (1, 4, 3, 2, 0, 4), pad_to_bucket_boundary=True
    ),
    "bucket with a value": lambda D, f: buckets(D, f, padding_values=f.constant(-1, "int32")),
    "bucket with a Python value": lambda D, f: buckets(D, f, padding_values=-1),
    "bucket to a shape": lambda D, f: buckets(D, f, padded_shapes=[8]),
    "bucket to None": lambda D, f: buckets(D, f, padded_shapes=[None]),
    "bucket without padding": lambda D, f: buckets(
        D, f, (2, 2, 3, 5, 3, 2, 5), sizes=(2, 2, 2), no_padding=True
    ),
    "bucket in each pass": lambda D, f: buckets(D, f, (1, 4, 2)).repeat(2),
    "bucket of a repeat": lambda D, f: (
        rows(D, f, 1, 4, 2).repeat(3).bucket_by_sequence_length(lambda x: f.size(x), [3], [2, 2])
    ),
    "bucket pairs": lambda D, f: D.zip(rows(D, f, *LENGTHS), D.range(11)).bucket_by_sequence_length(
        lambda x, k: f.size(x), [3, 5], [2, 2, 3], padded_shapes=([None], [])
    ),
    "bucket pairs without shapes": lambda D, f: D.zip(
        rows(D, f, *LENGTHS), D.range(11)
    ).bucket_by_sequence_length(lambda x, k: f.size(x), [3, 5], [2, 2, 3]),
    "bucket dicts": lambda D, f: (
        rows(D, f, *LENGTHS)
        .map(lambda x: {"x": x, "y": x * 2})
        .bucket_by_sequence_length(lambda d: f.size(d["x"]), [3, 5], [2, 2, 3])
    ),
    "bucket a stream": lambda D, f: (
        rows(D, f, *LENGTHS)
        .filter(lambda x: f.size(x) != 3)
        .bucket_by_sequence_length(lambda x: f.size(x), [3, 5], [2, 2, 3])
    ),
}


@pytest.mark.parametrize("make", BUCKETS.values(), ids=BUCKETS)
def test_buckets_are_tf_datas(make, alike):
    alike(make)


REFUSED = {
    "window of size zero": lambda D: D.range(3).window(0),
    "window with a shift of zero": lambda D: D.range(3).window(2, shift=0),
    "window with a stride of zero": lambda D: D.range(3).window(2, stride=0),
    "group_by_window without a size": lambda D: D.range(3).group_by_window(
        lambda x: x % 2, lambda key, window: window.batch(2)
    ),
    "group_by_window with two sizes": lambda D: by_remainder(
        D, window_size=2, window_size_func=lambda key: key + 1
    ),
    "group_by_window with windows of zero": lambda D: by_remainder(D, window_size=0),
    "group_by_window by words": lambda D: D.range(3).group_by_window(
        lambda x: "a", lambda key, window: window.batch(2), 2
    ),
    "bucket with a size too few": lambda D, f: buckets(D, f, sizes=(2, 2)),
    "bucket beyond the last boundary that is padded to": (
        lambda D, f: buckets(D, f, (1, 9), pad_to_bucket_boundary=True)
    ),
    "bucket without padding of unequal rows": lambda D, f: buckets(D, f, (1, 2), no_padding=True),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_tf_data_refuses_is_refused(make, both_refuse):
    both_refuse(make)
