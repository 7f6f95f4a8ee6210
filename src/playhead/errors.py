"""Every error and warning playhead raises.

PlayheadError
├── PositionError
│   ├── PipelineChanged      P01  the saved position does not fit this pipeline
│   ├── UnreadablePosition   P02  not a position, or a damaged one
│   ├── NewerFormat          P03  written by a newer playhead
│   ├── NotSeekable          P04  a stream was asked to jump
│   └── OutOfReach           P05  a step that this iterator cannot name any more
├── SourceError              S00  records or files that cannot be read, where no code says why
│   ├── MissingSource        S01  no such file, or nothing matches
│   ├── CorruptRecord        S02  a record's bytes are not what was written
│   ├── SourceChanged        S03  the files changed while they were in use
│   ├── UnparsableRecord     S04  a record does not hold what `features` names
│   └── MessagesGone         S05  a topic's retention has removed what comes next
├── FunctionError
│   ├── UnrepeatableFunction F01  a function whose result is not a function of its input
│   └── FormError            F02  a function that cannot run in the form asked for
├── ElementError
│   ├── UnequalElements      E01  elements that do not stack into one batch
│   └── IntegerOverflow      E02  a Python int that does not fit int32
├── PipelineError            D01  operations that do not go together
├── ReadAheadError
│   ├── WorkerLost           R01  a process or machine died again and again over the same elements
│   └── ReadAheadTimeout     R02  elements took longer than prefetch(timeout=...) allows
├── TrainingError
│   ├── TrainingChanged      T01  the checkpoint is of another model or optimizer
│   ├── CheckpointError      T02  no usable checkpoint, or one where none was expected
│   └── PreemptedError       T03  the run was told to stop, and has saved
└── WrongDoor                W01  an iterator used where it would silently go wrong

PlayheadWarning
├── FunctionChanged          a function's code differs from the one that was saved
├── SlowResume               resuming has to replay
├── GlobalRandomness         a function drew from a global random state
├── IgnoredError             an element that cannot be computed was left out
└── LibraryChanged           random numbers come from another numpy than the saved ones
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, ClassVar


class PlayheadError(Exception):
    """Base of all errors: a title with a stable code, the facts, and what can be done.

    Every keyword given as a fact is also an attribute of the error.
    """

    code: ClassVar[str] = "P00"
    title: ClassVar[str] = "playhead cannot go on"

    def __init__(self, what: str, *, help: str | None = None, **facts: Any) -> None:
        self.what = what
        self.help = help
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        lines = [f"{self.title} [{self.code}]: {what}"]
        if help:
            lines.append(f"  help: {help}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.help, self.facts), self.__dict__


def _rebuild(
    kind: type[PlayheadError], what: str, help: str | None, facts: dict[str, Any]
) -> PlayheadError:
    return kind(what, help=help, **facts)


class PositionError(PlayheadError, ValueError):
    """A position that cannot be used here."""


class PipelineChanged(PositionError):
    """The saved position does not fit this pipeline; `differences` lists what changed."""

    code = "P01"
    title = "PipelineChanged"


class UnreadablePosition(PositionError):
    """Not a position, or a damaged one."""

    code = "P02"
    title = "UnreadablePosition"


class NewerFormat(PositionError):
    """Written by a newer playhead than this one."""

    code = "P03"
    title = "NewerFormat"


class NotSeekable(PositionError):
    """A stream was asked for something that needs jumping."""

    code = "P04"
    title = "NotSeekable"


class OutOfReach(PositionError):
    """A step that this iterator cannot name, or not any more."""

    code = "P05"
    title = "OutOfReach"


class SourceError(PlayheadError):
    """Something is wrong with the records or the files that hold them."""

    code = "S00"
    title = "SourceError"


class MissingSource(SourceError, FileNotFoundError):
    """No such file, or a pattern that matches nothing."""

    code = "S01"
    title = "MissingSource"


class CorruptRecord(SourceError, ValueError):
    """A record's bytes are not what was written: `file`, `offset` (bytes), `record`."""

    code = "S02"
    title = "CorruptRecord"


class SourceChanged(SourceError):
    """The files changed while they were in use."""

    code = "S03"
    title = "SourceChanged"


class UnparsableRecord(SourceError, ValueError):
    """A record does not hold what `features` names."""

    code = "S04"
    title = "UnparsableRecord"


class MessagesGone(SourceError):
    """Retention has removed messages that come next: `gone` of `topic`, `partition`, from `offset` on.

    They are counted by their offsets; `first` is the first one that is still there.
    """

    code = "S05"
    title = "MessagesGone"


