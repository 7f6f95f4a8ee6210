"""Elements into batches, and back."""

from __future__ import annotations

import numpy as np
import pytest


def ragged(D, f, n=5):
    """Rows [], [0], [0 1], ... of int32."""
    return D.range(n, output_type=np.int32).map(lambda x: f.arange(x))


def nest(D, n=7):
    numbers = np.arange(n, dtype=np.int32)
    return D.from_tensor_slices(
        {"x": np.stack([numbers, numbers * 2], 1), "y": ([f"w{k}" for k in range(n)], numbers / 2)}
    )


TABLE = {
    "batch": lambda D: D.range(7).batch(3),
    "batch evenly": lambda D: D.range(6).batch(3),
    "batch without remainder": lambda D: D.range(7).batch(3, drop_remainder=True),
    "batch without remainder, evenly": lambda D: D.range(6).batch(3, True),
    "batch larger than the dataset": lambda D: D.range(2).batch(5),
    "batch larger than the dataset without remainder": lambda D: D.range(2).batch(5, True),
    "batch nothing": lambda D: D.range(0).batch(5),
    "batch by one": lambda D: D.range(3).batch(1),
    "batch by a numpy number": lambda D: D.range(3).batch(np.int64(2)),
    "batch in parallel": lambda D: D.range(7).batch(3, num_parallel_calls=2, deterministic=True),
    "batch across passes": lambda D: D.range(4).repeat(2).batch(3),
    "batch in each pass": lambda D: D.range(4).batch(3).repeat(2),
    "batch without end": lambda D: D.range(4).repeat().batch(3).take(4),
    "batch batches": lambda D: D.range(9).batch(2, True).batch(3),
    "batch words": lambda D: D.from_tensor_slices(["a", "b\0", "cde"]).batch(2),
    "batch arrays of words": lambda D: D.from_tensor_slices([["a", "b"], ["c", ""]]).batch(2),
    "batch bools": lambda D: D.from_tensor_slices([True, False, True]).batch(2),
    "batch floats": lambda D: D.from_tensor_slices([0.1, 0.2, 0.3]).batch(2),
    "batch a nest": lambda D: nest(D).batch(3),
    "batch Python numbers": lambda D: (
        D.range(5).map(lambda x: (1, 2.5, True, "w", [1, 2])).batch(2)
    ),
    "batch after enumerate": lambda D: nest(D).enumerate().batch(4),
    "batch a stream": lambda D: D.range(9).filter(lambda x: x % 3 != 2).batch(4),
    "batch a stream without remainder": lambda D: (
        D.range(9).filter(lambda x: x % 3 != 2).batch(4, True)
    ),
    "batch empty arrays": lambda D: D.from_tensor_slices(np.empty((3, 0), np.int8)).batch(2),
    "padded_batch": lambda D, f: ragged(D, f).padded_batch(2),
    "padded_batch without remainder": lambda D, f: ragged(D, f).padded_batch(
        2, drop_remainder=True
    ),
    "padded_batch larger than the dataset": lambda D, f: ragged(D, f).padded_batch(9),
    "padded_batch nothing": lambda D, f: ragged(D, f, 0).padded_batch(2, padded_shapes=[None]),
    "padded_batch to a number": lambda D, f: ragged(D, f).padded_batch(2, padded_shapes=6),
    "padded_batch to a shape": lambda D, f: ragged(D, f).padded_batch(2, padded_shapes=[6]),
    "padded_batch to a tuple as shape": lambda D, f: ragged(D, f).padded_batch(
        2, padded_shapes=(6,)
    ),
    "padded_batch to None": lambda D, f: ragged(D, f).padded_batch(2, padded_shapes=[None]),
    "padded_batch to -1": lambda D, f: ragged(D, f).padded_batch(2, padded_shapes=[-1]),
    "padded_batch with a value": lambda D, f: ragged(D, f).padded_batch(
        3, padding_values=f.constant(-1, "int32")
    ),
    "padded_batch with a Python value": lambda D, f: ragged(D, f).padded_batch(
        3, padding_values=-1
    ),
    "padded_batch to a shape with a value": lambda D, f: ragged(D, f).padded_batch(
        2, padded_shapes=5, padding_values=-1
    ),
    "padded_batch of scalars": lambda D: D.range(5).padded_batch(2),
    "padded_batch of scalars with their shape": lambda D: D.range(5).padded_batch(2, []),
    "padded_batch of equal arrays": lambda D: nest(D).padded_batch(3),
    "padded_batch of pairs": lambda D, f: D.zip(ragged(D, f), D.range(5)).padded_batch(
        2, padded_shapes=([None], [])
    ),
    "padded_batch of pairs with values": lambda D, f: D.zip(
        ragged(D, f), ragged(D, f).map(lambda x: f.cast(x, "float32"))
    ).padded_batch(2, padded_shapes=([5], [None]), padding_values=(f.constant(-1, "int32"), 100.5)),
    "padded_batch of pairs with one value": lambda D, f: D.zip(
        ragged(D, f), ragged(D, f)
    ).padded_batch(2, padding_values=-1),
    "padded_batch of pairs with a value for one": lambda D, f: D.zip(
        ragged(D, f), ragged(D, f)
    ).padded_batch(2, padding_values=(None, -1)),
    "padded_batch of dicts": lambda D, f: (
        ragged(D, f)
        .map(lambda x: {"x": x, "n": f.size(x)})
        .padded_batch(2, padded_shapes={"x": [4], "n": []}, padding_values={"x": 9, "n": 0})
    ),
    "padded_batch of words": lambda D, f: (
        D.range(3).map(lambda x: f.full([x], "w")).padded_batch(3)
    ),
    "padded_batch of words with a word": lambda D, f: (
        D.range(3).map(lambda x: f.full([x], "w")).padded_batch(3, padding_values="<p>")
    ),
    "padded_batch of bools": lambda D, f: (
        D.range(3).map(lambda x: f.full([x], True)).padded_batch(3)
    ),
    "padded_batch of matrices": lambda D, f: (
        D.range(4).map(lambda x: f.full([x, 3 - x], x)).padded_batch(2)
    ),
    "padded_batch of matrices along one axis": lambda D, f: (
        D.range(4).map(lambda x: f.full([x, 2], x)).padded_batch(2, padded_shapes=[4, None])
    ),
    "padded_batch of batches": lambda D: D.range(7).batch(3).padded_batch(2),
    "padded_batch a stream": lambda D, f: (
        ragged(D, f, 7).filter(lambda x: f.size(x) % 2 == 1).padded_batch(2)
    ),
    "unbatch": lambda D: D.range(7).batch(3).unbatch(),
    "unbatch rows": lambda D: D.from_tensor_slices([[1, 2, 3], [4, 5, 6]]).unbatch(),
    "unbatch matrices": lambda D: D.from_tensors([[1, 2], [3, 4]]).unbatch(),
    "unbatch a nest": lambda D: nest(D).batch(4).unbatch(),
    "unbatch words": lambda D: D.from_tensors(["a", "b\0"]).unbatch(),
    "unbatch rows of varying length": lambda D, f: ragged(D, f).unbatch(),
    "unbatch nothing": lambda D: D.range(0).batch(2).unbatch(),
    "unbatch empty rows": lambda D: D.from_tensor_slices(np.empty((2, 0), np.int32)).unbatch(),
    "unbatch and batch": lambda D: D.range(10).batch(4).unbatch().batch(3),
    "unbatch in each pass": lambda D: D.range(3).batch(2).unbatch().repeat(2),
    "unbatch a stream": lambda D, f: (
        D.range(9).batch(2).filter(lambda b: f.total(b) % 3 != 1).unbatch()
    ),
    "unbatch twice": lambda D: D.range(8).batch(2).batch(2).unbatch().unbatch(),
    "rebatch": lambda D: D.range(6).batch(2).rebatch(3),
    "rebatch with a rest": lambda D: D.range(7).batch(4).rebatch(3),
    "rebatch without remainder": lambda D: D.range(7).batch(2).rebatch(3, drop_remainder=True),
    "rebatch to larger batches": lambda D: D.range(10).batch(2).rebatch(5),
    "rebatch to one": lambda D: D.range(5).batch(3).rebatch(1),
    "rebatch to more than there are": lambda D: D.range(5).batch(3).rebatch(50),
    "rebatch to a list": lambda D: D.range(8).batch(4).rebatch([2, 1, 1]),
    "rebatch to a list with a rest": lambda D: D.range(9).batch(4).rebatch([2, 3]),
    "rebatch to a list without remainder": lambda D: (
        D.range(9).batch(4).rebatch([2, 3], drop_remainder=True)
    ),
    "rebatch to a list with a zero": lambda D: D.range(7).batch(4).rebatch([2, 0, 1]),
    "rebatch to a list of one": lambda D: D.range(7).batch(4).rebatch([3]),
    "rebatch to a list that ends at a batch's end": lambda D: D.range(6).batch(3).rebatch([1, 2]),
    "rebatch a nest": lambda D: nest(D).batch(4).rebatch(3),
    "rebatch words": lambda D: D.from_tensor_slices(["a", "b", "c"]).batch(2).rebatch(3),
    "rebatch nothing": lambda D: D.range(0).batch(2).rebatch(3),
    "rebatch rows of varying length": lambda D, f: ragged(D, f).rebatch(3),
    "rebatch in each pass": lambda D: D.range(5).batch(2).rebatch(3).repeat(2),
    "rebatch without end": lambda D: D.range(5).batch(2).repeat().rebatch(3).take(5),
    "rebatch a stream": lambda D: D.range(9).filter(lambda x: x % 3 != 2).batch(2).rebatch(4),
}


