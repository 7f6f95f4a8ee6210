from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from playhead.errors import IntegerOverflow, UnequalElements
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import (
    ArraySpec,
    Columns,
    Rows,
    as_array,
    as_element,
    gather,
    join,
    leaves,
    map_nest,
    named_leaves,
    object_array,
    own,
    spec_of,
    stack,
)
from playhead.testing import equal

Point = namedtuple("Point", "x y")


# Nests


def test_nests_are_dicts_and_tuples_and_everything_else_is_a_leaf():
    nest = {"b": (1, [2, 3]), "a": Point(4, None)}
    assert list(leaves(nest)) == [1, [2, 3], 4, None]
    assert list(named_leaves(nest)) == [
        ("['b'][0]", 1),
        ("['b'][1]", [2, 3]),
        ("['a'][0]", 4),
        ("['a'][1]", None),
    ]
    mapped = map_nest(lambda a, b: (a, b), nest, {"a": Point(5, 6), "b": (7, 8)})
    assert mapped == {"b": ((1, 7), ([2, 3], 8)), "a": Point((4, 5), (None, 6))}
    assert isinstance(mapped["a"], Point)


# Values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, np.int32(3)),
        (True, np.bool_(True)),
        (2.5, np.float32(2.5)),
        (np.uint8(3), np.uint8(3)),
        (np.array(3.0), np.float64(3.0)),
        ("a\0", "a\0"),
        (b"a\0", b"a\0"),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (None, None),
        ([], np.empty(0, np.float32)),
        ([1, 2], np.array([1, 2], np.int32)),
        ([1, 2.5], np.array([1, 2.5], np.float32)),
        ([True, 2], np.array([1, 2], np.int32)),
        ([[1], [0.5]], np.array([[1], [0.5]], np.float32)),
        ([np.float64(1), 2.0], np.array([1.0, 2.0])),
        ([(1, 2), (3, 4)], np.array([[1, 2], [3, 4]], np.int32)),
        (["a\0", "b"], np.array(["a\0", "b"], object)),
        ([["a"], ["b"]], np.array([["a"], ["b"]], object)),
        ([b"a\0"], np.array([b"a\0"], object)),
        ([None, "a"], np.array([None, "a"], object)),
        (np.array(["ab", "c"]), np.array(["ab", "c"], object)),
        (np.array([b"ab", b"c"]), np.array([b"ab", b"c"], object)),
        ((1, {"a": [2]}), (np.int32(1), {"a": np.array([2], np.int32)})),
    ],
)
def test_values_get_tf_datas_dtypes(value, expected):
    assert equal(as_element(value), expected)


def test_other_libraries_arrays_become_numpys():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3, dtype=np.int16)

    assert equal(as_element(Tensor()), np.arange(3, dtype=np.int16))
    assert as_element(Tensor) is Tensor


def test_lists_that_are_no_arrays_are_an_error():
    with pytest.raises(UnequalElements, match="unequal shapes"):
        as_element([[1], [2, 3]])
    with pytest.raises(UnequalElements, match=r"holds int32\[\] and str"):
        as_element([1, "a"])
    with pytest.raises(UnequalElements, match=r"holds str and int32\[\]"):
        as_element(["a", 1])
    with pytest.raises(IntegerOverflow) as caught:
        as_element([1, 2**31])
    assert caught.value.value == 2**31
    with pytest.raises(TypeError):
        as_array(3)


def test_own_copies_views_and_arrays_alike():
    base = np.arange(6)
    view, whole = base[2:], np.arange(3)
    copied = own({"a": view, "b": whole, "c": "x"})
    assert not np.shares_memory(copied["a"], base) and copied["b"] is not whole


# Blocks


@given(st.lists(st.integers(0, 20), max_size=3), st.sampled_from(["?", "f8", "i2", "O", "M8[s]"]))
def test_arrays_are_made_aligned(shape, kind):
    dtype = np.dtype(kind)
    out = aligned_empty(tuple(shape), dtype)
    assert out.shape == tuple(shape) and out.dtype == dtype and out.flags.c_contiguous
    assert kind == "O" or not out.size or out.ctypes.data % 64 == 0


