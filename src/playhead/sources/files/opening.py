"""The files of a set, wherever they lie: on this machine, or on a store that fsspec knows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from playhead.sources.files.keeping import require_file
from playhead.sources.files.maps import Seen
from playhead.sources.files.paths import Paths, expand, is_remote
from playhead.sources.files.remote import Remote

ENDS = 64 << 10
_BLOCK = 1 << 20
_START = 16


@dataclass(frozen=True)
class Opening:
    """Looks at files and reads them from their beginning; remote ones through `remote`."""

    remote: Remote = field(default_factory=Remote)

    def expand(self, files: Paths) -> list[str]:
        """Absolute paths and URLs of what `files` names, in reading order. Raises `MissingSource`."""
        return [
            match
            for path in expand(files)
            for match in (self.remote.expand(path) if is_remote(path) else [path])
        ]

    def look(self, paths: Sequence[str]) -> list[Seen]:
        """The sizes and times of files. Raises `MissingSource`."""
        far = [path for path in dict.fromkeys(paths) if is_remote(path)]
        found = dict(zip(far, self.remote.look_all(far), strict=True))
        for path in paths:
            if path not in found:
                require_file(path, "TFRecord file", "*.tfrecord")
                status = os.stat(path)
                found[path] = Seen(path, status.st_size, status.st_mtime_ns)
        return [found[path] for path in paths]

    def ends(self, seen: Seen) -> tuple[bytes, bytes]:
        """A file's first and last bytes, 64 KiB of each at most."""
        last = max(0, seen.size - ENDS)
        if is_remote(seen.path):
            first, end = self.remote.read_all(
                [(seen, 0, min(ENDS, seen.size)), (seen, last, seen.size)]
            )
            return first, end
        with open(seen.path, "rb") as file:
            first = file.read(ENDS)
            file.seek(last)
            return first, file.read(ENDS)

    def starts(self, files: Sequence[Seen]) -> Iterator[tuple[Seen, bytes]]:
        """Each file and its first few bytes."""
        far = [seen for seen in files if is_remote(seen.path)]
        read = self.remote.read_all([(seen, 0, min(_START, seen.size)) for seen in far])
        yield from zip(far, read, strict=True)
        for seen in files:
            if not is_remote(seen.path):
                with open(seen.path, "rb") as file:
                    yield seen, file.read(_START)

    def sample(self, seen: Seen) -> bytes:
        """A digest of a file's size and of its ends."""
        first, last = self.ends(seen)
        digest = hashlib.blake2b(str(seen.size).encode(), digest_size=16)
        digest.update(first)
        digest.update(last)
        return digest.digest()

    def blocks(self, seen: Seen) -> Iterator[bytes]:
        """A file's bytes from its beginning."""
        if is_remote(seen.path):
            yield from self.remote.blocks(seen)
            return
        with open(seen.path, "rb") as file:
            while block := file.read(_BLOCK):
                yield block
