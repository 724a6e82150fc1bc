# Every target sets up what it needs first. `make help` lists them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
TORCH ?= torch==2.13.0
ARGS ?=

export PYTHON VENV TORCH

.DEFAULT_GOAL := help
.PHONY: help env demo test slow lint format bench peers changelog clean

help: ## say what each target does
	@echo "make TARGET [ARGS='...'] [PYTHON=python3.12] [TORCH='torch==2.13.0'] [VENV=.venv]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

env: ## create .venv and install relive with everything that its demo and tests need
	@scripts/bootstrap

demo: env ## train SAC on Pendulum through the buffer; ARGS go to `relive demo`
	@$(VENV)/bin/relive demo $(ARGS)

test: env ## the whole gate: format, lint, types, doctests, tests; ARGS go to pytest
	@scripts/check $(ARGS)

slow: env ## the tests that are too slow for every run
	@$(VENV)/bin/python -m pytest -m slow $(ARGS)

lint: env ## the gate without the tests
	@scripts/check --no-tests

format: env ## let ruff rewrite what it can
	@$(VENV)/bin/ruff format
	@$(VENV)/bin/ruff check --fix

bench: peers ## measure against the peers; ARGS go to benchmarks/run.py
	@$(VENV)/bin/python benchmarks/run.py $(ARGS)

peers: env ## create the environments of the peers
	@$(VENV)/bin/python scripts/peer-env --all

changelog: env ## show what the next release's part of CHANGELOG.md will be
	@$(VENV)/bin/python scripts/changelog show

clean: ## remove environments, caches and results
	rm -rf $(VENV) .bench build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
