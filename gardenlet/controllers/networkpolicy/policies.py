"""The six policies: in which namespaces they are, what they say, and what is kept of those that exist; pure.

Source: gardener pkg/controller/networkpolicy/reconciler.go (contract core 8).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents.kube.objects import Document
from agents.kube.resource import Resource
from gardenlet.apis.networking import NETWORK_POLICIES
from gardenlet.controllers.networkpolicy.networks import (
    EVERYTHING_V4,
    EVERYTHING_V6,
    PRIVATE_V4,
    PRIVATE_V6,
    Endpoint,
    Network,
    SeedNetworks,
    peers,
)

ROLE = "gardener.cloud/role"
DESCRIPTION = "gardener.cloud/description"
_GARDEN: Mapping[str, Any] = {"matchLabels": {"kubernetes.io/metadata.name": "garden"}}
_HANDLER: Mapping[str, Any] = {
    "matchExpressions": [{"key": "handler.exposureclass.gardener.cloud/name", "operator": "Exists"}]
}


def _role(name: str) -> Mapping[str, Any]:
    return {"matchLabels": {ROLE: name}}


_SHOOT, _EXTENSION = _role("shoot"), _role("extension")
_ISTIO, _INGRESS = _role("istio-system"), _role("istio-ingress")


@dataclass(frozen=True, slots=True)
class Situation:
    """What the policies of a namespace depend on.

    Attributes:
        seed: networks of the seed.
        shoot: networks of the shoot whose control plane is here; empty elsewhere.
        endpoints: ways to the seed's API server.
    """

    seed: SeedNetworks = field(default_factory=SeedNetworks)
    shoot: tuple[Network, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """One of them.

    Attributes:
        name: of the NetworkPolicy.
        namespaces: selectors, as in the API; one is enough.
        description: for people.
        spec: what it says in a situation; None leaves the policy as it is.
    """

    name: str
    namespaces: Sequence[Mapping[str, Any]]
    description: str
    spec: Callable[[Situation], dict[str, Any] | None]


def _egress(label: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a spec; without rules it has no list of them, as the API server stores no empty one and would always differ."""
    selected = {"matchLabels": {f"networking.gardener.cloud/{label}": "allowed"}}
    spec: dict[str, Any] = {"podSelector": selected, "policyTypes": ["Egress"]}
    return {**spec, "egress": rules} if rules else spec


def _deny_all(_situation: Situation) -> dict[str, Any]:
    return {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def _runtime_apiserver(situation: Situation) -> dict[str, Any] | None:
    rules = [endpoint.rule() for endpoint in situation.endpoints]
    return _egress("to-runtime-apiserver", rules) if rules else None


def _public(situation: Situation) -> dict[str, Any]:
    # The cluster's own networks are private in IPv4, but may be public in IPv6.
    own_v6 = [network for network in situation.seed.cluster if network.version == EVERYTHING_V6.version]
    blocks = peers([EVERYTHING_V4], [*PRIVATE_V4, *situation.seed.blocked])
    blocks += peers([EVERYTHING_V6], [*PRIVATE_V6, *situation.seed.blocked, *own_v6])
    return _egress("to-public-networks", [{"to": blocks}])


def _private(situation: Situation) -> dict[str, Any]:
    closed = [*situation.seed.blocked, *situation.seed.cluster, *situation.shoot]
    rules = [{"to": found} for blocks in (PRIVATE_V4, PRIVATE_V6) if (found := peers(blocks, closed))]
    return _egress("to-private-networks", rules)


def _blocked(situation: Situation) -> dict[str, Any]:
    rules = [{"to": [{"ipBlock": {"cidr": str(network)}}]} for network in situation.seed.blocked]
    return _egress("to-blocked-cidrs", rules)


def _dns(situation: Situation) -> dict[str, Any]:
    system = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}

    def pods(app: str) -> dict[str, Any]:
        chosen = {"matchExpressions": [{"key": "k8s-app", "operator": "In", "values": [app]}]}
        return {"namespaceSelector": system, "podSelector": chosen}

    addresses = ("169.254.20.10/32", "fd30:1319:f1e:230b::1/128", *situation.seed.dns)
    targets = [pods("kube-dns"), pods("node-local-dns"), *({"ipBlock": {"cidr": address}} for address in addresses)]
    ports = [{"protocol": protocol, "port": port} for port in (53, 8053) for protocol in ("UDP", "TCP")]
    return _egress("to-dns", [{"to": targets, "ports": ports}])


POLICIES = (
    Policy(
        "allow-to-runtime-apiserver",
        (_GARDEN, _ISTIO, _INGRESS, _SHOOT, _EXTENSION),
        "Allows labelled pods to reach the API server of the cluster that they run in.",
        _runtime_apiserver,
    ),
    Policy(
        "allow-to-public-networks",
        (_GARDEN, _SHOOT, _EXTENSION),
        "Allows labelled pods to reach public addresses: neither private networks, nor the cluster's own, nor blocked ones.",
        _public,
    ),
    Policy(
        "allow-to-private-networks",
        (_GARDEN, _SHOOT, _EXTENSION),
        "Allows labelled pods to reach private networks, but not those of the cluster, of the shoot, or blocked ones.",
        _private,
    ),
    Policy(
        "allow-to-blocked-cidrs",
        (_GARDEN, _SHOOT, _EXTENSION),
        "Allows labelled pods to reach the addresses that operators have blocked for all others.",
        _blocked,
    ),
    Policy(
        "allow-to-dns",
        (_GARDEN, _SHOOT, _EXTENSION, _ISTIO, _INGRESS, _HANDLER),
        "Allows labelled pods to reach the cluster's DNS.",
        _dns,
    ),
    Policy(
        "deny-all",
        (_GARDEN, _SHOOT, _ISTIO, _INGRESS, _EXTENSION, _HANDLER),
        "Closes this namespace for everything that no other policy allows.",
        _deny_all,
    ),
)
"""In the order in which they are written: what closes comes last, so that nothing is cut off for a moment (W30)."""

NAMES = frozenset(policy.name for policy in POLICIES)


class LocalPolicy(Document):
    """A NetworkPolicy as the local copies have it. Others keep dozens in each shoot's namespace: of those nothing is kept."""

    whole = False

    @classmethod
    def kept(cls, sent: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the spec of one that has a name of ours."""
        return {"spec": sent.get("spec")} if (sent.get("metadata") or {}).get("name") in NAMES else {}


LOCAL_POLICIES: Resource[Document] = replace(NETWORK_POLICIES, model=LocalPolicy)


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector, as in the API, selects an object; an empty one selects everything."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_meets(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _meets(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values") or ()
    match requirement.get("operator"):
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case _:
            return False
