"""How long training waits for a save: ResNet50 with Adam, 307 MB of variables.

    python benchmarks/saving.py [DIRECTORY]

In each round the same state is saved in two ways, with training steps between them. `at once` copies every
variable into new memory and writes the checkpoint while the loop waits. `behind` is what `playhead.keras.fit`
does: it copies into memory that it has used before, and a thread writes. The last column is how much longer
a training step takes while that thread writes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

from playhead.keras import checkpoint, state
from playhead.keras.writer import Writer

ROUNDS, STEPS = 7, 3


def timed(function: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main(directory: Path) -> None:
    """Prints the table; what is saved is removed with `directory`, which is the caller's."""
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=1000)
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y = np.zeros((8, 64, 64, 3), np.float32), np.zeros(8, np.int32)

    def step() -> float:
        return timed(lambda: model.train_on_batch(x, y))

    step()
    once, behind, alone, beside, writing = [], [], [], [], []
    with Writer(where=str(directory)) as writer:
        state.capture(model, writer.expect)
        writer.prepare()
        for number in range(ROUNDS + 1):
            writer.wait()
            alone += [step() for _ in range(STEPS)]
            took = timed(
                lambda number=number: checkpoint.write(
                    directory / "once", number, {}, state.capture(model), keep=1
                )
            )
            step()

            def save(number: int = number) -> None:
                taken = state.capture(model, writer.copy)
                writer.write(
                    lambda: writing.append(
                        timed(
                            lambda: checkpoint.write(
                                directory / "behind", number, {}, taken, keep=1
                            )
                        )
                    )
                )

            waited = timed(save)
            beside += [step() for _ in range(STEPS) if writer.busy]
            if number == 0:
                first = waited
            else:
                once.append(took)
                behind.append(waited)
    _, saved = checkpoint.latest(directory / "behind")
    arrays = checkpoint.read_arrays(directory / f"behind/step-{ROUNDS:010d}", saved)
    size = sum(array.nbytes for named in arrays.values() for _, array in named)

    table = Table("", "at once", "behind", "ratio", title=f"{size / 1e6:.0f} MB of variables")
    old, new = statistics.median(once), statistics.median(behind)
    ratio = statistics.median(a / b for a, b in zip(once, behind, strict=True))
    table.add_row("the loop waits, median", f"{old:.3f} s", f"{new:.3f} s", f"{ratio:.0f}")
    table.add_row("the longest", f"{max(once):.3f} s", f"{max(behind):.3f} s", "")
    table.add_row("the first save", "", f"{first:.3f} s", "")
    table.add_row("written in", "", f"{statistics.median(writing):.3f} s", "")
    if beside:
        slower = statistics.median(beside) / statistics.median(alone)
        table.add_row("a step meanwhile", "", f"{slower:.2f} x", "")
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
        main(Path(made))
