"""Frames in memory, and what each of Arrow's types becomes."""

from __future__ import annotations

import datetime
import decimal
import pickle
import subprocess
import sys

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import ElementError, PipelineError
from playhead.plan.block import ArraySpec
from playhead.testing import assert_resumes_exactly, difference

pa = pytest.importorskip("pyarrow")


def table(**columns):
    return pa.table(columns)


def column(array, **options):
    """The column x of a table as elements hold it."""
    return [element["x"] for element in Dataset.from_frame(table(x=array), **options)]


class Streamed:
    """A frame that is known only by Arrow's C stream."""

    def __init__(self, inner):
        self.inner = inner

    def __arrow_c_stream__(self, requested_schema=None):
        return self.inner.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, 2], pa.int8()), [np.int8(1), np.int8(2)]),
        (pa.array([2**63], pa.uint64()), [np.uint64(2**63)]),
        (pa.array([1.5, None], pa.float32()), [np.float32(1.5), np.float32("nan")]),
        (pa.array([True, False]), [np.True_, np.False_]),
        (pa.array(["a\0", "ä"]), ["a\0", "ä"]),
        (pa.array(["a"], pa.large_string()), ["a"]),
        (pa.array(["a\0", ""], pa.string_view()), ["a\0", ""]),
        (pa.array([b"\0", b""]), [b"\0", b""]),
        (pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        (pa.array(["u", "v", "u"]).dictionary_encode(), ["u", "v", "u"]),
        (pa.array([datetime.date(1970, 1, 2)]), [np.datetime64(1, "D")]),
        (pa.array([5, None], pa.timestamp("us")), [np.datetime64(5, "us"), np.datetime64("NaT", "us")]),
        (pa.array([5], pa.timestamp("ns", "Europe/Berlin")), [np.datetime64(5, "ns")]),
        (pa.array([5], pa.duration("ms")), [np.timedelta64(5, "ms")]),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), [np.array([1, 2], np.int32)]),
        (
            pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int32(), 2), 2)),
            [np.array([[1, 2], [3, 4]], np.int32)],
        ),
        (pa.array([[1], [], [2, 3]]), [np.array([1]), np.array([], np.int64), np.array([2, 3])]),
        (pa.array([["a"], []]), [np.array(["a"], object), np.array([], object)]),
        (
            pa.array([[[1, 2], [3, 4]], []]),
            [np.array([[1, 2], [3, 4]]), np.empty((0, 0), np.int64)],
        ),
        (pa.array([{"y": 1, "z": "a"}]), [{"y": np.int64(1), "z": "a"}]),
        (pa.array([{"y": [1, 2]}, {"y": []}]), [{"y": np.array([1, 2])}, {"y": np.array([], np.int64)}]),
        (pa.array([[{"y": 1}, {"y": 2}], []]), [{"y": np.array([1, 2])}, {"y": np.array([], np.int64)}]),
        (
            pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.int32).reshape(1, 2, 3)),
            [np.arange(6, dtype=np.int32).reshape(2, 3)],
        ),
    ],
    ids=lambda value: str(getattr(value, "type", "")) or None,
)  # fmt: skip
def test_a_type_of_arrow_becomes_what_is_expected(array, expected):
    found = column(array)
    assert difference(found, expected) is None
    # A slice of longer memory says the same, and so does a frame in pieces.
    longer = pa.concat_arrays([array, array]).slice(1)
    assert difference(column(longer)[: len(found) - 1], expected[1:]) is None
    pieces = pa.chunked_array([array, array])
    assert difference(column(pieces), expected * 2) is None
    spec = Dataset.from_frame(table(x=array)).element_spec
    assert difference(_rank(spec["x"]), _rank_of(expected[0])) is None


def _rank(spec):
    if isinstance(spec, dict):
        return {key: _rank(part) for key, part in spec.items()}
    dtype = spec.dtype.__name__ if isinstance(spec.dtype, type) else spec.dtype.name
    return (len(spec.shape), dtype)


def _rank_of(value):
    if isinstance(value, dict):
        return {key: _rank_of(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return (np.ndim(value), "str" if value.dtype == object else value.dtype.name)
    return (0, type(value).__name__)


def test_types_that_no_array_holds_are_named_with_what_to_do():
    for array, cast in (
        (pa.array([decimal.Decimal("1.50")]), np.float64),
        (pa.array([datetime.time(0, 0, 1)]), np.int64),
        (pa.array([None, None]), np.float32),
    ):
        with pytest.raises(PipelineError, match="column 'x'") as caught:
            column(array)
        assert "dtypes={'x'" in caught.value.help
        assert isinstance(column(array, dtypes={"x": cast})[0], np.generic)
    assert column(pa.array([decimal.Decimal("1.50")]), dtypes={"x": np.float32}) == [
        np.float32(1.5)
    ]
    with pytest.raises(PipelineError, match=r"'x\.y'"):
        column(pa.array([{"y": datetime.time(1)}]))
    with pytest.raises(PipelineError, match="map"):
        column(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())))


