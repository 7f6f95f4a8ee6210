"""Shards named in one string: the names that braces stand for, and what is read of them."""

from __future__ import annotations

import pytest

from playhead import Dataset
from playhead.errors import MissingSource
from playhead.sources.files.braces import spelled_out


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("a-{8..10}", ["a-8", "a-9", "a-10"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{0..2}", ["0", "1", "2"]),
        ("{a,b}/{1..2}", ["a/1", "a/2", "b/1", "b/2"]),
        ("a{,.old}", ["a", "a.old"]),
        ("{name}-{}", ["{name}-{}"]),
        ("{x}{1..1}", ["{x}1"]),
    ],
)
def test_braces_stand_for_the_names_that_a_shell_makes_of_them(name, names):
    assert list(spelled_out(name)) == names


def test_shards_are_read_in_the_order_of_their_numbers_and_each_has_to_be_there(
    tmp_path, memory, cache
):
    for k in range(12):
        (tmp_path / f"{k}.txt").write_text(f"line {k}\n")
        memory.pipe(f"/data/{k}.txt", f"line {k}\n".encode())
    lines = [f"line {k}" for k in range(8, 12)]
    assert list(Dataset.from_lines(tmp_path / "{8..11}.txt")) == lines
    assert list(Dataset.from_lines("memory://data/{8..11}.txt")) == lines
    assert list(Dataset.from_lines(tmp_path / "{0,1}*.txt")) == [
        "line 0", "line 1", "line 10", "line 11"
    ]  # fmt: skip
    for where in (tmp_path / "{8..12}.txt", "memory://data/{8..12}.txt"):
        with pytest.raises(MissingSource, match=r"12\.txt"):
            Dataset.from_lines(where)


def test_a_file_whose_name_has_braces_is_itself(tmp_path):
    (tmp_path / "a{1..2}.txt").write_text("itself\n")
    assert list(Dataset.from_lines(tmp_path / "a{1..2}.txt")) == ["itself"]
