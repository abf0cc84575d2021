#!/usr/bin/env bash
# `make kind-down`: removes the cluster of `make kind`.
set -euo pipefail
command -v kind >/dev/null || { echo "error: kind is not on PATH, so there is nothing that 'make kind' made" >&2; exit 1; }
docker info >/dev/null 2>&1 || export KIND_EXPERIMENTAL_PROVIDER=podman
kind delete cluster --name gardener-agents
