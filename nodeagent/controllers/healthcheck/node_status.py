"""What the kubelet says on the Node: whether it keeps changing its mind, and whether it has lost the machine's address.

Source: gardener pkg/nodeagent/controller/healthcheck/kubelet.go (contract 7.5, kubelet 1 and 2).
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address

from agents.core.clock import Clock
from agents.core.duration import format_duration
from agents.core.errors import RetriableError, TerminalError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.models import NODES, Node, find_condition
from agents.kube.patch import Patch, strategic
from nodeagent.controllers.healthcheck.failure import Failure

log = get_logger(__name__)

MOST_TOGGLES = 5
TOGGLE_WINDOW = timedelta(minutes=10)


class AddressUnreadable(RetriableError):
    """An address of the Node, or those of the machine, cannot be read."""


class Readiness:
    """Counts how often the Node became ready; the first look counts if it is ready then."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._ready = False
        self._toggles: list[float] = []

    def observe(self, node: Node) -> bool:
        """Take note of the Node; returns whether it has just become ready for the fifth time or more within ten minutes."""
        ready_condition = find_condition(node.status.conditions, "Ready")
        before, self._ready = self._ready, ready_condition is not None and ready_condition.status == "True"
        return self._ready and not before and self.toggle()

    def toggle(self) -> bool:
        """Count a change to ready; returns whether there were five or more within ten minutes."""
        now = self._clock.monotonic()
        oldest = now - TOGGLE_WINDOW.total_seconds()
        self._toggles = [*(moment for moment in self._toggles if moment >= oldest), now]
        log.info("Node became ready", changes=len(self._toggles), durationSeconds=TOGGLE_WINDOW.total_seconds())
        return len(self._toggles) >= MOST_TOGGLES


FLAPPING = (
    f"the kubelet changed from not ready to ready at least {MOST_TOGGLES} times in {format_duration(TOGGLE_WINDOW)}; "
    "a reboot of the node might help"
)


class InternalAddress:
    """Remembers the Node's internal IP, and puts it back if the Node has lost it together with its external one.

    Args:
        client: the API server.
        addresses: returns the machine's addresses; may block.
        kubelet: says what happens, and restarts the kubelet where the API server refuses the address for good.
    """

    def __init__(
        self, *, client: Client, addresses: Callable[[], Collection[IPv4Address | IPv6Address]], kubelet: Failure
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._kubelet = kubelet
        self._remembered: IPv4Address | IPv6Address | None = None
        self._said = ""

    async def ensure(self, node: Node) -> None:
        """Remember or put back.

        Raises:
            AddressUnreadable: an address is none.
            ApiError: the Node has changed meanwhile, or the API server does not answer.
        """
        known = {address.type: address.address for address in node.status.addresses}
        if internal := known.get("InternalIP"):
            self._remembered = _parse(internal)
            self._said = ""
        elif not known.get("ExternalIP"):
            await self._put_back(node)

    async def _put_back(self, node: Node) -> None:
        self._say_once("the Node has neither an internal nor an external IP", self._remembered)
        if self._remembered is None or self._remembered not in await self._own_addresses():
            return
        address = str(self._remembered)
        try:
            await self._client.patch(NODES, node.metadata.name, replaced(node, address), subresource="status")
        except TerminalError as error:
            # Refused for good. Whatever is temporary, a conflict with the kubelet's own update too, is tried again instead.
            log.error("Internal IP not put back", address=address, error=error)
            self._kubelet.say("Warning", f"the internal IP {address} could not be put back: {error}")
            await self._kubelet.remedy(f"restarting the kubelet: the Node has lost its internal IP {address}")
            return
        log.info("Internal IP put back", address=address)
        self._kubelet.say("Normal", f"the lost internal IP {address} was put back")

    async def _own_addresses(self) -> Collection[IPv4Address | IPv6Address]:
        try:
            return await asyncio.to_thread(self._addresses)
        except OSError as error:
            raise AddressUnreadable("addresses of the machine cannot be listed", problem=str(error)) from error

    def _say_once(self, what: str, address: object) -> None:
        note = f"{what}, trying to put back {address}" if address is not None else what
        if note != self._said:
            self._said = note
            log.error("Node has no address", address=address)
            self._kubelet.say("Warning", note)


def replaced(node: Node, address: str) -> Patch:
    """Return the patch that leaves this internal IP as the only address of a Node that is still what we saw.

    With the version that was seen, so that it fails if the kubelet has written meanwhile; and without the rest of the status,
    so that it can never undo what the kubelet has written.
    """
    addresses = [{"type": "InternalIP", "address": address}, {"$patch": "replace"}]
    return strategic(
        {"metadata": {"resourceVersion": node.metadata.resource_version}, "status": {"addresses": addresses}}
    )


def _parse(text: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(text)
    except ValueError as error:
        raise AddressUnreadable("internal IP of the Node is no address", address=text[:64]) from error
