"""Elements as `jax.Array`s, put where they are needed ahead of their consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex

import jax
from jax.sharding import Sharding

from playhead.device import DeviceIterator, is_array, put_arrays
from playhead.errors import PipelineError
from playhead.iterator import Iterator
from playhead.plan.block import Element


def prefetch_to_device(
    iterator: Iterator,
    size: SupportsIndex = 2,
    device: jax.Device | Sharding | None = None,
) -> DeviceIterator[Element]:
    """The elements of `iterator` with their arrays as `jax.Array`s on `device`, `size` of them ahead.

    device: a `jax.Device`, a `Sharding` that every array of an element is laid out by, or None for JAX's
    default. Text, dates and other objects stay on the host as they are. 64-bit dtypes become 32-bit ones
    unless `jax_enable_x64` is set, as everywhere in JAX. Raises `PipelineError` for a size outside 1 to 1000
    and for a sharding over the devices of other processes, TypeError for anything but an iterator.

    >>> import playhead as ph
    >>> it = prefetch_to_device(ph.Dataset.range(6).batch(2).iterator(), size=2)
    >>> next(it) + 1, it.step
    (Array([1, 2], dtype=int32), 1)
    """
    if device is not None and not isinstance(device, jax.Device | Sharding):
        raise TypeError(
            f"prefetch_to_device(device={device!r}): a jax.Device as in jax.devices(), a Sharding, or None"
        )
    if isinstance(device, Sharding) and not device.is_fully_addressable:
        raise PipelineError(
            "prefetch_to_device: the sharding has devices of other processes, and this process reads whole "
            "elements",
            help="use a sharding over jax.local_devices()",
        )
    return DeviceIterator(iterator, _Put(device), size)


@dataclass(frozen=True, slots=True)
class _Put:
    device: jax.Device | Sharding | None

    def begin(self, element: Element) -> Element:
        # device_put returns before the copy is done, and takes all arrays in one call.
        return put_arrays(element, _moves, lambda arrays: jax.device_put(arrays, self.device))

    def finish(self, begun: Element) -> Element:
        return begun


def _moves(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, jax.Array)
