# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN = .venv/bin

# The stacks `make test` needs; `make matrix` makes the others too.
STACKS = tf445-ds0154 tf457-ds0182 tf457-ds0198 tf523-ds0198 tf524-ds0198 swift341 swift460 trl024 torch241 torch2150

# The one that `make demo` needs.
DEMO = tf457-ds0182

.PHONY: demo stack test test-all test-pythons sources machine unit busy lint minicpmv matrix generate site drift bench clean

demo: MADE = $(DEMO)
demo: machine .venv/ready  ## a real two-rank fine-tune that dies without vlmpatch and trains with it
	$(BIN)/python -m tests.lab.demo $(DEMO)

# Four files at a time: each keeps its stack's processes to itself, and ranks wait for each other a good
# part of the time. In the order of tests/e2e/conftest.py: the longest first, the small ones fill the end.
JOBS ?= 4
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: MADE = $(STACKS)
test: machine .venv/ready lint  ## makes the environments it needs first, in a cache outside the clone
	$(BIN)/python -m tests.lab.envs make $(STACKS)
	$(PYTEST) -m "not slow"

FILES ?= tests
test-all: MADE = $(STACKS)
test-all: machine .venv/ready lint  ## the slow tests too, before a release; hours, in parts with FILES=…; recorded
	VLMPATCH_FULL=1 $(PYTEST) --junitxml=build/tests.xml $(FILES); ended=$$?; \
	test $$ended -gt 1 || $(BIN)/python -m tests.lab.record build/tests.xml; exit $$ended

SOURCES ?= build/sources
sources: .venv/ready  ## the public repositories whose scripts and programs `make test-all` reads and runs
	$(BIN)/python -m tests.lab.sources $(SOURCES)

test-pythons: .venv/ready  ## the unit tests on every Python from 3.10 on that is installed
	$(BIN)/python -m nox --session unit

machine:
	@test -n "$(PYTHON)" || { echo "missing: no python3 on the PATH: apt-get install -y python3.11 python3.11-venv," \
	  "or make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m tests.lab.machine $(MADE)

unit: .venv/ready  ## the tests that need no stack
	$(BIN)/python -m pytest tests/unit

busy: .venv/ready  ## what depends most on who else is busy, beside eight processes that never rest
	$(BIN)/python -m tests.lab.busy 8 $(BIN)/python -m pytest -m "not slow" tests/unit tests/e2e/test_watchers.py

minicpmv: .venv/ready  ## the whole matrix of MiniCPM-V's fine-tune script; `make test` runs a part of it
	VLMPATCH_FULL=1 $(BIN)/python -m pytest tests/e2e/test_minicpmv.py tests/e2e/test_minicpmv_launched.py

matrix: .venv/ready  ## every gate on every stack, bare and patched; skips what is known, goes on where it stopped
	$(BIN)/python -m tests.matrix.run
	$(BIN)/python -m tests.generate

NAME ?= $(DEMO)
stack: MADE = $(NAME)
stack: machine .venv/ready  ## one stack of tests/stacks/, to see a bug on: make stack NAME=tf457-ds0182
	$(BIN)/python -m tests.lab.envs make $(NAME)

generate: .venv/ready  ## every page and table that is made from the catalog, failures/ and what was measured
	$(BIN)/python -m tests.generate

site: .venv/ready  ## the documentation site, both languages, into build/site
	$(BIN)/python -m nox --session site

drift: .venv/ready  ## what the newest releases on the registry do to the patches
	$(BIN)/python -m tests.matrix.drift --newest

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python -m bench.import_time

.venv/ready: pyproject.toml | machine
	@echo "making .venv (test tools only; no torch)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "uv>=0.4"
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --group dev
	@touch $@

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .nox
