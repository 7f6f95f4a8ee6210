"""playhead for PyTorch: elements on a device ahead of the step that takes them."""

from __future__ import annotations

from playhead.torch.device import prefetch_to_device

__all__ = ["prefetch_to_device"]
