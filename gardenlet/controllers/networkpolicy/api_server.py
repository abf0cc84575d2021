"""The ways to the seed's API server, as the seed publishes them: EndpointSlices where we may read them, else Endpoints.

Endpoints are deprecated since Kubernetes 1.33, and the usual role of a gardenlet does not name EndpointSlices yet. So it is asked once,
at the start, what we may read; a role that is extended later counts from the next start. Source: contract core 0 D9, 8, 12.2.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agents.core.logging import get_logger
from agents.kube.access_review import may
from agents.kube.client import Client
from agents.kube.errors import Forbidden
from agents.kube.objects import Document
from agents.kube.resource import Resource
from agents.runtime.cache import Cache, Informer
from gardenlet.apis.networking import ENDPOINT_SLICES, ENDPOINTS
from gardenlet.controllers.networkpolicy.networks import Endpoint

log = get_logger(__name__)

NAMESPACE, NAME = "default", "kubernetes"
_SERVICE = "kubernetes.io/service-name"
_FAMILIES = ("IPv4", "IPv6")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that has addresses of a Service.

    Attributes:
        resource: the kind.
        label_selector, field_selector: which objects are those of the API server.
        concerned: whether one is.
        ways: what one says.
    """

    resource: Resource[Document]
    label_selector: str
    field_selector: str
    concerned: Callable[[Document], bool]
    ways: Callable[[Document], Iterator[Endpoint]]


class ApiServer:
    """What the seed publishes about its API server."""

    def __init__(self, kind: Kind, informer: Informer[Document]) -> None:
        self._kind = kind
        self.informer = informer

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the ways to the API server, always in the same order."""
        found = (item for item in self.informer.list() if self._kind.concerned(item))
        for item in sorted(found, key=lambda one: one.metadata.name):
            yield from self._kind.ways(item)

    def changed(self, old: Document | None, new: Document | None, /) -> bool:
        """Return whether the ways are other ones now; a predicate."""
        before, after = (
            [] if item is None or not self._kind.concerned(item) else list(self._kind.ways(item)) for item in (old, new)
        )
        return before != after


def observe(cache: Cache, kind: Kind) -> ApiServer:
    """Watch what the seed publishes."""
    informer = cache.informer(
        kind.resource, namespace=NAMESPACE, label_selector=kind.label_selector, field_selector=kind.field_selector
    )
    return ApiServer(kind, informer)


async def readable(seed: Client) -> Kind:
    """Return the kind that we may read.

    Raises:
        ApiError: the seed does not answer.
    """
    try:
        slices = await may(seed, ("list", "watch"), ENDPOINT_SLICES.group, ENDPOINT_SLICES.plural, namespace=NAMESPACE)
    except Forbidden:
        log.debug("May not ask what may be read, so what every role has is read")
        slices = False
    kind = SLICES if slices else PLAIN
    log.info("Addresses of the API server come from", kind=kind.resource.kind)
    return kind


def _of_endpoints(item: Document) -> Iterator[Endpoint]:
    for subset in item.content.get("subsets") or ():
        addresses = tuple(sorted(str(entry["ip"]) for entry in subset.get("addresses") or ()))
        ports = tuple((str(port.get("protocol", "TCP")), int(port["port"])) for port in subset.get("ports") or ())
        if addresses:
            yield Endpoint(addresses, ports)


def _of_slice(item: Document) -> Iterator[Endpoint]:
    """Yield what a slice says: addresses that are ready or do not say, of IP families only."""
    if item.content.get("addressType") not in _FAMILIES:
        return
    ready = (
        one for one in item.content.get("endpoints") or () if (one.get("conditions") or {}).get("ready") is not False
    )
    addresses = tuple(sorted({str(address) for one in ready for address in one.get("addresses") or ()}))
    ports = tuple(
        (str(port.get("protocol") or "TCP"), int(port["port"]))
        for port in item.content.get("ports") or ()
        if port.get("port") is not None
    )
    if addresses:
        yield Endpoint(addresses, ports)


def _is_plain(item: Document) -> bool:
    return (item.metadata.namespace, item.metadata.name) == (NAMESPACE, NAME)


def _is_slice(item: Document) -> bool:
    return item.metadata.namespace == NAMESPACE and item.metadata.labels.get(_SERVICE) == NAME


PLAIN = Kind(ENDPOINTS, "", f"metadata.name={NAME}", _is_plain, _of_endpoints)
SLICES = Kind(ENDPOINT_SLICES, f"{_SERVICE}={NAME}", "", _is_slice, _of_slice)
