"""SeedAuthorizer without its graph: counterparts contract, 15.1 and 15.2, hardened.

Where the real one looks for a path from the object to the Seed, this one has two kinds of answers: objects that are the
seed's by their name (its namespace, Lease, CSR, bootstrap material), and objects whose `spec.seedName` or label says so. A third kind
are workload identities: those that the Seed itself refers to. The way over a Shoot's CredentialsBinding is missing, like Shoots.
Selectors are taken literally: only an equality on the exact key counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.lab.counterparts.authorization import ALLOW, Decision, Effect, Review
from tests.lab.garden.approval import requested_seed
from tests.lab.garden.crds import GARDEN, SEEDS
from tests.lab.garden.identity import LEASE_NAMESPACE, SEEDS_GROUP, bootstrap_token_id, label_of, seed_of

CONDITION = f"'{SEEDS_GROUP}' in request.groups"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Attributes:
        always: verbs that are allowed to every gardenlet.
        related: verbs that need a relation to the seed, or a selector for list and watch.
        subresources: of the resource.
        labels: whether a list may be selected by the seed's label.
        fields: fields by which a list may be selected; each must be the seed's name.
        own: whether an object is the seed's by its namespace and name.
        by_object: whether the object itself is looked at.
        by_seed: whether the Seed is looked at instead, for a reference to the object.
    """

    always: str = ""
    related: str = ""
    subresources: tuple[str, ...] = ("",)
    labels: bool = False
    fields: tuple[str, ...] = ()
    own: Callable[[Review, str], bool] = lambda _review, _seed: False
    by_object: bool = False
    by_seed: bool = False


def needs_object(review: Review) -> bool:
    """Tell whether an object has to be read to decide."""
    rule = _rule(review)
    looks = rule is not None and (rule.by_object or rule.by_seed)
    return looks and bool(review.name) and rule is not None and review.verb in rule.related.split()


def object_path(review: Review) -> str:
    """Return the path of the object that is to be read."""
    rule = _rule(review)
    if rule is not None and rule.by_seed:
        return f"{SEEDS.collection}/{seed_of(review.user, review.groups)}"
    resource, _, group = review.resource.partition(".")
    version = _VERSIONS.get(group, "v1")
    root = f"/apis/{group}/{version}" if group else "/api/v1"
    namespace = f"/namespaces/{review.namespace}" if review.namespace else ""
    return f"{root}{namespace}/{resource}/{review.name}"


def decide(review: Review, found: Mapping[str, Any] | None) -> Decision:
    """Answer a review; `found` is the object, where `needs_object` asked for it."""
    seed = seed_of(review.user, review.groups)
    if seed is None:
        return Decision(Effect.NO_OPINION, "not a gardenlet")
    rule = _rule(review)
    if rule is None:
        return _none(f"resource {review.resource or 'URL'} is not for gardenlets")
    if review.subresource not in rule.subresources:
        return _none(f"subresource {review.subresource} of {review.resource} is not for gardenlets")
    if review.verb in rule.always.split() or rule.own(review, seed):
        return ALLOW
    if review.verb not in rule.related.split():
        return _none(f"verb {review.verb} on {review.resource} is not for gardenlets")
    if review.verb in {"list", "watch"} and not review.name:
        return ALLOW if _selected(rule, review, seed) else _none(f"{review.resource} are listed with a selector")
    if rule.by_object and (found is None or _belongs(found, seed)):
        return ALLOW
    if rule.by_seed and found is not None and _refers(found, review):
        return ALLOW
    return _none(f"{review.resource} {review.namespace}/{review.name or '(all)'} is not related to seed {seed}")


def _rule(review: Review) -> Rule | None:
    return _RULES.get(f"{review.resource}/{review.subresource}") or _RULES.get(review.resource)


def _none(reason: str) -> Decision:
    return Decision(Effect.NO_OPINION, reason)


def _selected(rule: Rule, review: Review, seed: str) -> bool:
    if rule.labels and review.labels.get(label_of(seed)) == "true":
        return True
    return any(review.fields.get(field) == seed for field in rule.fields)


def _belongs(found: Mapping[str, Any], seed: str) -> bool:
    """Tell whether an object says that it is the seed's."""
    if found.get("kind") == "CertificateSigningRequest":
        return requested_seed(found) == seed
    metadata, spec, status = found.get("metadata") or {}, found.get("spec") or {}, found.get("status") or {}
    if (metadata.get("labels") or {}).get(label_of(seed)) == "true":
        return True
    names = (spec.get("seedName"), status.get("seedName"), (spec.get("seedRef") or {}).get("name"))
    return seed in names


