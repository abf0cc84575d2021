"""What gardenlet may do in its seed: the enumerated role that a real installation has, and nothing besides.

Only what this gardenlet's controllers have to do with is listed; contract core 12.2 has the rest. What looks strange is how it really is:
pods cannot be read one at a time, the leader's lease is renewed by PUT and only under its usual name.
"""

from typing import Any

ROLE = "gardener.cloud:system:gardenlet"
USER = "system:serviceaccount:garden:gardenlet"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:garden")
LEADER_LEASE = "gardenlet-leader-election"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_READ = ["get", "list", "watch"]
_ALL = [*_READ, "create", "delete", "deletecollection", "patch", "update"]


def _rule(group: str, resources: list[str], verbs: list[str], **more: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs, **more}


RULES = [
    _rule("", ["nodes"], ["list", "watch"]),
    _rule("", ["pods"], ["list", "watch", "delete", "deletecollection"]),
    _rule("", ["configmaps", "namespaces", "secrets", "serviceaccounts", "services"], _ALL),
    _rule("", ["endpoints", "persistentvolumes"], _READ),
    _rule("", ["events"], ["get", "list", "create", "patch", "update"]),
    _rule("coordination.k8s.io", ["leases"], [*_READ, "create"]),
    _rule("coordination.k8s.io", ["leases"], ["update"], resourceNames=[LEADER_LEASE]),
    _rule("apiextensions.k8s.io", ["customresourcedefinitions"], [*_READ, "create", "patch", "update"]),
    _rule("networking.k8s.io", ["networkpolicies", "ingresses"], _ALL),
    _rule("autoscaling.k8s.io", ["verticalpodautoscalers"], _ALL),
    _rule("extensions.gardener.cloud", ["*"], _ALL),
    _rule("resources.gardener.cloud", ["managedresources"], _ALL),
    _rule("operator.gardener.cloud", ["gardens"], _READ),
    {"nonResourceURLs": ["/healthz", "/version"], "verbs": ["get"]},
]


def seed_permissions() -> list[tuple[str, dict[str, Any]]]:
    """Return the role and its binding, each with the path that it is created at."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE}
    return [
        (f"{_RBAC}/clusterroles", {"metadata": {"name": ROLE}, "rules": RULES}),
        (
            f"{_RBAC}/clusterrolebindings",
            {"metadata": {"name": ROLE}, "roleRef": reference, "subjects": [subject]},
        ),
    ]
