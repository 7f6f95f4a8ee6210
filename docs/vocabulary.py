"""Writes docs/vocabulary.md: every operation, as the code itself says what it is.

    python docs/vocabulary.py

Whether an operation can jump is asked of a pipeline made of it, and the cursor is one that such a pipeline
really has after two elements over a stream.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from playhead import Dataset
from playhead.errors import PipelineError

PAGE = Path(__file__).with_name("vocabulary.md")

Make = Callable[[Dataset], Dataset]


def mixed(ds: Dataset) -> list[Dataset]:
    return [ds, Dataset.range(9)]


# name -> a pipeline that ends in it, and how its meaning differs from tf.data's: "" not at all, None where
# tf.data does not have it
OPERATIONS: dict[str, tuple[Make, str | None]] = {
    "batch": (lambda ds: ds.batch(2), ""),
    "bucket_by_sequence_length": (
        lambda ds: ds.map(lambda x: np.zeros(x % 5)).bucket_by_sequence_length(len, [3], [2, 2]),
        "",
    ),
    "cache": (
        lambda ds: ds.cache(),
        "keeps pass 0, also where random operations stand above it; a file cache is a directory that knows "
        "its pipeline",
    ),
    "choose_from_datasets": (
        lambda ds: Dataset.choose_from_datasets(mixed(ds), Dataset.range(2).repeat()),
        "",
    ),
    "concatenate": (lambda ds: ds.concatenate(Dataset.range(3)), ""),
    "enumerate": (lambda ds: ds.enumerate(), ""),
    "filter": (lambda ds: ds.filter(lambda x: x % 2 == 0), ""),
    "flat_map": (
        lambda ds: ds.flat_map(lambda x: Dataset.range(3)),
        "random operations of the inner datasets need a seed",
    ),
    "group_by_window": (
        lambda ds: ds.group_by_window(lambda x: x % 3, lambda key, window: window.batch(2), 2),
        "",
    ),
    "ignore_errors": (
        lambda ds: ds.ignore_errors(),
        "counts what it leaves out; over a stream, right behind the map or filter that fails",
    ),
    "interleave": (
        lambda ds: ds.interleave(lambda x: Dataset.range(4), cycle_length=2),
        "`cycle_length` is 16 unless told, on every machine; inner random operations need a seed",
    ),
    "map": (lambda ds: ds.map(lambda x: x + 1), "`rng=True` hands out repeatable random numbers"),
    "map_batches": (lambda ds: ds.map_batches(lambda batch: batch + 1, 4), None),
    "pack": (
        lambda ds: ds.map(lambda x: np.full(x % 5, x)).pack(8, "first_fit", bins=2),
        None,
    ),
    "padded_batch": (lambda ds: ds.padded_batch(2), "`padding_values` may be one value for all"),
    "prefetch": (
        lambda ds: ds.prefetch(2),
        "`workers=`, `on=` threads, processes or Ray; never changes what comes",
    ),
    "rebatch": (lambda ds: ds.batch(3).rebatch(2), ""),
    "rejection_resample": (
        lambda ds: ds.rejection_resample(lambda x: x % 2, [0.5, 0.5], seed=1),
        "the lottery is drawn by the element's place",
    ),
    "repeat": (lambda ds: ds.repeat(2), ""),
    "resample": (lambda ds: ds.resample(np.ones(30), seed=1), None),
    "sample_from_datasets": (
        lambda ds: Dataset.sample_from_datasets(mixed(ds), seed=1),
        "shares are exact in every 4096 draws; `weights` is a list",
    ),
    "scan": (
        lambda ds: ds.scan(np.int64(0), lambda state, x: (state + x, state)),
        "the state is 64 KB at most",
    ),
    "select": (lambda ds: ds.select([4, 0, -1]), None),
    "shard": (lambda ds: ds.shard(2, 0), ""),
    "shuffle": (
        lambda ds: ds.shuffle(None if ds.seekable else 4, seed=1),
        "a permutation of the whole epoch without `buffer_size`, which only a seekable dataset has; with "
        "it, windows of that many",
    ),
    "skip": (lambda ds: ds.skip(1), ""),
    "split": (lambda ds: ds.batch(2, True).split(2, 0), None),
    "take": (lambda ds: ds.take(9), ""),
    "take_while": (lambda ds: ds.take_while(lambda x: x < 9), ""),
    "unbatch": (lambda ds: ds.batch(2, True).unbatch(), ""),
    "unique": (
        lambda ds: ds.unique(),
        "any element; resuming looks at the epoch's elements again, and says so",
    ),
    "window": (lambda ds: ds.window(2, shift=1), ""),
    "zip": (lambda ds: Dataset.zip(*mixed(ds)), ""),
}

SOURCES: dict[str, tuple[str, str | None]] = {
    "counter": ("seekable", ""),
    "from_generator": (
        "stream; cursor: epoch and how many were taken",
        "can be saved: resumes at once where the function takes `start=` or what it returns has a state of its "
        "own, else replays and says so; needs no signature",
    ),
    "from_sequence": ("seekable", None),
    "from_tensor_slices": ("seekable", "arrays are not copied"),
    "from_tensors": ("seekable", ""),
    "from_tf": ("stream; cursor: epoch and how many were taken", None),
    "from_tfrecords": ("seekable, through an [index](tfrecords.md)", None),
    "from_array_records": ("seekable", None),
    "from_image_folder": ("seekable", None),
    "from_tar": (
        "seekable, through an [index](sources.md); a stream where a file is compressed",
        None,
    ),
    "from_csv": ("seekable, through an [index](sources.md)", None),
    "from_frame": ("seekable", None),
    "from_json_lines": (
        "seekable, through an [index](sources.md); a stream where a file is compressed",
        None,
    ),
    "from_kafka": ("stream; cursor: the offsets of each partition", None),
    "from_lines": (
        "seekable, through an [index](sources.md); a stream where a file is compressed",
        None,
    ),
    "from_parquet": ("seekable", None),
    "from_tokens": ("seekable", None),
    "load": ("seekable", "another format"),
    "list_files": ("seekable", "sorted unless `shuffle` or `seed` is given; paths are str"),
    "random": ("seekable", "other numbers than TensorFlow's"),
    "range": ("seekable", ""),
}

OTHERS: dict[str, str | None] = {
    "apply": "",
    "as_numpy_iterator": "elements are numpy's already",
    "cardinality": "",
    "epoch": None,
    "get_single_element": "",
    "ignored": None,
    "iterator": None,
    "operations": None,
    "reduce": "",
    "save": "a directory, whole or not at all; read at random",
    "seed": None,
    "to_keras": None,
    "to_tf": None,
    "trace": None,
}

HEAD = """# Every operation

