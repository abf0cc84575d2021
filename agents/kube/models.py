"""Projections of the kinds that the node agent reads, and where these kinds live in the API."""

from datetime import UTC, datetime

from pydantic import Field

from agents.kube.objects import Data, Items, KubeObject, ObjectMeta, Projection, ReadOnly, Text, empty_mapping
from agents.kube.resource import Resource

__all__ = [
    "CERTIFICATE_SIGNING_REQUESTS",
    "CORE_EVENTS",
    "EVENTS",
    "LEASES",
    "NODES",
    "PODS",
    "SECRETS",
    "CertificateSigningRequest",
    "Event",
    "KubeObject",
    "Lease",
    "Node",
    "ObjectMeta",
    "Pod",
    "Secret",
    "find_condition",
    "format_micro_time",
]


class Condition(Projection):
    """One observation about an object."""

    type: str
    status: Text = ""
    reason: Text = ""
    message: Text = ""
    last_transition_time: Text = ""
    """As it stands in the object: it is only ever sent back."""


class NodeAddress(Projection):
    """One address of a machine."""

    type: str
    address: str


class NodeStatus(Projection):
    """What the kubelet reports."""

    conditions: Items[Condition] = ()
    addresses: Items[NodeAddress] = ()


class Node(KubeObject):
    """A machine of the cluster."""

    status: NodeStatus = NodeStatus()


class Secret(KubeObject):
    """Named bytes that must not show anywhere."""

    data: ReadOnly[Data] = Field(default_factory=empty_mapping, repr=False)


class PodStatus(Projection):
    """How a pod fares."""

    phase: Text = ""
    conditions: Items[Condition] = ()


class Pod(KubeObject):
    """Containers that run together."""

    status: PodStatus = PodStatus()


class LeaseSpec(Projection):
    """Who holds a lease and for how long."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None


class Lease(KubeObject):
    """A heartbeat or a lock."""

    spec: LeaseSpec = LeaseSpec()


class CertificateSigningRequestSpec(Projection):
    """Who asked."""

    username: Text = ""


class CertificateSigningRequestStatus(Projection):
    """What became of the request; the certificate is a PEM chain, the leaf first."""

    conditions: Items[Condition] = ()
    certificate: Data = b""


class CertificateSigningRequest(KubeObject):
    """A request for a client certificate."""

    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()


class Event(KubeObject):
    """Something that happened; only its name is ever read."""


SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True, model=Secret)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, model=Node)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True, model=Pod)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, model=Lease)
CERTIFICATE_SIGNING_REQUESTS = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    namespaced=False,
    model=CertificateSigningRequest,
)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True, model=Event)
CORE_EVENTS = Resource("", "v1", "events", "Event", namespaced=True, model=Event)


def find_condition(conditions: tuple[Condition, ...], condition_type: str) -> Condition | None:
    """Return the condition of a type, None if there is none."""
    return next((condition for condition in conditions if condition.type == condition_type), None)


def format_micro_time(moment: datetime) -> str:
    """Return a time as Kubernetes' MicroTime: UTC, always six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
