"""The command line: `playhead demo`, `index` and `inspect`. One file a verb, loaded when called."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs `playhead ARGUMENTS` (those of the process by default) and ends the process."""
    try:
        from playhead.cli.group import playhead

        playhead(arguments, prog_name="playhead")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("click", "rich"):
            raise
        sys.exit(f"playhead: the command line needs {missing}: pip install 'playhead[cli]'")
