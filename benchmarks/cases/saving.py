"""Saving a position and restoring it: to a file that the disk is not waited for, and into a new iterator.

Without the first batch, which is a case of its own: what a library leaves for then is not counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import _positions
from benchmarks.frame import Measure

TITLE = "saving the position at step 1,000 and restoring it, without the first batch"
UNIT = "ms"
prepare = _positions.prepare


def timed(peer: Callable[[Path], _positions.Saved]) -> Callable[[Path, bool], Measure]:
    def set_up(data: Path, quick: bool) -> Measure:
        saved = peer(data)

        def there_and_back() -> Any:
            saved.save()
            return saved.restore()

        return lambda: _positions.milliseconds(there_and_back)

    return set_up


PEERS = {
    "playhead": timed(_positions.playhead),
    "tf.data checkpoint": timed(_positions.tf_data),
    "grain": timed(_positions.grain),
    "StatefulDataLoader": timed(_positions.torch_loader),
    "StatefulDataLoader, no workers": timed(partial(_positions.torch_loader, workers=0)),
    "mosaicml StreamingDataLoader": timed(_positions.mosaicml),
    "datasets IterableDataset": timed(_positions.hugging_face),
}
