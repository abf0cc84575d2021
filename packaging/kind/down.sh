#!/usr/bin/env bash
# `make kind-down`: removes the cluster of `make kind` where it is, which need not be in the engine that kind would take now.
set -euo pipefail
name=gardener-agents

stop() {
  echo "error: $1" >&2
  echo "next: $2" >&2
  exit 1
}

command -v kind >/dev/null || stop "kind is not on PATH" \
  "install it: https://kind.sigs.k8s.io/docs/user/quick-start/#installation"

without="" silent="" removed=""
for engine in docker podman; do
  command -v "$engine" >/dev/null || continue
  export KIND_EXPERIMENTAL_PROVIDER=${engine#docker} # empty: kind's own choice, which is docker where docker is
  if "$engine" info >/dev/null 2>&1 && clusters=$(kind get clusters 2>/dev/null); then
    if grep -qx "$name" <<<"$clusters"; then
      kind delete cluster --name "$name"
      removed=$engine
    fi
    without="${without:+$without and }$engine"
  else
    silent=${silent:-$engine}
  fi
done

if [ -n "$removed" ]; then
  echo "The cluster $name is removed."
elif [ -n "$silent" ]; then
  stop "$silent does not say whether it has the cluster $name${without:+, and $without does not have it}" \
    "run '$silent info' and 'KIND_EXPERIMENTAL_PROVIDER=$silent kind get clusters': is its service running, may you use it?"
elif [ -n "$without" ]; then
  echo "The cluster $name is gone already: $without answered, and did not have it."
else
  stop "neither docker nor podman is on PATH, so nobody can tell whether the cluster $name is there" \
    "put the one on PATH with which it was made"
fi
