"""What a Gardener API server does to objects that are written, and what SeedRestriction refuses: counterparts 15.4, 17.2.

`labels` are those that Gardener's registry and its plugins add: without them a gardenlet does not see its own Seed.
"""

import base64
from collections.abc import Mapping
from typing import Any

from tests.lab.garden.approval import requested_seed
from tests.lab.garden.identity import LEASE_NAMESPACE, SEEDS_GROUP, is_seed_label, label_of, seed_of

_PROVIDER, _REGION = "seed.gardener.cloud/provider", "seed.gardener.cloud/region"


def labelled(kind: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that an object of a kind gets: those that it has, with ours recomputed."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    kept = {key: value for key, value in (metadata.get("labels") or {}).items() if not is_seed_label(key)}
    seeds = [spec.get("seedName"), status.get("seedName")] if kind in {"Shoot", "BackupEntry"} else []
    if kind == "Seed":
        seeds = [metadata["name"]]
        provider = spec.get("provider") or {}
        kept |= {key: provider[name] for key, name in ((_PROVIDER, "type"), (_REGION, "region")) if provider.get(name)}
    return kept | {label_of(seed): "true" for seed in seeds if seed}


def json_patch(kind: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON patch that gives an object its labels; empty if it has them."""
    labels = labelled(kind, document)
    if labels == (document["metadata"].get("labels") or {}):
        return []
    return [{"op": "add", "path": "/metadata/labels", "value": labels}]


def refusal(request: Mapping[str, Any]) -> str | None:
    """Return why SeedRestriction refuses a request (the `request` of an AdmissionReview); None if it does not."""
    user = request["userInfo"]
    seed = seed_of(user.get("username", ""), tuple(user.get("groups") or ()))
    if seed is None or request["operation"] != "CREATE":
        return None
    document, resource = request["object"], request["resource"]["resource"]
    namespace, name = request.get("namespace", ""), request.get("name") or document["metadata"].get("name", "")
    own = {
        "backupbuckets": _seed_name(document) == seed,
        "backupentries": _seed_name(document) == seed,
        "bastions": _seed_name(document) == seed,
        "gardenlets": (namespace, name) == ("garden", seed),
        "leases": (namespace, name) == (LEASE_NAMESPACE, seed) or name == "gardenlet-leader-election",
        "seeds": name == seed,
        "serviceaccounts": namespace == f"seed-{seed}",
    }
    if resource == "certificatesigningrequests":
        own[resource] = requested_seed(document) == seed
    return None if own.get(resource, False) else f"{resource} {namespace}/{name} is not for seed {seed} to create"


def _seed_name(document: Mapping[str, Any]) -> str:
    return str((document.get("spec") or {}).get("seedName", ""))


def answer(review: Mapping[str, Any], *, refused: str | None = None, patch: bytes = b"") -> dict[str, Any]:
    """Return an AdmissionReview with its response."""
    response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": refused is None}
    if refused is not None:
        response["status"] = {"code": 403, "message": refused}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def configurations(url: str, ca: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the webhook configurations as (collection, object).

    Args:
        url: of the process that answers, without a path.
        ca: PEM.
    """
    api = "/apis/admissionregistration.k8s.io/v1"
    bundle = base64.b64encode(ca).decode()
    common = {
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
    }

    def hook(name: str, path: str, rules: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        client = {"url": url + path, "caBundle": bundle}
        return {"name": f"{name}.lab.internal", "clientConfig": client, "rules": rules, **common, **more}

    seeds = [{"name": "seeds", "expression": f"'{SEEDS_GROUP}' in request.userInfo.groups"}]
    mutating = hook("labels", LABELS_PATH, [_rule("core.gardener.cloud", ["seeds", "shoots", "backupentries"])])
    restricted = [
        _rule("core.gardener.cloud", ["backupbuckets", "backupentries", "seeds"], "CREATE"),
        _rule("operations.gardener.cloud", ["bastions"], "CREATE"),
        _rule("certificates.k8s.io", ["certificatesigningrequests"], "CREATE"),
        _rule("rbac.authorization.k8s.io", ["clusterrolebindings"], "CREATE"),
        _rule("coordination.k8s.io", ["leases"], "CREATE"),
        _rule("", ["configmaps", "secrets", "serviceaccounts"], "CREATE"),
    ]
    restriction = hook("seed-restriction", RESTRICTION_PATH, restricted, matchConditions=seeds)
    return [
        (f"{api}/mutatingwebhookconfigurations", {"metadata": {"name": "lab-labels"}, "webhooks": [mutating]}),
        (
            f"{api}/validatingwebhookconfigurations",
            {"metadata": {"name": "lab-seed-restriction"}, "webhooks": [restriction]},
        ),
    ]


LABELS_PATH = "/webhooks/labels"
RESTRICTION_PATH = "/webhooks/admission/seedrestriction"


def _rule(group: str, resources: list[str], *operations: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "resources": resources,
        "operations": list(operations) or ["CREATE", "UPDATE"],
    }
