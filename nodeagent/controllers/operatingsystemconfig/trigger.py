"""Which changes lead to a reconcile of the OSC, and how long each may wait.

A whole fleet sees a new OSC at the same moment; the delay that gardener-resource-manager writes to each Node spreads the
restarts. Source: gardener pkg/nodeagent/controller/operatingsystemconfig/add.go (contract 6.1).
"""

from collections.abc import Callable
from datetime import timedelta

from agents.core.duration import InvalidDuration, parse_duration
from agents.core.logging import get_logger
from agents.kube.models import Node, Secret
from agents.runtime.reconcile import Request
from agents.runtime.source import NO_DELAY, fixed_key
from osc.codec import effective_data

log = get_logger(__name__)

DELAY_ANNOTATION = "node-agent.gardener.cloud/reconciliation-delay"
SERIAL_ANNOTATION = "reconciliation.osc.node-agent.gardener.cloud/serial"


def content_changed(old: Secret | None, new: Secret | None, /) -> bool:
    """Accept a Secret that appears, and one whose effective OSC bytes differ; annotations alone are no change."""
    return new is not None and (old is None or effective_data(old.data) != effective_data(new.data))


def is_serial(secret: Secret) -> bool:
    """Tell whether nodes are to reconcile one after the other."""
    return secret.metadata.annotations.get(SERIAL_ANNOTATION) == "true"


class JitterDelay:
    """How long a changed OSC waits on this node.

    The last value that could be read is kept for when the Node cannot be read, lacks the annotation, or has nonsense in it.
    """

    def __init__(self, *, node_name: Callable[[], str | None], node: Callable[[], Node | None]) -> None:
        self._node_name = node_name
        self._node = node
        self._last = NO_DELAY

    def __call__(self, old: Secret | None, new: Secret | None) -> timedelta:
        """Return the delay of one change; none for a Secret that appears, and none in serial mode."""
        if old is None or new is None or is_serial(new) or self._node_name() is None:
            return NO_DELAY
        node = self._node()
        text = None if node is None else node.metadata.annotations.get(DELAY_ANNOTATION)
        if text is not None:
            try:
                self._last = parse_duration(text)
            except InvalidDuration:
                log.info("Reconciliation delay cannot be read", annotation=DELAY_ANNOTATION)
        if self._last > NO_DELAY:
            log.info("Reconcile delayed", requeueAfterSeconds=self._last.total_seconds())
        return self._last


def to_secret(namespace: str, name: str) -> Callable[[Node], tuple[Request, ...]]:
    """Map our Node to the one OSC Secret: when the Node appears, what was applied can be reported."""
    key = fixed_key(Request(namespace, name))
    return lambda node: tuple(key(node))
