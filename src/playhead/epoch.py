"""One pass of a dataset by itself."""

from __future__ import annotations

import operator
from collections.abc import Iterator as IteratorABC
from typing import TYPE_CHECKING

import numpy as np

from playhead.errors import NotSeekable, PipelineError
from playhead.iterator import Iterator
from playhead.plan.block import Element
from playhead.plan.description import unseeded
from playhead.plan.places import Places, Record

if TYPE_CHECKING:
    from playhead.dataset import Dataset


class Epoch:
    """Pass `number` of `dataset`: iterable, and a sequence where the dataset is seekable."""

    def __init__(self, dataset: Dataset, number: int) -> None:
        number = operator.index(number)
        if number < 0:
            raise PipelineError(f"epochs count from 0, not {number}")
        self.dataset = dataset
        self.number = number

    def __iter__(self) -> IteratorABC[Element]:
        elements = self.iterator()
        try:
            yield from (element for element in elements)  # else closing this would close them
        finally:
            elements.release()

    def iterator(self) -> Iterator:
        """An iterator over this pass; its steps count from the beginning of epoch 0 where seekable."""
        return Iterator(self.dataset, epochs=self.number + 1, epoch=self.number)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Element:
        """Element `index` of this pass; negative ones count from its end. Raises IndexError outside it."""
        node = self.dataset.node
        return node.read(node.locate(self._places(index))).rows()[0]

    def trace(self, index: int) -> list[Record]:
        """The records that make element `index` of this pass, without reading them."""
        at = unseeded(self.dataset.node)
        if at is not None:
            raise PipelineError(
                f"{at.op} ({at.info.where}) has no seed: its order belongs to a run, not to the dataset",
                help="ask the run's iterator: it.trace(step); or give seed=, or ds.seed(n)",
            )
        return list(self.dataset.node.locate(self._places(index)).records())

    def _places(self, index: int) -> Places:
        if not self.dataset.seekable:
            raise NotSeekable(
                "this dataset is a stream: its elements have no numbers to be asked for",
                help="iterate it; or put filter and generators elsewhere",
            )
        if isinstance(index, slice):
            raise TypeError(
                "a dataset is asked for one element at a time; skip and take give a part of it"
            )
        length = self.dataset.node.length
        at = operator.index(index)
        if at < 0 and length is not None:
            at += length
        if at < 0 or (length is not None and at >= length):
            raise IndexError(f"element {index} of a pass of {length}")
        return Places(self.number, np.array([at], np.int64))