def test_a_null_is_an_error_that_names_row_and_column_unless_something_stands_for_it():
    for array, fill in (
        (pa.array([1, None]), 7),
        (pa.array([True, None]), False),
        (pa.array(["a", None]), ""),
        (pa.array([b"a", None]), b"z"),
    ):
        with pytest.raises(ElementError) as caught:
            column(array)
        assert (caught.value.row, caught.value.column) == (1, "x")
        assert "fill={'x': ...}" in caught.value.help
        assert column(array, fill={"x": fill})[1] == fill
    assert column(pa.array([1.0, None]), fill={"x": -1.0}) == [1.0, -1.0]
    for array, said in (
        (pa.array([[1], None]), "fill={'x': []}"),
        (pa.array([[1], [None]]), "fill={'x': ...}"),
        (pa.array([{"y": 1}, None]), "fill={'x.y': ...}"),
        (pa.array([[{"y": 1}], [None]]), "fill={'x.y': ...}"),
    ):
        with pytest.raises(ElementError, match="'x") as caught:
            column(array)
        assert caught.value.row == 1
        assert said in caught.value.help
    with pytest.raises(ElementError, match=r"'x\.y'"):
        column(pa.array([{"y": 1}, {"y": None}]))
    assert np.isnan(column(pa.array([[1.5, None]]))[0][1])
    with pytest.raises(PipelineError, match="fill for 'x'"):
        column(pa.array([1, None]), fill={"x": "word"})


def test_text_that_is_no_utf8_is_named():
    text = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")],
    )
    with pytest.raises(ElementError, match="no UTF-8") as caught:
        column(text)
    assert (caught.value.row, caught.value.column) == (1, "x")
    assert column(text, dtypes={"x": bytes}) == [b"a", b"\xff"]


def test_columns_and_dtypes_are_chosen_by_name():
    data = table(a=[1, 2], b=[[1.0], [2.0, 3.0]], c=["x", "y"])
    ds = Dataset.from_frame(data, columns=["c", "a"], dtypes={"a": np.uint8})
    assert list(ds[0]) == ["c", "a"] and ds[0]["a"].dtype == np.uint8
    (first, _) = Dataset.from_frame(data, columns=["b"], dtypes={"b": np.float32})
    assert first["b"].dtype == np.float32
    for options in (
        {"columns": ["no"]},
        {"dtypes": {"no": int}},
        {"fill": {"no": 1}},
        {"columns": []},
    ):
        with pytest.raises(PipelineError, match="column"):
            Dataset.from_frame(data, **options)
    with pytest.raises(PipelineError, match="several columns"):
        Dataset.from_frame(data, columns=["a", "a"])
    with pytest.raises(PipelineError, match="no dtype"):
        Dataset.from_frame(data, dtypes={"a": "nonsense"})
    with pytest.raises(ElementError, match="row 1") as caught:
        list(Dataset.from_frame(table(a=[1, 300]), dtypes={"a": np.uint8}))
    assert caught.value.column == "a"


def test_lists_of_unlike_lists_are_named_when_they_are_read():
    ds = Dataset.from_frame(table(x=[[[1], [2]], [[1], []]]))
    assert ds[0]["x"].tolist() == [[1], [2]]
    with pytest.raises(ElementError, match="row 1") as caught:
        ds.shuffle(seed=1).batch(2)[0]
    assert caught.value.column == "x"
    assert len(list(ds.ignore_errors())) == 1


def test_frames_resume_exactly_and_travel():
    data = table(a=np.arange(7), b=[list(range(k)) for k in range(7)], c=list("abcdefg"))
    for columns in (["a", "c"], ["a", "b"]):
        make = lambda columns=columns: Dataset.from_frame(data, columns=columns)  # noqa: E731
        assert_resumes_exactly(lambda make=make: make().shuffle(seed=1), every=3)
        node = pickle.loads(pickle.dumps(make().node))
        assert node.describe() == make().node.describe()
        assert difference(node.gather(np.array([3])).rows(), [make()[3]]) is None


def test_content_is_told_from_values_alone():
    def said(data):
        return Dataset.from_frame(data).operations()

    for a, other in (
        (table(x=["a", "b"]), table(x=["a", "c"])),
        (table(x=[[1], []]), table(x=[[], [1]])),
    ):
        pieces = pa.concat_tables([a.slice(0, 1), a.slice(1)])
        assert said(a) == said(pieces) == said(Streamed(a)) != said(other)


def test_what_an_element_holds_is_the_consumers():
    data = table(x=pa.array([1.0, 2.0, 3.0]), y=pa.array([[1, 2]] * 3, pa.list_(pa.int64(), 2)))
    for ds in (Dataset.from_frame(data), Dataset.from_frame(data).batch(3)):
        first = ds[0]
        first["y"][...] = 99
        assert ds[0]["y"].max() == 2


