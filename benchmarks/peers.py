"""Prints what the extra `bench` asks for, a requirement a line, to be installed one by one."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def peers() -> list[str]:
    """The requirements of the extra, in its order."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    found: list[str] = extras["bench"]
    return found


if __name__ == "__main__":
    print("\n".join(peers()))
