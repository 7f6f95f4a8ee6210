"""Records of text files, read at random through their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from playhead import kernels
from playhead.errors import SourceError
from playhead.kernels import Records
from playhead.plan.places import Record
from playhead.sources.files.keeping import Mapped, changed, require_file
from playhead.sources.files.maps import Maps
from playhead.sources.files.paths import Paths, expand, is_remote
from playhead.sources.text import offsets
from playhead.sources.text.offsets import Cut, Integers, Offsets

_FILES_AT_ONCE = 64
_ENDS = (b"\n", b"\r")


def named(files: Paths, constructor: str, kind: str, example: str) -> list[str]:
    """Absolute paths of the local files that `files` names, patterns replaced by sorted matches.

    Raises `MissingSource` for none, for one that is not there, and for directories; `SourceError` for
    remote ones.
    """
    paths = expand(files, constructor)
    for path in paths:
        if is_remote(path):
            raise SourceError(
                f"{path} is remote, and {constructor} reads local files",
                help="copy it to a local disk",
                file=path,
            )
        require_file(path, kind, example)
    return paths


@dataclass(frozen=True, eq=False)
class Texts:
    """The bytes of the records of `Offsets`. Thread-safe; it can be pickled."""

    index: Offsets
    cut: Cut
    maps: Maps = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "maps", Maps(self.index.files, self._same))

    def __reduce__(self) -> tuple[type[Texts], tuple[Offsets, Cut]]:
        return Texts, (self.index, self.cut)

    def _same(self, number: int, buffer: Mapped) -> bool:
        return offsets.content_of(buffer) == self.index.contents[number]

    def read(self, index: Integers) -> list[bytes]:
        """The records at `index` (int64, any order, repeats allowed) with their line ends.

        Raises `IndexError`, and `SourceChanged` for a file that was written since it was indexed.
        """
        files, _, starts, stops = self.index.locate(index)
        names, which = np.unique(files, return_inverse=True)
        which = which.reshape(-1).astype(np.int64, copy=False)
        if len(names) <= _FILES_AT_ONCE:
            found = self._slices(names.tolist(), which, starts, stops)
        else:
            found = [b""] * len(index)
            for first in range(0, len(names), _FILES_AT_ONCE):
                here = np.flatnonzero((which >= first) & (which < first + _FILES_AT_ONCE))
                some = names[first : first + _FILES_AT_ONCE].tolist()
                parts = self._slices(some, which[here] - first, starts[here], stops[here])
                for position, raw in zip(here.tolist(), parts, strict=True):
                    found[position] = raw
        for position, raw in enumerate(found):
            if raw[-1:] not in _ENDS:
                self._require_last(int(files[position]), int(stops[position]))
        return found

    def _slices(
        self, names: Sequence[int], which: Integers, starts: Integers, stops: Integers
    ) -> list[bytes]:
        return kernels.slices(Records([self.maps.get(k) for k in names], which, starts, stops))

    def _require_last(self, file: int, stop: int) -> None:
        seen = self.index.files[file]
        if stop != seen.size:  # only a file's last record has no line end
            raise changed(seen.path, "while it was in use")

    def place(self, index: int) -> tuple[str, int, int]:
        """Where a record lies: its file, its number there from 0, and the byte where it begins."""
        files, numbers, starts, _ = self.index.locate(np.array([index], np.int64))
        return self.index.files[int(files[0])].path, int(numbers[0]), int(starts[0])

    def record(self, source: str, epoch: int, index: int) -> Record:
        path, number, _ = self.place(index)
        return Record(source, epoch, index, path, number)


def without_end(raw: bytes) -> bytes:
    """A line without its line end, \\n or \\r\\n; a \\r at the end of a file's last line goes too."""
    return raw.removesuffix(b"\n").removesuffix(b"\r")
