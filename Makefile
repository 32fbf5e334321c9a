.PHONY: help install demo paper test test-paper test-native test-slow test-all check docs bench release
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

install: $(VENV)/.installed ## Create .venv with all dependencies

PIP = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

PYPROJECTS := $(wildcard packages/*/pyproject.toml) reproduction/pyproject.toml
EDITABLE := -e packages/qpsbgd-qubo -e packages/qpsbgd-runtime -e packages/qpsbgd

$(VENV)/.demo: $(PYPROJECTS) constraints.txt
	@echo "1. A virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2. torch into it: about a gigabyte"
	@$(PIP) torch
	@echo "3. The packages with what the demo needs: compiles their C++ kernels"
	@$(PIP) $(EDITABLE) -e reproduction
	@touch $@

$(VENV)/.installed: $(VENV)/.demo
	@echo "4. What tests, documentation and the paper's experiments need: about two gigabytes"
	@$(PIP) $(EDITABLE) -e 'reproduction[dev]'
	@touch $@

demo: $(VENV)/.demo ## Train a binary network beside the baselines and write a report (three minutes on two cores, 1.2 GB)
	$(BIN)/qpsbgd demo

paper: install ## Run all experiments of the paper and write a report (about half an hour on two cores; QPSBGD_DATA: folder with the data)
	$(BIN)/qpsbgd run all
	$(BIN)/qpsbgd report

test: install ## Run the libraries' tests (3.5 minutes on two cores)
	$(BIN)/python -m pytest -n 2 --durations 15 -m "not slow" packages tests

test-paper: install ## Run the tests of the paper's experiments and reports
	$(BIN)/python -m pytest -n 2 --durations 15 -m "not slow" reproduction

QUBO_TESTS := packages/qpsbgd-qubo/tests
SANITIZED := $(QUBO_TESTS)/kernels packages/qpsbgd-runtime/tests $(patsubst %,$(QUBO_TESTS)/solvers/search/test_%.py,chains reduction) $(QUBO_TESTS)/solvers/exact \
	$(patsubst %,$(QUBO_TESTS)/%,test_problem_files.py test_sparse.py solvers/portfolio formats) $(patsubst %,packages/qpsbgd/tests/%,test_readers.py deploy/test_packed_model.py)

# Sanitizers find what a test does not see. TSan cannot run beside torch's own threads, so only tests without torch.
test-native: install ## Run the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer, then ThreadSanitizer
	$(BIN)/python tests/shared/sanitized.py address,undefined $(SANITIZED)
	$(BIN)/python tests/shared/sanitized.py thread $(QUBO_TESTS)/kernels/test_kernels.py

test-slow: install ## Run the rest: examples, whole experiments, the page in a browser
	$(BIN)/python -m pytest -n 2 --durations 15 -m slow $(TESTS)

test-all: test test-paper test-slow ## Run all tests

check: install ## Lint, check types and which module imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Pages link to the repository where one can read it without a password.
REPOSITORY ?= $(shell git remote get-url origin 2>/dev/null | grep -E '^https://[^@]*$$')

# Not --quiet: it hides the warnings from --strict as well.
docs: install ## Build the documentation into site/; any warning is an error
	NO_MKDOCS_2_WARNING=1 REPOSITORY="$(REPOSITORY)" $(BIN)/mkdocs build --strict

bench: install ## Measure the CPU figures in docs/ (QPSBGD_DATA: folder with mnist/, adult/, planetoid/)
	$(PIP) simulated-bifurcation openjij
	for script in $(patsubst %,solvers/%,solver_claims solver_quality qpu_cost virtual_qpu general_qubo) deploy/deploy training/estimators; do $(BIN)/python reproduction/benchmarks/$$script.py || exit; done
	$(BIN)/python reproduction/benchmarks/solvers/general_qubo.py time_to_target

release: check docs test-all ## Build what a release uploads into dist/; CONTRIBUTING.md has the steps around it
	rm -rf dist
	for package in packages/*; do $(BIN)/python -m build --no-isolation --outdir dist $$package || exit; done
