# Every target sets up what it needs in .venv, from nothing. Variables: PYTHON, PRESET, HOST, PORT, BENCH, LOADTEST.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PRESET ?= embedded
HOST ?= 127.0.0.1
PORT ?= 8080
# The interpreter that makes .venv: 3.11 to 3.13, the versions constraints.txt is pinned for.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	"$$p" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo "$$p" && break; done)

VENV := .venv
BIN := $(VENV)/bin
# engines/fetch.py reads `pip download --progress-bar raw`, which came with pip 24.1.
PIP_VERSION := 26.3
# A competitor's, which bench-media and bench-pipecat measure beside ours, in an environment of its own: it needs other versions.
PIPECAT_VENV := .venv-pipecat
BENCH ?=
LOADTEST ?=
PRESET_EXTRA_embedded := embedded
PRESET_EXTRA_mlx-cpu := mlx
PRESET_EXTRA_mac := speech-mlx
PRESET_EXTRA_cuda := cuda
EXTRA := $(or $(PRESET_EXTRA_$(PRESET)),embedded)

.PHONY: help run test check bench-call bench-media bench-phones bench-pipecat loadtest clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.installed-$(EXTRA) ## Serve the gateway (PRESET=embedded HOST=127.0.0.1 PORT=8080)
	@exec $(BIN)/offhook serve --preset '$(PRESET)' --host '$(HOST)' --port '$(PORT)'

test: $(VENV)/.installed-dev ## Run every test, with the coverage the project asks for
	@exec scripts/check all-tests

check: $(VENV)/.installed-dev ## Lint, types, imports and the fast tests: what a change must pass
	@exec scripts/check

bench-call: $(VENV)/.installed-dev ## Latency per stage over 20 simulated calls, speculation off and on
	@exec $(BIN)/python -m scripts.bench_call --preset '$(PRESET)'

bench-media: $(VENV)/.installed-dev $(PIPECAT_VENV)/.installed ## A browser call's cost: stock aiortc, ours, pipecat (BENCH=--quick)
	@exec $(BIN)/python -m scripts.bench_media --pipecat-python $(PIPECAT_VENV)/bin/python $(BENCH)

bench-phones: $(VENV)/.installed-dev ## A phone call's cost over SIP and Twilio, and calls a core holds (BENCH=--quick)
	@exec $(BIN)/python -m scripts.bench_phones $(BENCH)

bench-pipecat: $(VENV)/.installed-dev $(PIPECAT_VENV)/.installed ## What a call costs us and what it costs pipecat, by the load test (BENCH="--calls 10")
	@exec $(BIN)/python -m scripts.bench_pipecat --pipecat-python $(PIPECAT_VENV)/bin/python $(BENCH)

loadtest: $(VENV)/.installed-embedded ## 20 simulated callers for a minute on a gateway of its own; a report (LOADTEST="churn")
	@exec $(BIN)/python -m scripts.loadtest $(LOADTEST)

clean: ## Remove .venv and every cache of the tools (downloaded weights stay)
	rm -rf $(VENV) $(PIPECAT_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage *.egg-info

$(VENV)/.pip-$(PIP_VERSION):
	@test -n '$(PYTHON)' || { echo "error: no Python 3.11 to 3.13 with venv was found; install one (Debian: python3-venv), or give PYTHON=/path/to/python3" >&2; exit 1; }
	'$(PYTHON)' -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip==$(PIP_VERSION)'
	@touch $@

$(PIPECAT_VENV)/.installed: $(VENV)/.pip-$(PIP_VERSION) scripts/bench_media/pipecat.txt constraints.txt
	$(BIN)/python -m venv --without-pip $(PIPECAT_VENV)
	$(BIN)/python -m pip --python $(PIPECAT_VENV)/bin/python install --quiet --disable-pip-version-check --no-deps -c constraints.txt -r scripts/bench_media/pipecat.txt
	@touch $@

$(VENV)/.installed-%: $(VENV)/.pip-$(PIP_VERSION) pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@case '$*' in speech-mlx|cuda|dev) $(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt mlx-whisper ;; esac
	@touch $@
