# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Nothing but Python 3.11 or newer, pip and make is needed: the environment is made in .venv.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

# The mark of a finished environment; it is made anew only when the dependencies change.
ENVIRONMENT := $(VENV)/installed

.PHONY: demo test test-full test-page faults check format docs clean

demo: $(ENVIRONMENT)  ## all of it on text of this machine: vocabulary, shards, pretraining, report; minutes on two cores
	$(RUN)/openalbert demo

test: $(ENVIRONMENT)  ## the tests, in a few minutes on two cores
	$(RUN)/python -m pytest -n 2 -m "not slow"

test-full: $(ENVIRONMENT)  ## every test, the long campaigns among them
	$(RUN)/python -m pytest -n 2 --hypothesis-profile others

test-page: $(ENVIRONMENT)  ## the page of `openalbert serve` in a real browser; needs Debian's chromium, or another
	$(RUN)/pip install --quiet --constraint constraints.txt --editable ".[page]"
	OPENALBERT_TEST_PAGE=1 $(RUN)/python -m pytest tests/serve/http_api/test_page.py

faults: $(ENVIRONMENT)  ## 100 kills and other faults, counted; about ten minutes; writes results/faults/
	$(RUN)/python -m tests.faults.campaign

check: $(ENVIRONMENT)  ## format, lint, types, import order
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-cache

format: $(ENVIRONMENT)  ## rewrite the files as `make check` wants them
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

docs: $(VENV)/docs-installed  ## the documentation site, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

$(VENV)/docs-installed: $(ENVIRONMENT)
	$(RUN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

$(ENVIRONMENT): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --constraint constraints.txt --editable ".[check]"
	touch $@

clean:  ## remove the environment, the site and every cache
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
