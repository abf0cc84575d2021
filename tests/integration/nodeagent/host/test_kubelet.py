"""Asking the kubelet, over a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from nodeagent.host.kubelet import Kubelet, KubeletUnhealthy


@asynccontextmanager
async def serving(answer: bytes | None) -> AsyncIterator[tuple[str, list[asyncio.StreamReader]]]:
    """Serve raw bytes to each connection, or nothing at all; yields the URL and the connections so far."""
    connections: list[asyncio.StreamReader] = []
    ended, served = asyncio.Event(), set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(reader)
        served.add(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await ended.wait()
        else:
            writer.write(answer)
            await writer.drain()
            await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/healthz", connections
    finally:
        ended.set()
        server.close()
        if tasks := [task for task in served if task is not None]:
            await asyncio.wait(tasks, timeout=5)


def reply(status: str, body: bytes) -> bytes:
    """Return an HTTP response."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_200_is_healthy() -> None:
    """Contract 7.5: 200 is healthy."""
    async with serving(reply("200 OK", b"ok")) as (url, _):
        await Kubelet(url=url).healthy()


@pytest.mark.parametrize("status", ["500 Internal Server Error", "401 Unauthorized", "301 Moved Permanently"])
async def test_w05_kubelet_that_answers_500_is_an_ordinary_failure(status: str) -> None:
    """Contract 9 W5: an answer other than 200 is an error that carries the status and what the kubelet says, cut."""
    async with serving(reply(status, b"[-]syncloop failed: reason withheld\n" + b"x" * 10_000)) as (url, _):
        with pytest.raises(KubeletUnhealthy, match=r"\[-\]syncloop failed") as caught:
            await Kubelet(url=url).healthy()
    assert caught.value.fields["status"] == int(status[:3])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n"])
async def test_a_broken_answer_is_an_ordinary_failure(answer: bytes) -> None:
    """Contract 7.5: a connection that ends early, and an answer that is no HTTP, are the kubelet's failure."""
    async with serving(answer) as (url, _):
        with pytest.raises(KubeletUnhealthy, match="does not answer"):
            await Kubelet(url=url, deadline=timedelta(seconds=0.3)).healthy()


async def test_nobody_there_is_an_ordinary_failure() -> None:
    """Contract 7.5: a refused connection is the kubelet's failure, with its cause."""
    async with serving(None) as (url, _):
        pass
    with pytest.raises(KubeletUnhealthy, match=r"does not answer.*[Cc]onnect"):
        await Kubelet(url=url).healthy()


async def test_w25_a_frozen_kubelet_is_given_up_in_time() -> None:
    """Contract 9 W25: a kubelet that accepts and never answers is given up at the deadline."""
    async with serving(None) as (url, _):
        with pytest.raises(KubeletUnhealthy, match=r"deadlineSeconds=0\.2"):
            async with asyncio.timeout(5):
                await Kubelet(url=url, deadline=timedelta(seconds=0.2)).healthy()


async def test_w34_connections_to_the_kubelet_are_closed() -> None:
    """Contract 9 W34: whatever it answers, the connection is closed when the answer is there."""
    for answer in (reply("200 OK", b"x" * 10_000), reply("500 Internal Server Error", b"x" * 10_000)):
        async with serving(answer) as (url, connections):
            for _ in range(3):
                with contextlib.suppress(KubeletUnhealthy):
                    await Kubelet(url=url).healthy()
            async with asyncio.timeout(5):
                for connection in connections:
                    assert await connection.read() == b""
            assert len(connections) == 3
