# jetcluster: `make install`, then `make demo`. Everything lands in this folder (.venv, .tools, .bench) and `make clean` removes it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.jetcluster-installed
WORKERS ?= 2
SECONDS_OF_CHAOS ?= 60

.PHONY: help install tools lint format test unit sim cluster oracle demo bench chaos docs clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(STAMP) ## virtual environment in .venv with everything for use and development

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "install: no python3 on PATH; Python 3.11 or newer is needed"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "install: $(PYTHON) is older than Python 3.11"; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@$(BIN)/python -m compileall -q jetcluster # an editable install leaves that to the first start, which it slows down
	@touch $(STAMP)

tools: ## nats-server and the nats CLI into .tools (needs Go; says so where it is missing)
	@scripts/tools.sh

lint: install ## format check, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## format and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## every test this machine can run; says which groups it cannot and why
	@failed=0; \
	echo "== unit and transcripts"; $(BIN)/pytest -q -n $(WORKERS) tests/unit tests/transcripts || failed=1; \
	echo "== simulation"; $(BIN)/pytest -q -n $(WORKERS) tests/sim || failed=1; \
	echo "== processes and real clients (one at a time)"; $(BIN)/pytest -q tests/cluster tests/interop || failed=1; \
	scripts/groups.sh; exit $$failed

unit: install ## the fast tests only
	$(BIN)/pytest -q -n $(WORKERS) tests/unit tests/transcripts

sim: install ## deterministic simulation of the Raft engine, many seeds
	$(BIN)/pytest -q -n $(WORKERS) tests/sim

cluster: install ## real processes, kill -9, real clients
	$(BIN)/pytest -q tests/cluster tests/interop

oracle: install tools ## the same process tests against the real nats-server: proves the tests
	$(BIN)/pytest -q --server nats-server tests/cluster tests/interop

demo: install ## 336,776 real flights, the leader killed half-way, every replica read back
	@$(BIN)/python -m scripts.demo

bench: install tools ## jetcluster and nats-server in turns; writes docs/benchmarks.md
	$(BIN)/python -m scripts.bench --out docs/benchmarks.md

chaos: install ## kill -9 and SIGSTOP in a loop under load, every acked message accounted for
	$(BIN)/python -m scripts.chaos --seconds $(SECONDS_OF_CHAOS)

docs: install ## checks every relative link of the Markdown pages
	$(BIN)/python -m scripts.check_docs

clean: ## removes the environment, tools, caches and bench data
	rm -rf .venv .tools .bench .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
