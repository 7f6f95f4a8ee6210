"""Photographs: a JPEG is decoded, a window of 224 x 224 cut out at random and mirrored half of the time.

300 pictures of about 500 x 375 (40 in a quick run), each ten times (five times) in a pass, in batches of 32.
Every peer decodes the same bytes, from the files it is made for, which lie in the page cache. Frameworks that
work with threads start anew in each pass; those with processes keep them. An iterator that has no end computes
ahead while other peers have their turns: it is measured after more batches than can have been ready.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Measure, rate

TITLE = "JPEG, decoded, cropped at random to 224 x 224 and flipped (batch 32)"
UNIT = "images/s"
BATCH, SIDE, FILES, WORKERS = 32, 224, 4, 2
READY = 32  # more batches than any of these iterators holds ahead

Picture = np.ndarray[Any, Any]


# --- the pictures ---------------------------------------------------------------------------------------


def photograph(random: np.random.Generator) -> bytes:
    """A JPEG of quality 90 with what photographs have: gradients, textures, edges and a sensor's noise."""
    from PIL import Image, ImageDraw

    width, height = int(random.integers(480, 521)), int(random.integers(360, 391))
    picture = np.zeros((height, width, 3), np.float32)
    for size, weight in ((2, 1.0), (6, 0.6), (20, 0.4), (60, 0.2), (150, 0.1)):
        small = Image.fromarray(random.integers(0, 256, (size * 3 // 4 + 1, size, 3), np.uint8))
        grown = small.resize((width, height), Image.Resampling.BILINEAR)
        picture += np.float32(weight) * np.asarray(grown)
    picture = (picture - picture.mean()) / picture.std() * 50 + 120
    drawn = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(drawn)
    for _ in range(25):
        (x, y), (w, h) = random.integers(0, (width, height)), random.integers(5, 120, 2)
        draw.ellipse((x, y, x + w, y + h), fill=tuple(random.integers(0, 256, 3).tolist()))
    noise = 4 * random.standard_normal((height, width, 1), np.float32)
    picture = (np.asarray(drawn) + noise).clip(0, 255)
    out = io.BytesIO()
    Image.fromarray(picture.astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def prepare(data: Path, quick: bool) -> None:
    random = np.random.default_rng(0)
    (data / "photographs").mkdir(exist_ok=True)
    for k in range(40 if quick else 300):
        (data / "photographs" / f"{k:05}.jpg").write_bytes(photograph(random))
    every = [path.read_bytes() for path in paths(data, quick)]
    for number in range(FILES):
        records(data / f"photographs-{number}.tfrecord", every[number::FILES])


def records(path: Path, contents: list[bytes]) -> None:
    """A TFRecord file whose records are the JPEGs."""
    from playhead import kernels

    with open(path, "wb") as file:
        for content in contents:
            file.write(kernels.header(len(content)) + content)
            file.write(struct.pack("<I", kernels.masked_crc32c(content)))


def paths(data: Path, quick: bool) -> list[Path]:
    """The files of one pass."""
    return sorted((data / "photographs").glob("*.jpg")) * (5 if quick else 10)


def tfrecords(data: Path) -> list[str]:
    return [str(path) for path in sorted(data.glob("*.tfrecord"))]


# --- counting -------------------------------------------------------------------------------------------


def pictures(batch: Any) -> int:
    return len(batch)


def checked(batch: Any, shape: tuple[int, ...] = (SIDE, SIDE, 3)) -> None:
    """Complain about a batch that is not of pictures."""
    found = tuple(batch.shape), str(batch.dtype).removeprefix("torch.")
    assert found == ((BATCH, *shape), "uint8"), found


def steady(batches: Iterator[Any], count: Callable[[Any], int], quick: bool) -> Measure:
    """Measures an iterator without an end, after what had been computed ahead is used up."""
    most = 12 if quick else 64

    def measure() -> float:
        for _ in islice(batches, READY):
            pass
        return rate(lambda: islice(batches, most), count, most * BATCH)

    return measure


# --- what is done to a picture --------------------------------------------------------------------------


def crop_simplejpeg(content: bytes, random: np.random.Generator) -> Picture:
    """simplejpeg decodes the whole picture, there is no window to ask for, and leaves Python's lock.

    A mirrored picture is decoded as BGR and read backwards: one row of bytes, which numpy copies seven times
    faster than pixels of three bytes.
    """
    import simplejpeg

    flip = random.random() < 0.5
    image = simplejpeg.decode_jpeg(content, "BGR" if flip else "RGB")
    y, x = random.integers(0, (image.shape[0] - SIDE + 1, image.shape[1] - SIDE + 1))
    image = image[y : y + SIDE, x : x + SIDE]
    return image[:, ::-1, ::-1] if flip else image


def crop_pil(content: bytes, random: np.random.Generator) -> Picture:
    from PIL import Image

    return window_pil(Image.open(io.BytesIO(content)), random)


def window_pil(image: Any, random: np.random.Generator) -> Picture:
    from PIL import Image

    x, y = random.integers(0, (image.width - SIDE + 1, image.height - SIDE + 1)).tolist()
    image = image.convert("RGB").crop((x, y, x + SIDE, y + SIDE))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def crop_tensorflow(content: Any, seed: Any) -> Any:
    """TensorFlow decodes only as much as the window needs."""
    import tensorflow as tf

    room = tf.io.extract_jpeg_shape(content)[:2] - SIDE + 1
    drawn = tf.random.stateless_uniform([3], seed)
    corner = tf.cast(drawn[:2] * tf.cast(room, tf.float32), tf.int32)
    window = tf.concat([corner, [SIDE, SIDE]], 0)
    image = tf.io.decode_and_crop_jpeg(content, window, channels=3)
    image = tf.cond(drawn[2] < 0.5, lambda: tf.reverse(image, [1]), lambda: image)
    return tf.ensure_shape(image, [SIDE, SIDE, 3])


# --- peers ----------------------------------------------------------------------------------------------


def playhead(data: Path, quick: bool) -> Measure:
    """The function that tf.data is given, too, on threads: no other decoder here stops at the window."""
    import playhead as ph

    dataset = ph.Dataset.from_tfrecords(tfrecords(data)).shuffle(seed=1)
    dataset = dataset.map(crop_tensorflow, rng=True, seed=1, form="tf").batch(BATCH).prefetch()
    checked(dataset[0])
    return lambda: rate(lambda: dataset, pictures, len(paths(data, quick)))


def playhead_simplejpeg(data: Path, quick: bool) -> Measure:
    """A Python function on threads; the decoder gives whole pictures, and so the windows are cut afterwards."""
    import playhead as ph

    dataset = ph.Dataset.from_tfrecords(tfrecords(data)).shuffle(seed=1)
    dataset = dataset.map(crop_simplejpeg, rng=True, seed=1).batch(BATCH).prefetch()
    checked(dataset[0])
    return lambda: rate(lambda: dataset, pictures, len(paths(data, quick)))


def playhead_processes(data: Path, quick: bool) -> Measure:
    import playhead as ph

    dataset = ph.Dataset.from_tfrecords(tfrecords(data)).shuffle(seed=1)
    dataset = dataset.map(crop_simplejpeg, rng=True, seed=1).batch(BATCH, drop_remainder=True)
    batches = dataset.prefetch(on="processes").iterator(epochs=None)
    checked(next(batches))
    return steady(batches, pictures, quick)


def tf_data(data: Path, quick: bool) -> Measure:
    """As "Better performance with the tf.data API" says: AUTOTUNE for reading, mapping and prefetching.

    tf.io.decode_and_crop_jpeg is what its own page calls much faster than decoding and cropping. The buffer
    that shuffles holds 1,000 records, not the whole set as the other peers' permutations do.
    """
    import tensorflow as tf

    def crop(content: Any) -> Any:
        return crop_tensorflow(content, tf.random.uniform([2], maxval=1 << 30, dtype=tf.int32))

    dataset = tf.data.TFRecordDataset(tfrecords(data), num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.shuffle(1_000).map(crop, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    checked(next(dataset.as_numpy_iterator()))
    return lambda: rate(dataset.as_numpy_iterator, pictures, len(paths(data, quick)))


def grain(data: Path, quick: bool) -> Measure:
    """As grain's "Dataset basics" and "Dataset advanced usage" say: ArrayRecord, random_map, mp_prefetch.

    A worker reads with two threads and two batches ahead. The default, 16 threads and 500 elements, which are
    batches here, would fill up while other peers have their turns, and be measured as if it were speed.
    """
    return _grain(data, quick, crop_simplejpeg)


def grain_pil(data: Path, quick: bool) -> Measure:
    """The same, with PIL."""
    return _grain(data, quick, crop_pil)


def _grain(data: Path, quick: bool, crop: Callable[..., Any]) -> Measure:
    import grain
    from array_record.python import array_record_module

    file = str(data / f"{crop.__name__}.array_record")
    writer = array_record_module.ArrayRecordWriter(file, "group_size:1")
    for path in paths(data, quick):
        writer.write(path.read_bytes())
    writer.close()
    source = grain.sources.ArrayRecordDataSource(file)
    dataset = grain.MapDataset.source(source).seed(1).shuffle().repeat().random_map(crop)
    reading = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    dataset = dataset.batch(BATCH, drop_remainder=True).to_iter_dataset(reading)
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    batches = iter(dataset.mp_prefetch(options))
    checked(next(batches))
    return steady(batches, pictures, quick)


class Photographs:
    """A map-style dataset of torch's: what `decode` makes of the file of that name."""

    def __init__(self, paths: list[Path], decode: Callable[[str], Any]) -> None:
        self.paths = [str(path) for path in paths]
        self.decode = decode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.decode(self.paths[index])


def torch_simplejpeg(data: Path, quick: bool) -> Measure:
    """The same, with simplejpeg; the pictures have their channels last."""
    import torch

    def decode(path: str) -> Any:
        random = np.random.default_rng(int(torch.randint(1 << 62, ())))
        return torch.from_numpy(crop_simplejpeg(Path(path).read_bytes(), random).copy())

    return _torch(data, quick, decode, (SIDE, SIDE, 3))


def torch_dataloader(data: Path, quick: bool) -> Measure:
    """As "Getting started with transforms v2" says: uint8 tensors and workers, decoded by torchvision.io."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    change = v2.Compose([v2.RandomCrop(SIDE), v2.RandomHorizontalFlip(0.5)])

    def decode(path: str) -> Any:
        return change(decode_jpeg(read_file(path), ImageReadMode.RGB))

    return _torch(data, quick, decode, (3, SIDE, SIDE))


def _torch(data: Path, quick: bool, decode: Callable[[str], Any], shape: Any) -> Measure:
    from torch.utils.data import DataLoader

    files = paths(data, quick)
    loader: Any = DataLoader(
        Photographs(files, decode),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    checked(next(iter(loader)), shape)
    return lambda: rate(lambda: loader, pictures, len(files))


def mosaicml(data: Path, quick: bool) -> Measure:
    """As streaming's "Quick Start" says: MDS with a "jpeg" column, which PIL decodes, and a DataLoader."""
    from PIL import Image
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    files = paths(data, quick)
    with MDSWriter(out=str(data / "mds"), columns={"image": "jpeg"}) as writer:
        for path in files:
            writer.write({"image": Image.open(path)})

    class Cropped(StreamingDataset):
        random = np.random.default_rng()

        def __getitem__(self, at: Any) -> Any:
            return window_pil(super().__getitem__(at)["image"], self.random).copy()

    dataset = Cropped(local=str(data / "mds"), shuffle=True, batch_size=BATCH)
    loader: Any = DataLoader(
        dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
    )
    checked(next(iter(loader)))
    return lambda: rate(lambda: loader, pictures, len(files))


PEERS = {
    "playhead": playhead,
    "playhead, simplejpeg": playhead_simplejpeg,
    "playhead, simplejpeg, processes": playhead_processes,
    "tf.data": tf_data,
    "grain, simplejpeg": grain,
    "grain, PIL": grain_pil,
    "torch DataLoader, torchvision": torch_dataloader,
    "torch DataLoader, simplejpeg": torch_simplejpeg,
    "mosaicml-streaming, PIL": mosaicml,
}
