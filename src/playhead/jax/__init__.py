"""playhead for JAX: elements on a device, or sharded over several, ahead of the step that takes them."""

from __future__ import annotations

from playhead.jax.device import prefetch_to_device

__all__ = ["prefetch_to_device"]
