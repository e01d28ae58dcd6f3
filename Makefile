# Everything here starts from nothing but Python, make and a package index.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test attacks lint format bench chaos release-check lock clean

setup: $(STAMP)

# The lock carries hashes; the project itself and its benchmarks are installed last, without looking at the index again.
$(STAMP): requirements.lock requirements-build.lock pyproject.toml benchmarks/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable benchmarks
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py

# Two at once, a file at a time: most tests wait for processes. For one at a time: make test PYTEST="-n 0".
PYTEST ?= -n 2 --dist loadfile
test: setup
	$(BIN)/python -m pytest $(PYTEST) -m "not attack"

# Attacks that take long: floods, large bodies, slow readers, full disks.
attacks: setup
	$(BIN)/python -m pytest $(PYTEST) -m attack

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m tools.retired_names

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# All comparisons, or some: make bench NAMES="steady wake".
bench: setup
	$(BIN)/batchline-bench $(NAMES) --report docs/benchmarks.md

# Real processes struck at random: MINUTES of it, from SEED if one is given, on the PostgreSQL of the folder POSTGRES.
MINUTES ?= 60
REPORT  ?= docs/chaos.md
chaos: setup
	$(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(POSTGRES),--postgres $(POSTGRES)) $(if $(REPORT),--report $(REPORT))

# Builds sdist and wheel into dist/, checks what is in them, and starts the wheel in a fresh environment.
release-check: setup
	$(BIN)/python -m tools.release_check dist

# Rewrites the locks from pyproject.toml; needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev -o requirements.lock pyproject.toml
	printf 'hatchling\neditables\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements-build.lock -
	for lock in benchmarks/contestants/*.in; do uv pip compile --quiet --universal --python-version $$(case $$lock in *oban*) echo 3.12;; *) echo 3.11;; esac) --generate-hashes --no-emit-index-url --no-header -o $${lock%.in}.lock $$lock; done

clean:
	rm -rf $(VENV) .bench demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
