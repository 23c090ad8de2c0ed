# Every target sets up `.venv` first: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n $(or $(JOBS),2) --dist loadfile

.PHONY: setup demo test test-fast test-device lint format bench clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[compiler,test]'
	touch $@

demo: setup
	$(BIN)/python -m tests.demo

test: setup
	$(PYTEST)

test-fast: setup
	$(PYTEST) -m 'not compile and not device and not slow'

test-device: setup
	$(PYTEST) -m device

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis
