"""The node agent's heartbeat: a Lease that gardenlet watches.

The loop depends on no cache of Leases: it keeps the Lease that the last PUT returned. After the first timeout or connection
error it tries again at once on a fresh connection with fresh name resolution, so a connection that died silently costs
one attempt. While nothing answers at all, which costs no server anything, it tries every 4 s at the latest, so that a heartbeat
comes within 10 s of the server's return, also where an attempt of before has to end first. Source: gardener pkg/nodeagent/controller/lease (contract 7.1).
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from agents.core.clock import Clock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import AlreadyExists, Conflict, DeadlineExceeded, NotFound, Unavailable
from agents.kube.models import LEASES, Lease, Node, format_micro_time
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import created
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.workqueue import BASE_DELAY
from nodeagent.host.node_identity import NodeIdentity, OwnNodeSource

log = get_logger(__name__)

NAMESPACE = "kube-system"
DURATION_SECONDS = 40
PERIOD = timedelta(seconds=DURATION_SECONDS / 4)
PUT_DEADLINE_SECONDS = 9.5
LONGEST_WAIT_UNANSWERED = timedelta(seconds=4)
RECONCILE_DEADLINE = timedelta(seconds=DURATION_SECONDS)


class NodeGone(RetriableError):
    """There is no Node to have a heartbeat for."""


class Unanswered(RetriableError):
    """The API server does not answer, on a fresh connection neither."""


def lease_name(node_name: str) -> str:
    """Return the name of the node's Lease."""
    return f"gardener-node-agent-{node_name}"


def render(node: Node, *, renew_time: str, resource_version: str | None) -> Mapping[str, object]:
    """Return the whole Lease; gardenlet reads duration and renewTime without looking whether they are set."""
    name = lease_name(node.metadata.name)
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    version = {"resourceVersion": resource_version} if resource_version else {}
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner], **version},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": renew_time},
    }


class LeaseReconciler:
    """Renews the Lease of one Node."""

    def __init__(
        self,
        *,
        client: Client,
        nodes: Informer[Node],
        clock: Clock,
        renewed: Callable[[], Awaitable[None]],
        tried: Callable[[], None] = lambda: None,
        reconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self._reconnect = reconnect
        self._tried = tried
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._renewed = renewed
        self._last: Lease | None = None
        self._unanswered = 0

    async def reconcile(self, request: Request) -> Result:
        """Renew, with one immediate repetition on a fresh connection."""
        self._tried()
        node = self._nodes.get(request)
        if node is None:
            self._last = None
            raise NodeGone("node is gone", node=request.name)
        try:
            await self._renew(node)
        except (Unavailable, DeadlineExceeded) as error:
            log.debug("Lease not renewed, trying again on a fresh connection", error=error)
            await self._client.reset_connections()
            await self._renew_afresh(node)
            self._reconnect()
        self._unanswered = 0
        await self._renewed()
        return Result(requeue_after=PERIOD)

    async def _renew_afresh(self, node: Node) -> None:
        try:
            await self._renew(node)
        except (Unavailable, DeadlineExceeded) as error:
            after = min(LONGEST_WAIT_UNANSWERED, BASE_DELAY * 2 ** min(self._unanswered, 20))
            self._unanswered += 1
            raise Unanswered("lease not renewed", after=after, node=node.metadata.name) from error

    async def _renew(self, node: Node) -> None:
        if self._last is None:
            self._last = await self._read(node)
        try:
            self._last = await (self._create(node) if self._last is None else self._replace(node, self._last))
        except (Conflict, AlreadyExists, NotFound):
            # Somebody changed or removed it, or the Node was created anew: what is there now decides.
            self._last = await self._read(node)
            self._last = await (self._create(node) if self._last is None else self._replace(node, self._last))

    async def _read(self, node: Node) -> Lease | None:
        try:
            return await self._client.get(
                LEASES, lease_name(node.metadata.name), namespace=NAMESPACE, deadline=PUT_DEADLINE_SECONDS
            )
        except NotFound:
            return None

    async def _create(self, node: Node) -> Lease:
        body = render(node, renew_time=self._now(), resource_version=None)
        return await self._client.create(LEASES, body, namespace=NAMESPACE, deadline=PUT_DEADLINE_SECONDS)

    async def _replace(self, node: Node, last: Lease) -> Lease:
        body = render(node, renew_time=self._now(), resource_version=last.metadata.resource_version)
        return await self._client.replace(
            LEASES, last.metadata.name, body, namespace=NAMESPACE, deadline=PUT_DEADLINE_SECONDS
        )

    def _now(self) -> str:
        return format_micro_time(self._clock.now())


def new_controller(
    *,
    client: Client,
    nodes: Informer[Node],
    identity: NodeIdentity,
    clock: Clock,
    renewed: Callable[[], Awaitable[None]],
    tried: Callable[[], None] = lambda: None,
    reconnect: Callable[[], None] = lambda: None,
) -> Controller:
    """Build the controller.

    `tried` is called before each attempt, `renewed` after each success, and `reconnect` when a fresh connection worked where
    the old one did not: then others are dead as well.
    """
    return Controller(
        name="lease",
        reconciler=Persistent(
            LeaseReconciler(client=client, nodes=nodes, clock=clock, tried=tried, renewed=renewed, reconnect=reconnect)
        ),
        sources=[OwnNodeSource(identity, predicate=created)],
        deadline=RECONCILE_DEADLINE,
        max_backoff=PERIOD,
    )
