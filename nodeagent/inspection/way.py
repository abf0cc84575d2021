"""The way to the API server, link by link: name, connection, TLS, clock. Nothing secret is sent on it."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from random import SystemRandom
from urllib.parse import urlsplit

from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.server_clock import ServerClock
from agents.kube.tls import tls_context
from nodeagent.credentials import ClientFactory
from nodeagent.inspection.diagnose import Broken, Finding, Fine, LinkName, NotLooked

DEADLINE = timedelta(seconds=5)
"""Of each link."""
CLOCK_LIMIT = timedelta(seconds=60)
"""Beyond this difference certificates and tokens are judged wrongly; below it the agent goes by the API server's time."""
_MOST_ADDRESSES = 4
_HTTPS = 443
_NOT_YET_VALID, _EXPIRED, _HOSTNAME, _ADDRESS = 9, 10, 62, 64
_Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int


async def examine(access: ClusterAccess, *, clock: Clock) -> Mapping[LinkName, Finding]:
    """Look at the links up to TLS, and compare clocks; stops at the first that is broken.

    Args:
        access: where the API server is, and by which CA it is known.
        clock: the machine's.
    """
    if access.proxy:
        by_proxy = NotLooked("the API server is reached by a proxy")
        return {"dns": by_proxy, "tcp": by_proxy, "tls": by_proxy}
    parts = urlsplit(access.url)
    target = _Target(parts.hostname or "", parts.port or _HTTPS)
    found: dict[LinkName, Finding] = {}
    addresses, found["dns"] = await _resolve(target)
    if not addresses:
        return found
    address, found["tcp"] = await _connect(addresses)
    if address is None:
        return found
    problem, found["tls"] = await _shake_hands(access, target, address)
    found["time"] = await _compare_clocks(access, clock, trusted=not problem)
    return found


async def _resolve(target: _Target) -> tuple[list[_Address], Finding]:
    next_step = "look at /etc/resolv.conf and at the name server that it names: resolvectl status"
    try:
        async with asyncio.timeout(DEADLINE.total_seconds()):
            found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=1)
    except TimeoutError:
        return [], Broken(f"no name server answers for {target.host} within {DEADLINE.total_seconds():g} s", next_step)
    except OSError as error:
        return [], Broken(f"{target.host} does not resolve: {error.strerror or type(error).__name__}", next_step)
    addresses = list(dict.fromkeys((str(item[4][0]), int(item[4][1])) for item in found))
    return addresses, Fine(", ".join(address for address, _ in addresses[:_MOST_ADDRESSES]))


async def _connect(addresses: list[_Address]) -> tuple[_Address | None, Finding]:
    problems = []
    for host, port in addresses[:_MOST_ADDRESSES]:
        try:
            async with asyncio.timeout(DEADLINE.total_seconds()):
                _reader, writer = await asyncio.open_connection(host, port)
            writer.close()
            return (host, port), Fine(f"{host} port {port}")
        except TimeoutError:
            problems.append(f"{host} port {port} does not answer within {DEADLINE.total_seconds():g} s")
        except OSError as error:
            problems.append(f"{host} port {port}: {error.strerror or type(error).__name__}")
    next_step = "look at routes, firewalls and the load balancer between this machine and the API server: ip route get"
    return None, Broken("; ".join(problems), f"{next_step} {addresses[0][0]}")


async def _shake_hands(access: ClusterAccess, target: _Target, address: _Address) -> tuple[bool, Finding]:
    """Return whether there is a problem, and what was found."""
    anonymous = replace(access, credentials=Credentials())
    try:
        context = await asyncio.to_thread(tls_context, anonymous)
    except AgentError as error:
        place = access.ca_file or "the kubeconfig"
        return True, Broken(f"the CA certificates cannot be used: {error}", f"restore the CA bundle in {place}")
    name = access.tls_server_name or target.host
    try:
        async with asyncio.timeout(DEADLINE.total_seconds()):
            _reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=name)
        writer.close()
    except TimeoutError:
        return True, Broken(
            f"no TLS handshake within {DEADLINE.total_seconds():g} s",
            "look at what listens there: it may not be an API server",
        )
    except ssl.SSLCertVerificationError as error:
        return True, _of_certificate(error, name, access)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        return True, Broken(f"TLS fails: {reason}", "look at what listens there: it may not be an API server")
    return False, Fine()


def _of_certificate(error: ssl.SSLCertVerificationError, name: str, access: ClusterAccess) -> Broken:
    code = error.verify_code
    if code in (_NOT_YET_VALID, _EXPIRED):
        word = "has expired" if code == _EXPIRED else "is not valid yet"
        return Broken(
            f"the API server's certificate, or its CA, {word} by this machine's clock",
            "compare the clock with another machine's (timedatectl); if it is right, the certificate has to be renewed",
        )
    if code in (_HOSTNAME, _ADDRESS):
        return Broken(
            f"the API server's certificate is not for {name}",
            "compare apiServer.server in the configuration with the certificate",
        )
    place = access.ca_file or "the kubeconfig"
    return Broken(
        "the API server's certificate is not signed by the known CA",
        f"compare the CA bundle in {place} with the cluster's: a rotation may have passed this machine by",
    )


async def _compare_clocks(access: ClusterAccess, clock: Clock, *, trusted: bool) -> Finding:
    """Ask for the time only: without credentials, and even where the server cannot be verified."""
    server_clock = ServerClock(clock=clock, name="shoot")
    clients = ClientFactory(clock=server_clock, rng=SystemRandom(), observe=lambda _method, _code, _seconds: None)
    asked = replace(access, credentials=Credentials(), insecure=access.insecure or not trusted)
    client = clients.client(asked)
    try:
        await client.get_raw("/version", deadline=DEADLINE.total_seconds())
    except AgentError as error:
        if server_clock.ahead is None and server_clock.now() == clock.now():
            return NotLooked(f"the API server does not tell its time: {error.message}")
    finally:
        await client.close()
    ahead = server_clock.ahead or timedelta(0)
    if abs(ahead) <= CLOCK_LIMIT:
        return Fine("agrees with the API server's")
    word = "ahead of" if ahead > timedelta(0) else "behind"
    return Broken(
        f"this machine's clock is {abs(ahead).total_seconds():.0f} s {word} the API server's",
        "let the clock be set: timedatectl status, systemctl status systemd-timesyncd chronyd",
    )