def test_pandas_frames_are_read_without_their_index():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"a": [1, 2], "b": [1.5, None], "s": ["x", "y"], "c": pd.Categorical(["u", "v"])},
        index=["first", "second"],
    )
    frame["t"] = pd.to_datetime(["2020-01-01", None])
    ds = Dataset.from_frame(frame)
    assert list(ds[1]) == ["a", "b", "s", "c", "t"]
    assert (ds[1]["a"], ds[1]["s"], ds[1]["c"]) == (2, "y", "v")
    assert np.isnan(ds[1]["b"]) and np.isnat(ds[1]["t"])
    with pytest.raises(PipelineError, match="no type for"):
        Dataset.from_frame(pd.DataFrame({"x": [1, "a"]}))


def test_what_is_no_table_is_refused():
    for data in ([1, 2], {"a": [1]}, pa.array([1, 2])):
        with pytest.raises(PipelineError, match="from_frame"):
            Dataset.from_frame(data)
    assert len(Dataset.from_frame(table(x=pa.array([], pa.int32())))) == 0
    assert len(Dataset.from_frame(table(x=pa.array([], pa.list_(pa.int32()))))) == 0


def test_without_pyarrow_the_extra_is_named_and_nothing_else_imports_it():
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import playhead as ph\n"
        "for make in (ph.Dataset.from_frame, ph.Dataset.from_csv, ph.Dataset.from_parquet):\n"
        "    try: make('x')\n"
        "    except ph.errors.PipelineError as error: print(error.help)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ['pip install "playhead[arrow]"'] * 3


def test_the_specs_of_columns_are_known_without_reading():
    data = table(x=pa.array([], pa.list_(pa.struct({"a": pa.list_(pa.int8(), 3)}))))
    assert Dataset.from_frame(data).element_spec == {
        "x": {"a": ArraySpec((None, 3), np.dtype(np.int8))}
    }


def test_nulls_inside_of_lists_and_structs_are_filled_by_the_name_that_the_error_says():
    assert column(pa.array([[1], None]), fill={"x": []})[1].tolist() == []
    assert column(pa.array([[1, None]]), fill={"x": 7})[0].tolist() == [1, 7]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pictures = pa.array([{"bytes": b"p", "path": None}, None], kind)
    filled = column(pictures, fill={"x.path": "?", "x.bytes": b""})
    assert filled == [{"bytes": b"p", "path": "?"}, {"bytes": b"", "path": "?"}]
    chat = pa.array([[{"role": "user", "content": "hi"}, {"role": "tool", "content": None}]])
    (messages,) = column(chat, fill={"x.content": ""})
    assert messages["content"].tolist() == ["hi", ""]


def test_a_fill_inside_of_a_struct_is_part_of_what_a_position_compares():
    frame = table(x=pa.array([{"y": 1, "z": [1]}]))
    said = [
        Dataset.from_frame(frame, fill=fill).operations()[0]["schema"]
        for fill in (None, {"x.y": 1}, {"x.y": 2})
    ]
    assert len(set(said)) == 3


def test_fills_that_fit_nowhere_are_refused_with_what_to_write_instead():
    frame = table(x=pa.array([{"y": 1}]), l=pa.array([[1]]))
    for fill, said in (
        ({"x": {"y": 1}}, "x.y"),
        ({"x.q": 1}, "no column 'x.q'"),
        ({"l": ["a"]}, "fill for 'l'"),
        ({"l": None}, "fill for 'l'"),
        (0, "fill is a dict"),
    ):
        with pytest.raises(PipelineError, match=said):
            Dataset.from_frame(frame, fill=fill)
    with pytest.raises(PipelineError, match="leaves this column out"):
        Dataset.from_frame(frame, columns=["l"], fill={"x.y": 1})


def test_a_field_that_is_null_everywhere_is_read_in_the_dtype_that_is_named():
    frame = table(x=pa.array([{"y": 1, "path": None}]))
    with pytest.raises(PipelineError, match="null") as caught:
        Dataset.from_frame(frame)
    assert "dtypes={'x.path': str}" in caught.value.help
    ds = Dataset.from_frame(frame, dtypes={"x.path": str}, fill={"x.path": ""})
    assert list(ds) == [{"x": {"y": 1, "path": ""}}]


def test_columns_given_as_one_name_and_dtypes_as_one_dtype_are_refused():
    frame = table(ab=pa.array([1]), a=pa.array([2]), b=pa.array([3]))
    with pytest.raises(PipelineError, match="list of names") as caught:
        Dataset.from_frame(frame, columns="ab")
    assert "columns=['ab']" in caught.value.help
    with pytest.raises(PipelineError, match="dtypes is a dict"):
        Dataset.from_frame(frame, dtypes=np.float32)


def test_a_pandas_frame_with_two_columns_of_one_name_is_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(PipelineError, match="Duplicate") as caught:
        Dataset.from_frame(pandas.DataFrame([[1, 2]], columns=["x", "x"]))
    assert "rename" in caught.value.help
