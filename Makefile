PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench soak docs clean

demo: $(VENV)/.demo
	$(BIN)/playhead demo

test: $(VENV)/.test
	$(BIN)/python -m pytest

lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/resume.py
	$(BIN)/python benchmarks/rows.py
	$(BIN)/python benchmarks/parse.py

soak: $(VENV)/.demo
	$(BIN)/python benchmarks/soak.py --kills 200

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --quiet --site-dir build/docs

clean:
	rm -rf $(VENV)

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "playhead needs Python 3.11 or newer; say make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.lint: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@
