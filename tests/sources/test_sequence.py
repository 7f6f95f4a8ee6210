"""Sequences of other libraries: items at random, many at once where that means the same, their versions."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import GlobalRandomness, PipelineError
from playhead.testing import assert_resumes_exactly, difference


@dataclass
class Squares:
    """Items that can be had many at once; it remembers how it was asked."""

    count: int = 20
    asked: list = field(default_factory=list)

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        self.asked.append(k)
        if k == 7:
            raise ValueError("no seven")
        return np.int64(k) * k

    def __getitems__(self, numbers):
        found = [self[k] for k in numbers]
        self.asked[-len(numbers) :] = [list(numbers)]
        return found


class Short(Squares):
    def __getitems__(self, numbers):
        return [0]


def test_many_items_are_read_at_once_in_the_order_asked_for():
    items = Squares()
    ds = Dataset.from_sequence(items).take(7).shuffle(seed=3).batch(7)
    batch = ds[0]
    assert len(items.asked) == 1 and sorted(items.asked[0]) == list(range(7))
    assert batch.tolist() == [k * k for k in items.asked[0]]
    assert Dataset.from_sequence(items)[3] == 9
    assert items.asked[-1] == 3
    assert_resumes_exactly(lambda: Dataset.from_sequence(Squares()).take(7).batch(3))


class Augmented(Squares):
    """Items that differ each time, as those of a torch dataset with a random transform."""

    def __init__(self, draw, from_item=0):
        super().__init__(count=6)
        self.draw, self.from_item = draw, from_item

    def __getitem__(self, k):
        return np.float64(k) + (self.draw() if k >= self.from_item else 0)


class AugmentedAlone(Augmented):
    __getitems__ = None


@pytest.mark.parametrize("kind", [Augmented, AugmentedAlone])
@pytest.mark.parametrize("state", ["random", "numpy.random", "torch"])
def test_items_that_draw_from_a_global_state_are_a_warning_that_names_them(kind, state):
    if state == "torch":
        pytest.importorskip("torch")
    draws = {
        "random": random.random,
        "numpy.random": np.random.rand,
        "torch": lambda: sys.modules["torch"].rand(()).item(),
    }
    ds = Dataset.from_sequence(kind(draws[state])).batch(3)
    with pytest.warns(
        GlobalRandomness, match=rf"an item of {kind.__name__} .* {state} state.*rng=True"
    ) as said:
        list(ds)
    assert len(said) == 1


def test_a_later_one_of_the_first_items_is_watched_too_and_no_item_is_read_twice():
    with pytest.warns(GlobalRandomness):
        list(Dataset.from_sequence(AugmentedAlone(random.random, from_item=3)))
    items = Squares(count=6)
    assert list(Dataset.from_sequence(items).batch(2))[2].tolist() == [16, 25]
    assert items.asked == [[0, 1], [2, 3], [4, 5]]


def test_an_item_that_fails_among_many_is_named_and_can_be_left_out():
    ds = Dataset.from_sequence(Squares())
    with pytest.raises(ValueError, match="no seven") as caught:
        ds.batch(20)[0]
    notes = " ".join(caught.value.__notes__)
    assert "item 7" in notes
    with pytest.raises(ValueError, match="no seven") as caught:
        ds[7]
    assert "item 7" in " ".join(caught.value.__notes__)

    def make():
        return Dataset.from_sequence(Squares()).ignore_errors()

    it = make().iterator()
    assert [int(x) for x in it] == [k * k for k in range(20) if k != 7]
    assert it.position.cursor["ignored"] == 1
    assert_resumes_exactly(make, every=4)


def test_fewer_items_than_asked_for_are_an_error():
    with pytest.raises(PipelineError, match="gave 1 items for 3 numbers"):
        Dataset.from_sequence(Short()).batch(3)[0]


def test_torch_datasets_are_read_as_arrays():
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    pairs = data.TensorDataset(torch.arange(12).reshape(6, 2), torch.linspace(0, 1, 6))
    for items in (pairs, data.Subset(pairs, range(6)), data.ConcatDataset([pairs, pairs])):
        ds = Dataset.from_sequence(items)
        expected = (np.array([4, 5]), np.float32(0.4))
        assert difference(ds[2], expected) is None
        inputs, targets = ds.shuffle(seed=1).batch(len(ds))[0]
        assert inputs.dtype == np.int64 and targets.dtype == np.float32
        assert sorted(inputs[:, 0].tolist()) == sorted([int(x[0]) for x, _ in items])
        inputs[...] = 99
        assert int(items[0][0][1]) == 1
    assert_resumes_exactly(lambda: Dataset.from_sequence(pairs).shuffle(seed=1).batch(4))


def test_hugging_face_datasets_are_read_many_at_once_and_known_by_their_fingerprint():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(
        {"x": [1, 2, None, 4], "s": list("abcd"), "l": [[1], [2, 3], [], [4]]}
    )
    ds = Dataset.from_sequence(data)
    assert ds.operations()[0]["version"] == data._fingerprint
    assert Dataset.from_sequence(data, version="mine").operations()[0]["version"] == "mine"
    assert Dataset.from_sequence(data.shuffle(seed=1)).operations() != ds.operations()
    assert difference(ds[1], {"x": np.int32(2), "s": "b", "l": np.array([2, 3], np.int32)}) is None
    assert ds[2]["x"] is None
    assert ds.take(2).map(lambda e: e["x"]).batch(2)[0].tolist() == [1, 2]
    for made in (
        data,
        data.with_format("numpy"),
        data.with_transform(lambda batch: {"n": [len(batch["x"])] * len(batch["x"])}),
    ):
        node = Dataset.from_sequence(made).node
        together = node.gather(np.array([0, 2, 1])).rows()
        alone = [node.gather(np.array([k])).rows()[0] for k in (0, 2, 1)]
        assert difference(together, alone) is None
    assert_resumes_exactly(lambda: Dataset.from_sequence(data).shuffle(seed=1), every=2)


def test_hugging_face_fingerprints_are_the_same_in_another_process():
    datasets = pytest.importorskip("datasets")
    code = (
        "import datasets; print(datasets.Dataset.from_dict({'x': [1, 2]}).select([1])._fingerprint)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = datasets.Dataset.from_dict({"x": [1, 2]}).select([1])
    assert ran.stdout.strip() == here._fingerprint


def test_grains_sources_are_read():
    grain = pytest.importorskip("grain")
    ds = Dataset.from_sequence(grain.sources.RangeDataSource(3, 30, 3))
    assert [int(x) for x in ds] == list(range(3, 30, 3))
    mapped = grain.MapDataset.source(range(9)).map(lambda x: {"x": x, "y": np.full(2, x)})
    batch = Dataset.from_sequence(mapped).shuffle(seed=1).batch(9)[0]
    assert batch["y"].tolist() == [[x, x] for x in batch["x"].tolist()]
    assert sorted(batch["x"].tolist()) == list(range(9))


def test_pictures_of_pillow_become_arrays():
    pil = pytest.importorskip("PIL.Image")
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    picture = pil.fromarray(pixels)
    ds = Dataset.from_sequence([{"image": picture, "both": (picture, 1)}] * 2)
    assert difference(ds[0], {"image": pixels, "both": (pixels, np.int32(1))}) is None
    assert ds.batch(2)[0]["image"].shape == (2, 2, 4, 3)
