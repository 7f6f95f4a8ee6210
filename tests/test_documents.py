"""Every Python block of the README and the docs runs, in the order in which it stands there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
BLOCK = re.compile(r"<!-- setup\n(?P<setup>.*?)-->|```python\n(?P<code>.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    names: dict[str, object] = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        code = match["setup"] or match["code"]
        line = text[: match.start()].count("\n") + 2
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
    names.clear()  # a traced function would keep its page's iterators alive


def test_the_page_of_the_whole_vocabulary_is_what_the_code_says():
    path = ROOT / "docs" / "vocabulary.py"
    spec = importlib.util.spec_from_file_location("vocabulary", path)
    vocabulary = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vocabulary)
    assert not vocabulary.not_listed(), "python docs/vocabulary.py needs to know these"
    assert vocabulary.PAGE.read_text() == vocabulary.page(), "run python docs/vocabulary.py"


def test_the_readme_shows_the_error_it_promises():
    import playhead as ph

    run = ph.Dataset.range(1000).shuffle(seed=7).batch(32).iterator()
    next(run)
    now = ph.Dataset.range(1000).shuffle(seed=7).batch(64).iterator()
    with pytest.raises(ph.errors.PipelineChanged) as raised:
        now.load_state_dict(run.position)
    shown = (ROOT / "README.md").read_text()
    for line in str(raised.value).splitlines()[:5]:
        words = [word for word in line.split() if not word.startswith("test_documents.py")]
        assert any(
            [w for w in text.split() if not w.startswith("train.py")] == words
            for text in shown.splitlines()
        ), line
