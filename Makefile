# Two commands for a newcomer: `make demo` and `make test`. Everything else is listed by `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
AGENT ?= binary
KEEP ?=
NODE ?= worker-1
WORKERS ?= 2
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
SOURCES := $(shell git ls-files 'agents/*.py' 'osc/*.py' 'systemd/*.py' 'nodeagent/*.py' 'gardenlet/*.py' 2>/dev/null)
BUILDER := $(shell git ls-files packaging/launcher packaging/interpreter packaging/onefile 2>/dev/null)
PROGRAMS := build/bin/gardener-node-agent build/bin/gardenlet
IMAGING := $(shell git ls-files packaging/image tests/lab/oci.py 2>/dev/null)
IMAGES := build/image/gardener-node-agent.cdx.json build/image/gardenlet.cdx.json

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements/dev.lock scripts/make-venv.sh
	@PYTHON=$(PYTHON) bash scripts/make-venv.sh $(VENV)

.PHONY: venv
venv: $(VENV)/.ready ## virtual environment with the pinned dependencies

$(PROGRAMS) &: $(SOURCES) $(BUILDER) requirements/runtime.lock | $(VENV)/.ready
	@$(RUN) packaging/onefile/build.py

.PHONY: binary
binary: $(PROGRAMS) ## both programs, one file each: build/bin/gardener-node-agent, build/bin/gardenlet

.PHONY: deb
deb: $(VENV)/.ready binary ## Debian packages of both programs: build/deb
	@$(RUN) packaging/deb/build.py

# The commit, and whether anything was changed since, is a label of the images: this file is written when that is another one.
build/image/.revision: FORCE
	@mkdir -p $(@D); revision="$$(git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null || true)"; \
	[ "$$revision" = "$$(cat $@ 2>/dev/null)" ] || echo "$$revision" > $@

.PHONY: FORCE
FORCE:

$(IMAGES) &: $(PROGRAMS) $(IMAGING) build/image/.revision | $(VENV)/.ready
	@$(RUN) packaging/image/build.py

.PHONY: image
image: $(IMAGES) ## OCI images of both programs, and what is in them as CycloneDX: build/image

.PHONY: demo
demo: $(VENV)/.ready binary ## a machine joins a real cluster, changes, crashes and heals (KEEP=1 leaves it up)
	@$(RUN) -m tests.lab demo --agent $(AGENT) $(if $(KEEP),--keep)

.PHONY: demo-seed
demo-seed: $(VENV)/.ready ## gardenlet registers a seed at a garden, beats, renews its certificate, survives outages
	@$(RUN) -m tests.lab demo-seed

.PHONY: kind
kind: ## a cluster of two containers with the programs in it; needs docker or podman, kind and kubectl
	@bash packaging/kind/up.sh

.PHONY: kind-down
kind-down: ## remove that cluster
	@bash packaging/kind/down.sh

.PHONY: lab-shell
lab-shell: $(VENV)/.ready ## a shell in a machine of the lab (NODE=worker-1)
	@$(RUN) -m tests.lab shell $(NODE)

.PHONY: lab-down
lab-down: $(VENV)/.ready ## remove everything that the lab started
	@$(RUN) -m tests.lab down

.PHONY: lint
lint: $(VENV)/.ready ## format, rules, types, import contracts, generated documents
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(RUN) scripts/conformance.py --check
	$(RUN) scripts/log_messages.py --check
	$(RUN) scripts/metrics_reference.py --check
	$(RUN) scripts/chart_values.py --check

.PHONY: format
format: $(VENV)/.ready ## format and fix what can be fixed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

.PHONY: unit
unit: $(VENV)/.ready ## unit tests only: no network, no root, seconds
	$(PYTEST) -m "not (integration or machine or e2e or chaos or bench)" $(ARGS)

.PHONY: test
test: $(VENV)/.ready binary ## every level: unit, integration, machines, the demo's scenario, faults
	@$(RUN) -m tests.lab prepare
	$(PYTEST) -m "not bench" --cov=agents --cov=osc --cov=systemd --cov=gardenlet --cov-branch --cov-report=term:skip-covered --cov-fail-under=95 $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.ready binary ## kills, power cuts, faults and outages, another sample each run (SEED=n repeats one; ARGS='--only cuts')
	$(RUN) -m tests.chaos $(ARGS)

.PHONY: chaos-full
chaos-full: $(VENV)/.ready binary ## all of that at length: hours
	$(RUN) -m tests.chaos --full $(ARGS)

.PHONY: bench
bench: $(VENV)/.ready binary ## figures beside their targets, also as build/bench.json
	$(RUN) -m tests.bench $(ARGS)

.PHONY: bench-scale
bench-scale: $(VENV)/.ready ## 200 agents on one API server for five minutes (ARGS='--agents 40 --seconds 60')
	$(RUN) -m tests.bench.scale $(ARGS)

.PHONY: bench-gardenlet
bench-gardenlet: $(VENV)/.ready binary ## gardenlet's figures beside their targets, also as build/bench-gardenlet.json (ARGS='--only start')
	$(RUN) -m tests.bench.gardenlet $(ARGS)

.PHONY: pictures
pictures: $(VENV)/.ready binary ## both stories under a Prometheus, drawn as docs/pictures/*.svg
	@$(RUN) -m tests.lab pictures --agent $(AGENT)

.PHONY: documents
documents: $(VENV)/.ready ## write what is generated: docs/conformance.md from the tests' docstrings, docs/logging.md and docs/metrics.md from the code, the chart's table of values
	$(RUN) scripts/conformance.py
	$(RUN) scripts/log_messages.py
	$(RUN) scripts/metrics_reference.py
	$(RUN) scripts/chart_values.py

.PHONY: release-check
release-check: $(VENV)/.ready ## build everything from a clean checkout of HEAD and compare the versions in all places
	@$(RUN) scripts/release_check.py

.PHONY: lock
lock: $(VENV)/.ready ## pin the dependencies anew
	cd requirements && for name in dev runtime; do \
	  ../$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --upgrade $$([ $$name = runtime ] && echo -c dev.lock) $$name.in -o $$name.lock; done

.PHONY: clean
clean: ## remove what was built
	rm -rf build $(VENV)
