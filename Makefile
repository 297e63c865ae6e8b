# jetcluster: `make install`, then `make demo`. Everything lands in this folder (.venv, .tools, .bench) and `make clean` removes it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.jetcluster-installed
WORKERS ?= 2
SIM_SECONDS ?= 60
# `make sim-coverage` runs two seeds for each workload from this one on, and shows what of these rooms none took.
SIM_START ?= 800000
NIGHT_SECONDS ?= 28800
SIM_ROOMS := raft stream consumer replica meta cluster mirror mesh api
comma := ,
space := $(subst ,, )
SECONDS_OF_CHAOS ?= 60
# Unit tests wait a quarter of their time (sockets, disks, subprocesses): one more of them runs than there are processors.
UNIT_WORKERS ?= 3
# Tests of real processes wait a third of their time, so three files run at a time, the long ones first.
FILES ?= 3
CHAOS ?=
BENCH ?=
RELEASE ?=
KUBERNETES ?=
# What runs behind others gets only the processor time that they leave: the simulation, whose time is its own.
BEHIND := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)

.PHONY: help install tools lint format test unit sim sim-coverage sim-night fuzz spark console extras cluster suites oracle demo bench sizing counts chaos alerts docs image kubernetes wheel release clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## virtual environment in .venv with everything for use and development

