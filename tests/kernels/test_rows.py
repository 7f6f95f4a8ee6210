"""Gathering rows, permuting places: the kernels against numpy and the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playhead import kernels, reference
from playhead.plan import permutation
from playhead.plan.block import gather, gather_apart

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason="built without the C kernels")

DTYPES = [
    "?",
    "i1",
    "f2",
    "<f4",
    ">f4",
    "i8",
    "c16",
    "M8[s]",
    "m8[ns]",
    "S5",
    "U3",
    "V7",
    "i4,f8",
    "(3,)u1",
]


def numbers(shape, dtype):
    dtype = np.dtype((np.void, np.dtype(dtype).itemsize)) if dtype == "(3,)u1" else np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(0).integers(0, 2, max(size, 1), np.uint8)[:size]
    return raw.view(dtype).reshape(shape) if size else np.zeros(shape, dtype)


LAYOUTS = {
    "contiguous": lambda c: c,
    "every other row": lambda c: c[::2],
    "backwards": lambda c: c[::-1],
    "part of each row": lambda c: c[:, 1:],
    "every other item": lambda c: c[:, ::2],
    "transposed": lambda c: c.T,
    "Fortran": np.asfortranarray,
    "one row for all": lambda c: np.broadcast_to(c[:1], c.shape),
    "read-only": lambda c: np.frombuffer(c.tobytes(), c.dtype).reshape(c.shape),
    "no rows' items": lambda c: c[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_layout_and_dtype_are_those_numpy_gives(dtype, layout):
    column = LAYOUTS[layout](numbers((9, 4), dtype))
    index = np.array([3, 0, 0, len(column) - 1, 2])
    out = gather(column, index)
    assert out.dtype == column.dtype
    assert out.tobytes() == column[index].tobytes()
    assert out.flags.c_contiguous
    assert not out.nbytes or out.ctypes.data % 64 == 0
    assert not np.shares_memory(out, column)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 20), st.integers(0, 40))
def test_rows_of_every_width_are_those_numpy_gives(data, rows, width):
    column = np.random.default_rng(0).integers(0, 256, (rows, width), np.uint8)
    index = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=9)), np.int64)
    assert gather(column, index).tolist() == column[index].tolist()


@pytest.mark.parametrize("index", [-1, 5, 6, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("work", [kernels.gather, reference.gather], ids=["kernel", "reference"])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_an_index_outside_raises_before_anything_is_written(work, index, step):
    column, out = np.ones((10, 3), np.float32)[:5][::step], np.zeros((2, 3), np.float32)
    with pytest.raises(IndexError):
        work(column, np.array([0, index]), out)
    assert not out.any()


def test_no_rows_have_no_index():
    empty = np.empty((0, 3))
    assert gather(empty, np.empty(0, np.int64)).shape == (0, 3)
    with pytest.raises(IndexError):
        gather(empty, np.zeros(1, np.int64))


def test_indexes_of_other_strides_and_byte_orders_are_taken():
    column = np.arange(10)
    assert gather(column, np.arange(10)[::-3]).tolist() == [9, 6, 3, 0]
    assert gather(column, np.array([7, 1], ">i8")).tolist() == [7, 1]


def test_a_result_of_the_wrong_size_is_refused():
    ones, index = np.ones((4, 2)), np.zeros(2, np.int64)
    for rows in (1, 3):
        with pytest.raises(ValueError, match="fill"):
            kernels.gather(ones, index, np.zeros((rows, 2)))
    with pytest.raises(ValueError, match="fill"):
        kernels.gather(ones, index, np.zeros((1, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="fill"):
        kernels.gather(ones, index, np.zeros(3), np.zeros(1))
    with pytest.raises(ValueError, match="fill"):
        kernels.gather(ones, index)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [[5], [2, 3], [0, 1, 0, 4], [1, 1, 1, 1, 1]])
def test_rows_go_to_several_arrays_one_after_the_other(dtype, sizes):
    column, index = numbers((9, 40), dtype), np.array([3, 0, 0, 8, 2])
    outs = gather_apart(column, index, sizes)
    assert [len(out) for out in outs] == sizes
    assert b"".join(out.tobytes() for out in outs) == column[index].tobytes()
    theirs = [np.empty_like(out) for out in outs]
    reference.gather(column, index, *theirs)
    assert b"".join(out.tobytes() for out in theirs) == column[index].tobytes()


def test_objects_go_to_several_arrays_too():
    column = np.array([b"a", "b", None, 3], object)
    outs = gather_apart(column, np.array([3, 1, 2]), [1, 2])
    assert [out.tolist() for out in outs] == [[3], ["b", None]]


KEYS = st.integers(0, 2**64 - 1)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 5000) | st.integers(1, 2**62), KEYS)
def test_places_are_permuted_as_in_the_reference(data, length, key):
    places = data.draw(st.lists(st.integers(0, length - 1), max_size=30))
    index = np.array([*places, 0, length - 1], np.int64)
    expected = permutation._feistel_in_numpy(index, length, key)
    assert kernels.feistel(index, length, key).tolist() == expected.tolist()
    keys = np.array(data.draw(st.lists(KEYS, min_size=len(index), max_size=len(index))), np.uint64)
    for some in (keys, np.sort(keys % np.uint64(3)), np.full(len(index), key, np.uint64)):
        expected = permutation._feistel_in_numpy(index, length, some)
        assert kernels.feistel(index, length, some).tolist() == expected.tolist()


@pytest.mark.parametrize("length", [1, 2, 1000, 4097, 60_000, 2**20, 2**20 + 1, 1_100_000])
def test_whole_permutations_are_those_of_the_reference(length):
    # Short enough for the tables of the kernel, and too long.
    places = np.arange(length)
    expected = permutation._feistel_in_numpy(places, length, 99)
    assert (kernels.feistel(places, length, 99) == expected).all()
    assert (kernels.feistel(places[::-1], length, 99) == expected[::-1]).all()


@pytest.mark.parametrize("length", [1, 5000, 2**62])
@pytest.mark.parametrize("outside", [-1, 0, 2**62, 2**63 - 1, -(2**63)])
def test_a_place_outside_raises(length, outside):
    outside = outside or length
    with pytest.raises(IndexError):
        kernels.feistel(np.array([0, outside]), length, 1)


def test_a_length_or_keys_that_do_not_fit_are_refused():
    for length in (0, 2**62 + 1, 2**63, 2**64 - 1):
        with pytest.raises(ValueError, match="length"):
            kernels.feistel(np.zeros(1, np.int64), length, 1)
    with pytest.raises(ValueError, match="key"):
        kernels.feistel(np.zeros(3, np.int64), 9, np.zeros(2, np.uint64))
    assert kernels.feistel(np.empty(0, np.int64), 9, np.empty(0, np.uint64)).size == 0
