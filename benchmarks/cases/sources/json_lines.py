"""JSON lines of five keys, parsed to columns, in batches of 256: 50,000 objects of about 170 bytes.

A batch is a dict of arrays: id int64, label int32, score float32, vector float32 [256, 4], and text as objects.
tf.data has no reader of JSON that would take part without a function of Python's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.sources import _theirs
from benchmarks.cases.sources._ours import ours
from benchmarks.cases.sources._reader import Reader, figures, measured, replayed
from benchmarks.frame import Measure

FIGURES = figures("json_lines", "JSON lines of 170 bytes and 5 keys, to columns, batch 256")
BATCH = 256
DTYPES = {
    "id": np.int64,
    "label": np.int32,
    "score": np.float32,
    "vector": np.float32,
    "text": object,
}


def size(quick: bool) -> int:
    return 4_000 if quick else 50_000


def prepare(data: Path, quick: bool) -> None:
    random = np.random.default_rng(0)
    count = size(quick)
    scores = random.random((count, 5)).round(6).tolist()
    letters = random.integers(97, 123, 80 * count, np.uint8).tobytes().decode()
    with open(data / "a.jsonl", "w") as file:
        for k, (score, *vector) in enumerate(scores):
            text = letters[80 * k : 80 * k + 60 + k % 20]
            row = {"id": k, "label": k % 10, "score": score, "vector": vector, "text": text}
            file.write(json.dumps(row) + "\n")


def check(batch: Any) -> int:
    assert list(batch) == list(DTYPES), list(batch)
    for key, dtype in DTYPES.items():
        assert batch[key].dtype == dtype, (key, batch[key].dtype)
    assert batch["vector"].shape[1:] == (4,) and isinstance(batch["text"][0], str)
    return len(batch["id"])


def measure(reader: Reader, quick: bool) -> Measure:
    return measured("json_lines", reader, size(quick), BATCH, check)


def playhead(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    import playhead as ph

    dtypes = {**DTYPES, "text": str}

    def dataset() -> Any:
        rows = ph.Dataset.from_json_lines(data / "a.jsonl", dtypes=dtypes)
        return (rows.shuffle(seed=1) if shuffled else rows).batch(BATCH).prefetch()

    return measure(ours(dataset), quick)


def arrays(columns: dict[str, Any]) -> dict[str, Any]:
    return {key: np.array(columns[key], dtype) for key, dtype in DTYPES.items()}


def hugging_face(data: Path, quick: bool, shuffled: bool = True) -> Measure:
    """The loader "json", streaming, with the default buffer of `shuffle`: as its guide "Stream" has it."""
    import datasets

    def dataset() -> Any:
        rows = datasets.load_dataset(
            "json", data_files={"train": str(data / "a.jsonl")}, split="train", streaming=True
        )
        return (
            rows.shuffle(seed=1, buffer_size=_theirs.buffer(quick)) if shuffled else rows
        ).batch(BATCH)

    return measure(_theirs.hugging_face(dataset, arrays, exact=not shuffled), quick)


def python(data: Path, quick: bool) -> Measure:
    """A loop by hand around `json.loads`; it keeps no place."""

    def batches() -> Iterator[dict[str, Any]]:
        with open(data / "a.jsonl", encoding="utf-8") as file:
            while rows := [json.loads(line) for line in islice(file, BATCH)]:
                yield arrays({key: [row[key] for row in rows] for key in DTYPES})

    return measure(replayed(batches), quick)


PEERS = {
    "playhead": playhead,
    "playhead, in order": partial(playhead, shuffled=False),
    "datasets, shuffle(1,000)": hugging_face,
    "datasets, in order": partial(hugging_face, shuffled=False),
    "Python by hand, in order": python,
}
