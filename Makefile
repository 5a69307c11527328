# `make demo` and `make test` do everything on a fresh machine; the rest are the steps they are made of.
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check unit lock bench clean

help:  ## Show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

setup: $(STAMP)  ## Create .venv with Python 3.12 and the locked packages

$(STAMP): requirements.lock pyproject.toml tools/find_python.sh
	@python=$$(sh tools/find_python.sh) || exit 2; \
	 [ -x $(BIN)/python ] || "$$python" -m venv $(VENV)
	@$(BIN)/python -c 'import uv' 2>/dev/null || $(BIN)/python -m pip install --quiet 'uv>=0.5'
	@echo "installing the locked packages into $(VENV)" >&2
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $(STAMP)

demo: setup  ## Rehearse the example RL run on this machine
	@sh tools/demo.sh

test: setup check unit  ## Run every check and the whole test suite

check: setup  ## Lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup  ## Run the tests
	$(BIN)/pytest -q -n 2 --dist worksteal

lock: setup  ## Resolve requirements.lock anew
	$(BIN)/uv pip compile --quiet --python-version 3.12 --extra full --extra test --generate-hashes --no-header --no-annotate -o requirements.lock pyproject.toml

bench: setup  ## Run every benchmark; JSON lines on stdout
	@for script in benchmarks/*.py; do $(BIN)/python "$$script" || exit 1; done

clean:  ## Remove what the other targets made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
