"""Windows of tokens for language models, over token files that are mapped into memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from playhead.errors import CorruptRecord, PipelineError, SourceError
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import ArraySpec, Block, Columns, Nest
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.files.keeping import Mapped
from playhead.sources.files.maps import Maps, Seen
from playhead.sources.files.paths import Paths
from playhead.sources.text.texts import named

Documents: TypeAlias = Literal["files"] | Sequence[int] | np.ndarray[Any, Any] | None
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_SPOTS = 64
_SPOT = 1 << 12


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the tokens lie in a file: `count` of them from the byte `start` on."""

    seen: Seen
    start: int
    count: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Tokens(Source):
    """Element k is the kth window of `size` tokens; with `targets`, (it, the one a token behind it).

    Window k begins `stride` tokens behind window k - 1 of the same stretch: stretch s has the windows from
    `before[s]` on, and begins at token `begins[s]` of all files one after the other.
    """

    op: ClassVar[str] = "tokens"

    store: Store
    size: int
    stride: int
    targets: bool
    begins: Integers
    before: Integers  # one more than stretches: the last is how many windows there are
    parents: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def cardinality(self) -> int:
        return int(self.before[-1])

    def tokens_at(self, index: Integers) -> Integers:
        """The number of the first token of each window."""
        stretch = np.searchsorted(self.before, index, side="right") - 1
        return self.begins[stretch] + (index - self.before[stretch]) * self.stride

    def gather(self, index: Index) -> Block:
        """The windows at `index` (int64[n], any order) in memory of their own. Thread-safe.

        Raises `IndexError`, and `SourceChanged` for a file that was written since the dataset was made.
        """
        outside = np.flatnonzero((index < 0) | (index >= self.cardinality))
        if len(outside):
            raise IndexError(f"window {index[outside[0]]} of {self.cardinality}")
        begins = self.tokens_at(index)
        windows = self.store.windows(begins, self.size)
        if not self.targets:
            return Columns(windows, len(index))
        return Columns((windows, self.store.windows(begins + 1, self.size)), len(index))

    def record(self, epoch: int, index: int) -> Record:
        """Its file, and the number there of its first token."""
        token = int(self.tokens_at(np.array([index], np.int64))[0])
        file = self.store.file_of(token)
        name = self.info.name or self.op
        number = token - int(self.store.starts[file])
        return Record(name, epoch, index, self.store.files[file].seen.path, number)

    def describe(self) -> dict[str, Any]:
        """What decides where windows lie, and a digest of sizes and of a few of the tokens."""
        said: dict[str, Any] = {"op": self.op, "records": self.cardinality, "length": self.size}
        said |= {"stride": self.stride, "targets": self.targets, "dtype": self.store.dtype.name}
        if len(self.begins) != 1:
            stretches = self.begins.astype("<i8").tobytes() + self.before.astype("<i8").tobytes()
            said["documents"] = hashlib.blake2b(stretches, digest_size=8).hexdigest()
        return {**said, "content": self.store.content, "kind": "sampled"}

    def static_spec(self) -> Nest:
        spec = ArraySpec((self.size,), self.store.dtype)
        return (spec, spec) if self.targets else spec


