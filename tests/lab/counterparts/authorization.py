"""Decision table of the node-agent-authorizer for nodes without a Machine object: counterparts contract, section 14.

Whatever is not listed is denied, not left open: the authorizer is the last in the chain, and it sees only requests of
node agents that RBAC did not allow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

GROUP = "gardener.cloud:node-agents"
USER_PREFIX = "gardener.cloud:node-agent:machine:"
SECRET_NAME_LABEL = "worker.gardener.cloud/gardener-node-agent-secret-name"
POOL_LABEL = "worker.gardener.cloud/pool"
HOSTNAME_LABEL = "kubernetes.io/hostname"
NAMESPACE = "kube-system"
ALWAYS_READABLE_SECRETS = frozenset(
    {
        "gardener-valitail",
        "gardener-opentelemetry-collector",
        "shoot-access-kube-controller-manager",
        "shoot-access-kube-scheduler",
        "shoot-access-cluster-admin",
    }
)


class Effect(Enum):
    """What is answered."""

    ALLOW = "allow"
    DENY = "deny"
    NO_OPINION = "no opinion"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer and why; the reason of an error is `<code> <text>`."""

    effect: Effect
    reason: str = ""


ALLOW = Decision(Effect.ALLOW)


@dataclass(frozen=True, slots=True)
class Review:
    """What a SubjectAccessReview asks.

    Attributes:
        user: user name.
        groups: its groups.
        resource: `resource.group`, the plain resource for the core group; empty for a non-resource URL.
        subresource: empty if there is none.
        verb: get, list, watch, create, update, patch, delete, deletecollection.
        namespace: empty for what has none.
        name: of the object, or of a list restricted to it; may be empty.
        fields: field selector, as far as it is made of equalities.
        labels: label selector, likewise.
    """

    user: str
    groups: tuple[str, ...]
    resource: str
    verb: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, review: Mapping[str, Any]) -> "Review":
        """Read a SubjectAccessReview, v1 or v1beta1 (which differ in the key for groups)."""
        spec = review.get("spec") or {}
        about = spec.get("resourceAttributes") or {}
        resource, group = about.get("resource", ""), about.get("group", "")
        return cls(
            user=spec.get("user", ""),
            groups=tuple(spec.get("groups") or spec.get("group") or ()),
            resource=f"{resource}.{group}" if group else resource,
            verb=about.get("verb", "") or (spec.get("nonResourceAttributes") or {}).get("verb", ""),
            subresource=about.get("subresource", ""),
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
            fields=_equalities(about.get("fieldSelector") or {}),
            labels=_equalities(about.get("labelSelector") or {}),
        )

    @property
    def machine(self) -> str | None:
        """Machine of a node agent; None for any other user."""
        if GROUP not in self.groups or not self.user.startswith(USER_PREFIX):
            return None
        return self.user.removeprefix(USER_PREFIX)


def _equalities(selector: Mapping[str, Any]) -> dict[str, str]:
    """Return `field=value` pairs; `In` with one value is an equality, with several it is dropped."""
    found = {}
    for part in filter(None, (selector.get("rawSelector") or "").split(",")):
        name, _, value = part.partition("=")
        if not name.endswith("!"):
            found[name] = value.removeprefix("=")
    for requirement in selector.get("requirements") or []:
        values = requirement.get("values") or []
        if requirement.get("operator") == "In" and len(values) == 1:
            found[requirement["key"]] = values[0]
    return found


@dataclass(frozen=True, slots=True)
class PoolSecret:
    """An OSC Secret, that is one with the pool label.

    Attributes:
        name: its name.
        references: (Secret name, host name or None) of the files whose content is in another Secret.
    """

    name: str
    references: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cluster holds about a request; None for an object that does not exist.

    Attributes:
        node: the agent's own Node.
        pod: the Pod that was asked about.
        csr: the CertificateSigningRequest that was asked about.
        pool_secrets: all OSC Secrets.
    """

    node: Mapping[str, Any] | None = None
    pod: Mapping[str, Any] | None = None
    csr: Mapping[str, Any] | None = None
    pool_secrets: tuple[PoolSecret, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the own Node; empty without one."""
        labels: Mapping[str, str] = ((self.node or {}).get("metadata") or {}).get("labels") or {}
        return labels


