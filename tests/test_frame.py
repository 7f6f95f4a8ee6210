"""The house keeps its order: rooms import one way, and the library imports lightly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_rooms_import_one_way():
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_version_is_said_once():
    import playhead as ph

    assert f'version = "{ph.__version__}"' in (ROOT / "pyproject.toml").read_text()
