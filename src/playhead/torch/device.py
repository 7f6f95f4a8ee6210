"""Elements as tensors, put where they are needed ahead of their consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from playhead.device import DeviceIterator, Transfer, is_array, put_arrays
from playhead.errors import PipelineError
from playhead.iterator import Iterator
from playhead.plan.block import Element, leaves

if TYPE_CHECKING:
    import torch


def prefetch_to_device(
    iterator: Iterator,
    device: str | torch.device = "cuda",
    size: SupportsIndex = 2,
) -> DeviceIterator[Any]:
    """The elements of `iterator` with their arrays as tensors on `device`, `size` of them ahead.

    On CUDA arrays are copied out of pinned memory on a stream of their own; the stream that is current when an
    element is taken waits for its copy. On the CPU a tensor shares its array's memory. Text, dates and other
    objects stay on the host as they are. Raises `PipelineError` for a size outside 1 to 1000 and for CUDA
    where there is none, TypeError for anything but an iterator and, at the element's step, for a dtype that
    torch lacks.
    """
    import torch

    place = torch.device(device)
    transfer: Transfer[Any] = _Plain(place)
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise PipelineError(
                f"prefetch_to_device(device={str(device)!r}): torch finds no CUDA device here",
                help='prefetch_to_device(iterator, "cpu") hands out tensors on the host',
            )
        transfer = _Cuda(place, torch.cuda.Stream(place))
    return DeviceIterator(iterator, transfer, size)


@dataclass(frozen=True, slots=True)
class _Plain:
    device: torch.device

    def begin(self, element: Element) -> Element:
        return put_arrays(
            element, _moves, lambda all: [_tensor(leaf).to(self.device) for leaf in all]
        )

    def finish(self, begun: Element) -> Element:
        return begun


@dataclass(frozen=True, slots=True)
class _Cuda:
    device: torch.device
    stream: torch.cuda.Stream

    def begin(self, element: Element) -> tuple[Element, torch.cuda.Event]:
        import torch

        with torch.cuda.stream(self.stream):
            put = put_arrays(
                element, _moves, lambda all: [self._copy(_tensor(leaf)) for leaf in all]
            )
            return put, self.stream.record_event()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        # torch keeps the pinned memory until the copy is done.
        host = tensor.pin_memory() if tensor.device.type == "cpu" else tensor
        return host.to(self.device, non_blocking=True)

    def finish(self, begun: tuple[Element, torch.cuda.Event]) -> Element:
        import torch

        element, copied = begun
        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(copied)
        for leaf in leaves(element):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                # Else its memory could be given to the next copy while the consumer still reads it.
                leaf.record_stream(consumer)
        return element


def _moves(leaf: Any) -> bool:
    import torch

    return is_array(leaf) or isinstance(leaf, torch.Tensor)


def _tensor(leaf: Any) -> torch.Tensor:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf
    array = np.asarray(leaf, order="C")
    # torch would let a consumer write to read-only memory.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
