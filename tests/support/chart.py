"""gardenlet's chart as Helm renders it; `python -m tests.support.chart` writes the golden files."""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.lab.binaries import KUBERNETES_VERSION
from tests.lab.helm import find_helm
from tests.lab.progress import to_stderr

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging/charts/gardenlet"
GOLDEN = ROOT / "tests/integration/packaging/golden"
OPTIONAL_KINDS = (
    "monitoring.coreos.com/v1/ServiceMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
    "autoscaling.k8s.io/v1/VerticalPodAutoscaler",
)
CASES = ("minimal", "everything", "reduced")
"""Each has its values and what comes out of them; all but the first come on top of the first."""

Objects = list[dict[str, Any]]


def values_of(case: str) -> tuple[Path, ...]:
    """Return the files with the values of a case, the last one wins."""
    return tuple(GOLDEN / f"{name}.values.yaml" for name in dict.fromkeys(("minimal", case)))


def helm(*arguments: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run Helm, whatever comes out of it."""
    command = [find_helm(say=to_stderr), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)


def template(*values: Path, kinds: Sequence[str] = (), release: str = "gardenlet", namespace: str = "garden") -> str:
    """Return what `helm template` prints, for a cluster that has optional kinds."""
    options = [option for path in values for option in ("--values", str(path))]
    options += [option for kind in kinds for option in ("--api-versions", kind)]
    options += ["--namespace", namespace, "--kube-version", KUBERNETES_VERSION]
    done = helm("template", release, CHART, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def rendered(case: str) -> str:
    """Return what comes out of a case."""
    return template(*values_of(case), kinds=OPTIONAL_KINDS if case == "everything" else ())


def objects_in(text: str) -> Objects:
    """Return the objects in YAML documents."""
    return [document for document in yaml.safe_load_all(text) if document]


def named(objects: Objects, kind: str, name: str = "", namespace: str | None = None) -> dict[str, Any]:
    """Return the one object of a kind whose name begins like this, in a namespace if one is given."""
    (found,) = (
        one
        for one in objects
        if one["kind"] == kind
        and one["metadata"]["name"].startswith(name)
        and namespace in (None, one["metadata"].get("namespace"))
    )
    return found


def configuration(objects: Objects) -> str:
    """Return the configuration file that the Pods get: the one that the Deployment mounts."""
    volumes = named(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    (volume,) = (one for one in volumes if one["name"] == "gardenlet-config")
    return str(named(objects, "ConfigMap", volume["configMap"]["name"])["data"]["config.yaml"])


if __name__ == "__main__":
    for one in CASES:
        (GOLDEN / f"{one}.yaml").write_text(rendered(one))
