"""The examples in tf.data.Dataset's own documentation, run as they stand and with playhead's datasets.

They are taken from the installed TensorFlow. What an example shows is what it prints and what its expression
is worth; `x.numpy()` is x itself where x is a numpy value already.
"""

from __future__ import annotations

import ast
import doctest
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import playhead as ph

_PARSER = doctest.DocTestParser()
_METHODS = [name for name in dir(tf.data.Dataset) if not name.startswith("_")]


def _of(documented: Any) -> list[doctest.Example]:
    return _PARSER.get_examples(documented.__doc__ or "")


EXAMPLES = {"Dataset": _of(tf.data.Dataset)}
EXAMPLES |= {name: _of(getattr(tf.data.Dataset, name)) for name in _METHODS}
EXAMPLES = {name: examples for name, examples in EXAMPLES.items() if examples}

# By method: the beginning of an example's source, and why it cannot show the same.
_RAGGED = "its batches are arrays, padded or equal; there are no ragged tensors"
_PYTHON = "a graph that calls back into Python cannot be repeated; map calls Python itself"
_MISSING = "missing files are told at once, not when they are read"
_OPTIONS = "options are for tf.data's graphs and their optimiser"
ELSEWHERE = {
    ("Dataset", "dataset = tf.data.TextLineDataset"): "it has no reader of lines",
    ("Dataset", "dataset = tf.data.TFRecordDataset"): _MISSING,
    ("from_generator", "dataset = tf.data.Dataset.from_generator"): _RAGGED,
    ("from_generator", "list(dataset.take(1))"): _RAGGED,
    ("map", "list(d.as_numpy_iterator())"): _PYTHON,
    ("ragged_batch", "dataset = dataset.ragged_batch"): _RAGGED,
    ("ragged_batch", "for batch in dataset"): _RAGGED,
    ("with_options", "ds = ds.with_options"): _OPTIONS,
}


class Data:
    """tf.data with playhead's datasets: nothing in it makes one of tf.data's."""

    Dataset = ph.Dataset
    AUTOTUNE = tf.data.AUTOTUNE
    Options = tf.data.Options
    INFINITE_CARDINALITY = tf.data.INFINITE_CARDINALITY
    UNKNOWN_CARDINALITY = tf.data.UNKNOWN_CARDINALITY
    TFRecordDataset = staticmethod(ph.Dataset.from_tfrecords)


class Experimental:
    Counter = staticmethod(lambda *args, **options: ph.Dataset.counter(*args, **options))


Data.experimental = Experimental


class WithPlayhead:
    """TensorFlow with playhead's datasets."""

    data = Data

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name)


@dataclass
class Shown:
    """What one example prints and is worth, or that it raises."""

    values: list[Any] = field(default_factory=list)
    error: Exception | None = None


class _Values(ast.NodeTransformer):
    """`x.numpy()` as `numpy_value(x)`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "numpy" and not node.args:
            name = ast.Name("numpy_value", ast.Load())
            return ast.copy_location(ast.Call(name, [node.func.value], []), node)
        return node


def _numpy_value(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)[()]


def shown(examples: list[doctest.Example], tensorflow: Any, plain: Any) -> Iterator[Shown]:
    """Each example of one docstring in turn, in a namespace of their own."""
    here = Shown()

    def show(*values: Any) -> None:
        here.values.extend(plain(value) for value in values if value is not None)

    names = {"tf": tensorflow, "np": np, "os": __import__("os"), "print": show}
    names |= {"Dataset": tensorflow.data.Dataset, "numpy_value": _numpy_value}
    for example in examples:
        here = Shown()
        tree = ast.parse(example.source, mode="single")
        tree = ast.fix_missing_locations(_Values().visit(tree))
        sys.displayhook = show
        try:
            exec(compile(tree, "<example>", "single"), names)
        except Exception as error:
            here.error = error
        finally:
            sys.displayhook = sys.__displayhook__
        yield here


@pytest.fixture(scope="module")
def both(plain, tmp_path_factory):
    """What a method's examples show, of tf.data and of playhead; each is run once."""
    found: dict[str, list[tuple[doctest.Example, Shown, Shown]]] = {}

    def run(method: str) -> list[tuple[doctest.Example, Shown, Shown]]:
        if method not in found:
            examples, sides = EXAMPLES[method], []
            for tensorflow in (tf, WithPlayhead()):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("examples")))
                    sides.append(list(shown(examples, tensorflow, plain)))
            found[method] = list(zip(examples, *sides, strict=True))
        return found[method]

    return run


def _reason(method: str, source: str) -> str | None:
    for (of, beginning), reason in ELSEWHERE.items():
        if of == method and source.startswith(beginning):
            return reason
    return None


def _difference(theirs: Shown, ours: Shown) -> str | None:
    if (theirs.error is None) != (ours.error is None):
        return f"tf.data raises {theirs.error!r}, playhead {ours.error!r}"
    if theirs.values != ours.values:
        return f"tf.data shows {theirs.values}, playhead {ours.values}"
    return None


@pytest.mark.parametrize("method", EXAMPLES)
def test_the_examples_of_tf_data_show_the_same_with_playhead(method, both):
    unlike = []
    for example, theirs, ours in both(method):
        assert (theirs.error is None) == (example.exc_msg is None), (example.source, theirs.error)
        difference = _difference(theirs, ours)
        if difference is not None and _reason(method, example.source) is None:
            unlike.append(f"{example.source}    {difference}")
    assert not unlike, "\n".join(unlike)


@pytest.mark.parametrize(("method", "beginning"), ELSEWHERE)
def test_no_example_is_left_out_that_would_show_the_same(method, beginning, both):
    meant = [
        _difference(theirs, ours)
        for example, theirs, ours in both(method)
        if example.source.startswith(beginning)
    ]
    if not meant:
        pytest.skip("this TensorFlow's documentation has other examples")
    assert all(meant)


def test_the_documentation_has_examples_of_most_operations():
    assert len(EXAMPLES) > 30 and sum(map(len, EXAMPLES.values())) > 100
    assert {"Dataset", "map", "batch", "window", "interleave", "scan"} <= set(EXAMPLES)