def _refers(seed: Mapping[str, Any], review: Review) -> bool:
    """Tell whether a Seed names a WorkloadIdentity: for its backup, for DNS, or among its resources, which are in `garden`."""
    spec = seed.get("spec") or {}
    dns = spec.get("dns") or {}
    users = [spec.get("backup"), dns.get("provider"), dns.get("internal"), *(dns.get("defaults") or ())]
    references = [(user or {}).get("credentialsRef") or {} for user in users]
    resources = [(one.get("resourceRef") or {}) | {"namespace": "garden"} for one in spec.get("resources") or ()]
    wanted = ("WorkloadIdentity", review.namespace, review.name)
    return any((one.get("kind"), one.get("namespace"), one.get("name")) == wanted for one in references + resources)


def _own_secret(review: Review, seed: str) -> bool:
    if review.namespace == f"seed-{seed}":
        return review.verb in {"get", "list", "watch"}
    own_token = review.namespace == "kube-system" and review.name == f"bootstrap-token-{bootstrap_token_id(seed)}"
    return own_token and review.verb == "delete"


def _own_service_account(review: Review, seed: str) -> bool:
    if review.namespace == f"seed-{seed}":
        return True
    own = review.namespace == "garden" and review.name == f"gardenlet-bootstrap-{seed}"
    return own and review.verb == "delete"


def _own_binding(review: Review, seed: str) -> bool:
    name = f"gardener.cloud:system:seed-bootstrapper:garden:gardenlet-bootstrap-{seed}"
    return review.verb == "delete" and review.name == name


def _own_config_map(review: Review, _seed: str) -> bool:
    where = (review.namespace, review.name)
    public = {("gardener-system-public", "gardener-info"), ("kube-system", "cluster-identity")}
    return review.verb in {"get", "list", "watch"} and where in public


def _own_lease(review: Review, seed: str) -> bool:
    return (review.namespace, review.name) == (LEASE_NAMESPACE, seed) and review.verb != "delete"


def _own_namespace(review: Review, seed: str) -> bool:
    return review.name == f"seed-{seed}" and review.verb in {"get", "list", "watch"}


def _own_seed(review: Review, seed: str) -> bool:
    return review.name == seed and review.verb in {"get", "list", "watch", "update", "patch", "delete"}


_VERSIONS = {kind.group: kind.version for kind in reversed(GARDEN)}
_CORE, _MANAGEMENT = "core.gardener.cloud", "seedmanagement.gardener.cloud"
_RULES = {
    f"seeds.{_CORE}": Rule("create", "get list watch update patch", ("", "status"), labels=True, own=_own_seed),
    f"shoots.{_CORE}": Rule(
        "", "get list watch update patch", ("", "status", "finalizers"), labels=True, by_object=True
    ),
    f"managedseeds.{_MANAGEMENT}": Rule("", "get list watch update patch", ("", "status"), labels=True, by_object=True),
    f"gardenlets.{_MANAGEMENT}": Rule(
        "create",
        "get list watch update patch",
        ("", "status"),
        fields=("metadata.name",),
        own=lambda review, seed: review.namespace == "garden" and review.name == seed and review.verb != "delete",
    ),
    f"controllerinstallations.{_CORE}": Rule(
        "", "get list watch update patch", ("", "status"), fields=("spec.seedRef.name",), by_object=True
    ),
    f"controllerregistrations.{_CORE}": Rule("get list watch"),
    f"backupbuckets.{_CORE}": Rule(
        "create get list watch", "update patch delete", ("", "status", "finalizers"), by_object=True
    ),
    f"backupentries.{_CORE}": Rule("create get list watch", "update patch delete", ("", "status"), by_object=True),
    "bastions.operations.gardener.cloud": Rule(
        "create", "get list watch update patch", ("", "status"), fields=("spec.seedName",), by_object=True
    ),
    "certificatesigningrequests.certificates.k8s.io": Rule("create", "get", ("", "seedclient"), by_object=True),
    "clusterrolebindings.rbac.authorization.k8s.io": Rule("create", own=_own_binding),
    "configmaps": Rule("create", own=_own_config_map),
    "events": Rule("create patch"),
    "events.events.k8s.io": Rule("create patch"),
    "leases.coordination.k8s.io": Rule("create", own=_own_lease),
    "namespaces": Rule(own=_own_namespace),
    "secrets": Rule("create", own=_own_secret),
    "serviceaccounts": Rule("create", own=_own_service_account, subresources=("", "token")),
    "workloadidentities.security.gardener.cloud": Rule("", "get list watch", by_seed=True),
    "workloadidentities.security.gardener.cloud/token": Rule("", "create", ("token",), by_seed=True),
}
