"""How many bytes a saved position takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.cases import _positions
from benchmarks.frame import Measure

TITLE = "size of the position at step 1,000"
UNIT = "bytes"
prepare = _positions.prepare


def sized(peer: Callable[[Path], _positions.Saved]) -> Callable[[Path, bool], Measure]:
    def set_up(data: Path, quick: bool) -> Measure:
        saved = peer(data)
        return lambda: float(saved.save())

    return set_up


PEERS = {
    "playhead": sized(_positions.playhead),
    "tf.data checkpoint": sized(_positions.tf_data),
    "grain": sized(_positions.grain),
    "StatefulDataLoader": sized(_positions.torch_loader),
    "StatefulDataLoader, no workers": sized(partial(_positions.torch_loader, workers=0)),
    "mosaicml StreamingDataLoader": sized(_positions.mosaicml),
    "datasets IterableDataset": sized(_positions.hugging_face),
}