class FunctionError(PlayheadError):
    """A user function that cannot be used as asked."""


class UnrepeatableFunction(FunctionError):
    """A function whose result depends on more than its input."""

    code = "F01"
    title = "UnrepeatableFunction"


class FormError(FunctionError, ValueError):
    """A function that cannot run in the form asked for."""

    code = "F02"
    title = "FormError"


class ElementError(PlayheadError, ValueError):
    """Elements that do not go together."""

    code = "E03"
    title = "ElementError"


class UnequalElements(ElementError):
    """Elements that do not stack into one batch."""

    code = "E01"
    title = "UnequalElements"


class IntegerOverflow(ElementError, OverflowError):
    """A Python int that does not fit int32."""

    code = "E02"
    title = "IntegerOverflow"


class PipelineError(PlayheadError, ValueError):
    """Operations that do not go together, or arguments that make no pipeline."""

    code = "D01"
    title = "PipelineError"


class ReadAheadError(PlayheadError):
    """Computing ahead cannot go on."""


class WorkerLost(ReadAheadError):
    """A process or machine died again and again while it worked on the same elements."""

    code = "R01"
    title = "WorkerLost"


class ReadAheadTimeout(ReadAheadError, TimeoutError):
    """Elements took longer than `prefetch(timeout=...)` allows."""

    code = "R02"
    title = "ReadAheadTimeout"


class TrainingError(PlayheadError):
    """A training run that cannot be resumed as asked."""


class TrainingChanged(TrainingError, ValueError):
    """The checkpoint is of another model, optimizer or compile setting."""

    code = "T01"
    title = "TrainingChanged"


class CheckpointError(TrainingError):
    """No usable checkpoint, or one where none was expected."""

    code = "T02"
    title = "CheckpointError"


class PreemptedError(TrainingError):
    """The run was told to stop and has saved; `on_preempt="raise"` raises it instead of `Preempted`."""

    code = "T03"
    title = "Preempted"


class WrongDoor(PlayheadError, TypeError):
    """An iterator used where it would silently go wrong."""

    code = "W01"
    title = "WrongDoor"


class PlayheadWarning(UserWarning):
    """Base of all warnings."""


class FunctionChanged(PlayheadWarning):
    """A function's code differs from the one that was saved: order is the same, values may not be."""


class SlowResume(PlayheadWarning):
    """Resuming has to replay what came before."""


class GlobalRandomness(PlayheadWarning):
    """A function drew from a global random state, which no position can keep."""


class IgnoredError(PlayheadWarning):
    """An element was left out: what `ignore_errors(log_warning=True)` warns of, and `Dataset.ignored` lists.

    `error` says why: the error's name and its text. `file`, `record` (its number there) and `offset` (the byte
    where it begins) are those of the record that is to blame, each None where that is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        error: str | None = None,
        file: str | None = None,
        record: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.error, self.file, self.record, self.offset = error, file, record, offset


class LibraryChanged(PlayheadWarning):
    """Random numbers come from another numpy than when the position was saved."""


_HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep
# What stands between the user's line and playhead's where one calls the other.
_BETWEEN = {contextlib.__file__, functools.__file__, threading.__file__}


Warned = tuple[str | Warning, type[Warning]]
Line = tuple[str, int]  # a file, and a line in it

_kept: ContextVar[list[Warned] | None] = ContextVar("playhead_warnings", default=None)
_begun_at: ContextVar[Line | None] = ContextVar("playhead_line", default=None)
_shown: dict[Any, Any] = {}


@contextlib.contextmanager
def warnings_kept() -> Iterator[list[Warned]]:
    """Keeps what `warn` would say, for another process to say it."""
    kept: list[Warned] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def users_line() -> Line | None:
    """The line of the user's that led here; in a thread of playhead's, the one that this was told of."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return _begun_at.get() if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def begun_at(line: Line | None) -> None:
    """Tells this thread, which is playhead's own, which line of the user's it works for."""
    _begun_at.set(line)


def _is_between(file: str) -> bool:
    return file.startswith((_HOME, "<frozen importlib")) or file in _BETWEEN


def warn(message: str | Warning, category: type[Warning]) -> None:
    """Warn at the user's line, also where a thread of playhead's works for it.

    A message that is a warning itself keeps its attributes.
    """
    kept = _kept.get()
    if kept is not None:
        kept.append((message, category))
        return
    line = users_line()
    if line is None:
        warnings.warn(message, category, stacklevel=2)
    else:
        warnings.warn_explicit(message, category, *line, registry=_shown)
