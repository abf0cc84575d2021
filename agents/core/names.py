"""Look up names of hosts in threads that nobody else needs.

A lookup cannot be cancelled, and a name server that does not answer holds its thread for half a minute. In the threads that all
of a process shares, a few dead names, asked for again and again, would leave none for anything else.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_MOST = 32
"""Names that are looked up at the same time."""

_Addresses = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]]


class TooManyLookups(OSError):
    """So many names do not resolve that no further one is tried."""


class Names(AbstractResolver):
    """Resolver for aiohttp that asks as the machine does; each name is looked up once at a time, whoever waits for it.

    The threads do not keep the process from ending.

    Args:
        look_up: `socket.getaddrinfo`, or something like it.
    """

    def __init__(self, *, look_up: Callable[..., Any] = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._under_way: dict[tuple[str, int, int], asyncio.Future[_Addresses]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: it has none, or cannot be looked up.
        """
        key = (host, port, int(family))
        future = self._under_way.get(key)
        if future is None:
            future = self._begin(key)
        return [_result(host, *found) for found in await asyncio.shield(future)]

    async def close(self) -> None:
        """Forget what is under way; nobody waits for it."""
        self._under_way.clear()

    def _begin(self, key: tuple[str, int, int]) -> "asyncio.Future[_Addresses]":
        if len(self._under_way) >= _MOST:
            raise TooManyLookups("too many names are being looked up")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Addresses] = loop.create_future()
        self._under_way[key] = future

        def end(addresses: _Addresses, error: OSError | None) -> None:
            self._under_way.pop(key, None)
            if error is not None:
                future.set_exception(error)
                future.exception()  # perhaps nobody waits any longer
            else:
                future.set_result(addresses)

        def run() -> None:
            host, port, family = key
            addresses: _Addresses = []
            problem: OSError | None = None
            try:
                addresses = self._look_up(
                    host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
                )
            except UnicodeError as error:
                problem = OSError(f"not a name of a host: {error}")
            except OSError as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, addresses, problem)

        threading.Thread(target=run, name=f"look up {key[0]}", daemon=True).start()
        return future


def _result(
    host: str, family: socket.AddressFamily, _kind: socket.SocketKind, proto: int, _name: str, address: tuple[Any, ...]
) -> ResolveResult:
    numeric = str(address[0])
    if family == socket.AF_INET6 and len(address) > 3 and address[3] and "%" not in numeric:
        numeric = f"{numeric}%{address[3]}"
    return ResolveResult(
        hostname=host,
        host=numeric,
        port=int(address[1]),
        family=family,
        proto=proto,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
