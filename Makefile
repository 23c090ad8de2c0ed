# Every target sets up `.venv` first: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n $(or $(JOBS),2) --dist loadfile

.PHONY: setup demo test test-fast test-device test-oracle test-threads test-native-sanitized test-flydsl-versions fuzz lint format bench clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt \
		--config-settings editable_mode=compat --editable '.[compiler,test]'
	touch $@

demo: setup
	$(BIN)/python -m tests.demo

test: setup
	$(PYTEST)

test-fast: setup
	$(PYTEST) -m 'not compile and not device and not slow'

# Executes every specialisation of every sample, where the gate takes some.
test-device: setup
	FLYC_EXECUTE=all $(PYTEST) -m device

# Launches of every specialisation of every sample, against FlyDSL's own launcher.
test-oracle: setup
	FLYC_ORACLE=all $(PYTEST) tests/launch/test_oracle_samples.py

# Threads that launch on several devices at random, for a minute each natively and in Python.
test-threads: setup
	FLYC_STRESS_SECONDS=60 $(BIN)/python -m pytest -q -s tests/launch/test_threads.py

# The native launcher under ASan and UBSan.
test-native-sanitized: setup
	$(BIN)/python -m tests.native.sanitized

# The bundle reader on mutated bundles; guided by coverage where atheris is installed.
FUZZ_SECONDS ?= 60

fuzz: setup
	$(BIN)/python -m tests.fuzz.fuzz_bundle --seconds $(FUZZ_SECONDS)
	! $(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/python -m tests.fuzz.guided -max_total_time=$(FUZZ_SECONDS)

# The samples with each FlyDSL version that flyc is checked on, in an environment of its own.
VERSIONS ?= 0.3.1 0.3.4 0.4.2 0.5.0

test-flydsl-versions: setup $(VERSIONS:%=.venv-flydsl/%/installed)
	FLYDSL_VERSIONS="$(VERSIONS)" $(BIN)/python -m pytest -q tests/versions

.venv-flydsl/%/installed: constraints.txt
	$(PYTHON) -m venv .venv-flydsl/$*
	grep -v '^flydsl==' constraints.txt > .venv-flydsl/$*/constraints.txt
	.venv-flydsl/$*/bin/pip install --quiet --constraint .venv-flydsl/$*/constraints.txt \
		flydsl==$* iree-base-compiler zstandard click rich pyyaml
	touch $@

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
	rm -rf $(VENV) .venv-flydsl out build .pytest_cache .mypy_cache .ruff_cache .hypothesis
