"""What is handed out is the consumer's own: no function's memory shows in another element."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from playhead import Dataset


def test_a_buffer_that_a_function_fills_again_and_again_gives_each_element_its_own():
    buffer = np.zeros(1)

    def fill(x):
        buffer[:] = x
        return buffer

    dataset = Dataset.range(4).map(fill)
    assert dataset.batch(4)[0].tolist() == [[0], [1], [2], [3]]
    assert [x.tolist() for x in dataset] == [[0], [1], [2], [3]]
    with dataset.prefetch(workers=1).iterator() as ahead:
        assert [x.tolist() for x in ahead] == [[0], [1], [2], [3]]


def test_a_table_that_a_function_reads_is_not_changed_by_the_next_one():
    images = [np.full(2, k, np.float32) for k in range(4)]

    def minus_one(image):
        image -= 1
        return image

    dataset = Dataset.range(4).map(lambda k: images[k]).map(minus_one).batch(4)
    for epoch in range(3):
        assert dataset.epoch(epoch)[0][:, 0].tolist() == [-1, 0, 1, 2]
    assert [image[0] for image in images] == [0, 1, 2, 3]


def test_writing_to_one_element_leaves_a_cached_result_alone():
    cached = functools.lru_cache(lambda k: np.zeros(2))
    iterator = Dataset.range(4).map(lambda x: cached(0)).iterator()
    first = next(iterator)
    first += 7
    assert next(iterator).tolist() == [0, 0]


@pytest.mark.parametrize("prefetch", [False, True])
def test_batches_and_rows_share_no_memory_and_batches_are_aligned(prefetch):
    table = np.arange(300 * 5, dtype=np.float32).reshape(300, 5)
    for dataset in (
        Dataset.from_tensor_slices(table).shuffle(seed=1).batch(3),
        Dataset.from_tensor_slices(table).shuffle(seed=1),
    ):
        elements = list(dataset.prefetch() if prefetch else dataset)
        bases = [e if e.base is None else e.base for e in elements]
        assert len({id(base) for base in bases}) == len(elements)
        assert all(element.ctypes.data % 64 == 0 for element in elements)
        assert all(
            memoryview(base).nbytes <= element.nbytes + 64
            for base, element in zip(bases, elements, strict=True)
        )
