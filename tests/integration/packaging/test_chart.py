"""gardenlet's chart: what Helm makes of it, and whether gardenlet itself can use that."""

import copy
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.core.config import unknown_keys
from gardenlet.cli import load_config
from gardenlet.config import GardenletConfiguration
from gardenlet.options import Options
from gardenlet.version import VERSION
from tests.lab.garden.permissions import RULES
from tests.support.chart import (
    CASES,
    CHART,
    GOLDEN,
    OPTIONAL_KINDS,
    ROOT,
    Objects,
    configuration,
    helm,
    named,
    objects_in,
    rendered,
    template,
    values_of,
)

ALL = frozenset({"get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"})
READ = frozenset({"get", "list", "watch"})
RBAC = "rbac.authorization.k8s.io"
CONTRACT: dict[str, dict[str, frozenset[str]]] = {
    "": {
        "nodes": frozenset({"list", "watch"}),
        "pods": frozenset({"list", "watch", "delete", "deletecollection"}),
        "pods/log": frozenset({"get"}),
        "pods/exec": frozenset({"create"}),
        **dict.fromkeys(("configmaps", "namespaces", "secrets", "serviceaccounts", "services"), ALL),
        **dict.fromkeys(("endpoints", "persistentvolumes"), READ),
        "persistentvolumeclaims": READ | {"patch", "update"},
        "persistentvolumeclaims vali-vali-0": frozenset({"delete"}),
        "events": frozenset({"get", "list", "create", "patch", "update"}),
    },
    "events.k8s.io": {"events": frozenset({"get", "list", "create", "patch", "update"})},
    "coordination.k8s.io": {
        "leases": READ | {"create"},
        "leases gardenlet-leader-election": frozenset({"update"}),
    },
    "apiextensions.k8s.io": {"customresourcedefinitions": READ | {"create", "patch", "update"}},
    "admissionregistration.k8s.io": dict.fromkeys(
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"), ALL
    ),
    RBAC: {
        **dict.fromkeys(("clusterroles", "roles"), ALL | {"bind", "escalate"}),
        **dict.fromkeys(("clusterrolebindings", "rolebindings"), ALL),
    },
    "apps": dict.fromkeys(
        (f"{kind}{part}" for kind in ("deployments", "statefulsets", "replicasets") for part in ("", "/scale")), ALL
    ),
    "autoscaling": {"horizontalpodautoscalers": ALL},
    "autoscaling.k8s.io": {"verticalpodautoscalers": ALL},
    "autoscaling.gardener.cloud": {"persistentvolumeclaimautoscalers": ALL},
    "druid.gardener.cloud": {"etcds": ALL},
    "extensions.gardener.cloud": {"*": ALL, "clusters": ALL},
    "resources.gardener.cloud": {"managedresources": ALL},
    "networking.k8s.io": {"networkpolicies": ALL, "ingresses": ALL},
    "policy": {"poddisruptionbudgets": ALL},
    "scheduling.k8s.io": {"priorityclasses": ALL},
    "machine.sapcloud.io": dict.fromkeys(
        ("machineclasses", "machinedeployments", "machinesets", "machines"), ALL - {"create", "deletecollection"}
    ),
    "monitoring.coreos.com": dict.fromkeys(
        ("prometheuses", "prometheusrules", "scrapeconfigs", "servicemonitors"), ALL - {"deletecollection"}
    ),
    "operator.victoriametrics.com": {"vlsingles": READ},
    "operator.gardener.cloud": {"gardens": READ},
    "networking.istio.io": dict.fromkeys(
        ("destinationrules", "envoyfilters", "gateways", "sidecars", "virtualservices"), ALL - {"deletecollection"}
    ),
}
"""Contract core 12.2: verbs by group and resource, or by resource and name of the only object."""

Right = tuple[str, str, str, str]
"""Group, resource, name of the only object or nothing, verb."""


def rights(rules: Iterable[Mapping[str, Any]]) -> Iterator[Right]:
    """Yield each right that rules give, except for paths that are no resources."""
    for rule in rules:
        for group in rule.get("apiGroups", ()):
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    yield from ((group, resource, name, verb) for verb in rule["verbs"])


