# Each target sets up what it needs; a second run finds it done. `make test PYTHON=python3.13` tests with another Python,
# in an environment of its own.
#
# The default is the `python3` of the PATH, unless it was compiled without optimizations, as pyenv does where it is not
# told otherwise: then the system's own, if it is new enough. It runs the same code in two thirds of the time.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell \
	python3 -c 'import sysconfig; exit("--enable-optimizations" not in sysconfig.get_config_var("CONFIG_ARGS"))' 2>/dev/null \
	|| ! /usr/bin/python3 -c 'import sys; exit(sys.version_info < (3, 11))' 2>/dev/null || echo /usr/bin/)python3
endif
VENV := .venv$(if $(filter file,$(origin PYTHON)),,-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin

.PHONY: help demo test test-integrations tools check docs bench compare soak clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Dray needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -qy python3-venv; } || { echo "Python's venv module is missing: install your system's python3-venv package"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[postgres]' --group dev
	@touch $@

demo: $(VENV)/ready  ## thousands of jobs, retries, a killed worker and the accounts, on a scratch SQLite file
	@$(BIN)/dray demo

# Program and Debian package of each: a pooler, networks of a test's own, a compiler for a disk that is slow, a browser,
# the two shells for SQL, and what the READMEs of examples ask a server with.
TOOLS := pgbouncer=pgbouncer ip=iproute2 cc=gcc cc=libc6-dev chromium-headless-shell=chromium-headless-shell \
	sqlite3=sqlite3 psql=postgresql-client curl=curl

tools:
	@PATH="$$PATH:/usr/sbin:/sbin"; lacking=; \
	for each in $(TOOLS); do command -v $${each%=*} >/dev/null || lacking="$$lacking $${each#*=}"; done; \
	if [ -z "$$lacking" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && apt-get install -qy --no-install-recommends $$lacking; \
	else \
		echo "Tests that need one of these programs are skipped; to run them, install as root:$$lacking"; \
	fi

# Compiled files are kept, whatever the environment says: the tests start thousands of processes. And output is
# buffered, as it is for users.
PYTEST := PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= PYTHONUNBUFFERED= $(BIN)/python -m pytest

# Tests that fail beside others run again alone, with the same seed: what fails only on a busy machine shows as such.
again = || { failed=$$?; [ $$failed = 1 ] || exit $$failed; echo "Again, alone, those that failed:"; \
	$(1) --last-failed --last-failed-no-failures=none; }

test: $(VENV)/ready .venv-docs/ready tools  ## all tests, on SQLite and a real PostgreSQL
	$(PYTEST) -n 6 --dist loadfile --no-loadscope-reorder $(call again,$(PYTEST) --randomly-seed=last)

# Django 6 needs Python 3.12. pyenv's own commands are only names: the interpreters are in its folder.
NEWER_PYTHON = $(firstword $(foreach each,python3 python3.14 python3.13 python3.12 $(wildcard $(PYENV_ROOT)/versions/3.1[2-9]*/bin/python3) $(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python3),$(shell $(each) -c 'import sys; print(sys.executable) if sys.version_info >= (3, 12) else 0' 2>/dev/null)))

.venv-integrations/ready: pyproject.toml
	@test -n "$(NEWER_PYTHON)" || { echo "The tests beside frameworks need Python 3.12 or newer (Django 6 does): install it, or run: make test"; exit 1; }
	$(NEWER_PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	.venv-integrations/bin/python -m pip install -q --disable-pip-version-check -e . --group integrations
	@touch $@

BESIDE := PYTHONDONTWRITEBYTECODE= .venv-integrations/bin/python -m pytest tests_integrations

test-integrations: .venv-integrations/ready  ## Django, FastAPI, Flask, telemetry, MCP, deployment: with the real ones
	.venv-integrations/bin/pyright -p tests_integrations
	$(BESIDE) -n 4 --dist loadfile --no-loadscope-reorder $(call again,$(BESIDE) --randomly-seed=last)

check: $(VENV)/ready  ## style, types, layers, SQL statements, lazy imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright
	$(BIN)/python checks/statements.py
	$(BIN)/python checks/lazy_imports.py

.venv-docs/ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check --group docs
	@touch $@

docs: .venv-docs/ready  ## the site of the documentation, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@.venv-docs/bin/python checks/site.py
	@echo "open site/index.html; with the search: .venv-docs/bin/mkdocs serve"

# Compiled files are kept, as for the tests: a worker that compiles Dray when it starts takes 1.3 MB more.
BENCH := PYTHONDONTWRITEBYTECODE= PYTHONUNBUFFERED= $(BIN)/python -m

bench: $(VENV)/ready  ## rates, latency, idle cost and depth beside raw loops, each compared with its bar; about an hour
	$(BENCH) benchmarks.storage
	$(BENCH) benchmarks.moving
	$(BENCH) benchmarks.dashboard
	$(BENCH) benchmarks.limits
	$(BENCH) benchmarks.worker

# The peers are installed in an environment of their own, .venv-compare-VERSION; three of them need Python 3.12. Options:
# `make compare OPTIONS='--quick --only Huey'`.
compare: $(VENV)/ready  ## rates and guarantees beside other job queues, installed on demand; about half an hour
	$(BENCH) benchmarks.compare $(OPTIONS)

soak: $(VENV)/ready tools  ## 100,000 steps of the state machine, 1,000 graphs, races and forks, 20,000 interrupts, every fault; a crowd, storms of kills, schedules, 10,000 steps
	DRAY_SOAK_INTERRUPTS=5040 $(BIN)/python -m pytest -s -p no:randomly tests/interrupts
	DRAY_SOAK_FAULTS=1000000 $(BIN)/python -m pytest -s -p no:randomly tests/faults
	DRAY_SOAK_STEPS=100000 $(BIN)/python -m pytest -s -p no:randomly tests/backends/test_machine.py
	DRAY_SOAK_ROUNDS=1000 DRAY_SOAK_JOBS=100000 $(BIN)/python -m pytest $(addprefix tests/backends/test_,graphs.py graph_races.py causes.py fork.py)
	DRAY_SOAK_SECONDS=30 $(BIN)/python -m pytest -s tests/processes/test_crowd.py tests/processes/test_killed.py -k "thirty_two or storm"
	DRAY_SOAK_SECONDS=60 $(BIN)/python -m pytest -s tests/processes/test_schedules.py tests/processes/test_limits.py
	DRAY_SOAK_STEPS=10000 $(BIN)/python -m pytest -s tests/processes/test_workflows.py

clean:
	rm -rf .venv .venv-* site .pytest_cache .ruff_cache .hypothesis build dist
