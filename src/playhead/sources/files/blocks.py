"""Whole blocks of remote files, kept where reading goes on in one neighbourhood."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from playhead.plan.lock import Lock
from playhead.sources.files.keeping import changed
from playhead.sources.files.maps import Seen
from playhead.sources.files.remote import Remote

BLOCK = 1 << 20
KEPT = 64
# How often a block is touched, among the last KEPT ones, before it is read whole.
TOUCHES = 3
PATIENCE = 1.0

Key: TypeAlias = tuple[Seen, int]
Part: TypeAlias = tuple[Seen, int, int]


class Blocks:
    """Parts of remote files. Thread-safe; holds `KEPT` blocks of 1 MiB at most.

    A shuffle in windows reads few records at a time, near each other: their block is read once, as are
    all blocks of files that fit among those that are kept. A shuffle over more comes back to a block too
    late for that, and reads records alone.

    With `watched` the version of a file is asked for behind what was read of it, at most once in `PATIENCE`
    seconds: what came since it was asked for last is given out, and looked after when it is wanted again.
    """

    def __init__(self, remote: Remote, watched: bool = True) -> None:
        self.remote = remote
        self.watched = watched
        self._lock = Lock()
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._kept: OrderedDict[Key, Future[bytes]] = OrderedDict()
        self._touched: OrderedDict[Key, int] = OrderedDict()
        self._looked: dict[Seen, float] = {}
        self._unsure: set[Seen] = set()  # of these bytes came since they were looked at

    def read_all(self, parts: Sequence[Part]) -> list[bytes]:
        """Several parts of files, at once.

        Raises what `Remote.read` raises, and `SourceChanged` for a file that was found to be another.
        """
        alone: list[int] = []
        blocks: dict[int, list[Future[bytes]]] = {}
        missing: list[tuple[Key, Future[bytes]]] = []
        with self._lock:
            if self._owner != os.getpid():
                self._begin()  # what another process is reading never comes here
            for position, part in enumerate(parts):
                keys = _blocks_of(part)
                worth = [self._worth(key) for key in keys]
                if not all(worth):
                    alone.append(position)
                else:
                    blocks[position] = [self._block(key, missing) for key in keys]
        files = {seen for seen, _, _ in parts}
        found = self._fetch(missing, [parts[position] for position in alone], files)
        made = dict(zip(alone, found, strict=True))
        for position, held in blocks.items():
            _, start, stop = parts[position]
            first = start // BLOCK * BLOCK
            made[position] = b"".join(f.result() for f in held)[start - first : stop - first]
        return [made[position] for position in range(len(parts))]

    def _worth(self, key: Key) -> bool:
        """Notes that a block is touched; whether it is there, or is to be read whole."""
        if key in self._kept:
            return True
        count = self._touched.pop(key, 0) + 1
        self._touched[key] = count
        if len(self._touched) > KEPT:
            self._touched.popitem(last=False)
        return count >= TOUCHES

    def _block(self, key: Key, missing: list[tuple[Key, Future[bytes]]]) -> Future[bytes]:
        held = self._kept.get(key)
        if held is None:
            held = self._kept[key] = Future()
            missing.append((key, held))
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return held

    def _fetch(
        self, missing: list[tuple[Key, Future[bytes]]], alone: list[Part], files: set[Seen]
    ) -> list[bytes]:
        """Read the blocks, for whoever waits for them, and the parts that stand alone: these come back.

        Then look at those `files`, whether read now or kept, that may have been others when they were read.
        """
        wanted = [_whole(key) for key, _ in missing] + alone
        try:
            read = self.remote.read_all(wanted) if wanted else []
            if self.watched:
                with self._lock:
                    self._unsure.update(seen for seen, _, _ in wanted)
                self._look(files)
        except BaseException as error:
            with self._lock:
                for key, held in missing:
                    if self._kept.get(key) is held:
                        del self._kept[key]
            for _, held in missing:
                held.set_exception(error)
            raise
        for (_, held), data in zip(missing, read, strict=False):
            held.set_result(data)
        return read[len(missing) :]

    def _look(self, files: Iterable[Seen]) -> None:
        """Raise `SourceChanged` where a file is another by now: it may have been when it was read."""
        now = time.monotonic()
        with self._lock:
            unsure = self._unsure.intersection(files)
            due = [seen for seen in unsure if now - self._looked.get(seen, -PATIENCE) >= PATIENCE]
            self._looked.update(dict.fromkeys(due, now))
            self._unsure.difference_update(due)
        try:
            found = self.remote.look_all([seen.path for seen in due])
            for seen, again in zip(due, found, strict=True):
                if seen != again:
                    raise changed(seen.path, "while it was in use")
        except BaseException:
            with self._lock:
                for seen in due:
                    self._looked.pop(seen, None)
                self._unsure.update(due)
            raise


def _blocks_of(part: Part) -> list[Key]:
    seen, start, stop = part
    return [(seen, number) for number in range(start // BLOCK, (stop - 1) // BLOCK + 1)]


def _whole(key: Key) -> Part:
    seen, number = key
    return seen, number * BLOCK, min((number + 1) * BLOCK, seen.size)
