# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN = .venv/bin

.PHONY: demo test unit lint matrix bench clean

demo: .venv/ready  ## a real two-rank fine-tune that dies without vlmpatch and trains with it
	$(BIN)/python -m tests.lab.demo

test: .venv/ready lint  ## every test; makes the environments it needs first, in a cache outside the clone
	$(BIN)/python -m tests.lab.envs make
	$(BIN)/python -m pytest

unit: .venv/ready  ## the tests that need no stack
	$(BIN)/python -m pytest tests/unit

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python -m bench.import_time

.venv/ready: pyproject.toml
	@echo "making .venv (test tools only; no torch)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "uv>=0.4"
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --group dev
	@touch $@

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
