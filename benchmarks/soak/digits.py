"""The loop of `playhead demo`: Keras over TFRecords, parsed by TensorFlow, augmented in Python."""

from __future__ import annotations

from pathlib import Path

from playhead.cli.logbook import Writer


def train(run: Path, data: Path, seed: int, epochs: int, every: int, log: Writer) -> None:
    from playhead.cli import digits

    if not data.exists():
        digits.write_records(data)
    digits.train(run, data, seed=seed, epochs=epochs, save_every=every, log=log)


def expected(data: Path, seed: int, epochs: int) -> dict[int, tuple[int, ...]]:
    """As the pipeline names them without reading: the digits lie in the files in their order."""
    from playhead.cli import digits

    pipeline = digits.pipeline(data, seed)
    trace = pipeline.iterator(epochs=epochs).trace
    steps = range(1, epochs * len(pipeline) + 1)
    return {step: tuple(record.index for record in trace(step)) for step in steps}
