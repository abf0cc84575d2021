"""gardenlet's chart against a real API server: every object is accepted, releases come, change and go, and the rights suffice."""

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.api import Api, wait_for
from tests.lab.controlplane import ControlPlane
from tests.lab.garden.crds import Kind
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import Gardenlet
from tests.lab.garden.permissions import ROLE, seed_permissions
from tests.support.chart import CASES, CHART, GOLDEN, ROOT, helm, named, objects_in, rendered, template, values_of
from tests.support.served_seed import controllers_serve

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SECRETS = "/api/v1/namespaces/garden/secrets"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINED = (
    Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", namespaced=True),
    Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", namespaced=True),
    Kind("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers", namespaced=True),
)
PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
Release = Callable[..., str]


def collection(one: dict[str, Any]) -> str:
    """Return the path of the collection that an object belongs to."""
    group, _, version = one["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    namespace = one["metadata"].get("namespace")
    plural = PLURALS.get(one["kind"], f"{one['kind'].lower()}s")
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


@pytest.fixture
def api(integration_control_plane: ControlPlane) -> Api:
    """An API server with gardenlet's namespace."""
    found = integration_control_plane.admin
    found.ensure("/api/v1/namespaces", {"metadata": {"name": "garden"}})
    return found


@pytest.fixture
def optional_kinds(api: Api) -> Iterator[None]:
    """The kinds that not every cluster has."""
    for kind in DEFINED:
        api.ensure(DEFINITIONS, kind.definition())
    wait_for(
        lambda: all(api.raw("GET", kind.collection)[0] == 200 for kind in DEFINED),
        timeout=30,
        what="the optional kinds to be served",
    )
    yield
    for kind in DEFINED:
        api.delete(f"{DEFINITIONS}/{kind.plural}.{kind.group}")
    # It is removed by and by; whoever defined it again meanwhile would lose it.
    wait_for(
        lambda: not any(api.find(f"{DEFINITIONS}/{kind.plural}.{kind.group}") for kind in DEFINED),
        timeout=60,
        what="the definitions to go",
    )


@pytest.fixture
def release(api: Api, integration_control_plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    """Runs Helm for a release in the cluster; whatever is left is removed after the test."""
    kubeconfig = integration_control_plane.kubeconfig(tmp_path / "kubeconfig")

    def run(command: str, *values: Path, name: str = "gardenlet") -> str:
        options = [option for path in values for option in ("--values", path)]
        arguments = [name, *([] if command == "uninstall" else [CHART]), *options]
        done = helm(command, *arguments, "--namespace", "garden", "--kubeconfig", kubeconfig)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    helm("uninstall", "gardenlet", "--ignore-not-found", "--namespace", "garden", "--kubeconfig", kubeconfig)
    for name in ("gardenlet-kubeconfig", "gardenlet-kubeconfig-bootstrap"):
        api.delete(f"{SECRETS}/{name}")
    api.delete(f"{CLASSES}/gardener-system-critical")


@pytest.mark.usefixtures("optional_kinds")
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_every_object(case: str, api: Api) -> None:
    """Contract core 12.3: a real API server accepts each object, and knows each of its fields."""
    refused = []
    for one in objects_in(rendered(case)):
        body = json.dumps(one).encode()
        status, answer = api.raw("POST", f"{collection(one)}?dryRun=All&fieldValidation=Strict", body=body)
        if status != 201:
            refused.append((one["kind"], one["metadata"]["name"], answer.decode()))
    assert refused == []


def bootstrapping(tmp_path: Path, token: str) -> Path:
    """Return values with a bootstrap kubeconfig."""
    text = yaml.safe_dump({"users": [{"name": "bootstrap", "user": {"token": token}}]})
    path = tmp_path / f"{token}.yaml"
    path.write_text(
        yaml.safe_dump({"config": {"gardenClientConnection": {"bootstrapKubeconfig": {"kubeconfig": text}}}})
    )
    return path


def test_a_bootstrap_secret_does_not_come_back(api: Api, release: Release, tmp_path: Path) -> None:
    """Contract core 3.1, 12.3: once gardenlet has its own kubeconfig and deleted it, no upgrade makes it again or takes its own."""
    (minimal,) = values_of("minimal")
    notes = release("install", minimal, bootstrapping(tmp_path, "abcdef.first"))
    assert "kubectl get seed lab" in notes
    assert "abcdef" not in notes
    found = api.get(f"{SECRETS}/gardenlet-kubeconfig-bootstrap")
    assert b"abcdef.first" in base64.b64decode(found["data"]["kubeconfig"])
    release("upgrade", minimal, bootstrapping(tmp_path, "abcdef.second"))
    found = api.get(f"{SECRETS}/gardenlet-kubeconfig-bootstrap")
    assert b"abcdef.second" in base64.b64decode(found["data"]["kubeconfig"])
    own = {"metadata": {"name": "gardenlet-kubeconfig"}, "data": {"kubeconfig": base64.b64encode(b"own").decode()}}
    api.create(SECRETS, own)
    api.delete(f"{SECRETS}/gardenlet-kubeconfig-bootstrap")
    release("upgrade", minimal, bootstrapping(tmp_path, "abcdef.second"))
    assert api.find(f"{SECRETS}/gardenlet-kubeconfig-bootstrap") is None
    release("uninstall")
    assert api.get(f"{SECRETS}/gardenlet-kubeconfig")["data"] == own["data"]
    assert api.find("/apis/apps/v1/namespaces/garden/deployments/gardenlet") is None


@pytest.mark.parametrize(
    "document", ["README.md", "packaging/charts/gardenlet/README.md", "docs/gardenlet.md", "docs/install.md"]
)
@pytest.mark.usefixtures("release")
def test_the_documented_command_works(document: str, api: Api, integration_control_plane: ControlPlane) -> None:
    """Run as it is written, for a first release and for an upgrade, the command brings gardenlet into the cluster."""
    (command,) = re.findall(r"^helm (upgrade .*)$", (ROOT / document).read_text(), re.M)
    (minimal,) = values_of("minimal")
    arguments = [str(minimal) if one == "seed.yaml" else one for one in shlex.split(command)]
    arguments = [str(ROOT / one) if one.startswith("packaging/") else one for one in arguments]
    kubeconfig = integration_control_plane.pki_folder / "documented.kubeconfig"
    for _ in range(2):
        done = helm(*arguments, "--kubeconfig", integration_control_plane.kubeconfig(kubeconfig))
        assert done.returncode == 0, done.stderr
    assert mounted(api).startswith("gardenlet-configmap-")


def test_an_upgrade_brings_another_configuration(api: Api, release: Release, tmp_path: Path) -> None:
    """Contract core 12.3: the Pods mount the new ConfigMap, and the one that nobody mounts any more is gone."""
    (minimal,) = values_of("minimal")
    release("install", minimal)
    debug = tmp_path / "debug.yaml"
    debug.write_text("config: {logLevel: debug}")
    before = mounted(api)
    release("upgrade", minimal, debug)
    after = mounted(api)
    config_maps = "/api/v1/namespaces/garden/configmaps"
    assert yaml.safe_load(api.get(f"{config_maps}/{after}")["data"]["config.yaml"])["logLevel"] == "debug"
    assert api.find(f"{config_maps}/{before}") is None


def mounted(api: Api) -> str:
    """Return the name of the ConfigMap that the Deployment mounts."""
    found = api.get("/apis/apps/v1/namespaces/garden/deployments/gardenlet")["spec"]["template"]["spec"]["volumes"]
    (volume,) = (one for one in found if one["name"] == "gardenlet-config")
    return str(volume["configMap"]["name"])


def test_a_priority_class_of_others_is_used(api: Api, release: Release) -> None:
    """Contract core 12.3: one that is there already stays as it is, and one that came with us stays when we go."""
    (minimal,) = values_of("minimal")
    api.create(CLASSES, {"metadata": {"name": "gardener-system-critical"}, "value": 5})
    release("install", minimal)
    release("upgrade", minimal)
    found = api.get(f"{CLASSES}/gardener-system-critical")
    assert (found["value"], found["metadata"].get("labels")) == (5, None)
    release("uninstall")
    assert api.get(f"{CLASSES}/gardener-system-critical")["value"] == 5
    api.delete(f"{CLASSES}/gardener-system-critical")
    release("install", minimal)
    release("upgrade", minimal)
    release("uninstall")
    assert api.get(f"{CLASSES}/gardener-system-critical")["value"] == 999998950


@pytest.fixture(params=["full", "reduced"])
def restricted(request: pytest.FixtureRequest, garden: Garden, tmp_path: Path) -> Iterator[Gardenlet]:
    """A gardenlet whose rights in the seed are the chart's and no others; not started. What was refused to it fails the test."""
    seed, process = garden.seed.admin, Gardenlet(garden, tmp_path)
    for name in {process.name, "garden"}:
        seed.ensure("/api/v1/namespaces", {"metadata": {"name": name}})
    connection = {
        "kubeconfigSecret": {"namespace": "garden", "name": f"{process.name}-kubeconfig"},
        "bootstrapKubeconfig": {"namespace": "garden", "name": f"{process.name}-bootstrap"},
    }
    values = tmp_path / "values.yaml"
    config = {"gardenClientConnection": connection, "leaderElection": {"resourceNamespace": process.name}}
    values.write_text(yaml.safe_dump({"rbac": {"profile": request.param}, "config": config}))
    objects = objects_in(template(GOLDEN / "minimal.values.yaml", values))
    given = [one for one in objects if one["apiVersion"].startswith("rbac.")]
    assert named(given, "ClusterRole")["metadata"]["name"] == ROLE
    # A lone API server publishes no addresses of its own, and with these rights EndpointSlices are what is read.
    head = {"metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}}}
    addresses = {"endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 443, "protocol": "TCP"}]}
    seed.create(SLICES, {**head, "addressType": "IPv4", **addresses})
    for kind in ("clusterrolebindings", "clusterroles"):
        seed.delete(f"{RBAC}/{kind}/{ROLE}")
    try:
        for one in given:
            seed.create(collection(one), one)
        with process.looked_after():
            yield process
    finally:
        process.kill()
        for one in reversed(given):
            seed.delete(f"{collection(one)}/{one['metadata']['name']}")
        for path, body in seed_permissions():
            seed.create(path, body)
        seed.delete(f"{SLICES}/kubernetes")


def test_the_rights_are_enough(restricted: Gardenlet) -> None:
    """Contract core 12.2, 13 W42: with the rights of either profile gardenlet bootstraps, leads and serves; nothing is refused."""
    controllers_serve(restricted)
    assert restricted.garden.seed.admin.find(f"{SECRETS}/{restricted.name}-bootstrap") is None
    assert restricted.leader() == ""
