"""A TCP relay between a client and a server, to provoke what networks do.

`silence` makes established connections half-open: their bytes are swallowed in both directions while both ends believe that the
connection stands, and new connections work. `cut` resets established connections. With a delay, what the server sends arrives so much
later, and nothing else changes: it is what a distant or a busy server is like.
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

    def __init__(self, host: str, port: int, *, delay: float = 0.0) -> None:
        self._host = host
        self._port = port
        self._delay = delay
        self._open: set[_Connection] = set()
        self._idle = asyncio.Event()
        self._idle.set()
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

    async def wait_idle(self, *, timeout: float) -> None:
        """Wait until no connection is relayed any more."""
        async with asyncio.timeout(timeout):
            await self._idle.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        self.accepted += 1
        upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        connection = _Connection(writer, upstream_writer)
        self._open.add(connection)
        self._idle.clear()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, upstream_writer, connection))
                answers = self._pump if self._delay == 0 else self._pump_later
                group.create_task(answers(upstream_reader, writer, connection))
        finally:
            self._open.discard(connection)
            if not self._open:
                self._idle.set()
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

    async def _pump_later(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        """Pump with a delay; what is under way does not hold up what comes after it."""
        clock = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, chunk = await under_way.get()
                await asyncio.sleep(max(0.0, due - clock()))
                if not chunk:
                    break
                if not connection.silent:
                    writer.write(chunk)
                    with contextlib.suppress(OSError):
                        await writer.drain()
            if not connection.silent:
                writer.close()

        async def take() -> None:
            chunk = b"-"
            while chunk:
                try:
                    chunk = await reader.read(65536)
                except OSError:
                    chunk = b""
                under_way.put_nowait((clock() + self._delay, chunk))

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(deliver())


@asynccontextmanager
async def relay(host: str, port: int, *, delay: float = 0.0) -> AsyncIterator[Relay]:
    """Relay connections to a server for as long as the context lasts; its answers arrive `delay` seconds later."""
    instance = Relay(host, port, delay=delay)
    server = await asyncio.start_server(instance.serve, "127.0.0.1", 0)
    instance.port = server.sockets[0].getsockname()[1]
    try:
        yield instance
    finally:
        server.close()
        instance.cut()
        await instance.wait_idle(timeout=delay + 5)
        await server.wait_closed()
