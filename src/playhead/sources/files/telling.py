"""What a long scan says: how long it will take, and a bar where somebody is watching."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

# Hears of every stretch of bytes that is done.
Advance: TypeAlias = Callable[[int], None]

_BAR = 256 << 20  # bytes from which on a scan has a bar,
_SAID = 1 << 30  # and from which on it is said, too, what it will take,
_KNOWN = 32 << 20  # once so many have shown it


@contextlib.contextmanager
def told(what: str, sizes: Sequence[int]) -> Iterator[Advance]:
    """Gives what to tell of every stretch of bytes that is done of files of these sizes, which hold `what`."""
    with _bar(f"indexing {what}", sum(sizes)) as advance:
        yield _said_once(what, sizes, advance)


@contextlib.contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    watched = sys.stderr is not None and sys.stderr.isatty()
    if total < _BAR or not watched or importlib.util.find_spec("rich") is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _said_once(what: str, sizes: Sequence[int], advance: Advance) -> Advance:
    total = sum(sizes)
    if total < _SAID or sys.stderr is None:
        return advance
    began = time.monotonic()
    done, said = 0, False

    def heard(count: int) -> None:
        nonlocal done, said
        done += count
        if not said and done >= _KNOWN:
            said = True
            seconds = (time.monotonic() - began) / done * (total - done)
            which = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
            print(
                f"playhead: indexing {total / 1e9:.1f} GB of {what} in {which}, once: "
                f"about {_duration(seconds)}",
                file=sys.stderr,
            )
        advance(count)

    return heard


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
