"""End the process when the host name changes: the Node is looked for by it, at the start.

Source: gardener pkg/nodeagent/controller/hostnamecheck/reconciler.go (contract 7.6).
"""

from collections.abc import Callable
from datetime import timedelta

from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import StartupSource
from nodeagent.host.node_events import NodeEvents

log = get_logger(__name__)

CONTROLLER = "hostname-check"
PERIOD = timedelta(seconds=30)
SETTLE = timedelta(seconds=2)
"""From noticing to ending: the event gets out, and a name that comes back at once was no change."""


class HostnameReconciler:
    """Compares the host name with that of the start."""

    def __init__(self, *, hostname: str, read: Callable[[], str], events: NodeEvents, shutdown: Shutdown) -> None:
        self._hostname = hostname
        self._read = read
        self._events = events
        self._shutdown = shutdown
        self._seen = hostname

    async def reconcile(self, request: Request) -> Result:
        """Look; the second look that finds the same new name ends the process."""
        found, before = self._read(), self._seen
        self._seen = found
        if found == self._hostname:
            return Result(requeue_after=PERIOD)
        if found != before:
            log.error("Host name changed", was=self._hostname, found=found)
            self._events.event(
                "Warning",
                reason="HostNameChanged",
                action="HostNameCheck",
                note=f"host name changed from {self._hostname} to {found}: gardener-node-agent starts again and looks for "
                "the Node of the new name",
            )
            return Result(requeue_after=SETTLE)
        self._shutdown.request("host name changed")
        return Result()


def new_controller(*, hostname: str, read: Callable[[], str], events: NodeEvents, shutdown: Shutdown) -> Controller:
    """Build the controller; `read` returns the host name of the moment."""
    reconciler = HostnameReconciler(hostname=hostname, read=read, events=events, shutdown=shutdown)
    return Controller(
        name=CONTROLLER,
        reconciler=Persistent(reconciler),
        sources=[StartupSource([Request("", "hostname")])],
        max_backoff=PERIOD,
    )
