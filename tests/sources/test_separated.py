"""CSV files: the rows that pyarrow reads, at random, and an error for each row that is none."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playhead import Dataset
from playhead.errors import (
    CorruptRecord,
    MissingSource,
    PipelineError,
    SourceChanged,
    SourceError,
    UnparsableRecord,
)
from playhead.plan.places import Places
from playhead.sources.files import opening
from playhead.sources.files.opening import Opening
from playhead.sources.text import separated
from playhead.sources.text.dialect import Dialect, Rows
from playhead.sources.text.heads import START, first_rows
from playhead.testing import assert_resumes_exactly

pa = pytest.importorskip("pyarrow")
arrow_csv = pytest.importorskip("pyarrow.csv")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def write(path, text):
    Path(path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read_whole(path, quote_char='"'):
    return arrow_csv.read_csv(
        path,
        arrow_csv.ReadOptions(use_threads=False),
        arrow_csv.ParseOptions(quote_char=quote_char, newlines_in_values=bool(quote_char)),
        arrow_csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()}),
    ).to_pylist()


def quoted(cell, always):
    special = any(c in cell for c in ',"\n\r')
    return '"' + cell.replace('"', '""') + '"' if special or always else cell


TEXT = st.text(st.sampled_from('a,"\n\r ;'), max_size=6)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    always=st.booleans(),
    blank=st.booleans(),
    ended=st.booleans(),
    stride=st.integers(1, 40),
    draw=st.data(),
)
def test_rows_are_those_that_pyarrow_reads_from_the_whole_file(
    tmp_path_factory, cells, end, always, blank, ended, stride, draw
):
    rows = [",".join(quoted(cell, always) for cell in row) for row in [("a", "b"), *cells]]
    text = "".join(row + end + end * blank for row in rows)
    text = text if ended else text.removesuffix(end)
    path = write(tmp_path_factory.mktemp("data") / "a.csv", text)
    expected = read_whole(path)
    assert [(e["a"], e["b"]) for e in expected] == cells
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "_BLOCK", stride)
        ds = Dataset.from_csv(path, dtypes={"a": str, "b": str})
    assert list(ds) == expected
    index = draw.draw(st.lists(st.integers(0, len(expected) - 1), max_size=12))
    found = ds.node.gather(np.array(index, np.int64)).rows()
    assert found == [expected[k] for k in index]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.sampled_from('a,"\n\r'), max_size=14))
def test_any_text_is_read_as_pyarrow_does_or_refused(tmp_path_factory, text):
    path = write(tmp_path_factory.mktemp("data") / "a.csv", "a,b\n" + text)
    for quote_char in ('"', None):
        options = {"dtypes": {"a": str, "b": str}, "quote_char": quote_char}
        try:
            expected = read_whole(path, quote_char or False)
        except pa.ArrowInvalid:
            with pytest.raises((CorruptRecord, UnparsableRecord)):
                list(Dataset.from_csv(path, **options))
            continue
        try:
            found = list(Dataset.from_csv(path, **options))
        except CorruptRecord:
            assert quote_char is not None and '"' in text
        else:
            assert found == expected


def test_types_are_guessed_and_an_empty_cell_is_nan_or_nothing(tmp_path):
    path = write(tmp_path / "a.csv", "i,f,s,b,d\n1,2.5,x,true,2020-01-02\n2,,,false,\n")
    first, second = Dataset.from_csv(path)
    assert [type(v) for v in first.values()][:2] == [np.int64, np.float64]
    assert (first["s"], first["b"], first["d"]) == ("x", True, np.datetime64("2020-01-02"))
    assert np.isnan(second["f"]) and second["s"] == "" and np.isnat(second["d"])
    narrow = Dataset.from_csv(path, dtypes={"i": np.int16, "f": np.float32}, columns=["f", "i"])
    assert list(narrow[0]) == ["f", "i"] and narrow[0]["i"].dtype == np.int16
    assert narrow.batch(2)[0]["f"].dtype == np.float32


def test_types_stay_what_they_were_guessed_to_be(tmp_path):
    path = write(tmp_path / "a.csv", "x\n" + "1\n" * (1 << 15) + "1.5\n")
    ds = Dataset.from_csv(path)
    assert ds[0]["x"].dtype == np.int64
    with pytest.raises(UnparsableRecord, match="int64") as caught:
        ds[len(ds) - 1]
    assert caught.value.record == (1 << 15) + 1
    assert Dataset.from_csv(path, dtypes={"x": float})[len(ds) - 1]["x"] == 1.5


def test_a_bad_row_is_named_and_can_be_left_out(tmp_path):
    path = write(tmp_path / "a.csv", 'x,y\n1,2\n3\n"4\n",5\nw,6\n,7\n8,9\n')
    ds = Dataset.from_csv(path, dtypes={"x": np.int32, "y": np.int32})
    for row, offset, column in ((2, 8, None), (3, 10, None), (4, 17, None), (5, 21, "x")):
        with pytest.raises(UnparsableRecord) as caught:
            ds.node.gather(np.array([0, row - 1, 5]))
        found = caught.value
        assert (found.file, found.record, found.offset) == (path, row, offset)
        assert found.column == column
    assert [e["x"] for e in ds.ignore_errors()] == [1, 8]
    filled = Dataset.from_csv(path, dtypes={"x": np.int32, "y": np.int32}, fill={"x": -1})
    assert [e["x"] for e in filled.ignore_errors()] == [1, -1, 8]


def test_one_bad_row_does_not_change_what_the_others_are_guessed_to_be(tmp_path):
    path = write(tmp_path / "a.csv", b"x,s\n1,a\n2\n3,gr\xfcn\n")
    ds = Dataset.from_csv(path)
    assert ds[0] == {"x": 1, "s": "a"} and ds[0]["x"].dtype == np.int64
    for k in (1, 2):
        with pytest.raises(UnparsableRecord):
            ds[k]
    assert Dataset.from_csv(path, encoding="latin-1")[2]["s"] == "grün"
    with pytest.raises(PipelineError, match="utf-16"):
        Dataset.from_csv(path, encoding="utf-16")


@pytest.mark.parametrize(
    ("text", "offset"), [('x\n5" pipe\n', 3), ('x\n"a" b\n', 4), ('x\n"never closed\n', 2)]
)
def test_quotes_that_do_not_tell_rows_apart_are_refused_with_their_place(tmp_path, text, offset):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(CorruptRecord) as caught:
        Dataset.from_csv(path)
    assert (caught.value.file, caught.value.offset) == (path, offset)
    assert list(Dataset.from_csv(path, quote_char=None)) == [{"x": text[2:-1]}]


def test_headers_delimiters_and_marks_of_byte_order(tmp_path):
    write(tmp_path / "a.csv", b'\xef\xbb\xbf"x";y\n1;2\n')
    write(tmp_path / "b.csv", "\n\nx;y\n3;4")
    write(tmp_path / "c.csv", "")
    ds = Dataset.from_csv(tmp_path / "*.csv", delimiter=";")
    assert list(ds) == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert (ds.trace(1)[0].file, ds.trace(1)[0].record) == (str(tmp_path / "b.csv"), 3)
    bare = write(tmp_path / "d", b"\xef\xbb\xbf1;2\n3;4\n")
    named = Dataset.from_csv(bare, delimiter=";", column_names=["p", "q"])
    assert named[0] == {"p": 1, "q": 2}
    write(tmp_path / "e.csv", "x;z\n1;2\n")
    with pytest.raises(PipelineError, match="columns") as caught:
        Dataset.from_csv(tmp_path / "*.csv", delimiter=";")
    assert str(tmp_path / "e.csv") in str(caught.value)
    with pytest.raises(PipelineError, match="empty"):
        Dataset.from_csv(tmp_path / "c.csv")


def test_what_is_asked_wrongly_is_refused(tmp_path):
    path = write(tmp_path / "a.csv", "x,y\n1,2\n")
    for options in (
        {"delimiter": ",,"},
        {"quote_char": ""},
        {"delimiter": "\n"},
        {"quote_char": ","},
    ):
        with pytest.raises(PipelineError):
            Dataset.from_csv(path, **options)
    for options in ({"columns": ["z"]}, {"dtypes": {"z": int}}, {"fill": {"z": 1}}):
        with pytest.raises(PipelineError, match="no column 'z'"):
            Dataset.from_csv(path, **options)
    with pytest.raises(PipelineError, match="several columns 'x'"):
        Dataset.from_csv(write(tmp_path / "b.csv", "x,x\n1,2\n"))
    with pytest.raises(SourceError, match="compressed"):
        Dataset.from_csv(write(tmp_path / "a.csv.gz", ""))
    with pytest.raises(MissingSource):
        Dataset.from_csv(tmp_path / "no.csv")
    assert len(Dataset.from_csv(write(tmp_path / "c.csv", "x,y\n"))) == 0


def test_csv_resumes_exactly_and_notices_a_change(tmp_path):
    path = write(tmp_path / "a.csv", "x,s\n" + "".join(f'{k},"line\n{k}"\n' for k in range(9)))
    assert_resumes_exactly(lambda: Dataset.from_csv(path).shuffle(seed=1).batch(2))
    ds = Dataset.from_csv(path)
    said = ds.operations()
    assert ds[3] == {"x": 3, "s": "line\n3"}
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(b"7")
    with pytest.raises(SourceChanged):
        ds[0]
    assert Dataset.from_csv(path).operations() != said
    os.remove(path)


def test_batches_of_a_chunk_are_parsed_in_one_call_into_memory_of_their_own(tmp_path, monkeypatch):
    rows = "".join(f"{k},{k / 4},word {k}\n" for k in range(1000))
    batches = Dataset.from_csv(write(tmp_path / "a.csv", "x,y,s\n" + rows)).batch(40)
    calls = []
    parse = separated.parsed
    monkeypatch.setattr(separated, "parsed", lambda *given: calls.append(1) or parse(*given))
    node = batches.node
    found = node.read(node.locate(Places(0, np.arange(25)))).rows()
    assert len(calls) == 1
    for k, batch in enumerate(found):
        numbers = range(40 * k, 40 * k + 40)
        assert batch["x"].tolist() == list(numbers)
        assert batch["y"].tolist() == [n / 4 for n in numbers]
        assert batch["s"].tolist() == [f"word {n}" for n in numbers]
        assert not any(np.shares_memory(batch["x"], other["x"]) for other in found[:k])
        assert batch["x"].ctypes.data % 64 == 0


def test_an_unreadable_row_says_its_columns_name_and_what_to_do(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("x,word\n1,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(UnparsableRecord, match="the column 'word'") as caught:
        Dataset.from_csv(path)[0]
    assert "encoding=" in caught.value.help
    assert Dataset.from_csv(path, encoding="latin-1")[0] == {"x": 1, "word": "caf\u00e9"}


def test_rows_that_all_have_another_width_are_named_and_not_taken_for_columns_of_nulls(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,a\n2,b\n")
    with pytest.raises(UnparsableRecord, match="Expected 1 columns, got 2") as caught:
        Dataset.from_csv(path, column_names=["x"])[0]
    assert "column_names=" in caught.value.help


def test_a_fill_that_is_no_dict_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    for wrong in (0, 5, ["x"]):
        with pytest.raises(PipelineError, match="fill is a dict"):
            Dataset.from_csv(path, fill=wrong)


@pytest.mark.parametrize("now", ["a,b\n", "a,b\n1,2\n3,4\n", ""])
def test_a_file_that_grows_or_shrinks_while_its_first_rows_are_read_is_an_error(tmp_path, now):
    opening = Opening()
    seen = opening.look([write(tmp_path / "a.csv", "a,b\n1,2\n")])
    write(tmp_path / "a.csv", now)
    starts = {file.path: start for file, start in opening.starts(seen, START)}
    with pytest.raises(SourceChanged) as caught:
        first_rows(seen, starts, Rows(Dialect(",", '"', "utf8")), opening, headed=False)
    assert caught.value.file == seen[0].path


def test_a_file_that_is_no_csv_at_all_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a" * 200_000 + b"\n")
    with pytest.raises(CorruptRecord, match=r"a\.csv: its first row does not hold") as caught:
        Dataset.from_csv(tmp_path / "a.csv")
    assert "column_names" in str(caught.value)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}])
def test_a_signal_that_the_program_only_notes_neither_fails_nor_loses_a_row(tmp_path, options):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{k},{k / 7}\n" for k in range(20_000)))
    batches = Dataset.from_csv(path, **options).batch(256)
    expected = [batch["x"].tobytes() for batch in batches]
    noted, before = [], signal.getsignal(signal.SIGTERM)
    timer, mine = threading.Event(), threading.main_thread().ident

    def send():
        while not timer.wait(0.002):
            signal.pthread_kill(mine, signal.SIGTERM)

    sender = threading.Thread(target=send)
    signal.signal(signal.SIGTERM, lambda *of: noted.append(of))
    try:
        sender.start()
        deadline = time.monotonic() + 120
        while len(noted) < 100 and time.monotonic() < deadline:
            for dataset in (batches, batches.prefetch(workers=1)):
                iterator = dataset.iterator()
                assert [batch["x"].tobytes() for batch in iterator] == expected
                assert iterator.position.records == 20_000
    finally:
        timer.set()
        sender.join()
        signal.signal(signal.SIGTERM, before)
    assert len(noted) >= 100


def test_an_interrupt_while_rows_are_parsed_is_raised(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    rows, read, raised = Dataset.from_csv(tmp_path / "a.csv").batch(2), arrow_csv.read_csv, []

    def interrupted(*given, **options):
        if not raised:
            raised.append(True)
            signal.raise_signal(signal.SIGINT)  # as pyarrow sends on what stopped it
            raise pa.ArrowCancelled("Operation cancelled")
        return read(*given, **options)

    monkeypatch.setattr(arrow_csv, "read_csv", interrupted)
    iterator = rows.iterator()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator)["x"].tolist() == [1, 2]
