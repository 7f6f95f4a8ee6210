"""Elements as tensors, put where they are needed ahead of their consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import tensorflow as tf

from playhead.device import DeviceIterator
from playhead.errors import PipelineError
from playhead.iterator import Iterator
from playhead.plan.block import Element, map_nest
from playhead.tensorflow.convert import as_tensors

_HOST = "/CPU:0"


def prefetch_to_device(
    iterator: Iterator,
    device: str | tf.config.LogicalDevice = "/GPU:0",
    size: SupportsIndex = 2,
) -> DeviceIterator[Element]:
    """The elements of `iterator` as nests of tensors on `device`, `size` of them ahead.

    For loops in Python. str and bytes become `tf.string` tensors, which stay on the host. Raises
    `PipelineError` for a device that is not there, for a size outside 1 to 1000 and, at the element's step,
    for objects that no tensor holds; TypeError for anything but an iterator.

    >>> import playhead as ph
    >>> it = prefetch_to_device(ph.Dataset.range(6).batch(2).iterator(), "/CPU:0")
    >>> next(it).numpy().tolist(), it.step
    ([0, 1], 1)
    """
    return DeviceIterator(iterator, _Put(_name(device)), size)


@dataclass(frozen=True, slots=True)
class _Put:
    device: str

    def begin(self, element: Element) -> Element:
        with tf.device(_HOST):
            element = as_tensors(element)
        with tf.device(self.device):
            return map_nest(
                lambda leaf: leaf if leaf.dtype == tf.string else tf.identity(leaf), element
            )

    def finish(self, begun: Element) -> Element:
        return begun


def _name(device: str | tf.config.LogicalDevice) -> str:
    """The full name of a device. TensorFlow itself would put elements on the host where it is not there."""
    asked = device if isinstance(device, str) else device.name
    there = [found.name for found in tf.config.list_logical_devices()]
    try:
        spec = tf.DeviceSpec.from_string(asked if asked.startswith("/") else f"/{asked}")
        name = f"/device:{spec.device_type}:{spec.device_index or 0}"
    except ValueError:
        name = asked
    if name not in there:
        raise PipelineError(
            f"prefetch_to_device(device={asked!r}): TensorFlow has {', '.join(there)} here",
            help="name one of these",
        )
    return name