def covers(given: set[Right], wanted: Right) -> bool:
    """Whether a right follows from others: a name's from that without a name, a resource's from that of all."""
    group, resource, name, verb = wanted
    return any((group, one, of, verb) in given for one in (resource, "*") for of in ("", name))


def rules_of(case: str, kind: str = "ClusterRole", namespace: str | None = None) -> list[Mapping[str, Any]]:
    """Return the rules of a rendered role."""
    found: list[Mapping[str, Any]] = named(objects_in(rendered(case)), kind, namespace=namespace)["rules"]
    return found


def pod_of(objects: Objects) -> dict[str, Any]:
    """Return what the Deployment makes Pods from."""
    found: dict[str, Any] = named(objects, "Deployment")["spec"]["template"]
    return found


def with_values(tmp_path: Path, values: str) -> Path:
    """Write values into a file."""
    path = tmp_path / "values.yaml"
    path.write_text(values)
    return path


def test_lint_finds_nothing() -> None:
    """`helm lint --strict` is content with the chart and each case's values."""
    for case in CASES:
        options = [option for path in values_of(case) for option in ("--values", str(path))]
        done = helm("lint", "--strict", CHART, *options)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_what_is_rendered_is_what_was_reviewed(case: str) -> None:
    """Each case's objects are those of its golden file; `python -m tests.support.chart` writes it anew, for a review."""
    assert rendered(case) == (GOLDEN / f"{case}.yaml").read_text()


def test_a_seed_must_be_named() -> None:
    """Without a seedConfig there is nothing to serve, and the chart says so."""
    done = helm("template", CHART, "--kube-version", "1.34.4")
    assert done.returncode != 0
    assert "at '/config': missing property 'seedConfig'" in done.stderr