$(STAMP): pyproject.toml scripts/hatch_build.py scripts/native.py $(wildcard jetcluster/native/*.pyx jetcluster/native/*.pxd)
	@test -n "$(PYTHON)" || { echo "install: no python3 on PATH; Python 3.11 or newer is needed"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "install: $(PYTHON) is older than Python 3.11"; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing; pyspark is 450 MB and takes a minute or two the first time"
	$(BIN)/python -m pip install --quiet -e '.[dev,docs,lakehouse]'
	@$(BIN)/python -m compileall -q jetcluster # an editable install leaves that to the first start, which it slows down
	@touch $(STAMP)

tools: ## nats-server, the nats CLI and more into .tools (needs Go, azurite npm; says so where one is missing)
	@scripts/tools.sh

lint: install ## format check, lint, types, layers, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.check_house
	$(BIN)/python -m scripts.check_js

format: install ## format and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## every test this machine can run; says which groups it cannot and why
	@failed=0; export JETCLUSTER_FAILURES=$$(mktemp); \
	missed() { failed=1; echo "group: $$1" >> "$$JETCLUSTER_FAILURES"; }; \
	echo "== unit and transcripts"; $(BIN)/pytest -q -n $(UNIT_WORKERS) tests/unit tests/path tests/transcripts || missed "unit and transcripts"; \
	echo "== without compiled loops"; JETCLUSTER_PURE=1 $(BIN)/pytest -q -n $(WORKERS) \
	  tests/unit/native tests/unit/arrow tests/unit/protocol tests/unit/server tests/transcripts || missed "without compiled loops"; \
	echo "== processes and real clients, $(FILES) files at a time"; \
	$(BIN)/pytest -q -n $(FILES) --dist loadfile --no-loadscope-reorder -m "not alone" tests/cluster tests/interop tests/chaos \
	  || missed "processes and real clients"; \
	echo "== processes, one at a time, and behind them the simulation and the counts"; mkdir -p build; \
	(failed=0; $(BEHIND) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal --timeout 600 tests/sim > build/simulation.txt 2>&1 || missed "simulation"; \
	  $(BEHIND) $(BIN)/python -m bench counts > build/counts.txt 2>&1 || missed "instructions per message (make counts)"; exit $$failed) & \
	behind=$$!; trap 'pkill -P $$behind || true' EXIT; \
	$(BIN)/pytest -q -m alone tests/cluster || missed "processes"; \
	wait $$behind || failed=1; echo "== simulation"; cat build/simulation.txt; echo "== instructions per message"; cat build/counts.txt; \
	echo "== console in a browser"; \
	$(BIN)/pytest -q -rs tests/console/test_scale.py || missed "console in a browser"; \
	(failed=0; $(BIN)/python -m tests.suites.run --short --workers 3 nats-py > build/nats-py.txt 2>&1 || missed "tests that nats-py carries"; exit $$failed) & \
	behind=$$!; \
	$(BIN)/pytest -q -rs -n $(WORKERS) --dist loadfile tests/console --ignore tests/console/test_scale.py || missed "console in a browser"; \
	wait $$behind || failed=1; echo "== tests that nats-py carries"; cat build/nats-py.txt; \
	echo "== spark, two sessions"; $(BIN)/pytest -q -rs -n $(WORKERS) --dist loadfile tests/spark || missed "spark"; \
	echo "== image, compose and charts"; $(BIN)/pytest -q -rs tests/deploy || missed "image"; \
	scripts/groups.sh; sed "s/^/FAILED /" "$$JETCLUSTER_FAILURES"; rm -f "$$JETCLUSTER_FAILURES"; exit $$failed

unit: install ## the fast tests only
	$(BIN)/pytest -q -n $(UNIT_WORKERS) tests/unit tests/path tests/transcripts

sim: install ## deterministic simulation of the Raft engine and of whole clusters; new seeds for SIM_SECONDS
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests/sim
	$(BIN)/python -m tests.sim.cluster --workers $(WORKERS) --count 1000000 --seconds $(SIM_SECONDS)

sim-coverage: install ## branches of the replicated rooms that two seeds for each workload and 100 others take, and a list of those that are left
	mkdir -p build
	$(BIN)/python -m coverage run --branch --concurrency=thread,greenlet --source=jetcluster --data-file=build/sim-coverage -m tests.sim.cluster --each --start $(SIM_START)
	$(BIN)/python -m coverage report --data-file=build/sim-coverage --precision=1 --show-missing --skip-covered --include='$(subst $(space),$(comma),$(SIM_ROOMS:%=jetcluster/%/*))'

sim-night: install ## new seeds of whole clusters for NIGHT_SECONDS (8 hours); failures by cause; adds to totals.toml
	$(BIN)/python -m tests.sim.cluster --workers $(WORKERS) --count 100000000 --seconds $(NIGHT_SECONDS) --quiet --record

fuzz: install ## a million random commands by the compiled loops and by Python, which must do the same with them
	$(BIN)/python -m tests.unit.native.fuzz --workers $(WORKERS)

spark: install ## source, sink and jobs on a real SparkSession (needs Java 17 or newer)
	$(BIN)/pytest -q -rs tests/spark

console: install ## the console in the Chromium of this machine; its pictures land in build/console
	$(BIN)/pytest -q -rs tests/console

wheel: install ## a binary wheel in dist/ for machines without a compiler (all Python where this one has none)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/jetcluster-*.whl

release: install ## a release in dist/: wheel, sdist, image, SBOM, note, sums, all tried; more with RELEASE="--dirty --no-image"
	@$(BIN)/python -m scripts.release $(RELEASE)

extras: install ## the wheel with each extra and nothing else, in environments of their own
	@$(BIN)/python -m scripts.check_extras

cluster: install ## real processes, kill -9, real clients
	$(BIN)/pytest -q tests/cluster tests/interop

suites: install ## the tests that nats-py and nats-key-value carry, against scripts/nats-server (fetches them)
	$(BIN)/python -m tests.suites.run

oracle: install tools ## the same process tests against the real nats-server: proves the tests
	$(BIN)/pytest -q --server nats-server tests/cluster tests/interop

demo: install ## 336,776 real flights, the leader killed half-way, every replica read back
	@$(BIN)/python -m scripts.demo

bench: install ## jetcluster and nats-server in turns, an hour; writes docs/benchmarks.md; more with BENCH="--resume"
	@scripts/tools.sh peer
	$(BIN)/python -m bench page $(BENCH) --out docs/benchmarks.md --quote README.md
	$(BIN)/python -m bench page --profile
	$(BIN)/python -m bench page --render --out docs/benchmarks.md
	$(BIN)/python -m bench sizes --out docs/benchmarks/sizes.md

sizing: install ## memory, disk and processor time of each stream, subject, message, consumer, connection; writes docs/sizing.md
	$(BIN)/python -m bench sizing --out docs/sizing.md

counts: install ## instructions of the servers per message beside bench/counts.toml, or beside the commit before (needs valgrind)
	@$(BIN)/python -m bench counts

chaos: install tools ## faults under load, every acked message accounted for on every replica; more with CHAOS="--help"
	$(BIN)/python -m chaos --seconds $(SECONDS_OF_CHAOS) $(CHAOS)

alerts: install tools ## each alert rule in a real Prometheus, by a fault of a real cluster; 9 minutes (needs prometheus, root)
	$(BIN)/python -m chaos.alerts --out build/alerts.md

image: ## the container image `jetcluster` (deploy/build-image.sh: also where no registry can be reached)
	@deploy/build-image.sh

kubernetes: install ## the chart on a control plane of its own (root, Go; half an hour); more with KUBERNETES="--built -k edge"
	$(BIN)/python -m tests.kubernetes $(KUBERNETES)

docs: install ## checks every reference of pages, docstrings and comments; builds the site into build/site
	$(BIN)/python -m scripts.check_docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean: ## removes the environment, tools, caches and bench data
	rm -rf .venv .tools .bench .demo .chaos .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
