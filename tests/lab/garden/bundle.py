"""Objects that a garden and a seed have before any gardenlet comes: counterparts contract, 17.3 and 4."""

from collections.abc import Mapping
from typing import Any

from tests.lab.garden.identity import SEEDS_GROUP
from tests.lab.garden.permissions import seed_permissions

Object = tuple[str, dict[str, Any]]
"""A collection's path, and what is created there."""

GARDEN_IDENTITY = "lab-garden"
_RBAC = "rbac.authorization.k8s.io"
_ROLES = f"/apis/{_RBAC}/v1"
_READABLE = {
    "kube-system": ["cluster-identity"],
    "gardener-system-public": ["gardener-info", "kube-root-ca.crt"],
}


def garden_objects(version: str) -> list[Object]:
    """Return what a garden has.

    Args:
        version: of Gardener, as its API server says it (`v1.150.0`).
    """
    namespaces = ("garden", "gardener-system-public", "gardener-system-seed-lease", "gardener-system-shoot-issuer")
    info = f"version: {version}\nworkloadIdentityIssuerURL: https://issuer.lab.internal\n"
    return [
        *(("/api/v1/namespaces", {"metadata": {"name": name}}) for name in namespaces),
        _config_map("gardener-system-public", "gardener-info", {"gardenerAPIServer": info}),
        _config_map("kube-system", "cluster-identity", {"cluster-identity": GARDEN_IDENTITY}),
        *(part for namespace, names in _READABLE.items() for part in _readers(namespace, names)),
        *_bootstrappers(),
        *_reviewers(),
    ]


def seed_objects() -> list[Object]:
    """Return what a seed has: the namespace of gardenlet, and what gardenlet may do."""
    return [("/api/v1/namespaces", {"metadata": {"name": "garden"}}), *seed_permissions()]


def _config_map(namespace: str, name: str, data: Mapping[str, str]) -> Object:
    return f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}, "data": dict(data)}


def _readers(namespace: str, names: list[str]) -> list[Object]:
    """Let everybody who is known read some ConfigMaps."""
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": names, "verbs": ["get", "list", "watch"]}
    role = {"metadata": {"name": "lab:public"}, "rules": [rule]}
    return [
        (f"{_ROLES}/namespaces/{namespace}/roles", role),
        (f"{_ROLES}/namespaces/{namespace}/rolebindings", _binding("lab:public", "Role", "system:authenticated")),
    ]


def _bootstrappers() -> list[Object]:
    """Let bootstrap tokens ask for the certificates of seeds; contract 4."""
    name = "gardener.cloud:system:seed-bootstrapper"
    requests = "certificatesigningrequests"
    rules = [
        {"apiGroups": ["certificates.k8s.io"], "resources": [requests], "verbs": ["create", "get"]},
        {
            "apiGroups": ["certificates.k8s.io"],
            "resources": [f"{requests}/seedclient", f"{requests}/shootclient"],
            "verbs": ["create"],
        },
    ]
    return [
        (f"{_ROLES}/clusterroles", {"metadata": {"name": name}, "rules": rules}),
        (f"{_ROLES}/clusterrolebindings", _binding(name, "ClusterRole", "system:bootstrappers")),
    ]


def _reviewers() -> list[Object]:
    """Let everybody who is known have tokens reviewed."""
    name = "lab:token-reviewers"
    rule = {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    return [
        (f"{_ROLES}/clusterroles", {"metadata": {"name": name}, "rules": [rule]}),
        (f"{_ROLES}/clusterrolebindings", _binding(name, "ClusterRole", SEEDS_GROUP)),
    ]


def _binding(name: str, kind: str, group: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
    }
