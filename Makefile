# The commands of this project. `make demo` and `make test` set up what they need by themselves.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
UV := $(BIN)/uv
UV_VERSION := 0.13.8
# A folder of wheels named by PIP_FIND_LINKS comes first; without one uv takes torch's own CPU builds.
TORCH := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend=cpu)
DISTRIBUTIONS := proto services/reward services/rollout services/trainer
SETUP_STAMP := $(VENV)/.installed

# What is started many times stays compiled, for the tests and the processes in them.
unexport PYTHONDONTWRITEBYTECODE

CORES := $(shell env -u OMP_NUM_THREADS nproc)
# Tests wait for processes and for each other's timers: twice as many workers as cores keep both cores busy.
WORKERS ?= $(shell echo $$((2 * $(CORES) > 8 ? 8 : 2 * $(CORES))))
# The quick ones wait for little.
QUICK_WORKERS ?= $(shell echo $$(($(CORES) > 7 ? 8 : $(CORES) + 1)))
# One thread each: workers whose threads wait for each other's cores take ten times as long for small tensors.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests --ignore tests/test_architecture.py
# By themselves: Ray gives a node 30 s to start, whatever else the machine does, and beside engines that load it takes longer.
PYTEST_RAY := OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/reward
ENGINES := vllm or e2e or ray or browser or deepspeed or processes

.PHONY: help setup lock schema format check quick test faults soak families test-compose bench gpu-check demo demo-episodes clean

help:  ## these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(SETUP_STAMP)  ## install everything into .venv (CPU)

$(SETUP_STAMP): requirements/cpu.txt requirements/deepspeed.txt $(DISTRIBUTIONS:=/pyproject.toml)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "error: Python 3.11 is needed and '$(PYTHON)' is another one; give its path: make PYTHON=/path/to/python3.11 $@" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(UV) pip install --quiet --python $(BIN)/python $(TORCH) --require-hashes --no-deps --compile-bytecode -r requirements/cpu.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps --no-build-isolation -r requirements/deepspeed.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(DISTRIBUTIONS:%=-e %)
	@if $(UV) pip list --python $(BIN)/python 2>/dev/null | grep -iE '^nvidia-' | grep -v nvidia-ml-py; then \
	  echo "error: a CUDA package came into the CPU environment" >&2; exit 1; fi
	touch $@

lock:  ## renew the pins in requirements/
	test -x $(UV) || { "$(PYTHON)" -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }
	$(UV) pip compile --quiet --upgrade --python-version 3.11 $(TORCH) --override requirements/overrides.txt --generate-hashes \
	  --no-header --no-annotate --no-emit-package deepspeed $(foreach d,$(DISTRIBUTIONS),--no-emit-package grpo-$(notdir $d)) requirements/cpu.in -o requirements/cpu.txt
	grep -hoE 'deepspeed==[0-9.]+' services/trainer/pyproject.toml \
	  | $(UV) pip compile --quiet --python-version 3.11 --no-deps --generate-hashes --no-header --no-annotate - -o requirements/deepspeed.txt
	docker/lock.sh $(UV)

schema: $(SETUP_STAMP)  ## what is made from the settings: the chart's values.schema.json, the routes' openapi.json
	$(BIN)/python k8s/make_values_schema.py
	$(BIN)/python -m grpo_reward.openapi > services/reward/openapi.json
	$(BIN)/python -m grpo_rollout.describe > services/rollout/openapi.json
	$(BIN)/python -m grpo_trainer.observe.routes > services/trainer/openapi.json

format: $(SETUP_STAMP)  ## format the code and mend what the linter can
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

check: $(SETUP_STAMP)  ## formatter, linter, types, architecture
	$(BIN)/ruff format --check --quiet . || { echo "error: not formatted; run: make format" >&2; exit 1; }
	$(BIN)/ruff check --output-format concise .
	$(BIN)/mypy proto/grpo_proto services/rollout/grpo_rollout services/reward/grpo_reward services/trainer/grpo_trainer
	$(BIN)/mypy benchmarks/gpu_check
	$(BIN)/mypy k8s/values_model.py k8s/make_values_schema.py
	$(BIN)/python k8s/make_values_schema.py --check
	$(BIN)/python -m pytest -q tests/test_architecture.py

quick: $(SETUP_STAMP)  ## the tests without an engine, a cluster, a browser or a trainer process: 90 s at most
	$(PYTEST) -n $(QUICK_WORKERS) -m "not ($(ENGINES) or faults)"

test: $(SETUP_STAMP)  ## every test that breaks nothing: 11 to 32 minutes on two cores
	$(PYTEST) -n $(WORKERS) -m "not (faults or ray)"
	$(PYTEST_RAY) -m "ray and not faults"

faults: $(SETUP_STAMP)  ## what kills, freezes, cuts or fills real services: 9 to 17 minutes on two cores
	$(PYTEST) -n $(WORKERS) -m "faults and not ray"
	$(PYTEST_RAY) -n 2 --dist load -m "ray and faults"

soak: $(SETUP_STAMP)  ## 200 steps with a fault every ten: 25 minutes at most
	$(BIN)/python -m tests.e2e.soak

families: $(SETUP_STAMP)  ## a push to every model family; writes docs/model-families.md: five minutes
	$(BIN)/python -m tests.rollout.families.matrix

test-compose: $(SETUP_STAMP)  ## the images and `docker compose --profile cpu up`, for real: root, ten minutes
	$(BIN)/python -m tests.deploy.compose.try_stack

SEED ?= 42
demo: $(SETUP_STAMP)  ## the main job: Countdown on CPU, all three services, about six minutes; SEED=42
	rm -rf runs/demo
	$(BIN)/python examples/countdown/make_data.py runs/demo/data
	$(BIN)/python examples/countdown/make_model.py runs/demo/base-model --seed $(SEED)
	$(BIN)/grpo-train cold-start examples/countdown/cold_start.yaml --seed $(SEED)
	SEED=$(SEED) $(BIN)/honcho start
	$(BIN)/python examples/countdown/show_result.py runs/demo

demo-episodes: $(SETUP_STAMP)  ## episodes on CPU: a game of several turns with a tool, about seven minutes; SEED=42
	rm -rf runs/demo-episodes
	$(BIN)/python -m examples.calculator.make_data runs/demo-episodes/data
	$(BIN)/python -m examples.calculator.make_model runs/demo-episodes/base-model --seed $(SEED)
	$(BIN)/grpo-train cold-start examples/calculator/cold_start.yaml --seed $(SEED)
	$(BIN)/python -m examples.calculator.play runs/demo-episodes/cold-start --at-least 0.05
	SEED=$(SEED) $(BIN)/honcho start -f examples/calculator/Procfile
	$(BIN)/python -m examples.calculator.show_result runs/demo-episodes

bench: $(SETUP_STAMP)  ## ratios against peers and limits, side by side in one run
	@for name in trainer reduction reward reward_peers reward_limits push adapter_push kept_sequences rollout live_page scrape; do \
	  echo; echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py || exit 1; done

# A GPU box has an environment of its own: .venv is the CPU's. The services' packages need not be installed in it.
GPU_PYTHON ?= $(or $(wildcard $(BIN)/python),python3)
gpu-check:  ## the acceptance of a GPU box, a table with bounds; GPU_PYTHON=/path/to/python with torch for CUDA
	PYTHONPATH=$(CURDIR)/proto:$(CURDIR)/services/trainer:$(CURDIR)/services/rollout:$(CURDIR)/services/reward \
	  $(GPU_PYTHON) -m benchmarks.gpu_check

clean:  ## remove the environment and the runs
	rm -rf $(VENV) runs
