# `make run` starts Tuneserve, `make test` tests it; both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
CYCLONEDX := cyclonedx-bom==7.5.0
PIP_AUDIT := pip-audit==2.10.1
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-long chaos lint format bench setup check wheel audit clean

help: ## show what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

run: check-port setup ## start the application on the embedded default, and print its address
	@$(BIN)/tuneserve run deploy.yaml

setup: $(VENV)/.installed $(VENV)/.compiled ## install everything that `make run` needs

test: $(VENV)/.installed-test $(VENV)/openapi-client/.installed $(VENV)/.compiled ## run the tests, except those of `make test-long`
	$(BIN)/python -m pytest -n logical --dist loadfile -m "not e2e"
	.ci/e2e.sh $(BIN)/python

chaos: $(VENV)/.installed-test $(VENV)/.compiled ## kill every part of the application 50 times; takes hours
	CHAOS_KILLS=50 CHAOS_FILES=2000 FUZZ_REQUESTS=5000 $(BIN)/python -m pytest -s tests/faults tests/e2e/test_openapi.py

test-long: $(VENV)/.installed-test $(VENV)/.compiled ## run the end-to-end tests that `make test` leaves out
	.ci/e2e.sh $(BIN)/python long

test-fast: $(VENV)/.installed-test $(VENV)/openapi-client/.installed ## run the tests that need no cluster and no browser
	$(BIN)/python -m pytest -n logical --dist loadfile -m "not e2e"

lint: $(VENV)/.installed-test ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test ## put the code into its standard form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-test $(VENV)/.compiled ## measure the embedded default
	$(BIN)/python -m benchmarks.first_light

wheel: $(VENV)/.installed-test $(TOOLS)/bin/cyclonedx-py ## build the wheel and its bill of materials into dist/
	$(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/python .ci/sbom.py --cyclonedx $(TOOLS)/bin/cyclonedx-py --output dist

audit: $(TOOLS)/bin/pip-audit ## look for known vulnerabilities in constraints.txt, if online
	$(BIN)/python .ci/audit.py --pip-audit $(TOOLS)/bin/pip-audit

check: ## see whether this machine has what is needed
	@$(PYTHON) apps/cli/preflight.py --environment $(VENV)

.PHONY: check-port
check-port:
	@$(PYTHON) apps/cli/preflight.py --environment $(VENV) --deploy deploy.yaml

$(VENV)/.installed: pyproject.toml constraints.txt | check
	@echo "Installing into $(VENV); this takes a few minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) --editable '.[test,lint]'
	@touch $@

# The generator of API clients needs other versions of what the application needs too.
$(VENV)/openapi-client/.installed: tests/openapi-client.txt | $(VENV)/.installed
	@$(PYTHON) -m venv $(VENV)/openapi-client
	@$(VENV)/openapi-client/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/.compiled: $(VENV)/.installed
	@echo "Preparing DeepSpeed for this machine"
	@$(BIN)/python -m training.deepspeed.cpu_op
	@touch $@

# In an environment of their own: what they depend on is not pinned here.
$(TOOLS)/bin/cyclonedx-py $(TOOLS)/bin/pip-audit &: Makefile | $(VENV)/.installed
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $(CYCLONEDX) $(PIP_AUDIT)
	@touch $(TOOLS)/bin/cyclonedx-py $(TOOLS)/bin/pip-audit

clean: ## remove the environment and everything built
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
