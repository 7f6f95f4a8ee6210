"""Elements on torch's devices."""

from __future__ import annotations

import numpy as np
import pytest

import playhead as ph
from playhead.errors import PipelineError

torch = pytest.importorskip("torch")


def test_arrays_become_tensors_on_the_host_and_the_rest_stays() -> None:
    def everything(x: np.int64) -> dict[str, object]:
        return {
            "f": np.full((2,), x, np.float32),
            "i": x,
            "b": np.bool_(x > 0),
            "s": str(x),
            "when": np.datetime64("2020-01-01") + np.timedelta64(int(x), "D"),
        }

    for ds in (ph.Dataset.range(4).map(everything), ph.Dataset.range(4).map(everything).batch(2)):
        for element, expected in zip(
            ph.torch.prefetch_to_device(ds.iterator(), "cpu"), ds.iterator(), strict=True
        ):
            for key, dtype in (("f", torch.float32), ("i", torch.int64), ("b", torch.bool)):
                assert element[key].dtype == dtype and element[key].device.type == "cpu"
                assert element[key].shape == expected[key].shape
            assert not torch.is_tensor(element["s"]) and not torch.is_tensor(element["when"])
            assert all(np.array_equal(element[key], expected[key]) for key in expected)


def test_tensors_are_put_on_the_device_that_was_asked_for() -> None:
    ds = ph.Dataset.range(3).map(lambda x: (np.full(2, x, np.float32), np.int16(x)))
    for device in ("meta", torch.device("meta")):
        it = ph.torch.prefetch_to_device(ds.iterator(), device)
        pairs = list(it)
        assert [(x.device.type, y.device.type) for x, y in pairs] == [("meta", "meta")] * 3
        assert [(x.shape, y.dtype) for x, y in pairs] == [((2,), torch.int16)] * 3
        assert it.step == 3


def test_read_only_and_reversed_arrays_become_tensors_of_their_own() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    items = [frozen, np.arange(3)[::-1]]
    ds = ph.Dataset.from_sequence([0, 1]).map(lambda k: items[int(k)])
    first, second = ph.torch.prefetch_to_device(ds.iterator(), "cpu")
    first += 1
    assert frozen.tolist() == [0, 1, 2] and first.tolist() == [1, 2, 3]
    assert second.tolist() == [2, 1, 0]


def test_a_dtype_that_torch_lacks_is_an_error_at_its_step() -> None:
    ds = ph.Dataset.range(4).map(lambda x: np.zeros(2, np.longdouble if x == 2 else np.float32))
    it = ph.torch.prefetch_to_device(ds.iterator(), "cpu")
    next(it), next(it)
    with pytest.raises(TypeError) as raised:
        next(it)
    assert raised.value.__notes__ == ["playhead: while putting step 3 on the device"]
    assert it.step == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none_is_refused_at_once() -> None:
    with pytest.raises(PipelineError, match="torch finds no CUDA device"):
        ph.torch.prefetch_to_device(ph.Dataset.range(4).iterator())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("size", [1, 3])
def test_on_cuda_every_element_is_whole_when_it_is_taken(size: int) -> None:
    ds = ph.Dataset.range(40).map(lambda x: np.full((1 << 20,), x, np.float32)).prefetch(4)
    it = ph.torch.prefetch_to_device(ds.iterator(epochs=2), "cuda", size)
    sums = []
    for element in it:
        assert element.is_cuda
        sums.append(element.double().sum())
        del element
    assert [int(s) >> 20 for s in sums] == [*range(40)] * 2
