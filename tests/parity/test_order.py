"""Operations that choose which elements come, and when."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph

TABLE = {
    "repeat": lambda D: D.range(3).repeat(2),
    "repeat no times": lambda D: D.range(3).repeat(0),
    "repeat once": lambda D: D.range(3).repeat(1),
    "repeat without end": lambda D: D.range(3).repeat().take(7),
    "repeat for -1": lambda D: D.range(3).repeat(-1).take(7),
    "repeat for None": lambda D: D.range(3).repeat(None).take(7),
    "repeat for less than -1": lambda D: D.range(3).repeat(-3).take(7),
    "repeat nothing": lambda D: D.range(0).repeat(3),
    "repeat nothing without end, zipped": lambda D: D.zip(D.range(0).repeat(), D.range(2)),
    "repeat a stream": lambda D: D.range(5).filter(lambda x: x > 2).repeat(2),
    "repeat of a numpy count": lambda D: D.range(2).repeat(np.int64(2)),
    "repeat of a repeat": lambda D: D.range(2).repeat(2).repeat(2),
    "take": lambda D: D.range(7).take(3),
    "take none": lambda D: D.range(7).take(0),
    "take more than there are": lambda D: D.range(3).take(9),
    "take for -1": lambda D: D.range(3).take(-1),
    # tf.data counts -3 of these, and endlessly many of a skip(-1); behind a filter it does not know
    "take for less than -1": lambda D: D.range(3).take(-3).filter(lambda x: x >= 0),
    "take of an endless dataset": lambda D: D.range(2).repeat().take(5),
    "take of a stream": lambda D: D.range(9).filter(lambda x: x % 2 == 1).take(2),
    "skip": lambda D: D.range(7).skip(4),
    "skip none": lambda D: D.range(3).skip(0),
    "skip more than there are": lambda D: D.range(3).skip(9),
    "skip for -1": lambda D: D.range(3).skip(-1),
    "skip for less than -1": lambda D: D.range(3).skip(-3),
    "skip in an endless dataset": lambda D: D.range(3).repeat().skip(4).take(3),
    "skip for -1 in an endless dataset": (
        lambda D: D.range(3).repeat().skip(-1).filter(lambda x: x >= 0)
    ),
    "take and skip batches": lambda D: D.range(9).batch(2).skip(1).take(2),
    "shard": lambda D: D.range(7).shard(3, 1),
    "shard by one": lambda D: D.range(3).shard(1, 0),
    "shard with nothing left": lambda D: D.range(2).shard(5, 4),
    "shard by names": lambda D: D.range(10).shard(num_shards=3, index=2),
    "shard a stream": lambda D: D.range(9).filter(lambda x: x % 2 == 0).shard(2, 1),
    "shard an endless dataset": lambda D: D.range(5).repeat().shard(2, 1).take(6),
    "concatenate": lambda D: D.range(2).concatenate(D.range(5, 8)),
    "concatenate with nothing": lambda D: D.range(0).concatenate(D.range(2)),
    "concatenate nothing": lambda D: D.range(2).concatenate(D.range(0)),
    "concatenate nests": lambda D: D.from_tensor_slices({"a": [1], "b": (["x"],)}).concatenate(
        D.from_tensor_slices({"a": [2], "b": (["y"],)})
    ),
    "concatenate other shapes": lambda D: D.from_tensors([1, 2]).concatenate(
        D.from_tensors([3, 4, 5])
    ),
    "concatenate with an endless dataset": lambda D: (
        D.range(2).concatenate(D.range(3).repeat()).take(6)
    ),
    "concatenate an endless dataset": lambda D: D.range(2).repeat().concatenate(D.range(3)).take(5),
    "concatenate a stream": lambda D: (
        D.range(5).filter(lambda x: x > 2).concatenate(D.range(2)).concatenate(D.range(1))
    ),
    "zip": lambda D: D.zip(D.range(3), D.range(5, 9)),
    "zip of a tuple": lambda D: D.zip((D.range(3), D.range(5, 9))),
    "zip of one": lambda D: D.zip(D.range(3)),
    "zip of a tuple of one": lambda D: D.zip((D.range(3),)),
    "zip of three": lambda D: D.zip(D.range(2), D.range(9).batch(2), D.from_tensors("x").repeat()),
    "zip of a dict": lambda D: D.zip({"a": D.range(2), "b": (D.range(3), D.range(4).skip(1))}),
    "zip by name": lambda D: D.zip(datasets=(D.range(2), D.range(3))),
    "zip with nothing": lambda D: D.zip(D.range(3), D.range(0)),
    "zip of endless datasets": lambda D: D.zip(D.range(2).repeat(), D.range(3).repeat()).take(5),
    "zip of nests": lambda D: D.zip(D.from_tensor_slices(([1, 2], ["a", "b"])), D.range(2)),
    "zip a stream": lambda D: D.zip(D.range(9).filter(lambda x: x % 2 == 1), D.range(3)),
    "enumerate": lambda D: D.range(5, 8).enumerate(),
    "enumerate from a start": lambda D: D.from_tensor_slices([1, 2, 3]).enumerate(start=5),
    "enumerate from below zero": lambda D: D.range(3).enumerate(-2),
    "enumerate pairs": lambda D: D.from_tensor_slices(([1, 2], ["a", "b"])).enumerate(),
    "enumerate a repeat": lambda D: D.range(2).repeat(2).enumerate(),
    "enumerate without end": lambda D: D.range(2).repeat().enumerate().take(3),
    "prefetch": lambda D: D.range(5).prefetch(2),
    "prefetch nothing": lambda D: D.range(5).prefetch(0),
    "prefetch as it likes": lambda D: D.range(5).prefetch(-1),
    "prefetch by name": lambda D: D.range(5).prefetch(buffer_size=3),
    "cache": lambda D: D.range(5).map(lambda x: x * 2).cache(),
    "cache and repeat": lambda D: D.range(3).cache().repeat(2),
    "cache nothing": lambda D: D.range(0).cache(),
    "cache a stream": lambda D: D.range(7).filter(lambda x: x % 2 == 0).cache().repeat(2),
    "cache words": lambda D: D.from_tensor_slices((["a", "b\0"], [[1], [2]])).cache().batch(2),
    "cache with no file's name": lambda D: D.range(3).cache(filename=""),
    "shuffle with a window of one": lambda D: D.range(5).shuffle(1, seed=1),
    "names everywhere": lambda D: (
        D.range(6, name="a")
        .repeat(2, name="b")
        .take(9, name="c")
        .skip(1, name="d")
        .batch(2, name="e")
        .shard(2, 0, name="f")
        .enumerate(name="g")
        .prefetch(1, name="h")
    ),
    "apply": lambda D: D.range(9).apply(lambda ds: ds.filter(lambda x: x < 5)),
    "apply what gives another structure": lambda D: D.range(3).apply(lambda ds: D.zip(ds, ds)),
    "unique": lambda D: D.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique(),
    "unique of int64": lambda D: D.range(5).map(lambda x: x // 2).unique(),
    "unique of words": lambda D: D.from_tensor_slices(["b", "a", "b", "", "a", ""]).unique(),
    "unique of nothing": lambda D: D.range(0).unique(),
    "unique of a repeat": lambda D: D.range(3).repeat(3).unique(),
    "unique in each pass": lambda D: D.from_tensor_slices([3, 3, 1]).unique().repeat(2),
    "take_while": lambda D: D.range(10).take_while(lambda x: x < 5),
    "take_while of all": lambda D: D.range(3).take_while(lambda x: x < 50),
    "take_while of none": lambda D: D.range(3).take_while(lambda x: x > 50),
    "take_while that would be true again": lambda D: D.range(10).take_while(lambda x: x % 4 < 3),
    "take_while of an endless dataset": lambda D: D.range(4).repeat().take_while(lambda x: x < 3),
    "take_while of pairs": lambda D: D.zip(D.range(9), D.range(9).skip(2)).take_while(
        lambda a, b: a + b < 9
    ),
    "take_while of dicts": lambda D: D.from_tensor_slices(
        {"a": [1, 2, 3], "b": [3, 2, 1]}
    ).take_while(lambda d: d["a"] < d["b"]),
    "take_while in each pass": lambda D: D.range(5).take_while(lambda x: x < 2).repeat(2),
    "take_while of a stream": lambda D: (
        D.range(9).filter(lambda x: x % 2 == 0).take_while(lambda x: x < 5)
    ),
}


@pytest.mark.parametrize("make", TABLE.values(), ids=TABLE)
def test_the_order_is_tf_datas(make, alike):
    alike(make)


REFUSED = {
    "shard by none": lambda D: D.range(3).shard(0, 0),
    "shard beyond the last": lambda D: D.range(3).shard(2, 2),
    "shard before the first": lambda D: D.range(3).shard(2, -1),
    "zip of no dataset": lambda D: D.zip(),
    "zip of a number": lambda D: D.zip(3),
    "zip of a list": lambda D: D.zip([D.range(1), D.range(2)]),
    "concatenate another type": lambda D: D.range(3).concatenate(D.from_tensor_slices(["a", "b"])),
    "concatenate another width": lambda D: D.range(3).concatenate(D.from_tensor_slices([1, 2])),
    "concatenate another structure": lambda D: D.range(3).concatenate(
        D.zip(D.range(3), D.range(3))
    ),
    "concatenate a list": lambda D: D.range(3).concatenate([1, 2]),
    "prefetch less than it likes": lambda D: D.range(3).prefetch(-5),
    "shuffle in a window of nothing": lambda D: D.range(3).shuffle(0),
    "apply what gives no dataset": lambda D: D.range(3).apply(lambda ds: 3),
    "take a fraction": lambda D: D.range(3).take(1.5),
    "take_while of numbers": lambda D: D.range(3).take_while(lambda x: x),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_tf_data_refuses_is_refused(make, both_refuse):
    both_refuse(make)


SHUFFLED = {
    "shuffle": lambda D: D.range(9).shuffle(9, seed=1),
    "shuffle in a small window": lambda D: D.range(9).shuffle(3, seed=1),
    "shuffle the same in each pass": lambda D: (
        D.range(9).shuffle(9, seed=1, reshuffle_each_iteration=False).repeat(2)
    ),
    "shuffle words": lambda D: D.from_tensor_slices(["a", "b", "c"]).shuffle(3).map(lambda x: x),
    "shuffle a repeat": lambda D: D.range(3).repeat(2).shuffle(6, seed=1),
    "sample": lambda D: D.sample_from_datasets([D.range(3), D.range(10, 14)], seed=1),
    "sample by weight": lambda D: D.sample_from_datasets(
        [D.range(3), D.range(10, 14)], weights=[0.2, 0.8], seed=1
    ),
    "sample pairs": lambda D: D.sample_from_datasets(
        [D.range(3).enumerate(), D.range(7, 9).enumerate(4)], seed=1
    ),
}


@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_in_random_order_the_elements_are_the_same(make, alike):
    def in_order(D):
        return sorted(_numbers(element) for element in make(D).as_numpy_iterator())

    alike(in_order)


def _numbers(element):
    if isinstance(element, tuple):
        return [_numbers(part) for part in element]
    return element.decode() if isinstance(element, bytes) else element


def test_a_cache_in_a_file_gives_the_same_again(tmp_path, alike):
    made = 0

    def make(D):
        nonlocal made
        made += 1
        return D.range(5).batch(2).cache(str(tmp_path / str(made))).repeat(2)

    alike(make)


def test_other_ranks_concatenate_as_in_tf_data_and_have_no_spec_where_tf_data_has_an_unknown_one():
    def ranks(D):
        return D.from_tensors([1, 2]).concatenate(D.from_tensors(3))

    theirs, ours = ranks(tf.data.Dataset), ranks(ph.Dataset)
    assert theirs.element_spec.shape.rank is None
    assert [x.tolist() for x in theirs.as_numpy_iterator()] == [x.tolist() for x in ours]
    with pytest.raises(ph.errors.PipelineError, match="different ranks have no spec in common"):
        _ = ours.element_spec
