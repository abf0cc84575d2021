"""The Seed that a configuration describes."""

from copy import deepcopy
from typing import Any

import pytest

from gardenlet.seed_template import ip_families, validate_seed_template, validate_seed_template_update

CREDENTIALS = {"apiVersion": "v1", "kind": "Secret", "name": "dns", "namespace": "garden"}
DNS = {"type": "aws", "domain": "internal.example.org", "credentialsRef": CREDENTIALS}
GOOD: dict[str, Any] = {
    "metadata": {"name": "s", "labels": {"a": "b"}, "annotations": {"a/b": "any text"}},
    "spec": {
        "provider": {"type": "aws", "region": "r", "zones": ["a", "b"]},
        "networks": {
            "pods": "10.96.0.0/11",
            "services": "10.243.0.0/16",
            "nodes": "10.250.0.0/16",
            "shootDefaults": {"pods": "10.96.0.0/11", "services": "100.64.0.0/13"},
        },
        "backup": {"provider": "gcp", "region": "r", "credentialsRef": CREDENTIALS},
        "taints": [{"key": "a"}, {"key": "a", "value": "b"}],
        "volume": {"minimumSize": "20Gi", "providers": [{"purpose": "etcd", "name": "x"}]},
        "settings": {
            "loadBalancerServices": {
                "class": "example.org/lb",
                "externalTrafficPolicy": "Local",
                "zones": [{"name": "a", "externalTrafficPolicy": "Cluster"}],
            },
            "zoneSelection": {"mode": "Prefer"},
            "topologyAwareRouting": {"enabled": True},
        },
        "ingress": {"domain": "ingress.example.org", "controller": {"kind": "nginx"}},
        "dns": {"provider": {"type": "aws", "credentialsRef": CREDENTIALS}, "internal": DNS, "defaults": [{**DNS}]},
        "unknown": {"kept": True},
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the good template with one value changed; None removes it."""
    result = deepcopy(GOOD)
    *parents, last = path.split(".")
    target: Any = result
    for key in parents:
        target = target.setdefault(key, {})
    if value is None:
        del target[last]
    else:
        target[last] = value
    return result


def paths(template: dict[str, Any]) -> list[str]:
    """Return the paths of the problems."""
    return [problem.split(": ")[0] for problem in validate_seed_template(template, "seedConfig")]


def test_good_templates() -> None:
    """Contract core 2.1: a template may lack provider, networks and ingress; only the internal DNS domain is required."""
    assert paths(GOOD) == []
    assert paths({"metadata": {"name": "s"}, "spec": {"dns": {"internal": DNS}}}) == []
    identity = {**CREDENTIALS, "apiVersion": "security.gardener.cloud/v1alpha1", "kind": "WorkloadIdentity"}
    assert paths(changed("spec.backup.credentialsRef", identity)) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("metadata.labels", {"a b": "c"}, ["seedConfig.metadata.labels.a b"]),
        ("metadata.labels", {"a": "c d"}, ["seedConfig.metadata.labels.a"]),
        ("metadata.annotations", {"-": "c"}, ["seedConfig.metadata.annotations.-"]),
        ("spec.provider.zones", ["a", "b", "a"], ["seedConfig.spec.provider.zones[2]"]),
        ("spec.networks.ipFamilies", ["IPv5"], ["seedConfig.spec.networks.ipFamilies[0]"]),
        ("spec.networks.ipFamilies", ["IPv4", "IPv4"], ["seedConfig.spec.networks.ipFamilies[1]"]),
        ("spec.networks.pods", "10.0.0.0", ["seedConfig.spec.networks.pods"]),
        ("spec.networks.pods", "10.0.0.0/33", ["seedConfig.spec.networks.pods"]),
        ("spec.networks.pods", "2001:db8::/64", ["seedConfig.spec.networks.pods"]),
        ("spec.networks.services", "8.0.0.0/7", ["seedConfig.spec.networks.services"]),
        ("spec.networks.services", "10.250.0.0/24", ["seedConfig.spec.networks.nodes"]),
        ("spec.networks.nodes", "241.0.0.0/16", ["seedConfig.spec.networks.nodes"]),
        ("spec.networks.shootDefaults.services", "10.100.0.0/16", ["seedConfig.spec.networks.shootDefaults.services"]),
        ("spec.backup.provider", "", ["seedConfig.spec.backup.provider"]),
        ("spec.backup.region", "", ["seedConfig.spec.backup.region"]),
        ("spec.backup.credentialsRef", None, ["seedConfig.spec.backup.credentialsRef"]),
        (
            "spec.backup.credentialsRef",
            {"apiVersion": "v1", "kind": "ConfigMap"},
            [
                "seedConfig.spec.backup.credentialsRef.name",
                "seedConfig.spec.backup.credentialsRef.namespace",
                "seedConfig.spec.backup.credentialsRef",
            ],
        ),
        (
            "spec.taints",
            [{"key": ""}, {"key": "a"}, {"key": "a"}],
            ["seedConfig.spec.taints[0].key", "seedConfig.spec.taints[2]"],
        ),
        ("spec.volume.minimumSize", "big", ["seedConfig.spec.volume.minimumSize"]),
        ("spec.volume.minimumSize", "-1", ["seedConfig.spec.volume.minimumSize"]),
        (
            "spec.volume.providers",
            [{"purpose": "p", "name": "n"}, {"purpose": "p"}],
            ["seedConfig.spec.volume.providers[1].name", "seedConfig.spec.volume.providers[1].purpose"],
        ),
        (
            "spec.settings.loadBalancerServices",
            {"class": "a b", "externalTrafficPolicy": "All", "annotations": {"a b": ""}, "zones": [{"name": "c"}]},
            [
                "seedConfig.spec.settings.loadBalancerServices.annotations.a b",
                "seedConfig.spec.settings.loadBalancerServices.externalTrafficPolicy",
                "seedConfig.spec.settings.loadBalancerServices.class",
                "seedConfig.spec.settings.loadBalancerServices.zones[0].name",
            ],
        ),
        (
            "spec.provider.zones",
            ["a"],
            [
                "seedConfig.spec.settings.loadBalancerServices.zones",
                "seedConfig.spec.settings.topologyAwareRouting.enabled",
            ],
        ),
        (
            "spec.provider.zones",
            None,
            [
                "seedConfig.spec.settings.loadBalancerServices.zones",
                "seedConfig.spec.settings.loadBalancerServices.zones[0].name",
                "seedConfig.spec.settings.zoneSelection",
                "seedConfig.spec.settings.topologyAwareRouting.enabled",
            ],
        ),
        ("spec.settings.zoneSelection.mode", "Any", ["seedConfig.spec.settings.zoneSelection.mode"]),
        ("spec.ingress.domain", "", ["seedConfig.spec.ingress.domain"]),
        ("spec.ingress.domain", "Example", ["seedConfig.spec.ingress.domain"]),
        ("spec.ingress.controller.kind", "other", ["seedConfig.spec.ingress.controller.kind"]),
        ("spec.dns.provider", None, ["seedConfig.spec.dns.provider"]),
        ("spec.dns.provider.type", "", ["seedConfig.spec.dns.provider.type"]),
        ("spec.dns.internal", None, ["seedConfig.spec.dns.internal"]),
        ("spec.dns.internal.domain", "", ["seedConfig.spec.dns.internal.domain"]),
        ("spec.dns.defaults", [DNS, DNS], ["seedConfig.spec.dns.defaults[1].domain"]),
        ("spec.networks", 5, ["seedConfig.spec.networks"]),
        ("spec.taints", [{"key": 5}], ["seedConfig.spec.taints[0].key"]),
    ],
)
def test_each_rule_is_reported_with_its_path(path: str, value: object, expected: list[str]) -> None:
    """Contract core 2.1: labels, annotations and the spec are validated as a Seed's in template mode."""
    assert paths(changed(path, value)) == expected


def test_dual_stack_networks() -> None:
    """Contract core 2.1: with two IP families networks of both are accepted; IPv6 defaults of shoots must not overlap."""
    networks: dict[str, Any] = {"ipFamilies": ["IPv4", "IPv6"], "pods": "2001:db8::/64", "services": "10.0.0.0/16"}
    assert paths(changed("spec.networks", networks)) == []
    networks["shootDefaults"] = {"pods": "2001:db8::/80"}
    assert paths(changed("spec.networks", networks)) == ["seedConfig.spec.networks.shootDefaults.pods"]
    assert paths(changed("spec.networks", {"ipFamilies": ["IPv6"], "pods": "2001:db8::/64"})) == []


@pytest.mark.parametrize(
    ("networks", "families"),
    [
        ({}, ("IPv4",)),
        ({"pods": "10.0.0.0/16"}, ("IPv4",)),
        ({"pods": "2001:db8::/64"}, ("IPv6",)),
        ({"nodes": "2001:db8::/64", "services": "10.0.0.0/16"}, ("IPv6", "IPv4")),
        ({"ipFamilies": ["IPv6"], "pods": "10.0.0.0/16"}, ("IPv6",)),
        ({"pods": "torn"}, ("IPv4",)),
    ],
)
def test_ip_families_are_derived(networks: dict[str, Any], families: tuple[str, ...]) -> None:
    """Contract core 2.1, 13 W32: absent ipFamilies follow from the networks, for our own use."""
    assert ip_families({"networks": networks}) == families


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.networks.pods", "10.0.0.0/16", ["networks.pods"]),
        ("spec.networks.services", "10.0.0.0/16", ["networks.services"]),
        ("spec.networks.nodes", "10.0.0.0/16", ["networks.nodes"]),
        ("spec.networks.ipFamilies", ["IPv6"], ["networks.ipFamilies"]),
        ("spec.ingress.domain", "other.example.org", ["ingress.domain"]),
        ("spec.ingress", None, []),
        ("spec.backup.provider", "azure", ["backup.provider"]),
        ("spec.backup.region", "other", ["backup.region"]),
        ("spec.backup", None, ["backup"]),
        ("spec.dns.defaults", None, ["dns.defaults"]),
        ("spec.provider.zones", ["c"], []),
    ],
)
def test_what_must_not_change(path: str, value: object, expected: list[str]) -> None:
    """Contract core 2.1: an update of an embedded configuration must not change what a Seed cannot follow."""
    found = [
        problem.split(":")[0] for problem in validate_seed_template_update(changed(path, value), GOOD, "seedConfig")
    ]
    assert found == [f"seedConfig.spec.{name}" for name in expected]


def test_nodes_may_be_set_later() -> None:
    """Contract core 2.1: the nodes' network is immutable once it is set."""
    assert list(validate_seed_template_update(GOOD, changed("spec.networks.nodes", None), "seedConfig")) == []
