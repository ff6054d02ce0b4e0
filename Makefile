# The verbs of this repository. `make` lists them. Everything happens inside the checkout:
# .venv (development) and .venv-sdk/VERSION (one published client SDK each, for the stories).

PYTHON     ?= python3
STORE      ?= sqlite
BENCH_ARGS ?=
TORTURE_ARGS ?=
LOCK_ARGS  ?=
# One more than the cores: the stories mostly wait for sockets and processes.
WORKERS    ?= $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))

# Releases of durable-workflow, and duraton, the published SDK of the push protocol.
SDKS := 0.4.106 2.0.0 2.12.0 duraton
BIN  := .venv/bin

# Locks are complete lists of wheels: nothing is resolved, nothing is compiled, nothing goes unhashed.
INSTALL_LOCK := -m pip install --disable-pip-version-check -q --no-deps --require-hashes --only-binary :all: -r

# The stories start hundreds of processes. Without bytecode each compiles what it imports, for longer
# than it then takes to serve.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup sdks lint check test stories torture demo bench serve format lock clean

help:  ## list these verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.project  ## create .venv with the locked tools and perdure itself

sdks: $(SDKS:%=.venv-sdk/%/.lock)  ## create one environment per published client SDK

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint  ## format, lint, types, architecture and core tests: seconds
	$(BIN)/pytest -q tests/architecture tests/core

# Folders below tests/, such as `wire/pull` or `"core store"`; without any, all of them.
ROOM ?=

test: lint sdks  ## everything: set up, lint, the whole suite (ROOM="core wire/pull" for some folders)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(addprefix tests/,$(ROOM))

stories: setup sdks  ## only the stories: a real server, a real socket, real SDKs
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/stories

torture: setup sdks  ## ten minutes each of killed nodes, odd traffic and fresh examples (TORTURE_ARGS='--minutes 60 --seed 7')
	$(BIN)/python -m tests.faults.torture $(TORTURE_ARGS)
	$(BIN)/python -m tests.web.fuzz $(TORTURE_ARGS)
	$(BIN)/python -m tests.properties.wandering $(or $(TORTURE_ARGS),--minutes 10)

demo: setup .venv-sdk/2.12.0/.lock  ## start a server, run an example workflow to its end, show it
	$(BIN)/python examples/demo.py

bench: setup  ## measure (STORE=sqlite or postgresql, BENCH_ARGS=...)
	$(BIN)/python -m bench --store $(STORE) $(BENCH_ARGS)

serve: setup  ## a development server on loopback
	$(BIN)/perdure dev

format: setup  ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format .

lock:  ## write locks/ anew from pyproject.toml (LOCK_ARGS=--upgrade for newer versions)
	$(PYTHON) tools/lock.py $(LOCK_ARGS)

clean:  ## remove environments, caches and build products
	rm -rf .venv .venv-sdk build dist htmlcov .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench tools examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info

.venv/.lock: locks/dev.txt
	$(call create_environment,.venv)
	@$(BIN)/python $(INSTALL_LOCK) $<
	@touch $@

.venv/.project: .venv/.lock pyproject.toml
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation --no-index -e .
	@touch $@

.venv-sdk/%/.lock: locks/sdk-%.txt
	$(call create_environment,.venv-sdk/$*)
	@.venv-sdk/$*/bin/python $(INSTALL_LOCK) $<
	@touch $@

define create_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "perdure needs Python 3.11 or newer: say which with make PYTHON=/path/to/python3." >&2; exit 1; }
@echo "Setting up $(1)"
@$(PYTHON) -m venv $(1)
endef
