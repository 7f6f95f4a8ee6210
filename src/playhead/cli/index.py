"""`playhead index`: the indexes of TFRecord files, built before a run needs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from playhead.cli.words import count, printable, seconds, size
from playhead.errors import PlayheadError
from playhead.sources.files.maps import Seen
from playhead.sources.files.opening import Opening
from playhead.sources.files.shelf import WORKERS, Shelf
from playhead.sources.tfrecord.building import Records
from playhead.sources.tfrecord.index import FileIndex
from playhead.sources.tfrecord.inflating import compression_of


@dataclass
class Tally:
    """What has been done."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    there: int = 0
    compressed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@click.command(name="index")
@click.argument("files", nargs=-1, required=True)
@click.option("--verify", is_flag=True, help="Read files again that have an index already.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=WORKERS,
    show_default=True,
    help="Files that are read at once.",
)
@click.option("--index", "where", metavar="DIR", help="A directory or URL for the indexes.")
def command(files: Sequence[str], verify: bool, workers: int, where: str | None) -> None:
    """Build the indexes of the TFRecord FILES: paths, quoted patterns, or URLs that fsspec knows.

    Each index is kept as soon as its file has been read, both CRCs of every record having been checked:
    beside the data, or in the directory that from_tfrecords is given as index=. What was interrupted is
    taken up again at the file where it was; two of these at once do no harm.

    Compressed files have no index and are passed over. Exit status 1: a file is damaged or cannot be
    read; the others are indexed all the same. 2: there are no such files.
    """
    console = Console(stderr=True)
    opening = Opening()
    shelf = Shelf(Records(), opening, where)
    try:
        seen = list(dict.fromkeys(opening.look(opening.expand(files))))
    except PlayheadError as error:
        click.echo(f"playhead index: {error}", err=True)
        raise click.exceptions.Exit(2) from None
    began = time.monotonic()
    tally = Tally()
    wanted = _wanted(shelf, seen, verify, tally)
    _build(shelf, wanted, workers, tally, console)
    took = time.monotonic() - began
    click.echo(_summary(tally, took))
    for said in tally.failed:
        click.echo(said, err=True)
    if tally.failed:
        raise click.exceptions.Exit(1)


def _wanted(
    shelf: Shelf[FileIndex], files: Sequence[Seen], verify: bool, tally: Tally
) -> list[Seen]:
    """The files to read: those without an index that fits, unless they are compressed."""
    found = {} if verify else shelf.load(files)
    missing = [seen for seen in files if seen.path not in found]
    tally.there = len(files) - len(missing)
    plain = []
    for seen, start in shelf.opening.starts(missing):
        if compression_of(start):
            tally.compressed.append(seen.path)
        else:
            plain.append(seen)
    return plain


def _build(
    shelf: Shelf[FileIndex], files: Sequence[Seen], workers: int, tally: Tally, console: Console
) -> None:
    with (
        _shown(files, console) as (advance, finished),
        ThreadPoolExecutor(workers, "playhead-index") as pool,
    ):
        futures = {pool.submit(shelf.add, seen, advance): seen for seen in files}
        try:
            for future in as_completed(futures):
                try:
                    index = future.result()
                except (PlayheadError, OSError) as error:
                    tally.failed.append(str(error))
                    finished(0)
                    continue
                tally.files += 1
                tally.records += len(index.crcs)
                tally.bytes += index.size
                finished(len(index.crcs))
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def _shown(
    files: Sequence[Seen], console: Console
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar; gives what to tell of bytes that were read, and of the records of a file that is done."""
    # Files may be unequally long: the bar counts bytes, and files are said.
    total = sum(seen.size for seen in files)
    began = time.monotonic()
    lock = threading.Lock()
    done = read = records = 0
    words = TextColumn("{task.fields[files]} {task.fields[records]} {task.fields[pace]}")
    columns = (TextColumn("indexing"), BarColumn(), words, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, files="", records="", pace="")

        def advance(length: int) -> None:
            nonlocal read
            with lock:
                read += length
                pace = read / 1e6 / max(time.monotonic() - began, 1e-6)
            bar.update(task, advance=length, pace=f"{pace:.0f} MB/s")

        def finished(length: int) -> None:
            nonlocal done, records
            with lock:
                done, records = done + 1, records + length
                said = f"{done} of {count(len(files), 'file')},", count(records, "record")
            bar.update(task, files=said[0], records=f"{said[1]},")

        yield advance, finished


def _summary(tally: Tally, took: float) -> str:
    made = (
        f"indexed {count(tally.files, 'file')}: {count(tally.records, 'record')}, "
        f"{size(tally.bytes)} in {seconds(took)}"
    )
    if tally.files:
        made += f" ({tally.bytes / 1e6 / max(took, 1e-6):.0f} MB/s)"
    parts = [made]
    if tally.there:
        parts.append(f"{tally.there} had an index")
    if tally.compressed:
        one = printable(tally.compressed[0])
        parts.append(f"{count(len(tally.compressed), 'compressed file')} passed over, as {one}")
    if tally.failed:
        parts.append(f"{len(tally.failed)} failed")
    return "; ".join(parts)