@pytest.mark.parametrize("make", TABLE.values(), ids=TABLE)
def test_batches_are_tf_datas(make, alike):
    alike(make)


REFUSED = {
    "batch by zero": lambda D: D.range(3).batch(0),
    "batch by less than zero": lambda D: D.range(3).batch(-1),
    "batch by a fraction": lambda D: D.range(3).batch(1.5),
    "batch unequal shapes": lambda D, f: ragged(D, f).batch(2),
    "batch unequal ranks": lambda D: D.from_tensors([1]).concatenate(D.from_tensors(2)).batch(2),
    "padded_batch by zero": lambda D: D.range(3).padded_batch(0),
    "padded_batch to less than there is": lambda D, f: ragged(D, f).padded_batch(2, [3]),
    "padded_batch to another rank": lambda D, f: ragged(D, f).padded_batch(2, [3, 3]),
    "padded_batch to another structure": lambda D, f: ragged(D, f).padded_batch(2, ([3], [3])),
    "padded_batch with a value of another type": (
        lambda D, f: ragged(D, f).padded_batch(2, padding_values="x")
    ),
    "padded_batch ints with a fraction": (
        lambda D, f: ragged(D, f).padded_batch(2, padding_values=1.5)
    ),
    "padded_batch with an array as a value": (
        lambda D, f: ragged(D, f).padded_batch(2, padding_values=f.constant([1, 2], "int32"))
    ),
    "padded_batch of pairs of two types with a value for one type": lambda D, f: D.zip(
        ragged(D, f), ragged(D, f).map(lambda x: f.cast(x, "float32"))
    ).padded_batch(2, padding_values=0.5),
    "padded_batch with values for more": (
        lambda D, f: ragged(D, f).padded_batch(2, padding_values=(1, 2))
    ),
    "unbatch scalars": lambda D: D.range(3).unbatch(),
    "unbatch unequal lengths": lambda D: D.from_tensors(([1, 2], [1, 2, 3])).unbatch(),
    "rebatch scalars": lambda D: D.range(3).rebatch(2),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_tf_data_refuses_is_refused(make, both_refuse):
    both_refuse(make)
