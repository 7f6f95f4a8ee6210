"""Tokens for a language model: windows of 1,025 of them at a stride of 1,024, shuffled, in batches of 32.

20 million tokens (2 million in a quick run) lie in a file as uint16, and uint16 is what every peer hands out:
the batch's inputs are its columns 0 to 1,023 and its targets are columns 1 to 1,024. Counted are the inputs. A
last batch that is not full is left out. Frameworks that work with threads start anew in each pass; those with
processes keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Measure, rate

TITLE = "language-model tokens from a memory-mapped file (windows of 1024 + 1, uint16, batch 32)"
UNIT = "tokens/s"
BATCH, WINDOW, WORKERS = 32, 1024, 2
READY = 32  # more batches than an iterator that stays open holds ahead


def prepare(data: Path, quick: bool) -> None:
    random = np.random.default_rng(0)
    random.integers(0, 50_257, 2_000_000 if quick else 20_000_000, np.uint16).tofile(
        data / "tokens.bin"
    )


def windows(data: Path) -> Any:
    """Every window as a row of a view [n, 1025] of the mapped file; neighbours share a token."""
    tokens = np.memmap(data / "tokens.bin", np.uint16, "r")
    return np.lib.stride_tricks.sliding_window_view(tokens, WINDOW + 1)[::WINDOW]


def tokens(batch: Any) -> int:
    """The inputs in a batch, which must be whole."""
    rows, columns = batch.shape
    return int(rows * (columns - 1))


def expected(data: Path) -> int:
    return len(windows(data)) // BATCH * BATCH * WINDOW


def checked(batch: Any) -> None:
    """Complain about a batch that is not of windows."""
    found = tuple(batch.shape), str(batch.dtype).removeprefix("torch.")
    assert found == ((BATCH, WINDOW + 1), "uint16"), found


def steady(batches: Iterator[Any], count: Callable[[Any], int], quick: bool) -> Measure:
    """Measures an iterator without an end, after what had been computed ahead is used up."""
    most = 50 if quick else 500

    def measure() -> float:
        for _ in islice(batches, READY):
            pass
        return rate(lambda: islice(batches, most), count, most * BATCH * WINDOW)

    return measure


def playhead(data: Path, quick: bool) -> Measure:
    """The rows of a strided view: nothing is copied but what a batch is made of."""
    import playhead as ph

    dataset = ph.Dataset.from_tensor_slices(windows(data)).shuffle(seed=1)
    dataset = dataset.batch(BATCH, drop_remainder=True).prefetch()
    checked(dataset[0])
    return lambda: rate(lambda: dataset, tokens, expected(data))


def playhead_sequence(data: Path, quick: bool) -> Measure:
    """Whatever has a length and items."""
    import playhead as ph

    class Windows:
        def __init__(self) -> None:
            self.tokens = np.memmap(data / "tokens.bin", np.uint16, "r")

        def __len__(self) -> int:
            return (len(self.tokens) - 1) // WINDOW

        def __getitem__(self, index: int) -> Any:
            return self.tokens[index * WINDOW : (index + 1) * WINDOW + 1]

    source = ph.Dataset.from_sequence(Windows(), version="1", thread_safe=True)
    dataset = source.shuffle(seed=1).batch(BATCH, drop_remainder=True).prefetch()
    checked(dataset[0])
    return lambda: rate(lambda: dataset, tokens, expected(data))


def tf_data(data: Path, quick: bool) -> Measure:
    """As "tf.data: Build TensorFlow input pipelines" says of arrays: from_tensor_slices, here a copy in memory.

    Numbers of windows are shuffled and windows gathered a batch at a time, the vectorised mapping of
    "Better performance with the tf.data API"; shuffling the windows themselves is slower.
    """
    import tensorflow as tf

    stored = tf.constant(np.fromfile(data / "tokens.bin", np.uint16))
    count = len(windows(data))

    def gather(numbers: Any) -> Any:
        return tf.gather(stored, numbers[:, None] * WINDOW + tf.range(WINDOW + 1)[None])

    dataset = tf.data.Dataset.range(count, output_type=tf.int32).shuffle(count)
    dataset = dataset.batch(BATCH, drop_remainder=True)
    dataset = dataset.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    checked(next(dataset.as_numpy_iterator()))
    return lambda: rate(dataset.as_numpy_iterator, tokens, expected(data))


def tf_data_slices(data: Path, quick: bool) -> Measure:
    """As the same guide's first example: the windows as slices, shuffled and stacked."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(np.ascontiguousarray(windows(data)))
    dataset = dataset.shuffle(len(windows(data))).batch(BATCH, drop_remainder=True)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    checked(next(dataset.as_numpy_iterator()))
    return lambda: rate(dataset.as_numpy_iterator, tokens, expected(data))


