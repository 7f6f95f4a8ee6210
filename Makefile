PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= 60
SOAK ?= --kills 200
WORKERS ?= 2
BUILD := pyproject.toml setup.py src/playhead/_kernels.c

# Tests that count processes, or that fill the machine with them, have it to themselves.
ALONE := tests/benchmarks tests/cli tests/execution tests/ray tests/tensorflow/test_workers.py \
    tests/tf_keras/test_workers.py

.PHONY: demo test lint bench soak fuzz docs clean

demo: $(VENV)/.demo
	$(BIN)/playhead demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(addprefix --ignore=,$(ALONE))
	$(BIN)/python -m pytest $(ALONE)

lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(VENV)/.test
	$(BIN)/python -m benchmarks.soak $(SOAK)

fuzz: build/fuzz
	build/fuzz $(FUZZ_SECONDS)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --quiet --site-dir build/docs

clean:
	rm -rf $(VENV)

build/fuzz: fuzz/driver.c src/playhead/_kernels.c
	mkdir -p build
	$(CC) -g -O1 -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all $< -o $@

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "playhead needs Python 3.11 or newer; say make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(BUILD) $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.test: $(BUILD) $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# A peer that has no wheel for this machine is left out, and named: the tables say so too.
$(VENV)/.bench: $(BUILD) $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[bench]' || { \
	    $(BIN)/python -m pip install --quiet --editable '.[cli]' matplotlib && \
	    $(BIN)/python benchmarks/peers.py | while IFS= read -r peer; do \
	        $(BIN)/python -m pip install --quiet "$$peer" || echo "bench: without $$peer"; done; }
	touch $@

$(VENV)/.lint: $(BUILD) $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@
