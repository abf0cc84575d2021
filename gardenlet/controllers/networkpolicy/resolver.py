"""Addresses behind the name of the seed's API server, looked up now and then.

A look-up that fails keeps the addresses before; who waits for addresses is told only of changes. Source: gardener
pkg/controller/networkpolicy/hostnameresolver/resolver.go (contract core 8; W34).
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import NoReturn
from urllib.parse import urlsplit

from agents.core.logging import get_logger
from gardenlet.controllers.networkpolicy.networks import Endpoint

log = get_logger(__name__)

PERIOD_SECONDS = 30.0
DEADLINE_SECONDS = 10.0
_HTTPS = 443

Lookup = Callable[[str], Awaitable[tuple[str, ...]]]


def target(server: str, environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return host name and port to look up; None where the API server is reached by its address."""
    parts = urlsplit(server if "://" in server else f"https://{server}")
    if parts.hostname and not _is_address(parts.hostname):
        return parts.hostname, parts.port or _HTTPS
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if host and not _is_address(host):
        return host, int(environment.get("KUBERNETES_SERVICE_PORT", "") or _HTTPS)
    return None


async def look_up(host: str) -> tuple[str, ...]:
    """Return the addresses of a host, sorted.

    Raises:
        OSError: the name cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(sorted({str(entry[4][0]) for entry in found}))


class Resolver:
    """Looks one name up.

    Args:
        host: name; None for nothing to look up.
        port: of the API server.
        changed: told when the addresses are others.
        lookup: asks the name server.
    """

    def __init__(self, host: str | None, port: int, *, changed: Callable[[], None], lookup: Lookup = look_up) -> None:
        self._host = host
        self._port = port
        self._changed = changed
        self._lookup = lookup
        self._addresses: tuple[str, ...] = ()

    @property
    def endpoint(self) -> Endpoint | None:
        """Return the way to the API server by its name; None while that is not known, or there is no name."""
        return Endpoint(self._addresses, (("TCP", self._port),)) if self._addresses else None

    async def run(self) -> NoReturn:
        """Look up until cancelled."""
        while True:
            if self._host is not None:
                await self._look(self._host)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _look(self, host: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                found = await self._lookup(host)
        except (OSError, TimeoutError) as error:
            log.error("Host of the API server not resolved, the addresses before stay", host=host, problem=str(error))
            return
        if found and found != self._addresses:
            log.info("Addresses of the API server", host=host, addresses=list(found))
            self._addresses = found
            self._changed()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
