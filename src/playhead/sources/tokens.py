"""Windows of tokens for language models, over files of tokens: mapped where local, in ranges where remote."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from playhead import kernels
from playhead.errors import CorruptRecord, PipelineError, SourceError
from playhead.kernels import Records
from playhead.plan.aligned import aligned_empty
from playhead.plan.block import ArraySpec, Block, Columns, Nest
from playhead.plan.node import Node, Source
from playhead.plan.places import Index, Record
from playhead.sources.files.keeping import Mapped
from playhead.sources.files.maps import Maps, Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.paths import Paths
from playhead.sources.files.remote import Remote
from playhead.sources.files.spans import Spans
from playhead.sources.files.unpacking import SUFFIXES

Documents: TypeAlias = Literal["files"] | Sequence[int] | np.ndarray[Any, Any] | None
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_SPOTS = 64
_SPOT = 1 << 12
_HEAD = 1 << 12


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

    @cached_property
    def light(self) -> bool:
        return not self.store.far

    @cached_property
    def unlocked(self) -> bool:
        return self.light and kernels.NATIVE

    def tokens_at(self, index: Integers) -> Integers:
        """The number of the first token of each window."""
        stretch = np.searchsorted(self.before, index, side="right") - 1
        return self.begins[stretch] + (index - self.before[stretch]) * self.stride

    def gather(self, index: Index) -> Block:
        """The windows at `index` (int64[n], any order) in memory of their own. Thread-safe.

        Raises `IndexError`, and `SourceChanged` for a file that was written since the dataset was made.
        """
        return self.gather_apart(index, [len(index)])[0]

    def gather_apart(self, index: Index, ends: list[int]) -> list[Block]:
        outside = np.flatnonzero((index < 0) | (index >= self.cardinality))
        if len(outside):
            raise IndexError(f"window {index[outside[0]]} of {self.cardinality}")
        begins = self.tokens_at(index)
        sizes = np.diff([0, *ends]).tolist()
        shifts = (0, 1) if self.targets else (0,)
        apart = zip(*self.store.windows(begins, self.size, shifts, sizes), strict=True)
        return [
            Columns(windows if self.targets else windows[0], size)
            for windows, size in zip(apart, sizes, strict=True)
        ]

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
        self,
        files: tuple[TokenFile, ...],
        remote: Remote | None = None,
        samples: tuple[bytes, ...] | None = None,
    ) -> None:
        self.files = files
        self.stored = files[0].dtype
        self.dtype = self.stored.newbyteorder("=")
        self.counts: Integers = np.array([file.count for file in files], np.int64)
        self.starts: Integers = np.cumsum(self.counts) - self.counts
        self.heads: Integers = np.array([file.start for file in files], np.int64)
        self.count = int(self.counts.sum())
        self._remote = remote or Remote()
        seen = tuple(file.seen for file in files)
        self._spans = Spans(Maps(seen, self._same), self._remote)
        self._samples = samples or self._sampled()

    @property
    def far(self) -> bool:
        """Whether a file is a remote one."""
        return bool(self._spans.far)

    def __reduce__(self) -> tuple[type[Store], tuple[Any, ...]]:
        return Store, (self.files, self._remote, self._samples)

    @property
    def content(self) -> str:
        """A digest (hex) of how many tokens there are, and of some of them."""
        held = [s for s, file in zip(self._samples, self.files, strict=True) if file.count]
        return hashlib.blake2b(b"".join(held), digest_size=16).hexdigest()

    def _sampled(self) -> tuple[bytes, ...]:
        pages = [self._pages(file) for file in self.files]
        numbers = np.repeat(np.arange(len(pages)), [len(page) for page in pages])
        starts, stops = np.array([span for page in pages for span in page], np.int64).T
        # Not through the spans that windows are read by: looking at pages is no reason to keep them.
        spans = Spans(self._spans.maps, self._remote, watched=False)
        parts = iter(spans.read(numbers, starts, stops))
        return tuple(
            _digest(file, itertools.islice(parts, len(page)))
            for file, page in zip(self.files, pages, strict=True)
        )

    def _pages(self, file: TokenFile) -> list[tuple[int, int]]:
        """The pages of a file by which it is known; over all files about 64 are looked at."""
        spots = max(2, _SPOTS // len(self.files))
        last = max(file.start, file.seen.size - _SPOT)
        places = np.linspace(file.start, last, spots).astype(np.int64).tolist()
        return [(place, min(place + _SPOT, file.seen.size)) for place in places]

    def _same(self, number: int, buffer: Mapped) -> bool:
        file = self.files[number]
        parts = (buffer[start:stop] for start, stop in self._pages(file))
        return _digest(file, parts) == self._samples[number]

    def file_of(self, token: int) -> int:
        """The number of the file in which a token lies."""
        return int(self._file_of(np.array([token], np.int64))[0])

    def windows(
        self, tokens: Integers, size: int, shifts: Sequence[int], sizes: Sequence[int]
    ) -> list[list[np.ndarray[Any, Any]]]:
        """For each of `shifts` the `size` tokens that begin so far behind each of `tokens`, so many windows
        in each of several arrays (n, size).
        """
        width = size + max(shifts)
        first, last = self._file_of(tokens), self._file_of(tokens + (width - 1))
        count = last - first + 1
        row = np.repeat(np.arange(len(tokens)), count)
        file = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
        # Where each part begins and ends in its window, and where in its file the window would begin.
        skipped = self.starts[file] - tokens[row]
        begin, end = np.maximum(skipped, 0), np.minimum(skipped + self.counts[file], width)
        each = self.stored.itemsize
        origin = self.heads[file] - skipped * each
        buffers, which, starts, _ = self._spans.joining(
            file, origin + begin * each, origin + end * each
        )
        made = []
        for shift in shifts:
            low, high = np.clip(begin, shift, shift + size), np.clip(end, shift, shift + size)
            outs = [aligned_empty((count, size), self.dtype) for count in sizes]
            part = Records(
                buffers, which, starts + (low - begin) * each, starts + (high - begin) * each
            )
            kernels.join(part, *outs)
            if self.stored != self.dtype:
                for out in outs:
                    out.byteswap(inplace=True)
            made.append(outs)
        return made

    def _file_of(self, tokens: Integers) -> Integers:
        return np.searchsorted(self.starts, tokens, side="right") - 1


def _digest(file: TokenFile, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(f"{file.count}{file.dtype.str}".encode(), digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def tokens(
    files: Paths,
    dtype: Any,
    *,
    length: int,
    stride: int | None = None,
    targets: bool = False,
    documents: Documents = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Tokens:
    """Windows over raw token files of `dtype`, or one-dimensional `.npy` files, as one long row.

    documents: None: windows run on over the borders of files; "files": each file is a document; else the
    ascending numbers of the tokens where documents begin. A window lies in one document; what is left over
    at a document's end is in none. Raises `MissingSource`, `SourceError`, `CorruptRecord` for a size that is
    no multiple of the dtype's, `PipelineError` for what makes no windows.
    """
    for name, number in (("length", length), ("stride", length if stride is None else stride)):
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or number < 1:
            raise PipelineError(f"from_tokens({name}={number!r}): a whole number, at least 1")
    opening = Opening(Remote(storage_options or {}))
    named = opening.find(files, "from_tokens", "token file", "*.bin")
    for seen in named:
        if seen.path.partition("?")[0].endswith((*SUFFIXES, ".npz")):
            raise SourceError(
                f"{seen.path} is compressed, and from_tokens reads tokens where they lie",
                help="decompress it",
                file=seen.path,
            )
    heads = dict(opening.starts([seen for seen in dict.fromkeys(named) if _is_npy(seen)], _HEAD))
    found = tuple(_token_file(seen, _numbers(dtype), heads.get(seen)) for seen in named)
    odd = next((f for f in found if f.dtype != found[0].dtype), None)
    if odd is not None:
        raise PipelineError(
            f"{odd.seen.path} holds {odd.dtype}, and {found[0].seen.path} {found[0].dtype}",
            help="write all files in one dtype",
        )
    store = Store(found, opening.remote)
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


def _is_npy(seen: Seen) -> bool:
    return seen.path.partition("?")[0].endswith(".npy")


def _token_file(seen: Seen, dtype: np.dtype[Any], head: bytes | None) -> TokenFile:
    path, size = seen.path, seen.size
    if head is not None:
        start, shape, stored = _npy(path, head)
        if len(shape) != 1 or stored != dtype:
            raise PipelineError(
                f"{path} holds {stored} of shape {shape}, and from_tokens was told {dtype} in one row",
                help=f"dtype={str(stored)!r}"
                if len(shape) == 1
                else "from_tensor_slices(np.load(path, mmap_mode='r')) reads the rows of a table",
            )
        if size - start < shape[0] * dtype.itemsize:
            raise _cut_short(path, f"it ends before the {shape[0]} tokens that its head names")
        return TokenFile(seen, start, shape[0], dtype)
    if size % dtype.itemsize:
        raise _cut_short(path, f"its {size} bytes are no whole number of {dtype} tokens")
    return TokenFile(seen, 0, size // dtype.itemsize, dtype)


def _npy(path: str, head: bytes) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Where the numbers begin in a `.npy` file that begins so, their shape and dtype."""
    file = io.BytesIO(head)
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
