"""The tool that proves pipelines must itself catch the ways in which one can fail to resume."""

import itertools

import numpy as np
import pytest

from playhead import Dataset
from playhead.plan.elements import Enumerate, Filter
from playhead.plan.order import Repeat, Take
from playhead.testing import assert_resumes_exactly, difference, equal


class Thing:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.float32("nan"), np.float32("nan")),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
        (float("nan"), float("nan")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.array(["x", b"y", None], object), np.array(["x", b"y", None], object)),
        (np.array([(1, 2.0)], "i4,f8"), np.array([(1, 2.0)], "i4,f8")),
        (Thing([1, "a"]), Thing([1, "a"])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
    ],
)
def test_equal_elements(a, b):
    assert equal(a, b) and difference(a, b) is None


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (np.float32(0.0), np.float32(-0.0), "float32 0.0 against -0.0"),
        (np.int32(1), np.int64(1), "int32"),
        (1, True, "int 1 against bool True"),
        ((1,), [1], "tuple"),
        ((1, 2), (1, 3), "[1]: 2 against 3"),
        ((1, 2), (1,), "2 parts against 1"),
        ({"a": "x"}, {"b": "x"}, "keys ['a'] against ['b']"),
        ({"a": ("x",)}, {"a": (b"x",)}, "['a'][0]: str 'x' against bytes b'x'"),
        (np.zeros(3), np.zeros((3, 1)), "float64[3] against float64[3, 1]"),
        (np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2) * 2, "[0][1]: int64 1 against 2"),
        (np.array(["a", "b"], object), np.array(["a", b"b"], object), "[1]: str 'b'"),
        (Thing(1), Thing(2), "against"),
    ],
)
def test_unequal_elements(a, b, told):
    assert not equal(a, b)
    assert told in difference(a, b)


def refused(make, match, **options):
    with pytest.raises(AssertionError, match=match):
        assert_resumes_exactly(make, **options)


def test_a_function_with_a_memory_is_caught():
    counter = itertools.count()
    refused(
        lambda: Dataset.range(4).map(lambda x: next(counter)), "step 1 differs: int32 0 against"
    )


def test_a_function_that_draws_elsewhere_is_caught():
    rng = np.random.default_rng(0)
    refused(
        lambda: Dataset.range(4).map(lambda x: rng.random()), "restored at step 0: step 1 differs"
    )


def test_a_source_that_changes_is_caught():
    sizes = itertools.chain([5, 5], itertools.repeat(4))
    refused(lambda: Dataset.from_sequence(Growing(next(sizes))), "ended before step|differs|gives")


class Growing(list):
    def __init__(self, n):
        super().__init__(range(n))

    def __len__(self):
        return 5

    def __getitem__(self, k):
        return super().__getitem__(min(k, super().__len__() - 1))


@pytest.mark.parametrize(
    ("kind", "name", "broken", "make"),
    [
        (
            Repeat,
            "walk",
            lambda self, cursor, compute: WALKS[Repeat](self, cursor | {"pass": 0}, compute),
            lambda: Dataset.range(3).filter(lambda x: True).repeat(2),
        ),
        (
            Take,
            "walk",
            lambda self, cursor, compute: WALKS[Take](self, cursor | {"seen": 0}, compute),
            lambda: Dataset.range(5).filter(lambda x: True).take(3),
        ),
        (
            Enumerate,
            "walk",
            lambda self, cursor, compute: WALKS[Enumerate](self, cursor | {"given": 0}, compute),
            lambda: Dataset.range(3).filter(lambda x: True).enumerate(),
        ),
        (
            Filter,
            "walk",
            lambda self, cursor, compute: WALKS[Filter](
                self, [cursor[0], max(0, cursor[1] - 1)], compute
            ),
            lambda: Dataset.range(3).filter(lambda x: True),
        ),
    ],
)
def test_an_operation_that_forgets_a_part_of_its_cursor_is_caught(
    kind, name, broken, make, monkeypatch
):
    assert_resumes_exactly(make, workers=())
    monkeypatch.setattr(kind, name, broken, raising=False)
    refused(make, "restored at step [1-9]", workers=())


WALKS = {kind: kind.walk for kind in (Repeat, Take, Enumerate, Filter)}


def test_a_run_without_an_end_needs_steps():
    with pytest.raises(ValueError, match="steps="):
        assert_resumes_exactly(lambda: Dataset.range(3).repeat())
    with pytest.raises(ValueError, match="steps="):
        assert_resumes_exactly(lambda: Dataset.range(3), epochs=None)
    assert_resumes_exactly(lambda: Dataset.range(3).repeat(), steps=4, workers=(2,), every=3)
