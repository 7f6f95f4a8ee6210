"""Guessing features from records: what is guessed reads them, and the code that is printed says it."""

from __future__ import annotations

import numpy as np
import pytest

import playhead as ph
from playhead import Dataset, FixedLenFeature, VarLenFeature, write_tfrecords
from playhead.errors import PipelineError, UnparsableRecord
from playhead.sources.tfrecord.encoding import example
from playhead.sources.tfrecord.infer import code, inferred


def test_equal_counts_are_fixed_and_others_vary():
    rows = [
        {"one": k, "three": np.float32([1, 2, 3]), "some": [1.5] * (k + 1), "word": "w", "b": True}
        for k in range(4)
    ]
    rows[2]["seldom"] = b"x"
    assert inferred([example(row) for row in rows]) == {
        "b": FixedLenFeature((), np.int64),
        "one": FixedLenFeature((), np.int64),
        "seldom": VarLenFeature(bytes),
        "some": VarLenFeature(np.float32),
        "three": FixedLenFeature((3,), np.float32),
        "word": FixedLenFeature((), bytes),
    }


def test_what_holds_nothing_is_left_out_and_what_is_empty_sometimes_varies():
    rows = [{"x": [], "y": [1, 2], "z": 1}, {"x": np.zeros(0), "y": [], "z": 2}]
    assert inferred([example(row) for row in rows]) == {
        "y": VarLenFeature(np.int64),
        "z": FixedLenFeature((), np.int64),
    }


def test_unlike_kinds_and_nothing_at_all_are_refused():
    with pytest.raises(
        PipelineError, match=r"'x' holds int64 in some records and float32.*record 1"
    ):
        inferred([example({"x": 1}), example({"x": 1.0})])
    for records in ([], [b""], [example({"x": []})]):
        with pytest.raises(PipelineError, match="none holds"):
            inferred(records)
    with pytest.raises(UnparsableRecord):
        inferred([example({"x": 1}), b"\xff\xff"])


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_dataset_is_read_by_what_is_guessed_and_printed(tmp_path, capsys, compression):
    rows = [{"image": bytes(5), "label": k, "w": np.ones(2, np.float32)} for k in range(5)]
    paths = write_tfrecords(rows, tmp_path / "a", compression=compression)
    ds = Dataset.from_tfrecords(paths, features="infer")
    assert [(e["image"], int(e["label"]), e["w"].tolist()) for e in ds] == [
        (bytes(5), k, [1, 1]) for k in range(5)
    ]
    said = capsys.readouterr().err
    assert said.startswith('playhead: features="infer" looked at 5 records')
    names = {"ph": ph, "np": np}
    exec(said[said.index("features = {") :], names)
    same = Dataset.from_tfrecords(paths, features=names["features"])
    assert same.node.describe() == ds.node.describe()
    assert same.element_spec == ds.element_spec


def test_the_code_is_python_whatever_the_names():
    features = {"it's": VarLenFeature(bytes), 'a"\n': FixedLenFeature((2, 3), np.float32)}
    names = {"ph": ph, "np": np}
    exec(code(features), names)
    assert {k: (type(f), f.dtype) for k, f in names["features"].items()} == {
        k: (type(f), f.dtype) for k, f in features.items()
    }
    assert names["features"]['a"\n'].shape == [2, 3]


def test_a_list_of_names_is_refused_with_the_way_out(tmp_path):
    paths = write_tfrecords([{"x": 1}], tmp_path / "a")
    for features in (["x"], "x", 3):
        with pytest.raises(PipelineError, match="features is a dict") as caught:
            Dataset.from_tfrecords(paths, features=features)
        assert "infer" in caught.value.help
