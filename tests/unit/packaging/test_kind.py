"""What can be said about `make kind` where there is no container engine."""

import os
import shutil
import subprocess
from collections.abc import Mapping
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


def run(script: Path, path: Path, programs: Mapping[str, str], wanted: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script where nothing is on PATH but bash, what it needs of coreutils, and these programs.

    Args:
        script: what to run.
        path: an empty folder for the programs.
        programs: what each of them does, in bash, with the host's own programs at hand.
        wanted: the user's KIND_EXPERIMENTAL_PROVIDER; empty is the same as none.
    """
    for name in ("bash", "dirname", "grep"):
        (path / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    for name, body in programs.items():
        (path / name).write_text(f"#!/bin/bash\nPATH={os.environ['PATH']}\n{body}\n")
        (path / name).chmod(0o755)
    return subprocess.run(
        [str(path / "bash"), str(script)],
        env={"PATH": str(path), "KIND_EXPERIMENTAL_PROVIDER": wanted},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def up(folder: Path, *programs: str, engine: int = 0, wanted: str = "") -> subprocess.CompletedProcess[str]:
    """Run `make kind`'s script with programs that do nothing."""
    return run(KIND / "up.sh", folder, dict.fromkeys(programs, f"exit {engine}"), wanted)


def refusal(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Return what was wrong and what to do about it: two lines on stderr, nothing on stdout, exit code 1."""
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("next: ")
    return first.removeprefix("error: "), second.removeprefix("next: ")


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
    ("programs", "engine", "wanted", "error", "following"),
    [
        ((), 0, "", "neither docker nor podman is on PATH", "make demo"),
        (("podman",), 1, "", "podman is installed, and does not answer", "podman info"),
        (("docker", "podman"), 1, "", "docker is installed, and does not answer", "docker info"),
        (("docker",), 0, "", "kind is not on PATH", "https://kind.sigs.k8s.io"),
        (("docker", "kind"), 0, "", "kubectl is not on PATH", "https://kubernetes.io"),
        (("docker", "podman"), 1, "podman", "podman is installed, and does not answer", "podman info"),
        (("docker",), 0, "podman", "podman is not on PATH, and KIND_EXPERIMENTAL_PROVIDER asks for it", "unset"),
        (
            *(("docker", "podman"), 0, "nerdctl"),
            *("KIND_EXPERIMENTAL_PROVIDER is 'nerdctl', and 'make kind' knows docker and podman only", "unset"),
        ),
    ],
)
def test_what_is_missing_is_named_with_the_next_step(
    programs: tuple[str, ...], engine: int, wanted: str, error: str, following: str, tmp_path: Path
) -> None:
    """Two lines on stderr and exit code 1: what is missing, and what to do about it."""
    first, second = refusal(up(tmp_path, *programs, engine=engine, wanted=wanted))
    assert first == error
    assert following in second


def recording(
    tree: Path, *programs: str, clusters: str = "", wanted: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script in a copy of its folder with programs that only write down how they were called; returns these calls."""
    shutil.copytree(KIND, tree / "packaging/kind")
    program, bin_folder = tree / "build/bin/gardener-node-agent", tree / "path"
    for folder in (program.parent, bin_folder):
        folder.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    bodies = {name: f'echo "{name} $*" "${{KIND_EXPERIMENTAL_PROVIDER:-}}" >> {tree}/calls' for name in programs}
    bodies["kind"] += f'\n[ "$1" != get ] || {clusters or ":"}'
    done = run(tree / "packaging/kind/up.sh", bin_folder, bodies, wanted)
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
    done, calls = recording(tmp_path, "docker", "kind", "kubectl", clusters="echo gardener-agents")
    assert done.returncode == 0, done.stderr
    assert "exists already" in done.stdout
    assert not [call for call in calls if call.startswith("kind create")]
    assert calls[-1] == "docker exec gardener-agents-worker /opt/bin/gardener-node-agent version"


def test_a_cluster_among_many_is_found(tmp_path: Path) -> None:
    """Kind is listened to until its end: one that is cut off after the name counts as one that failed."""
    many = "{ echo gardener-agents; seq 100000; }"
    done, _ = recording(tmp_path, "docker", "kind", "kubectl", clusters=many)
    assert "exists already" in done.stdout


@pytest.mark.parametrize("wanted", ["docker", "podman"])
def test_the_users_own_choice_of_an_engine_decides(wanted: str, tmp_path: Path) -> None:
    """Kind obeys KIND_EXPERIMENTAL_PROVIDER, so the program is put into a node of that engine, whatever else answers."""
    done, calls = recording(tmp_path, "docker", "podman", "kind", "kubectl", wanted=wanted)
    assert done.returncode == 0, done.stderr
    assert f"kind create cluster --config packaging/kind/cluster.yaml --wait 120s {wanted}" in calls
    assert {call.split()[0] for call in calls} == {wanted, "kind", "kubectl"}


KIND_PROGRAM = """\
clusters={folder}/${{KIND_EXPERIMENTAL_PROVIDER:-docker}}.clusters
case "$1 $2" in
  "get clusters") [ -s $clusters ] && cat $clusters || echo "No kind clusters found." >&2 ;;
  "delete cluster") sed -i "/^$4\\$/d" $clusters ;;
esac
"""


def down(
    folder: Path,
    engines: Mapping[str, str],
    *,
    silent: str = "",
    programs: tuple[str, ...] = ("kind",),
    wanted: str = "",
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run `make kind-down`'s script; returns what it did, and the clusters that are left.

    Args:
        folder: an empty one.
        engines: those on PATH, each with its clusters.
        silent: the engines that do not answer.
        programs: what else there is.
        wanted: the user's KIND_EXPERIMENTAL_PROVIDER.
    """
    bodies = {name: f"exit {int(name in silent)}" for name in engines}
    bodies |= dict.fromkeys(programs, KIND_PROGRAM.format(folder=folder))
    for name, clusters in engines.items():
        (folder / f"{name}.clusters").write_text("".join(f"{cluster}\n" for cluster in clusters.split()))
    (folder / "path").mkdir()
    done = run(KIND / "down.sh", folder / "path", bodies, wanted)
    return done, {name: " ".join((folder / f"{name}.clusters").read_text().split()) for name in engines}


@pytest.mark.parametrize(
    ("engines", "silent", "left"),
    [
        ({"docker": "gardener-agents other"}, "", {"docker": "other"}),
        ({"docker": "other", "podman": "gardener-agents"}, "", {"docker": "other", "podman": ""}),
        ({"docker": "gardener-agents", "podman": "gardener-agents"}, "", {"docker": "", "podman": ""}),
        ({"docker": "", "podman": "gardener-agents"}, "docker", {"docker": "", "podman": ""}),
        (
            {"docker": "gardener-agents", "podman": "gardener-agents-2"},
            "",
            {"docker": "", "podman": "gardener-agents-2"},
        ),
    ],
)
@pytest.mark.parametrize("wanted", ["", "podman"])
def test_the_cluster_is_removed_where_it_is(
    engines: dict[str, str], silent: str, left: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """In each engine that answers, not in the one that kind would take; other clusters stay."""
    done, found = down(tmp_path, engines, silent=silent, wanted=wanted)
    assert (done.returncode, done.stdout) == (0, "The cluster gardener-agents is removed.\n"), done.stderr
    assert found == left


def test_a_cluster_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    """All engines answered and none has it: nothing to do is no error."""
    done, _ = down(tmp_path, {"docker": "", "podman": "gardener-agents-2"})
    said = "The cluster gardener-agents is gone already: docker and podman answered, and did not have it.\n"
    assert (done.returncode, done.stdout) == (0, said)


@pytest.mark.parametrize(
    ("engines", "silent", "programs", "error", "following"),
    [
        ({}, "", (), "kind is not on PATH", "https://kind.sigs.k8s.io"),
        ({}, "", ("kind",), "neither docker nor podman is on PATH, so nobody can tell whether the cluster", "on PATH"),
        (
            {"docker": ""},
            "docker",
            ("kind",),
            "docker does not say whether it has the cluster gardener-agents",
            "docker info",
        ),
        (
            *({"docker": "gardener-agents", "podman": "other"}, "docker", ("kind",)),
            *(
                "docker does not say whether it has the cluster gardener-agents, and podman does not have it",
                "docker info",
            ),
        ),
    ],
)
def test_what_nobody_can_tell_is_no_success(
    engines: dict[str, str], silent: str, programs: tuple[str, ...], error: str, following: str, tmp_path: Path
) -> None:
    """The cluster may be in an engine that does not answer, so it is not said to be gone."""
    done, left = down(tmp_path, engines, silent=silent, programs=programs)
    first, second = refusal(done)
    assert first.startswith(error)
    assert following in second
    assert left == engines


def test_an_engine_whose_clusters_kind_cannot_list_has_not_answered(tmp_path: Path) -> None:
    """An empty answer of a kind that failed does not mean that there is no cluster."""
    (tmp_path / "path").mkdir()
    done = run(KIND / "down.sh", tmp_path / "path", {"podman": "exit 0", "kind": "exit 1"})
    first, second = refusal(done)
    assert first == "podman does not say whether it has the cluster gardener-agents"
    assert "KIND_EXPERIMENTAL_PROVIDER=podman kind get clusters" in second


def test_the_readme_says_that_ci_cannot_run_it() -> None:
    """Nobody takes it for tested."""
    assert "CI cannot" in (KIND / "README.md").read_text()
