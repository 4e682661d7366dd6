# `make demo` needs Python 3.11+, a C compiler and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# files in the order of their names: the long ones of tests/api come first, short ones of tests/verify last
PYTEST := $(BIN)/pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# the bytecode of what is imported is kept, whatever the environment says
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test suite test-all test-slow-machine test-gpu lint bench bench-gpu docs site release clean

demo: .venv/base
	$(BIN)/mirage demo

# type checking takes one processor, which is beside the tests
test: .venv/test
	$(MAKE) --no-print-directory --jobs=2 lint suite

suite: .venv/test
	$(PYTEST)

test-all: lint
	$(PYTEST) -m "not gpu"

# with a quarter of a processor, beside two busy loops: takes hours, but for `make test-slow-machine TESTS=tests/runtime`
TESTS := tests
test-slow-machine: .venv/test
	$(BIN)/python -m benchmarks.slow_machine $(BIN)/pytest $(TESTS)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/mypy -p mirage -p tests -p benchmarks

# the tests that need an NVIDIA GPU
test-gpu: .venv/gpu
	$(BIN)/pytest -m gpu

bench: .venv/bench
	$(BIN)/python -m benchmarks.run

# two times about nine minutes on an NVIDIA GPU; run again, the first goes on where it was
bench-gpu: .venv/gpu
	$(BIN)/python -m benchmarks.gpu --markdown
	$(BIN)/python -m benchmarks.gpu.programs --markdown

docs: .venv/test
	$(BIN)/python -m benchmarks.drawings
	$(BIN)/python -m benchmarks.operator_table
	$(BIN)/python -m benchmarks.rule_table
	$(BIN)/python -m benchmarks.setting_table
	$(BIN)/python -m benchmarks.notebooks

# the documentation as a site in build/site, which can be read without a network
site: .venv/site
	$(BIN)/python -m mkdocs build --clean

# the source distribution and the wheel in dist/; a wheel of Linux is named for the oldest C library that its machine code runs with
release: .venv/release
	rm -rf dist
	$(BIN)/python -m build
	case $$(ls dist/*.whl) in *-linux_*) PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/*.whl; \
	  rm dist/*-linux_*.whl;; esac
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: one per set of dependencies, redone when pyproject.toml changes.
# For the demo pip leaves the compilation to bytecode, two thirds of its work, to the first import of each module.
.venv/base: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --no-compile --editable .
	touch $@

.venv/test: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[test]'
	touch .venv/base $@

.venv/gpu: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[test,cuda,cutlass]'
	touch .venv/base .venv/test $@

.venv/bench: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[test,bench]'
	touch .venv/base .venv/test $@

.venv/site: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[site]'
	touch .venv/base $@

.venv/release: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[release]'
	touch .venv/base $@

$(BIN)/python:
	$(PYTHON) -m venv .venv
