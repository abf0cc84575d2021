"""A relay in front of a registry that breaks after so many bytes: a registry that goes away, or hangs, in the middle.

`python -m tests.lab.breaking_relay` is what runs in the lab's network namespace; `breaking` is the lab's side.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.lab.api import wait_for
from tests.lab.network import REGISTRY_NAME, SERVER_ADDRESS
from tests.lab.processes import clean_environment, spawn
from tests.lab.registry import Registry

End = Literal["close", "stall"]
_PORT = 5002
_CHUNK_BYTES = 16 * 1024


@contextmanager
def breaking(registry: Registry, *, after_bytes: int, end: End) -> Iterator[str]:
    """Have a relay to a registry for the length of a block; yields the host and port under which it is reached.

    Args:
        registry: where it leads.
        after_bytes: sent to clients before it breaks, all connections together.
        end: `close` ends the connections and refuses new ones; `stall` keeps them and sends nothing any more.
    """
    root = Path(__file__).resolve().parents[2]
    ready = registry.ledger.directory / "relay-ready"
    ready.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "tests.lab.breaking_relay", "--to", str(registry.port), "--listen", str(_PORT)]
    argv += ["--after", str(after_bytes), "--end", end, "--ready", str(ready)]
    process = spawn(
        registry.ledger,
        "breaking-relay",
        argv,
        log=registry.ledger.directory / "breaking-relay.log",
        netns=registry.netns,
        cwd=root,
        env=clean_environment(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1"),
    )
    try:
        wait_for(ready.exists, timeout=20, what="the relay to listen", interval=0.02)
        yield f"{REGISTRY_NAME}:{_PORT}"
    finally:
        process.kill()


class _Relay:
    def __init__(self, *, port: int, left: int, end: End) -> None:
        self._port = port
        self._left = left
        self._end = end

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(SERVER_ADDRESS, self._port)
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, upstream_writer))
                group.create_task(self._count(upstream_reader, writer))

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if self._left <= 0 and self._end == "close":
                os._exit(0)
            if self._left <= 0:
                await asyncio.Event().wait()
            self._left -= len(chunk)
            writer.write(chunk)
            await writer.drain()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    writer.close()


async def _main(arguments: argparse.Namespace) -> None:
    relay = _Relay(port=arguments.to, left=arguments.after, end=arguments.end)
    server = await asyncio.start_server(relay.serve, SERVER_ADDRESS, arguments.listen)
    arguments.ready.touch()
    async with server:
        await server.serve_forever()


def main() -> None:
    """Read the command line and relay until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--after", type=int, required=True)
    parser.add_argument("--end", choices=("close", "stall"), required=True)
    parser.add_argument("--ready", type=Path, required=True)
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