def test_a_package_has_the_alerts_in_it(tmp_path: Path) -> None:
    """`helm package` makes one file that renders the same objects, alerts included, without this repository."""
    done = helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.iterdir()
    assert package.name == f"gardenlet-{VERSION.removeprefix('v')}.tgz"
    subprocess.run(["tar", "-xzf", package, "-C", tmp_path], check=True)
    alerts = yaml.safe_load((ROOT / "packaging/monitoring/alerts.yaml").read_text())
    assert yaml.safe_load((tmp_path / "gardenlet/files/alerts.yaml").read_text()) == alerts
    rule = named(objects_in(rendered("everything")), "PrometheusRule")
    assert rule["spec"]["groups"] == alerts["groups"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("config: {seedConfig: null}", "at '/config/seedConfig': got null, want object"),
        ("config: {seedConfig: {metadata: {name: ''}}}", "at '/config/seedConfig/metadata/name'"),
        ("replicaCount: two", "at '/replicaCount': got string, want integer"),
        ("replicas: 2", "additional properties 'replicas' not allowed"),
        ("rbac: {profile: none}", "at '/rbac/profile': value must be one of 'full', 'reduced'"),
        ("dnsConfig: {nameserver: x}", "at '/dnsConfig': additional properties 'nameserver' not allowed"),
        ("config: {gardenClientConnection: {kubeconfigSecret: null}}", "kubeconfigSecret': got null, want object"),
        ("config: {leaderElection: {leaseDuration: 15}}", "at '/config/leaderElection/leaseDuration'"),
        ("image: {pullPolicy: Sometimes}", "at '/image/pullPolicy': value must be one of"),
        ("prometheusRule: {groups: [others]}", "at '/prometheusRule/groups/0': value must be one of"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, values: str, said: str) -> None:
    """The schema refuses what cannot work, and says where it is."""
    files = [option for path in values_of("minimal") for option in ("--values", str(path))]
    done = helm("template", CHART, "--kube-version", "1.34.4", *files, "--values", with_values(tmp_path, values))
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("case", CASES)
def test_gardenlet_takes_its_configuration(case: str, tmp_path: Path) -> None:
    """Contract core 2, 13 W37: what the chart renders is a valid configuration without a key that gardenlet does not know."""
    text = configuration(objects_in(rendered(case)))
    config = load_config(Options(config=with_values(tmp_path, text), namespace="garden"), {})
    assert list(unknown_keys(yaml.safe_load(text), GardenletConfiguration)) == []
    assert config.seed_config is not None
    assert config.seed_config.metadata.name == "lab"
    if case == "everything":
        assert config.resources.reserved == {"shoots": 5}
        assert config.controllers.cache_sync_timeout.total_seconds() == 300
        assert config.etcd_config.backup_compaction_controller.events_threshold == 1_000_000


@pytest.mark.parametrize("case", ["minimal", "everything"])
def test_the_configuration_is_rendered_as_it_stands(case: str) -> None:
    """Contract core 13 W37: every key under `config` arrives, reserved resources and cacheSyncTimeout as all others."""
    expected: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    for path in values_of(case):
        expected = merged(expected, yaml.safe_load(path.read_text()).get("config") or {})
    head = {"apiVersion": "gardenlet.config.gardener.cloud/v1alpha1", "kind": "GardenletConfiguration"}
    expected.update(head, nodeToleration=dict.fromkeys(("defaultNotReadyTolerationSeconds",), 60))
    expected["nodeToleration"]["defaultUnreachableTolerationSeconds"] = 60
    if case == "everything":
        del expected["gardenClientConnection"]["bootstrapKubeconfig"]["kubeconfig"]
        expected["seedClientConnection"]["kubeconfig"] = "/etc/gardenlet/kubeconfig-seed/kubeconfig"
    assert yaml.safe_load(configuration(objects_in(rendered(case)))) == expected


def merged(base: Any, more: Any) -> Any:
    """Return values with other values on top, as Helm does it."""
    if not isinstance(base, dict) or not isinstance(more, dict):
        return copy.deepcopy(more)
    return {**base, **{key: merged(base.get(key), value) for key, value in more.items()}}


def test_rights_follow_the_configured_lease(tmp_path: Path) -> None:
    """Contract core 13 W37: with another lease's name in the configuration the rights are for that one; reduced, in its namespace only."""
    update = ("coordination.k8s.io", "leases", "another-lease", "update")
    assert update in set(rights(rules_of("everything")))
    assert not covers(set(rights(rules_of("everything"))), (*update[:2], "gardenlet-leader-election", "update"))
    election = "config: {leaderElection: {resourceName: another-lease, resourceNamespace: elsewhere}}"
    objects = objects_in(template(*values_of("reduced"), with_values(tmp_path, election)))
    given = set(rights(named(objects, "Role", namespace="elsewhere")["rules"]))
    assert given == {("coordination.k8s.io", "leases", "", verb) for verb in (*READ, "create")} | {update}
    assert not [one for one in rights(named(objects, "ClusterRole")["rules"]) if one[1] == "leases"]
    assert named(objects, "RoleBinding", namespace="elsewhere")["subjects"] == [
        {"kind": "ServiceAccount", "name": "gardenlet", "namespace": "garden"}
    ]


def test_pods_resolve_names_as_configured() -> None:
    """Contract core 13 W37: dnsConfig is the Pod's, where it has an effect."""
    spec = pod_of(objects_in(rendered("everything")))["spec"]
    assert spec["dnsConfig"] == {"nameservers": ["10.0.0.10"], "options": [{"name": "ndots", "value": "2"}]}
    assert "dnsConfig" not in spec["containers"][0]


def test_image_vectors_arrive() -> None:
    """Contract core 1.1, 13 W37: both are mounted where the environment says; a Gardenlet names the second as the garden's API does."""
    objects = objects_in(rendered("everything"))
    (container,) = pod_of(objects)["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    volumes = {one["name"]: one for one in pod_of(objects)["spec"]["volumes"]}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    given = yaml.safe_load(values_of("everything")[-1].read_text())
    for variable, value in (
        ("IMAGEVECTOR_OVERWRITE", "imageVectorOverwrite"),
        ("IMAGEVECTOR_OVERWRITE_COMPONENTS", "componentImageVectorOverwrites"),
    ):
        folder, _, file = str(environment[variable]).rpartition("/")
        content = named(objects, "ConfigMap", mounts[folder]["configMap"]["name"])["data"]
        assert content == {file: given[value]}
    held = named(objects, "ConfigMap", "gardenlet-selfupgrade-config")["data"]["gardenlet.yaml"]
    deployment = yaml.safe_load(held)["spec"]["deployment"]
    assert deployment["componentImageVectorOverwrite"] == given["componentImageVectorOverwrites"]
    assert deployment["imageVectorOverwrite"] == given["imageVectorOverwrite"]
    assert "componentImageVectorOverwrites" not in deployment


def test_full_rights_are_the_contracts() -> None:
    """Contract core 12.2: the ClusterRole has all that the lab gives a gardenlet, and no right that the contract does not list."""
    given = set(rights(rules_of("minimal")))
    assert [one for one in rights(RULES) if not covers(given, one)] == []
    assert [one for one in given if not listed(one)] == []
    paths = [rule for rule in rules_of("minimal") if "nonResourceURLs" in rule]
    assert paths == [{"nonResourceURLs": ["/healthz", "/version"], "verbs": ["get"]}]
    assert set(rights(rules_of("minimal", "Role", "garden"))) == {("apps", "daemonsets", "", "create")}


def listed(right: Right) -> bool:
    """Whether the contract lists a right, or a wider one."""
    group, resource, name, verb = right
    known = CONTRACT.get(group, {})
    return verb in known.get(resource, ()) or (bool(name) and verb in known.get(f"{resource} {name}", ()))


def test_reduced_rights_are_few() -> None:
    """Contract core 13 W42: no bind and escalate, Secrets of all namespaces are read and patched only, the rest where it is needed."""
    cluster = set(rights(rules_of("reduced")))
    assert {verb for group, resource, _, verb in cluster if resource == "secrets"} == READ | {"patch"}
    assert not {verb for *_, verb in cluster} & {"bind", "escalate", "deletecollection", "update"}
    assert {group for group, *_ in cluster}.isdisjoint({RBAC, "apps", "apiextensions.k8s.io", "coordination.k8s.io"})
    assert len(cluster) < len(set(rights(rules_of("minimal")))) / 5
    own = set(rights(rules_of("reduced", "Role", "garden")))
    secrets = {("gardenlet-kubeconfig", "delete"), ("gardenlet-kubeconfig-pending", "delete"), ("", "create")}
    secrets |= {("gardenlet-kubeconfig-bootstrap", "delete")}
    assert {(name, verb) for _, resource, name, verb in own if resource == "secrets"} == secrets
    everywhere = cluster | own | set(rights(rules_of("reduced", "Role", "kube-system")))
    assert [one for one in everywhere if not listed(one)] == []


def test_reduced_rights_shrink_with_what_is_off(tmp_path: Path) -> None:
    """Contract core 13 W42: a controller that another runs here leaves no right behind, and a gate that is off asks for none."""
    off = "rbac: {reduced: {networkPolicy: false, vpaEvictionRequirements: false, podGarbage: false}}"
    objects = objects_in(template(*values_of("reduced"), with_values(tmp_path, off)))
    left = set(rights(named(objects, "ClusterRole")["rules"]))
    gone = set(rights(rules_of("reduced"))) - left
    assert {resource for _, resource, *_ in gone} == {"networkpolicies", "clusters", "verticalpodautoscalers", "pods"}
    assert {(resource, verb) for _, resource, _, verb in left if resource == "pods"} == {("pods", "list")}
    gate = "config: {featureGates: {PrometheusHealthChecks: true}}"
    objects = objects_in(template(*values_of("reduced"), with_values(tmp_path, gate)))
    more = set(rights(named(objects, "ClusterRole")["rules"])) - set(rights(rules_of("reduced")))
    assert more == {("monitoring.coreos.com", "prometheuses", "", verb) for verb in READ}


def test_endpoint_slices_are_optional(tmp_path: Path) -> None:
    """Contract core 8, 13 W34: EndpointSlices may be listed and watched in `default`, unless that is switched off."""
    slices = {("discovery.k8s.io", "endpointslices", "", verb) for verb in ("list", "watch")}
    assert set(rights(rules_of("minimal", "Role", "default"))) == slices
    off = with_values(tmp_path, "rbac: {endpointSlices: false}")
    objects = objects_in(template(*values_of("minimal"), off))
    roles = [one["metadata"]["namespace"] for one in objects if one["kind"] == "Role"]
    assert roles == ["garden"]


def test_the_deployment_is_as_operators_know_it() -> None:
    """Contract core 12.3: names, labels, probes, security, spread and token of the Pods, and the files they read."""
    objects = objects_in(rendered("minimal"))
    deployment = named(objects, "Deployment", "gardenlet")
    assert deployment["spec"]["selector"]["matchLabels"] == {"app": "gardener", "role": "gardenlet"}
    assert deployment["metadata"]["labels"]["high-availability-config.resources.gardener.cloud/skip"] == "true"
    assert (deployment["spec"]["replicas"], deployment["spec"]["revisionHistoryLimit"]) == (2, 2)
    pod = deployment["spec"]["template"]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert container["args"] == ["--config=/etc/gardenlet/config/config.yaml"]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}
    assert fields == {"NAMESPACE": "metadata.namespace", "HOSTNAME": "metadata.name", "POD_UID": "metadata.uid"}
    probes = [container[f"{kind}Probe"] for kind in ("liveness", "readiness")]
    assert [one["httpGet"]["path"] for one in probes] == ["/healthz", "/readyz"]
    assert [(one["initialDelaySeconds"], one["timeoutSeconds"]) for one in probes] == [(15, 5), (10, 5)]
    assert {one["name"]: one["containerPort"] for one in container["ports"]} == {"health": 2728, "metrics": 2729}
    assert "startupProbe" not in container
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"] == {
        **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532),
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("gardener-system-critical", 30)
    volumes = {one["name"]: one for one in spec["volumes"]}
    (token, *_) = volumes["kube-api-access"]["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 43200}}
    assert (spec["automountServiceAccountToken"], spec["serviceAccountName"]) == (False, "gardenlet")
    assert named(objects, "PriorityClass")["value"] == 999998950
    budget = named(objects, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_pods_are_spread() -> None:
    """Contract core 12.3: over nodes if possible, and over zones by all means where the seed has several."""
    (nodes,) = pod_of(objects_in(rendered("minimal")))["spec"]["topologySpreadConstraints"]
    assert (nodes["topologyKey"], nodes["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    _, zones = pod_of(objects_in(rendered("everything")))["spec"]["topologySpreadConstraints"]
    assert (zones["whenUnsatisfiable"], zones["minDomains"]) == ("DoNotSchedule", 2)
    assert zones["matchLabelKeys"] == ["pod-template-hash"]


@pytest.mark.parametrize(
    "changed",
    [
        "config: {logLevel: debug}",
        "image: {tag: other}",
        "imageVectorOverwrite: other",
        "config: {seedClientConnection: {kubeconfig: other}}",
    ],
)
def test_pods_are_replaced_for_what_they_read(changed: str, tmp_path: Path) -> None:
    """Contract core 12.3: another configuration, kubeconfig, image or image vector makes other Pods; objects that are mounted never change."""
    before = objects_in(rendered("minimal"))
    after = objects_in(template(*values_of("minimal"), with_values(tmp_path, changed)))
    assert pod_of(before)["metadata"]["annotations"] != pod_of(after)["metadata"]["annotations"]
    contents: dict[tuple[str, str], Any] = {}
    for one in (*before, *after):
        if one.get("immutable"):
            held = one.get("data") or one["stringData"]
            assert contents.setdefault((one["kind"], one["metadata"]["name"]), held) == held
            key = "resources.gardener.cloud/garbage-collectable-reference"
            assert one["metadata"]["labels"][key] == "true"
    used = {
        value
        for key, value in pod_of(after)["metadata"]["annotations"].items()
        if key.startswith("reference.resources.gardener.cloud/")
    }
    assert used == {one["metadata"]["name"] for one in after if one.get("immutable")}


def test_optional_kinds_only_where_they_exist() -> None:
    """Contract core 12.3: ServiceMonitor, PrometheusRule and VerticalPodAutoscaler are rendered for clusters that know them."""
    kinds = {kind.rpartition("/")[2] for kind in OPTIONAL_KINDS}
    assert kinds <= {one["kind"] for one in objects_in(rendered("everything"))}
    assert kinds.isdisjoint({one["kind"] for one in objects_in(rendered("minimal"))})


def test_cluster_wide_names_can_be_isolated() -> None:
    """Contract core 12.2: with isolateClusterResources they end with the namespace, and there is no PriorityClass."""
    objects = objects_in(rendered("everything"))
    assert named(objects, "ClusterRole")["metadata"]["name"] == "gardener.cloud:system:gardenlet:garden"
    assert "PriorityClass" not in {one["kind"] for one in objects}


def test_versions_are_ours() -> None:
    """Chart and program have one version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION.removeprefix("v"),) * 2
