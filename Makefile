PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCH ?= simulator

# Compiled code stays beside its source, where .ci/fresh-numba-cache looks for it.
unexport NUMBA_CACHE_DIR

FAST := not campaign and not integration and not e2e and not benchmark and not slow

.PHONY: dev check lint types fast test campaign simulate pages docs bench performance format clean fresh

dev: ## create the virtual environment and install headrace for editing
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[train,partition,report,metrics,track,dev]'

check: lint types fast ## everything a change must pass, in about 3 minutes

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	.ci/file-lengths

types:
	$(BIN)/mypy -n 2

fresh: ## numba does not notice that what a cached kernel calls has changed
	$(BIN)/python .ci/fresh-numba-cache

fast: fresh
	$(BIN)/pytest -q -m "$(FAST)" -n 2 tests/unit tests/property tests/simulation

test: fresh ## every test of a change
	$(BIN)/pytest -n 2

campaign: fresh ## the long tests that a change does not run; writes benchmarks/results/campaign.json
	$(BIN)/python benchmarks/campaign.py --json --output benchmarks/results/campaign.json

simulate: fresh ## thousands of disturbed runs in virtual time; resumes benchmarks/results/simulation.json
	$(BIN)/python benchmarks/simulation.py --json --output benchmarks/results/simulation.json

pages: fresh ## run the commands of all pages, and record that they work
	HEADRACE_RECORD_PAGES=1 $(BIN)/pytest -n 2 -m "campaign or not campaign" tests/docs/test_pages.py

docs: ## build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: fresh ## measure the simulator, or BENCH=planner, ...; the last line is one JSON object
	$(BIN)/python benchmarks/$(BENCH).py --json

performance: ## make the page of all figures of the result files
	$(BIN)/python benchmarks/performance_page.py

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
