"""What can be said about `make kind` where there is no container engine."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
KIND = ROOT / "packaging/kind"
FIELDS = {
    "": {
        *("kind", "apiVersion", "name", "nodes", "networking", "featureGates", "runtimeConfig"),
        *("kubeadmConfigPatches", "kubeadmConfigPatchesJSON6902"),
        *("containerdConfigPatches", "containerdConfigPatchesJSON6902"),
    },
    "nodes": {
        *("role", "image", "labels", "extraMounts", "extraPortMappings"),
        *("kubeadmConfigPatches", "kubeadmConfigPatchesJSON6902"),
    },
    "nodes.extraMounts": {"containerPath", "hostPath", "readOnly", "selinuxRelabel", "propagation"},
}
"""The fields of kind's v1alpha4 that matter here; kind refuses any other."""
FREE = {"nodes.labels"}


def unknown(value: Any, path: str = "") -> list[str]:
    """Return the fields that kind would refuse."""
    if isinstance(value, list):
        return [field for one in value for field in unknown(one, path)]
    if not isinstance(value, dict) or path in FREE:
        return []
    found = [f"{path}.{key}" for key in value if key not in FIELDS.get(path, set())]
    return found + [field for key, one in value.items() for field in unknown(one, f"{path}.{key}".lstrip("."))]


def up(folder: Path, *programs: str, engine: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `make kind`'s script where nothing is on PATH but bash, what it needs of coreutils, and these programs, which do nothing."""
    for name in ("bash", "dirname", "grep"):
        (folder / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    for name in programs:
        (folder / name).write_text(f"#!/bin/sh\nexit {engine}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [str(folder / "bash"), str(KIND / "up.sh")],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_the_configuration_has_only_fields_of_kinds() -> None:
    """Version v1alpha4, one node for the control plane, one worker, and no field that kind does not know."""
    config = yaml.safe_load((KIND / "cluster.yaml").read_text())
    assert (config["kind"], config["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker"]
    assert unknown(config) == []
    assert unknown({"nodes": [{"extraMounts": [{"hostpath": "a"}]}]}) == ["nodes.extraMounts.hostpath"]
    name = config["name"]
    for script in ("up.sh", "down.sh"):
        assert name in (KIND / script).read_text()


@pytest.mark.parametrize(
    ("programs", "engine", "error", "following"),
    [
        ((), 0, "neither docker nor podman is on PATH", "make demo"),
        (("podman",), 1, "podman is installed, and does not answer", "podman info"),
        (("docker", "podman"), 1, "docker is installed, and does not answer", "docker info"),
        (("docker",), 0, "kind is not on PATH", "https://kind.sigs.k8s.io"),
        (("docker", "kind"), 0, "kubectl is not on PATH", "https://kubernetes.io"),
    ],
)
def test_what_is_missing_is_named_with_the_next_step(
    programs: tuple[str, ...], engine: int, error: str, following: str, tmp_path: Path
) -> None:
    """Two lines on stderr and exit code 1: what is missing, and what to do about it."""
    done = up(tmp_path, *programs, engine=engine)
    assert done.returncode == 1
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == f"error: {error}"
    assert second.startswith("next: ")
    assert following in second


def recording(tree: Path, *programs: str, clusters: str = "") -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script in a copy of its folder with programs that only write down how they were called; returns these calls."""
    shutil.copytree(KIND, tree / "packaging/kind")
    program, bin_folder = tree / "build/bin/gardener-node-agent", tree / "path"
    for folder in (program.parent, bin_folder):
        folder.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    for name in ("bash", "dirname", "grep"):
        (bin_folder / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    for name in programs:
        answer = f'[ "$1" = get ] && echo {clusters}' if name == "kind" and clusters else ":"
        text = f'#!/bin/bash\necho "{name} $*" "${{KIND_EXPERIMENTAL_PROVIDER:-}}" >> {tree}/calls\n{answer}\nexit 0\n'
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    done = subprocess.run(
        [str(bin_folder / "bash"), str(tree / "packaging/kind/up.sh")],
        env={"PATH": str(bin_folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done, [line.strip() for line in (tree / "calls").read_text().splitlines()]


def test_with_everything_there_a_cluster_is_made(tmp_path: Path) -> None:
    """The cluster, its nodes ready, the program in the worker; kind is told that it is podman."""
    done, calls = recording(tmp_path, "podman", "kind", "kubectl")
    assert done.returncode == 0, done.stderr
    program = "/opt/bin/gardener-node-agent"
    assert calls == [
        "podman info",
        "kind get clusters podman",
        "kind create cluster --config packaging/kind/cluster.yaml --wait 120s podman",
        "kubectl --context kind-gardener-agents wait --for=condition=Ready node --all --timeout=120s podman",
        f"podman exec gardener-agents-worker install -D -m 0755 /opt/gardener-agents/gardener-node-agent {program} podman",
        f"podman exec gardener-agents-worker {program} version podman",
    ]


def test_a_cluster_that_is_there_is_used(tmp_path: Path) -> None:
    """A second `make kind` makes no second cluster, and brings the program again."""
    done, calls = recording(tmp_path, "docker", "kind", "kubectl", clusters="gardener-agents")
    assert done.returncode == 0, done.stderr
    assert "exists already" in done.stdout
    assert not [call for call in calls if call.startswith("kind create")]
    assert calls[-1] == "docker exec gardener-agents-worker /opt/bin/gardener-node-agent version"


def test_the_readme_says_that_ci_cannot_run_it() -> None:
    """Nobody takes it for tested."""
    assert "CI cannot" in (KIND / "README.md").read_text()
