# Commands of the project. `make` alone lists them. All but `help` and `clean` make the environment first.
#
# Exit codes: make turns every failure into its own 2 and prints the command's real one ("Error 4" and
# "exit code 4"); call the command itself (it is printed) where a script must tell them apart.

PYTHON ?= python3
HPCCKPT_VENV ?= .venv
VENV := $(abspath $(HPCCKPT_VENV))
PY := $(VENV)/bin/python
APT := apt-get install -y make g++ python3-venv python3-dev

EXPERIMENT ?= scaling
NODES ?=
SITE ?=
RANKS_PER_NODE ?=
ARGS ?=

SUBMIT = $(PY) -m jobs submit $(EXPERIMENT) $(if $(NODES),--nodes $(NODES)) $(if $(SITE),--site $(SITE)) \
	$(if $(RANKS_PER_NODE),--ranks-per-node $(RANKS_PER_NODE)) --wait $(ARGS)
PYTEST = $(PY) -m pytest

# Runs a command, says its exit code where it is not 0, and hands it on.
define say
@echo '$(strip $(1))'; export PATH="$(VENV)/bin:$$PATH"; $(1); code=$$?; [ $$code -eq 0 ] || echo "exit code $$code" >&2; exit $$code
endef

export HPCCKPT_VENV := $(VENV)
.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help setup submit resume status cancel slurm-up slurm-down lint test test-long bench lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make or complete the environment (PYTHON= HPCCKPT_MPI=machine|pypi HPCCKPT_VENV= HPCCKPT_CACHE=)
	@command -v $(PYTHON) >/dev/null || { echo "missing: $(PYTHON). On Debian or Ubuntu, as root: $(APT)" >&2; exit 2; }
	@$(PYTHON) -m install

submit: setup ## run an experiment and wait for it (NODES=8 EXPERIMENT=scaling SITE= RANKS_PER_NODE= ARGS=)
	$(call say,$(SUBMIT))

resume: setup ## go on with the newest campaign: done runs are skipped (ARGS=--retry repeats failed ones)
	$(call say,$(PY) -m jobs resume --wait $(ARGS))

status: setup ## what the newest campaign is doing
	$(call say,$(PY) -m jobs status $(ARGS))

cancel: setup ## stop the newest campaign
	$(call say,$(PY) -m jobs cancel $(ARGS))

slurm-up: setup ## start a private Slurm cluster on this machine, for SITE=slurm_local; needs root (NODES=8 ARGS=)
	$(call say,$(PY) -m jobs.private_slurm up $(if $(NODES),--nodes $(NODES)) $(ARGS))

slurm-down: setup ## stop it and all that runs on it (ARGS=)
	$(call say,$(PY) -m jobs.private_slurm down $(ARGS))

lint: setup ## ruff, mypy, import-linter
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

test: lint ## lint and all tests but the long ones (ARGS= goes to pytest)
	$(call say,$(PYTEST) -m "not long" $(ARGS))

test-long: setup ## the long drills
	$(call say,$(PYTEST) -m long $(ARGS))

bench: setup ## what measuring itself costs: every file of benchmarks/ (BENCH=tracing_cost for one, ARGS=)
	$(call say,for file in $(or $(BENCH:%=benchmarks/%.py),$(sort $(wildcard benchmarks/[a-z]*.py))); do $(PY) $$file $(ARGS) || exit $$?; done)

lock: setup ## resolve requirements.in anew and write both locks
	@$(PYTHON) -m install lock

clean: ## remove the environment and everything built (kept: runs/, the wheel cache)
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find hpcckpt -name '_iotrace*.so' -delete
