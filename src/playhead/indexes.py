"""The directory of a run as the place for the indexes of the files that it reads.

A fresh machine that takes a run over has the run's directory, and may have nothing else: what lies there it
need not find out again by reading all of a remote set.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from playhead.sources.files import indexed, shelf

if TYPE_CHECKING:
    from playhead.dataset import Dataset


def kept_in(run: str) -> AbstractContextManager[None]:
    """While it lasts, indexes are looked for and kept in `run`/index, too; `run` is a directory or a URL.

    Local files keep theirs beside them where that can be written. It holds for all threads of this process:
    those that read ahead may meet files that were not known before.
    """
    return shelf.kept_in(f"{run.rstrip('/')}/index")


def settle(dataset: Dataset) -> None:
    """Find or build a dataset's indexes; those that only this machine has are copied into the run's directory.

    Raises what the dataset's sources raise for files that are damaged, or were written since it was made.
    """
    indexed.settle(dataset.node)
