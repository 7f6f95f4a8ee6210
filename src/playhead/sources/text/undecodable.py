"""Lines that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from playhead.errors import UnparsableRecord


@dataclass(frozen=True, slots=True)
class Line:
    """Where a line lies: `number` counts from 0."""

    file: str
    number: int
    offset: int


class Undecodable(Exception):
    """What is wrong with a line, and what can be done."""

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason)
        self.reason, self.help = reason, help

    def at(self, line: Line) -> UnparsableRecord:
        """The error that names the line, counted from 1 as editors do; `record` counts from 0."""
        return UnparsableRecord(
            f"{line.file}, line {line.number + 1} at byte {line.offset}: {self.reason}",
            help=f"{self.help}; ignore_errors() leaves such lines out",
            file=line.file,
            line=line.number + 1,
            record=line.number,
            offset=line.offset,
            reason=self.reason,
        )
