"""Parts of files that are numbered: of mapped ones where they are local, in ranges where they are remote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from playhead import kernels
from playhead.kernels import Records
from playhead.reference import Integers
from playhead.sources.files.blocks import Blocks
from playhead.sources.files.keeping import Mapped
from playhead.sources.files.maps import Maps
from playhead.sources.files.paths import is_remote
from playhead.sources.files.remote import Remote, coalesced

FILES_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Spans:
    """The bytes of `maps.files`, of which some may be remote. Thread-safe; a copy made by pickle reads anew.

    All parts of one call are read at once: neighbours in one request, and where reading stays in one
    neighbourhood in blocks that the next call finds. With `watched` a remote file is looked at again behind
    what was read of it, at most once a second, so that one that was replaced is a `SourceChanged`; a
    reader that compares checksums needs no such watch.
    """

    maps: Maps
    remote: Remote = field(default_factory=Remote)
    watched: bool = True
    far: frozenset[int] = field(init=False, repr=False)
    blocks: Blocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        far = (number for number, seen in enumerate(self.maps.files) if is_remote(seen.path))
        object.__setattr__(self, "far", frozenset(far))
        object.__setattr__(self, "blocks", Blocks(self.remote, self.watched))

    def __reduce__(self) -> tuple[type[Spans], tuple[Maps, Remote, bool]]:
        return Spans, (self.maps, self.remote, self.watched)

    def read(self, files: Integers, starts: Integers, stops: Integers) -> list[bytes]:
        """The bytes from `starts[i]` to `stops[i]` of file `files[i]` (int64[n] each, any order).

        Raises `SourceChanged` and `MissingSource` for files that are not what they were, `SourceError` for
        those that cannot be reached.
        """
        starts, stops = np.ascontiguousarray(starts), np.ascontiguousarray(stops)
        names, which = _numbered(files)
        if len(names) <= FILES_AT_ONCE:
            return kernels.slices(self.records(names.tolist(), which, starts, stops))
        found = [b""] * len(files)
        for first in range(0, len(names), FILES_AT_ONCE):
            here = np.flatnonzero((which >= first) & (which < first + FILES_AT_ONCE))
            some = names[first : first + FILES_AT_ONCE].tolist()
            records = self.records(some, which[here] - first, starts[here], stops[here])
            for position, data in zip(here.tolist(), kernels.slices(records), strict=True):
                found[position] = data
        return found

    def joining(self, files: Integers, starts: Integers, stops: Integers) -> Records:
        """The same parts for `kernels.join`: mapped ones, where the files are not too many at once."""
        names, which = _numbered(files)
        if len(names) <= FILES_AT_ONCE:
            return self.records(names.tolist(), which, starts, stops)
        ends = np.cumsum(stops - starts)
        joined = b"".join(self.read(files, starts, stops))
        return Records([joined], np.zeros_like(ends), ends - (stops - starts), ends)

    def records(
        self,
        files: Sequence[int],
        which: Integers,
        starts: Integers,
        stops: Integers,
        around: tuple[int, int] = (0, 0),
    ) -> Records:
        """Parts, each of the `which`th of some `files`, without copying those of mapped ones.

        So many bytes `around` each, before and behind it, are there too. The files stay open while what
        comes back is held. Raises what `read` raises.
        """
        if not self.far:
            return Records(self.maps.several(files), which, starts, stops)
        buffers: list[Mapped] = []
        parts, begins = np.empty_like(which), np.zeros_like(starts)
        wanted = []
        for position, file in enumerate(files):
            mine = np.flatnonzero(which == position)
            if file not in self.far:
                parts[mine] = len(buffers)
                buffers += self.maps.several([file])
                continue
            spans, part = coalesced(starts[mine] - around[0], stops[mine] + around[1])
            parts[mine] = len(buffers) + part
            begins[mine] = np.array([start for start, _ in spans], np.int64)[part]
            seen = self.maps.files[file]
            for start, stop in spans:
                wanted.append((len(buffers), (seen, start, stop)))
                buffers.append(b"")
        read = self.blocks.read_all([what for _, what in wanted])
        for (position, _), data in zip(wanted, read, strict=True):
            buffers[position] = data
        return Records(buffers, parts, starts - begins, stops - begins)


def _numbered(files: Integers) -> tuple[Integers, Integers]:
    """Which files they are, in order and each once, and for each of `files` which of those (int64[n])."""
    names, which = np.unique(files, return_inverse=True)
    return names, which.reshape(-1).astype(np.int64, copy=False)