class Store:
    """The tokens of several files as one long row. Thread-safe; it can be pickled."""

    def __init__(
        self, files: tuple[TokenFile, ...], samples: tuple[bytes, ...] | None = None
    ) -> None:
        self.files = files
        self.dtype = files[0].dtype.newbyteorder("=")
        counts = np.array([file.count for file in files], np.int64)
        self.starts: Integers = np.cumsum(counts) - counts
        self.count = int(counts.sum())
        self._maps = Maps(tuple(file.seen for file in files), self._same)
        self._samples = samples or tuple(
            self._sample(k, self._maps.get(k)) for k in range(len(files))
        )

    def __reduce__(self) -> tuple[type[Store], tuple[tuple[TokenFile, ...], tuple[bytes, ...]]]:
        return Store, (self.files, self._samples)

    @property
    def content(self) -> str:
        """A digest (hex) of how many tokens there are, and of some of them."""
        held = [s for s, file in zip(self._samples, self.files, strict=True) if file.count]
        return hashlib.blake2b(b"".join(held), digest_size=16).hexdigest()

    def _sample(self, number: int, buffer: Mapped) -> bytes:
        """A digest of pages spread over a file; over all files about 64 are looked at."""
        file = self.files[number]
        digest = hashlib.blake2b(f"{file.count}{file.dtype.str}".encode(), digest_size=16)
        spots = max(2, _SPOTS // len(self.files))
        last = max(file.start, len(buffer) - _SPOT)
        for place in np.linspace(file.start, last, spots).astype(np.int64).tolist():
            digest.update(buffer[place : place + _SPOT])
        return digest.digest()

    def _same(self, number: int, buffer: Mapped) -> bool:
        return self._sample(number, buffer) == self._samples[number]

    def file_of(self, token: int) -> int:
        return int(np.searchsorted(self.starts, token, side="right")) - 1

    def windows(self, tokens: Integers, size: int) -> np.ndarray[Any, Any]:
        """`size` tokens from each of `tokens` on: (n, size)."""
        out = aligned_empty((len(tokens), size), self.dtype)
        held: dict[int, np.ndarray[Any, Any]] = {}
        files = np.searchsorted(self.starts, tokens, side="right") - 1
        begins = (tokens - self.starts[files]).tolist()
        for row, (file, begin) in enumerate(zip(files.tolist(), begins, strict=True)):
            done = 0
            while done < size:
                if file not in held:
                    held[file] = self._tokens(file)
                part = held[file][begin : begin + size - done]
                out[row, done : done + len(part)] = part
                done += len(part)
                file, begin = file + 1, 0
        return out

    def _tokens(self, number: int) -> np.ndarray[Any, Any]:
        file = self.files[number]
        return np.frombuffer(self._maps.get(number), file.dtype, file.count, file.start)


def tokens(
    files: Paths,
    dtype: Any,
    *,
    length: int,
    stride: int | None = None,
    targets: bool = False,
    documents: Documents = None,
) -> Tokens:
    """Windows over raw token files of `dtype`, or one-dimensional `.npy` files, as one long row.

    documents: None: windows run on over the borders of files; "files": each file is a document; else the
    ascending numbers of the tokens where documents begin. A window lies in one document; what is left over
    at a document's end is in none. Raises `MissingSource`, `CorruptRecord` for a size that is no multiple
    of the dtype's, `PipelineError` for what makes no windows.
    """
    for name, number in (("length", length), ("stride", length if stride is None else stride)):
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or number < 1:
            raise PipelineError(f"from_tokens({name}={number!r}): a whole number, at least 1")
    paths = named(files, "from_tokens", "token file", "*.bin")
    for path in paths:
        if path.endswith((".gz", ".bz2", ".xz", ".zst", ".npz")):
            raise SourceError(
                f"{path} is compressed, and from_tokens maps files into memory",
                help="decompress it",
                file=path,
            )
    found = tuple(_token_file(path, _numbers(dtype)) for path in paths)
    odd = next((f for f in found if f.dtype != found[0].dtype), None)
    if odd is not None:
        raise PipelineError(
            f"{odd.seen.path} holds {odd.dtype}, and {found[0].seen.path} {found[0].dtype}",
            help="write all files in one dtype",
        )
    store = Store(found)
    width = length + 1 if targets else length
    edges = _edges(documents, store)
    step = length if stride is None else stride
    sizes = np.diff(edges)
    windows = np.where(sizes >= width, (sizes - width) // step + 1, 0)
    kept = windows > 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(windows[kept])])
    return Tokens(store, length, step, targets, edges[:-1][kept], before)


def _numbers(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    if found.kind not in "iuf":
        raise PipelineError(f"tokens are numbers, not {found}")
    return found


def _token_file(path: str, dtype: np.dtype[Any]) -> TokenFile:
    status = os.stat(path)
    seen = Seen(path, status.st_size, status.st_mtime_ns)
    start, size = 0, status.st_size
    if path.endswith(".npy"):
        start, shape, stored = _npy(path)
        if len(shape) != 1 or stored != dtype:
            raise PipelineError(
                f"{path} holds {stored} of shape {shape}, and from_tokens was told {dtype} in one row",
                help=f"dtype={str(stored)!r}"
                if len(shape) == 1
                else "from_tensor_slices(np.load(path, mmap_mode='r')) reads the rows of a table",
            )
        size -= start
        if size < shape[0] * dtype.itemsize:
            raise _cut_short(path, f"it ends before the {shape[0]} tokens that its head names")
        return TokenFile(seen, start, shape[0], dtype)
    if size % dtype.itemsize:
        raise _cut_short(path, f"its {size} bytes are no whole number of {dtype} tokens")
    return TokenFile(seen, start, size // dtype.itemsize, dtype)


def _npy(path: str) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                version, np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(file)
        except (ValueError, EOFError) as error:
            raise _cut_short(path, f"not a .npy file: {error}") from None
        return file.tell(), shape, dtype


def _cut_short(path: str, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}: {what}",
        help="check dtype, and compare the file with its original: it may have been cut short",
        file=path,
        record=0,
        offset=0,
    )


def _edges(documents: Documents, store: Store) -> Integers:
    """Where documents begin, then the number of tokens."""
    if documents is None:
        return np.array([0, store.count], np.int64)
    if isinstance(documents, str):
        if documents != "files":
            raise PipelineError(f'documents is None, "files" or numbers, not {documents!r}')
        return np.append(store.starts, np.int64(store.count))
    try:
        begins = np.asarray(documents)
    except ValueError:  # lists of unequal lengths
        begins = np.asarray(documents, object)
    whole = begins.dtype.kind in "iu" or not begins.size
    if begins.ndim != 1 or not whole or (np.diff(begins.astype(np.int64)) < 0).any():
        raise PipelineError("documents are the ascending numbers of the tokens where they begin")
    begins = begins.astype(np.int64)
    if len(begins) and not 0 <= begins[0] <= begins[-1] <= store.count:
        raise PipelineError(
            f"documents reach from token {begins[0]} to {begins[-1]}, and there are {store.count} tokens",
            help="they are numbers of tokens, not of bytes, in all files one after the other",
        )
    return np.append(begins, np.int64(store.count))
