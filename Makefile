# Two commands do everything on a fresh machine: `make demo` and `make test`.
#
#   TORCH    the torch requirement to install. The default runs on CPUs; on a GPU machine choose your build,
#            for example: make demo TORCH=torch
#   PYTHON   the interpreter (3.10 or newer) that makes the virtual environment
#   VENV     where the virtual environment goes

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0

# Where the environments of `make heavy` are kept.
HEAVY ?= $(or $(ENCAMP_HEAVY_ENVS),.heavy)

BIN := $(VENV)/bin
ARGS ?=
# With ENCAMP_TESTS_TRIES=2, as CI has it, what did not pass gets a second try.
PYTEST := $(BIN)/python tests/tries.py

# Most tests wait for other processes, so more of them than cores run at once; one file's tests stay together, and
# the long ones (real hosts, real ranks) come before the short ones, so that none is left over at the end.
PARALLEL ?= -n 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test lint types contracts pytest slow stalls heavy bench clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/ready-run ## two loopback hosts, a real training run, the app
	@$(BIN)/encamp demo $(ARGS)

test: lint types contracts pytest ## everything that must hold before a change is merged

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-dev
	$(BIN)/mypy

contracts: $(VENV)/ready-dev
	$(BIN)/lint-imports

pytest: $(VENV)/ready-dev
	$(PYTEST) -m "not bench and not slow and not heavy and not stalls" $(PARALLEL) $(ARGS)

slow: $(VENV)/ready-dev ## the tests that take longer
	$(PYTEST) -m "slow and not bench and not heavy" $(PARALLEL) $(ARGS)

# Most of a scenario is waiting; each worker takes the next one when it is free.
stalls: $(VENV)/ready-dev ## every scenario of a run that stalls, fails or only takes long
	$(PYTEST) tests/e2e/stalls/test_stall_bank.py -n 4 --dist load --maxschedchunk 1 $(ARGS)

heavy: $(VENV)/ready-dev ## the tests that need Horovod or TensorFlow, in environments that are built once
	$(BIN)/python tests/heavy.py $(HEAVY) $(ARGS)

bench: $(VENV)/ready-dev ## speed, as ratios to a peer or a floor in the same run
	$(BIN)/pytest -m bench -s $(ARGS)

clean: ## remove what was built here
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("encamp needs Python 3.10 or newer: make PYTHON=python3.12" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: a plain "torch" asked for by another package would bring a CUDA build of several GB.
$(VENV)/ready-run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready-run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train,dev]'
	@touch $@
