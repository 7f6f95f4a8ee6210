"""The blocks of docs/ray.md: they are marked `py`, so that they do not run where Ray is not installed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"


def test_the_python_blocks_of_the_page_run(cluster):
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
    assert len(names["batch"]) == 1000 % 32