class Windows:
    """A random-access source for grain, and a map-style dataset for torch: window `index` of the file."""

    def __init__(self, path: Path, change: Callable[[Any], Any] | None = None) -> None:
        self.path, self.change = str(path), change
        self.tokens: Any = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // WINDOW

    def __getitem__(self, index: int) -> Any:
        found = self.tokens[index * WINDOW : (index + 1) * WINDOW + 1]
        return found if self.change is None else self.change(found)

    def __getstate__(self) -> tuple[str, Any]:
        return self.path, self.change

    def __setstate__(self, state: tuple[str, Any]) -> None:
        self.path, self.change = state
        self.tokens = np.memmap(self.path, np.uint16, "r")


def grain(data: Path, quick: bool) -> Measure:
    """As grain's "Dataset basics" says: a random-access source, read by its default threads, and no processes.

    Nothing is computed here that processes would be needed for.
    """
    import grain

    dataset = grain.MapDataset.source(Windows(data / "tokens.bin")).seed(1).shuffle()
    batches = dataset.batch(BATCH, drop_remainder=True).to_iter_dataset()
    checked(next(iter(batches)))
    return lambda: rate(lambda: batches, tokens, expected(data))


def grain_processes(data: Path, quick: bool) -> Measure:
    """The same with two workers, as "Dataset advanced usage" says of mp_prefetch.

    A worker reads two batches ahead: the default of 500 would fill up between the turns.
    """
    import grain

    dataset = grain.MapDataset.source(Windows(data / "tokens.bin")).seed(1).shuffle().repeat()
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    reading = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    batched = dataset.batch(BATCH, drop_remainder=True).to_iter_dataset(reading)
    batches = iter(batched.mp_prefetch(options))
    checked(next(batches))
    return steady(batches, tokens, quick)


def torch_dataloader(data: Path, quick: bool) -> Measure:
    """As "torch.utils.data" says: a map-style dataset, shuffle=True, and workers that persist."""
    import torch
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        Windows(data / "tokens.bin", lambda row: torch.from_numpy(row.copy())),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    checked(next(iter(loader)))
    return lambda: rate(lambda: loader, tokens, expected(data))


def mosaicml(data: Path, quick: bool) -> Measure:
    """As streaming's "Basic Dataset Conversion" says: MDS with an array of fixed size, and a DataLoader."""
    import torch
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    rows = windows(data)
    columns = {"tokens": f"ndarray:uint16:{WINDOW + 1}"}
    with MDSWriter(out=str(data / "mds"), columns=columns) as writer:
        for row in rows:
            writer.write({"tokens": np.asarray(row)})

    class Tokens(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return torch.from_numpy(super().__getitem__(at)["tokens"].copy())

    dataset = Tokens(local=str(data / "mds"), shuffle=True, batch_size=BATCH)
    loader: Any = DataLoader(
        dataset,
        batch_size=BATCH,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    checked(next(iter(loader)))

    def measure() -> float:
        most = len(rows) // BATCH - WORKERS  # each of the workers may leave out a batch
        return rate(lambda: islice(loader, most), tokens, most * BATCH * WINDOW)

    return measure


def datasets(data: Path, quick: bool) -> Measure:
    """As "Use with PyTorch" says: fixed arrays in Arrow, torch's format, and a DataLoader with workers."""
    import pyarrow as pa
    import torch
    from datasets import Dataset, Features, Sequence, Value
    from torch.utils.data import DataLoader

    rows = np.ascontiguousarray(windows(data))
    stored = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WINDOW + 1)
    features = Features({"tokens": Sequence(Value("uint16"), length=WINDOW + 1)})
    Dataset(pa.table({"tokens": stored}), fingerprint="tokens").cast(features).save_to_disk(
        str(data / "arrow")
    )
    loader: Any = DataLoader(
        Dataset.load_from_disk(str(data / "arrow")).with_format("torch", dtype=torch.uint16),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    checked(next(iter(loader))["tokens"])
    return lambda: rate(lambda: loader, lambda batch: tokens(batch["tokens"]), expected(data))


def numpy(data: Path, quick: bool) -> Measure:
    """A loop by hand, as small training scripts have it; it keeps no place."""
    stored = np.memmap(data / "tokens.bin", np.uint16, "r")
    count = (len(stored) - 1) // WINDOW
    random = np.random.default_rng(1)

    def batches() -> Any:
        order = random.permutation(count)
        for start in range(0, count - BATCH + 1, BATCH):
            begins = order[start : start + BATCH] * WINDOW
            yield np.stack([stored[begin : begin + WINDOW + 1] for begin in begins])

    checked(next(batches()))
    return lambda: rate(batches, tokens, expected(data))


PEERS = {
    "playhead": playhead,
    "playhead, from_sequence": playhead_sequence,
    "tf.data, gathered": tf_data,
    "tf.data, slices": tf_data_slices,
    "grain": grain,
    "grain, processes": grain_processes,
    "torch DataLoader": torch_dataloader,
    "mosaicml-streaming": mosaicml,
    "datasets": datasets,
    "numpy by hand": numpy,
}