*Seekable*: any element can be read directly, so that resuming is jumping. A *stream* must be walked; its
position holds a cursor, JSON made of places, never of data. The cursors shown are those of a stream (`filter`
over `range`) after two elements; operations over a seekable dataset that stay seekable need none.
[Operations](operations.md) tells more of random numbers, functions and values. `docs/vocabulary.py` makes this
page from the code.
"""


def difference(said: str | None) -> str:
    return "not in tf.data" if said is None else said


def cursor(make: Make) -> str:
    """The cursor of a pipeline over a stream, after two elements."""
    try:
        dataset = make(Dataset.range(30).filter(lambda x: x % 4 != 3))
    except PipelineError:
        return "refused"
    with dataset.iterator() as iterator:
        next(iterator), next(iterator)
        return f"`{json.dumps(iterator.position.cursor)}`"


def page() -> str:
    lines = [HEAD, "## Over datasets\n"]
    lines += ["| | over a seekable one | over a stream: the cursor | differs from tf.data |"]
    lines += ["|---|---|---|---|"]
    for name, (make, said) in sorted(OPERATIONS.items()):
        kind = "seekable" if make(Dataset.range(30)).seekable else "stream"
        lines.append(f"| `{name}` | {kind} | {cursor(make)} | {difference(said)} |")
    lines += ["\n## Sources\n", "| | | differs from tf.data |", "|---|---|---|"]
    lines += [f"| `{n}` | {kind} | {difference(s)} |" for n, (kind, s) in sorted(SOURCES.items())]
    lines += ["\n## The rest\n", "| | in a line | differs from tf.data |", "|---|---|---|"]
    for name, said in sorted(OTHERS.items()):
        text = inspect.getdoc(getattr(Dataset, name)) or ""
        lines.append(f"| `{name}` | {text.splitlines()[0]} | {difference(said)} |")
    return "\n".join(lines) + "\n"


def public() -> set[str]:
    """The public methods of Dataset."""
    methods = {
        n
        for kind in Dataset.__mro__[:-1]
        for n, value in vars(kind).items()
        if callable(value) or isinstance(value, staticmethod | classmethod)
    }
    return {name for name in methods if not name.startswith("_")} - {"with_node"}


def all_named() -> set[str]:
    return {*OPERATIONS, *SOURCES, *OTHERS}


def not_listed() -> Any:
    return public() ^ all_named()


if __name__ == "__main__":
    PAGE.write_text(page())
