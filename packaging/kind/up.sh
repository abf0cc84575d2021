#!/usr/bin/env bash
# `make kind`: a cluster of two containers with the programs in it, for people who have a container engine.
set -euo pipefail
cd "$(dirname "$0")/../.."

missing() {
  echo "error: $1" >&2
  echo "next: $2" >&2
  exit 1
}

# kind obeys this variable whatever answers, so that the programs below must too.
wanted=${KIND_EXPERIMENTAL_PROVIDER:-}
case $wanted in
"") candidates="docker podman" ;;
docker | podman) candidates=$wanted ;;
*) missing "KIND_EXPERIMENTAL_PROVIDER is '$wanted', and 'make kind' knows docker and podman only" \
  "set it to the one that you have, or unset it" ;;
esac

engine="" silent=""
for candidate in $candidates; do
  if command -v "$candidate" >/dev/null; then
    if "$candidate" info >/dev/null 2>&1; then
      engine=$candidate
      break
    fi
    silent=${silent:-$candidate}
  fi
done
[ -n "$engine$silent$wanted" ] || missing "neither docker nor podman is on PATH" \
  "install one of them (Debian: apt-get install podman), or use 'make demo', which needs no container engine"
[ -n "$engine$silent" ] || missing "$wanted is not on PATH, and KIND_EXPERIMENTAL_PROVIDER asks for it" \
  "install it, or unset KIND_EXPERIMENTAL_PROVIDER"
[ -n "$engine" ] || missing "$silent is installed, and does not answer" \
  "run '$silent info' to see why: is its service running, may you use it?"
command -v kind >/dev/null || missing "kind is not on PATH" \
  "install it: https://kind.sigs.k8s.io/docs/user/quick-start/#installation"
command -v kubectl >/dev/null || missing "kubectl is not on PATH" \
  "install it: https://kubernetes.io/docs/tasks/tools/#kubectl"
[ -x build/bin/gardener-node-agent ] || missing "build/bin/gardener-node-agent is not built" "run 'make binary'"

[ "$engine" = docker ] || export KIND_EXPERIMENTAL_PROVIDER=$engine
if kind get clusters 2>/dev/null | grep -x gardener-agents >/dev/null; then # with -q it would go before kind has told all
  echo "The cluster gardener-agents exists already; 'make kind-down' removes it."
else
  kind create cluster --config packaging/kind/cluster.yaml --wait 120s
fi
kubectl --context kind-gardener-agents wait --for=condition=Ready node --all --timeout=120s
# From a folder in which it can unpack: the mount is read-only, and nothing in the container's /run may be executed.
"$engine" exec gardener-agents-worker install -D -m 0755 /opt/gardener-agents/gardener-node-agent /opt/bin/gardener-node-agent
"$engine" exec gardener-agents-worker /opt/bin/gardener-node-agent version
echo "What next: packaging/kind/README.md. 'make kind-down' removes the cluster."