def decide(review: Review, facts: Facts) -> Decision:
    """Answer a review."""
    machine = review.machine
    if machine is None:
        return Decision(Effect.NO_OPINION, "not a node agent")
    if not machine:
        return _deny("user name names no machine")
    rule = _RULES.get(review.resource)
    if rule is None:
        return _deny(f"resource {review.resource or 'URL'} is not for node agents")
    return rule(review, facts, machine)


def readable_secrets(facts: Facts) -> frozenset[str]:
    """Return the names of Secrets in kube-system that an agent may read; never the empty name."""
    own = facts.labels.get(SECRET_NAME_LABEL, "")
    hostname = facts.labels.get(HOSTNAME_LABEL)
    candidates = [secret for secret in facts.pool_secrets if facts.node is None or secret.name == own]
    names = set(ALWAYS_READABLE_SECRETS)
    for secret in candidates:
        names.add(secret.name)
        names |= {name for name, host in secret.references if host is None or hostname is None or host == hostname}
    return frozenset(names - {""})


def _deny(reason: str) -> Decision:
    return Decision(Effect.DENY, reason)


def _check(review: Review, verbs: str, *, subresources: tuple[str, ...] = ("",)) -> Decision | None:
    """Return a denial if verb or subresource are not allowed at all."""
    if review.verb not in verbs.split():
        return _deny(f"verb {review.verb} on {review.resource} is not for node agents")
    if review.subresource not in subresources:
        return _deny(f"subresource {review.subresource} of {review.resource} is not for node agents")
    return None


def _no_node(machine: str) -> Decision:
    return _deny(f"node {machine} does not exist")


def _signing_requests(review: Review, facts: Facts, _machine: str) -> Decision:
    denial = _check(review, "create get")
    if denial is not None:
        return denial
    if review.verb == "create":
        return ALLOW
    if facts.csr is None:
        return Decision(Effect.ERROR, f'404 certificatesigningrequests.certificates.k8s.io "{review.name}" not found')
    if (facts.csr.get("spec") or {}).get("username") != review.user:
        return _deny("the request is somebody else's")
    return ALLOW


def _events(review: Review, _facts: Facts, _machine: str) -> Decision:
    return _check(review, "create patch") or ALLOW


def _leases(review: Review, facts: Facts, machine: str) -> Decision:
    denial = _check(review, "create get list watch update")
    if denial is not None:
        return denial
    if facts.node is None:
        return _no_node(machine)
    if review.namespace != NAMESPACE:
        return _deny(f"leases are in {NAMESPACE}")
    if review.verb == "create":
        return ALLOW
    allowed = {f"gardener-node-agent-{machine}", facts.labels.get(SECRET_NAME_LABEL, "")} - {""}
    return ALLOW if review.name in allowed else _deny(f"lease {review.name or '(all)'} is not this node's")


def _nodes(review: Review, facts: Facts, machine: str) -> Decision:
    denial = _check(review, "list watch get patch update", subresources=("", "status"))
    if denial is not None:
        return denial
    if review.verb in {"list", "watch"}:
        return ALLOW
    if facts.node is None:
        return _no_node(machine)
    return ALLOW if review.name == machine else _deny(f"node {review.name} is not this machine's")


def _pods(review: Review, facts: Facts, machine: str) -> Decision:
    denial = _check(review, "list watch get delete")
    if denial is not None:
        return denial
    if facts.node is None:
        return _no_node(machine)
    if review.verb in {"list", "watch"} and not review.name:
        selected = review.fields.get("spec.nodeName") == machine
        return ALLOW if selected else _deny("pods are listed with the field selector spec.nodeName")
    if facts.pod is None:
        return Decision(Effect.ERROR, f'404 pods "{review.name}" not found')
    here = (facts.pod.get("spec") or {}).get("nodeName") == machine
    return ALLOW if here else _deny("the pod is on another node")


def _secrets(review: Review, facts: Facts, _machine: str) -> Decision:
    denial = _check(review, "get list watch")
    if denial is not None:
        return denial
    if review.namespace == NAMESPACE and review.name in readable_secrets(facts):
        return ALLOW
    return _deny(f"secret {review.namespace}/{review.name or '(all)'} is not this node's")


_RULES = {
    "certificatesigningrequests.certificates.k8s.io": _signing_requests,
    "events": _events,
    "events.events.k8s.io": _events,
    "leases.coordination.k8s.io": _leases,
    "nodes": _nodes,
    "pods": _pods,
    "secrets": _secrets,
}
