"""Which Node object is ours; learned in the running process, without a restart.

Until the kubelet has registered, the Node is looked for by its host name label. From then on only the object of that name
is watched, so that a changed label cannot take the Node away from us. Two Nodes with our host name are nobody's: which one is
ours cannot be told, so nothing is done for either until one of them is gone, and that is said once; Gardener's agent ends.
Source: gardener cmd/gardener-node-agent/app/app.go, pkg/nodeagent/nodename.go (contract 1.4, 1.5, 1.8).
"""

from collections.abc import Callable, Sequence

from agents.core.logging import get_logger
from agents.kube.client import Selector
from agents.kube.models import Node
from agents.runtime.cache import Handler, Informer
from agents.runtime.predicate import Predicate, always
from agents.runtime.reconcile import Request
from agents.runtime.workqueue import WorkQueue

log = get_logger(__name__)

HOSTNAME_LABEL = "kubernetes.io/hostname"


def hostname_selector(hostname: str) -> Selector:
    """Select the Nodes of a host name."""
    return Selector(label=f"{HOSTNAME_LABEL}={hostname}")


class NodeIdentity:
    """The name of our Node and its cached object.

    Args:
        hostname: lower-case host name.
        nodes: informer that starts with `hostname_selector`.
        ambiguous: told about the Nodes that carry our host name when they are several; once for the same ones.
    """

    def __init__(
        self,
        *,
        hostname: str,
        nodes: Informer[Node],
        ambiguous: Callable[[Sequence[Node]], None] = lambda _nodes: None,
    ) -> None:
        self.hostname = hostname
        self._nodes = nodes
        self._ambiguous = ambiguous
        self._name: str | None = None
        self._rivals: tuple[str, ...] = ()
        self._handlers: list[Handler[Node]] = []

    def start(self) -> Callable[[], None]:
        """Learn the name as soon as a Node with our host name shows up; returns the function that stops that."""
        return self._nodes.add_handler(self._changed)

    async def wait_ready(self) -> None:
        """Wait until the Nodes that could be ours are known."""
        await self._nodes.wait_synced()

    def subscribe(self, handler: Handler[Node]) -> Callable[[], None]:
        """Tell a handler about each change of our Node, and that it appears when it is known already or becomes known.

        Returns:
            Function that ends it.
        """
        node = self.node
        self._handlers.append(handler)
        if node is not None:
            handler(None, node)
        return lambda: self._handlers.remove(handler) if handler in self._handlers else None

    @property
    def name(self) -> str | None:
        """Name of our Node, None while none is known."""
        return self._name

    @property
    def node(self) -> Node | None:
        """The Node as the cache has it."""
        if self._name is None:
            self._look()
        return None if self._name is None else self._nodes.get(Request("", self._name))

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if self._name is None:
            self._look()
            return
        item = old if new is None else new
        if item is not None and item.metadata.name == self._name:
            self._tell(old, new)

    def _look(self) -> None:
        found = [node for node in self._nodes.list() if node.metadata.labels.get(HOSTNAME_LABEL) == self.hostname]
        rivals = tuple(sorted(node.metadata.name for node in found)) if len(found) > 1 else ()
        if rivals and rivals != self._rivals:
            log.error("More than one Node has our host name", hostname=self.hostname, nodes=rivals)
            self._ambiguous(found)
        self._rivals = rivals
        if len(found) == 1:
            self._name = found[0].metadata.name
            log.info("Node found", node=self._name, hostname=self.hostname)
            self._nodes.select(Selector(field=f"metadata.name={self._name}"))
            self._tell(None, found[0])

    def _tell(self, old: Node | None, new: Node | None) -> None:
        for handler in tuple(self._handlers):
            handler(old, new)


class OwnNodeSource:
    """The key of our Node, from its changes; that it becomes known counts as appearing.

    Args:
        identity: which Node is ours.
        predicate: which changes count.
    """

    def __init__(self, identity: NodeIdentity, *, predicate: Predicate[Node] = always) -> None:
        self._identity = identity
        self._predicate = predicate
        self._queue: WorkQueue[Request] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self, queue: WorkQueue[Request]) -> None:
        """Subscribe."""
        self._queue = queue
        self._unsubscribe = self._identity.subscribe(self._handle)

    async def wait_ready(self) -> None:
        """Wait until the Nodes that could be ours are known."""
        await self._identity.wait_ready()

    def stop(self) -> None:
        """Put no more keys on the queue."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _handle(self, old: Node | None, new: Node | None) -> None:
        item = old if new is None else new
        if self._queue is not None and item is not None and self._predicate(old, new):
            self._queue.add(Request("", item.metadata.name))
