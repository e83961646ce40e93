# Two commands to know: `make run` and `make test`. Each sets up what it needs and is quick the second time.

PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3.10 python3; do \
  command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
DEMO_ARGS ?=

.PHONY: help run test check format hil schemas bench wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

run: ## set up, then the demonstration: probe, plan, run an LLM and a vision model, over MQTT
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/setup run
	@$(BIN)/edge-agent demo $(DEMO_ARGS)

test: ## set up, then all tests; the summary names what could not be exercised here
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/setup test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: ## set up, then format, lint, types, and that docs and schemas say what the code says
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/setup check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m agent.schemas --check

format: ## format and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schemas: ## write docs/schemas/ from the structs
	$(BIN)/python -m agent.schemas

hil: ## hardware in the loop: this device against its expectation file
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/setup test
	@$(BIN)/python -m pytest tests/hil -v $(PYTEST_ARGS)

bench: ## the figures of benchmarks/README.md, side by side, in minutes
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/setup test
	@$(BIN)/python -m benchmarks

wheel: ## dist/edge_agent-*.whl, what Ansible installs
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh .ci/setup check
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## everything that was made here
	rm -rf $(VENV) build dist edge-agent-demo *.egg-info .mypy_cache .ruff_cache .pytest_cache
