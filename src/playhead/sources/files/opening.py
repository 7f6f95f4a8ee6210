"""The files of a set, wherever they lie: on this machine, or on a store that fsspec knows."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from playhead.sources.files.keeping import changed, require_file, unreadable
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

    def find(self, files: Paths, constructor: str, kind: str, example: str) -> list[Seen]:
        """The files that `files` names, in reading order, for a constructor of a `kind` (`example`s) of files.

        Raises `MissingSource` for none, for one that is not there, and for directories, `PipelineError` for
        what is no path, `SourceError` for what cannot be reached.
        """
        return self.look(self.expand(files, constructor), kind, example)

    def expand(self, files: Paths, constructor: str = "from_tfrecords") -> list[str]:
        """Absolute paths and URLs of what `files` names, in reading order. Raises `MissingSource`."""
        return [
            match
            for path in expand(files, constructor)
            for match in (self.remote.expand(path) if is_remote(path) else [path])
        ]

    def look(
        self, paths: Sequence[str], kind: str = "TFRecord file", example: str = "*.tfrecord"
    ) -> list[Seen]:
        """The sizes and times of files. Raises `MissingSource`."""
        far = [path for path in dict.fromkeys(paths) if is_remote(path)]
        found = dict(zip(far, self.remote.look_all(far), strict=True))
        for path in paths:
            if path not in found:
                require_file(path, kind, example)
                status = os.stat(path)
                found[path] = Seen(path, status.st_size, status.st_mtime_ns)
        return [found[path] for path in paths]

    def starts(self, files: Sequence[Seen], size: int = _START) -> Iterator[tuple[Seen, bytes]]:
        """Each file and its first few bytes."""
        far = [seen for seen in files if is_remote(seen.path)]
        read = self.remote.read_all([(seen, 0, min(size, seen.size)) for seen in far])
        yield from zip(far, read, strict=True)
        for seen in files:
            if not is_remote(seen.path):
                with self._reading(seen) as file:
                    yield seen, file.read(size)

    def sample(self, seen: Seen) -> bytes:
        """A digest of a file's size and of its first and last bytes, 64 KiB of each at most."""
        return self.samples([seen])[0]

    def samples(self, files: Sequence[Seen]) -> list[bytes]:
        """`sample` of several, all at once."""
        far = [seen for seen in dict.fromkeys(files) if is_remote(seen.path)]
        read = self.remote.read_all([(seen, *span) for seen in far for span in _ends(seen)])
        found = dict(zip(far, zip(read[::2], read[1::2], strict=True), strict=True))
        made = []
        for seen in files:
            digest = hashlib.blake2b(str(seen.size).encode(), digest_size=16)
            for end in found[seen] if seen in found else self._ends(seen):
                digest.update(end)
            made.append(digest.digest())
        return made

    def _ends(self, seen: Seen) -> tuple[bytes, bytes]:
        (start, stop), (last, end) = _ends(seen)
        with self._reading(seen) as file:
            first = file.read(stop - start)
            file.seek(last)
            return first, file.read(end - last)

    def read(self, seen: Seen, start: int, stop: int) -> bytes:
        """Some bytes of a file."""
        if is_remote(seen.path):
            return self.remote.read(seen, start, stop)
        with self._reading(seen) as file:
            file.seek(start)
            return file.read(stop - start)

    def blocks(self, seen: Seen, start: int = 0) -> Iterator[bytes]:
        """A file's bytes from `start` on.

        Raises `SourceChanged` behind the last where there are not as many as there were, or where a remote
        file was replaced meanwhile.
        """
        if is_remote(seen.path):
            yield from self.remote.blocks(seen, start)
            return
        with self._reading(seen) as file:
            file.seek(start)
            while block := file.read(_BLOCK):
                start += len(block)
                yield block
        if start != seen.size:
            raise changed(seen.path, "while it was read")

    def unchanged(self, seen: Seen, sample: bytes) -> Seen:
        """The file as it is now. Raises `SourceChanged` where `sample` says that it holds something else."""
        (now,) = self.look([seen.path], "file", "*")
        if now != seen and (now.size != seen.size or self.sample(now) != sample):
            raise changed(seen.path, "since the dataset was made")
        return now

    @contextlib.contextmanager
    def _reading(self, seen: Seen) -> Iterator[BinaryIO]:
        """A local file, open. Raises `MissingSource` where it cannot be read."""
        try:
            with open(seen.path, "rb") as file:
                yield file
        except OSError as error:
            raise unreadable(seen.path, error) from error


def _ends(seen: Seen) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, min(ENDS, seen.size)), (max(0, seen.size - ENDS), seen.size)
