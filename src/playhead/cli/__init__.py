"""The command line: `playhead demo`, `playhead inspect`. One file a verb, loaded when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs `playhead ARGUMENTS` (those of the process by default) and ends the process."""
    try:
        from playhead.cli.group import playhead
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"playhead: the command line needs {error.name}: pip install 'playhead[cli]'")
    playhead(arguments, prog_name="playhead")
