"""A TCP relay between a client and a server, to provoke what networks do.

`silence` makes established connections half-open: their bytes are swallowed in both directions while both ends believe that the
connection stands, and new connections work. `cut` resets established connections.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    silent: bool = False


class Relay:
    """Use `relay(...)`."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._open: set[_Connection] = set()
        self.accepted = 0
        """How many connections were made so far."""
        self.port = 0
        """Where clients connect to, on 127.0.0.1."""

    def silence(self) -> int:
        """Swallow all further bytes of the connections that are open now; return how many these are."""
        for connection in self._open:
            connection.silent = True
        return len(self._open)

    def cut(self) -> None:
        """Reset the connections that are open now."""
        for connection in tuple(self._open):
            connection.client.transport.abort()
            connection.server.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        self.accepted += 1
        upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        connection = _Connection(writer, upstream_writer)
        self._open.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, upstream_writer, connection))
                group.create_task(self._pump(upstream_reader, writer, connection))
        finally:
            self._open.discard(connection)
            writer.close()
            upstream_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if not connection.silent:
                    writer.write(chunk)
                    await writer.drain()
            if not connection.silent:
                writer.close()


@asynccontextmanager
async def relay(host: str, port: int) -> AsyncIterator[Relay]:
    """Relay connections to a server for as long as the context lasts."""
    instance = Relay(host, port)
    server = await asyncio.start_server(instance.serve, "127.0.0.1", 0)
    instance.port = server.sockets[0].getsockname()[1]
    try:
        yield instance
    finally:
        server.close()
        instance.cut()
        await asyncio.sleep(0)
        await server.wait_closed()
