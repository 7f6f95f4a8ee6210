"""The page of what is exact says what its script says, and every test that it names is there and runs."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# What a folder's tests need before pytest can look at them; it is not installed everywhere.
NEEDS = {"estimator": "tensorflow_estimator", "tf_keras": "tf_keras"}
NEEDS |= {"jax": "jax", "torch": "torch", "keras": "keras", "tensorflow": "tensorflow"}


def matrix() -> Any:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "docs" / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


MATRIX = matrix()
ROWS = [row for rows in MATRIX.ROWS.values() for row in rows]
NAMED = sorted({test for row in ROWS for test in row.tests})


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def never_runs(module: ast.Module, name: str) -> str | None:
    """Why the test of a module runs nowhere: it is not there, or is skipped whatever the machine."""
    found = [n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name]
    if len(found) != 1:
        return f"there are {len(found)} of this name"
    marks = [ast.unparse(mark) for mark in found[0].decorator_list]
    marks += [ast.unparse(n.value) for n in module.body if isinstance(n, ast.Assign)]
    calls = [ast.unparse(n) for n in (*found[0].body, *module.body) if isinstance(n, ast.Expr)]
    for said in marks:
        if re.search(r"\bpytest\.mark\.(skip|xfail)\b|\bpytest\.mark\.skipif\((True|1)\b", said):
            return said
    return next((said for said in calls if re.match(r"pytest\.(skip|xfail)\(", said)), None)


def test_the_page_is_what_its_script_writes() -> None:
    assert MATRIX.PAGE.read_text() == MATRIX.page(), "run python docs/matrix.py"


def test_a_row_claims_nothing_without_a_test() -> None:
    for row in ROWS:
        assert row.verdict in (
            MATRIX.EXACT,
            MATRIX.PART,
            MATRIX.NONE,
            MATRIX.RAISES,
            MATRIX.UNTESTED,
        )
        assert bool(row.tests) is (row.verdict != MATRIX.UNTESTED), row


@pytest.mark.parametrize("test", sorted({test.partition("[")[0] for test in NAMED}))
def test_a_test_that_the_page_names_is_not_skipped_everywhere(test: str) -> None:
    file, _, name = test.partition("::")
    assert never_runs(parsed(file), name) is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def test_a(): pass", None),
        ("def test_b(): pass", "0 of this name"),
        ("@pytest.mark.skipif(os.name != 'posix', reason='')\ndef test_a(): pass", None),
        ("@pytest.mark.skipif(True, reason='')\ndef test_a(): pass", "skipif"),
        ("@pytest.mark.skip\ndef test_a(): pass", "skip"),
        ("pytestmark = [pytest.mark.skip(reason='')]\ndef test_a(): pass", "skip"),
        ("pytest.skip('', allow_module_level=True)\ndef test_a(): pass", "skip"),
        ("def test_a():\n  pytest.skip('')", "skip"),
        ("def test_a():\n  if x:\n    pytest.skip('')", None),
    ],
)
def test_what_is_skipped_everywhere_is_known_by_its_source(source: str, said: str | None) -> None:
    found = never_runs(ast.parse(source), "test_a")
    assert found is None if said is None else said in found


def test_pytest_finds_each_test_that_the_page_names() -> None:
    ids = []
    for test in NAMED:
        needed = NEEDS.get(test.split("/")[1])
        if needed is None or importlib.util.find_spec(needed) is not None:
            ids.append(test)
    assert ids
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *ids], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
