"""All clients of the garden: they use the same credentials and authorities, and change them together."""

from collections.abc import Awaitable, Callable

from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import ApiError
from agents.kube.kubeconfig import ClusterAccess

log = get_logger(__name__)


class GardenClients:
    """The client that tries what is new, and those that follow it.

    Args:
        access: what all of them use.
        first: tries.
        others: follow; the heartbeat has connections of its own.
    """

    def __init__(self, access: ClusterAccess, first: Client, *others: Client) -> None:
        self.access = access
        self.first = first
        self._others = others
        self._behind: tuple[Client, ...] = ()

    async def switch(
        self, access: ClusterAccess, *, keep: Callable[[], Awaitable[None]], proof: str = "/version"
    ) -> None:
        """Try another access, keep it, and have all clients use it; one that cannot now follows with `catch_up`.

        Raises:
            ApiError: not accepted; nothing is changed.
        """
        await self.first.switch(access, keep=keep, proof=proof)
        self.access, self._behind = access, self._others
        await self.catch_up()

    async def catch_up(self) -> None:
        """Have clients follow that could not before."""
        left = []
        for client in self._behind:
            try:
                await client.switch(self.access, keep=_nothing)
            except ApiError as error:
                log.error("A client of the garden still uses the credentials before", error=error)
                left.append(client)
        self._behind = tuple(left)


async def _nothing() -> None:
    """Keep nothing: it was written down before."""
