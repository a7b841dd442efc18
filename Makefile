# The one entry to everything: `make` alone lists what there is.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PACKAGES := theano-compat synk-shm synk-comm synk-core synk-theano synk-pytensor synk-extensions
PACKAGE_TESTS := $(PACKAGES:%=test-%)
# More arguments for pytest: make test-synk-shm ARGS="-k resize -x"
ARGS :=
# Some suites only: make nightly SUITES="synk-comm synk-core/faults"
SUITES :=
# How long `make nightly` works at random, and how often it kills.
SOAK_S := 3600
TRIALS := 1000

.PHONY: help setup tools demo test nightly lasagne endurance $(PACKAGE_TESTS) test-integration test-devices lint format bench bench-shm bench-comm bench-theano bench-gpu bench-hosts docs build clean

## help: this list
help:
	@echo "make <target>, where <target> is"
	@awk -F': ' '/^## / { sub(/^## /, ""); name = $$1; sub(/^[^:]*: /, ""); printf "  %-18s %s\n", name, $$0 }' Makefile

## setup: create .venv with the packages, and what tests and demonstrations need (quick when nothing changed)
setup:
	@sh scripts/bootstrap.sh

## tools: and what checks, builds, documents and all nightly tests need; the targets below ask for it
tools:
	@sh scripts/bootstrap.sh --tools

## demo: train networks on handwritten digits, on all cores
demo: setup
	$(PY) examples/train_digits.py

## test: the tests of every package with one engine, a few with the other, on all cores
test: $(if $(SUITES),tools,setup)
	@$(PY) scripts/run_tests.py $(SUITES) -- $(ARGS)

## nightly: all tests whole, with both engines, planted faults, SOAK_S seconds (an hour) of random work, TRIALS kills
nightly: tools
	@$(PY) scripts/run_tests.py --nightly --soak-s $(SOAK_S) --trials $(TRIALS) $(SUITES) -- $(ARGS)

## lasagne: the tests of Lasagne 0.2.dev1, which is fetched from GitHub, and ours with it
lasagne: tools
	$(PY) scripts/run_foreign_suites.py --quick --venv build/foreign --cache build/foreign/theano lasagne-0.2

## endurance: of these the random work and the kills, into build/endurance
endurance: SUITES := endurance
endurance: nightly

## test-<package>: the tests of one package, for example test-synk-shm
$(PACKAGE_TESTS): test-%: setup
	@$(PY) scripts/run_tests.py $* -- $(ARGS)

## test-integration: the tests that cross packages
test-integration: setup
	@$(PY) scripts/run_tests.py integration -- $(ARGS)

## test-devices: the whole API on every device set of this machine: CPU processes, OpenCL, CUDA
test-devices: setup
	$(PY) integration/multi_gpu/run.py $(ARGS)

## lint: ruff, its formatter and mypy, changing nothing
lint: tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

## format: sort imports, apply safe fixes, format
format: tools
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

## bench: what calls, inputs, starts and whole steps cost, beside the plain ways
bench: bench-theano
	$(PY) integration/benchmarks/waits.py

## bench-shm: shared arrays beside their peers (those in packages/synk-shm/benchmarks/requirements.txt)
bench-shm: setup
	$(PY) packages/synk-shm/benchmarks/run.py $(ARGS)

## bench-comm: collectives beside MPICH and gloo (see packages/synk-comm/benchmarks), and over MPI beside mpi4py
bench-comm: setup
	$(PY) packages/synk-comm/benchmarks/run.py $(ARGS)
	$(PY) packages/synk-comm/benchmarks/run.py --mpi

## bench-theano: calls, inputs, scaling beside plain Theano (see packages/synk-theano/benchmarks/README.md)
bench-theano: setup
	$(PY) packages/synk-theano/benchmarks/run.py $(ARGS)

## bench-gpu: 1, 2 and 4 GPUs beside plain Theano, bare NCCL and PyTorch DDP, into build/bench-gpu
bench-gpu: setup
	$(PY) integration/benchmarks/gpu/run.py --out build/bench-gpu $(ARGS)

## bench-hosts: orders and collectives on two simulated hosts beside plain mpi4py (needs root; see integration/benchmarks/hosts.md)
bench-hosts: setup
	$(PY) integration/benchmarks/hosts.py $(ARGS)

## docs: the documentation as HTML in docs/_build/html, warnings are errors
docs: tools
	$(PY) -m sphinx -W --keep-going -b html docs docs/_build/html

## build: a wheel and an sdist of every package in dist/, each description checked
build: setup
	@test -x .venv-build/bin/python || $(PY) -m venv .venv-build
	@.venv-build/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@.venv-build/bin/python -m pip install --quiet --disable-pip-version-check --group build
	.venv-build/bin/poetry check
	@set -e; for package in $(PACKAGES); do \
	  echo "== $$package"; \
	  .venv-build/bin/poetry check --project packages/$$package; \
	  .venv-build/bin/poetry build --quiet --project packages/$$package --output "$(CURDIR)/dist"; \
	done
	@ls -l dist

## clean: remove environments, caches and everything that was built
clean:
	rm -rf .venv .venv-build .venv-newer dist build docs/_build htmlcov .coverage .coverage.* coverage.xml
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find packages integration examples scripts .github -name __pycache__ -type d -prune -exec rm -rf {} +