@given(
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)),
    st.data(),
)
def test_gather_is_indexing(column, data):
    index = np.array(data.draw(st.lists(st.integers(0, len(column) - 1))), np.int64)
    out = gather(column, index)
    assert equal(out, np.ascontiguousarray(column[index]))
    assert not np.shares_memory(out, column)
    objects = column.astype(object)
    assert gather(objects, index).tolist() == objects[index].tolist() or column.dtype.kind in "fc"


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_columns_and_rows_say_the_same(a, b, n):
    values = {"x": np.arange(2 * n).reshape(n, 2), "y": (np.arange(n) / 3,)}
    columns = Columns(values, n)
    rows = Rows(columns.rows())
    low, high = sorted((min(a, n), min(b, n)))
    assert len(columns) == len(rows) == n
    for block in (columns, rows):
        part = block.slice(low, high)
        assert len(part) == high - low
        assert equal(part.rows(), rows.elements[low:high])
        chosen = np.array([k for k in range(n) if k % 2], np.int64)[::-1]
        assert equal(block.select(chosen).rows(), [rows.elements[k] for k in chosen])
        assert equal(join([block.slice(0, low), block.slice(low, n)]).rows(), rows.elements)
        if n:
            assert equal(block.stack(), values)
    assert equal(join([columns.slice(0, low), rows.slice(low, n)]).rows(), rows.elements)


def test_stack_gives_each_leaf_an_axis():
    elements = [Point({"a": np.int8(k)}, (str(k), b"%d" % k, None)) for k in range(3)]
    stacked = stack(elements)
    assert isinstance(stacked, Point)
    assert equal(stacked.x, {"a": np.arange(3, dtype=np.int8)})
    assert [column.tolist() for column in stacked.y] == [
        ["0", "1", "2"],
        [b"0", b"1", b"2"],
        [None] * 3,
    ]
    arrays = [np.array([k, "w"], object) for k in range(2)]
    assert stack(arrays).shape == (2, 2)


def test_dicts_are_stacked_whatever_the_order_of_their_keys_is():
    found = stack([{"a": np.int8(1), "b": "x"}, {"b": "y", "a": np.int8(2)}])
    assert equal(found, {"a": np.array([1, 2], np.int8), "b": np.array(["x", "y"], object)})
    assert list(found) == ["a", "b"]


def test_what_is_put_into_an_array_of_objects_stays_as_it_is():
    items = [[1, 2], [3, 4], np.arange(2), np.arange(2), np.array(5), np.int8(6), ("a",), None, ""]
    for chosen in (items, items[:2], items[2:4], items[4:5], []):
        made = object_array(chosen)
        assert (made.shape, made.dtype) == ((len(chosen),), object)
        assert all(got is given for got, given in zip(made, chosen, strict=True))


@pytest.mark.parametrize(
    ("elements", "facts"),
    [
        ([np.int32(1), np.int64(1)], ("", "int32[]", "int64[]", 1)),
        ([np.zeros(2), np.zeros(2), np.zeros(3)], ("", "float64[2]", "float64[3]", 2)),
        (
            [{"a": (1, np.zeros(1))}, {"a": (1, np.zeros(2))}],
            ("['a'][1]", "float64[1]", "float64[2]", 1),
        ),
        ([(1, 2), (1, 2, 3)], ("", "a tuple of 2", "a tuple of 3", 1)),
        ([{"a": 1}, (1,)], ("", "a dict with 'a'", "a tuple of 1", 1)),
        ([{"a": 1}, {"b": 1}], ("", "a dict with 'a'", "a dict with 'b'", 1)),
        ([{"a": 1}, {"a": 1, "b": 1}], ("", "a dict with 'a'", "a dict with 'a', 'b'", 1)),
        (["a", None], ("", "str", "NoneType", 1)),
        (["a", "b", b"c"], ("", "str", "bytes", 2)),
        ([b"a", ("b",)], ("", "bytes", "a tuple of 1", 1)),
        (["a", np.int32(1)], ("", "str", "int32[]", 1)),
        ([np.int32(1), "a"], ("", "int32[]", "str", 1)),
    ],
)
def test_unequal_elements_are_named(elements, facts):
    with pytest.raises(UnequalElements) as caught:
        stack(elements)
    error = caught.value
    assert (error.path, error.first, error.second, error.at) == facts


def test_specs_of_elements():
    element = {"a": np.zeros((2, 3), np.uint8), "b": ("x", b"y", np.int8(1), None)}
    assert spec_of(element) == {
        "a": ArraySpec((2, 3), np.dtype(np.uint8)),
        "b": (
            ArraySpec((), str),
            ArraySpec((), bytes),
            ArraySpec((), np.dtype(np.int8)),
            ArraySpec((), object),
        ),
    }
    assert spec_of(np.array(["a", "b"], object)) == ArraySpec((2,), str)
    assert spec_of(np.array(["a", b"b"], object)) == ArraySpec((2,), object)
    assert str(ArraySpec((None, 3), np.dtype(np.int8))) == "ArraySpec((None, 3), int8)"
    assert str(ArraySpec((4,), bytes)) == "ArraySpec((4,), bytes)"
