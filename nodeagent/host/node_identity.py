"""Which Node object is ours; learned in the running process, without a restart.

Until the kubelet has registered, the Node is looked for by its host name label. From then on only the object of that name
is watched, so that a changed label cannot take the Node away from us. Source: gardener
cmd/gardener-node-agent/app/app.go, pkg/nodeagent/nodename.go (contract 1.4, 1.5, 1.8).
"""

from collections.abc import Callable

from agents.core.errors import FatalError
from agents.core.logging import get_logger
from agents.kube.client import Selector
from agents.kube.models import Node
from agents.runtime.cache import Informer
from agents.runtime.reconcile import Request

log = get_logger(__name__)

HOSTNAME_LABEL = "kubernetes.io/hostname"


class AmbiguousNode(FatalError):
    """Two Nodes carry our host name; which is ours cannot be told."""


def hostname_selector(hostname: str) -> Selector:
    """Select the Nodes of a host name."""
    return Selector(label=f"{HOSTNAME_LABEL}={hostname}")


class NodeIdentity:
    """The name of our Node and its cached object.

    Args:
        hostname: lower-case host name.
        nodes: informer that starts with `hostname_selector`.
    """

    def __init__(self, *, hostname: str, nodes: Informer[Node]) -> None:
        self.hostname = hostname
        self._nodes = nodes
        self._name: str | None = None

    def start(self) -> Callable[[], None]:
        """Learn the name as soon as a Node with our host name shows up; returns the function that stops that."""
        return self._nodes.add_handler(self._learn)

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

    def _learn(self, _old: Node | None, new: Node | None) -> None:
        if new is not None and self._name is None:
            self._look()

    def _look(self) -> None:
        found = [node for node in self._nodes.list() if node.metadata.labels.get(HOSTNAME_LABEL) == self.hostname]
        if len(found) > 1:
            names = sorted(node.metadata.name for node in found)
            raise AmbiguousNode("more than one Node has our host name", hostname=self.hostname, nodes=names)
        if found:
            self._name = found[0].metadata.name
            log.info("Node found", node=self._name, hostname=self.hostname)
            self._nodes.select(Selector(field=f"metadata.name={self._name}"))
