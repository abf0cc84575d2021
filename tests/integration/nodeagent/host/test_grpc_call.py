"""The one gRPC call, against servers that misbehave; against a real one in `test_containerd.py`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.host.grpc_call import CallFailed, call

METHOD = "/test.Service/Method"
SETTINGS = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"
HEADERS = b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"
TRAILERS = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def data(message: bytes, flags: int = 0, stream: int = 1) -> bytes:
    """Return a DATA frame with a gRPC message."""
    return frame(0, flags, stream, b"\0" + len(message).to_bytes(4, "big") + message)


@asynccontextmanager
async def serving(folder: Path, answer: bytes) -> AsyncIterator[tuple[Path, list[bytes]]]:
    """Serve fixed bytes on a unix socket; yields its path, and what clients sent."""
    received: list[bytes] = []
    served: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        received.append(await reader.read(4096))
        writer.write(answer)
        if answer.endswith(b"cut"):
            writer.close()
        received.append(await reader.read())
        writer.close()

    path = folder / "s"
    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield path, received
    finally:
        server.close()
        if tasks := [task for task in served if task is not None]:
            await asyncio.wait(tasks, timeout=5)


async def test_the_message_of_the_answer_is_returned(tmp_path: Path) -> None:
    """Contract 7.5: settings and pings are acknowledged, frames in between and of other streams are passed over, parts are joined."""
    whole = data(b"version 1.6")
    first, rest = frame(0, 0, 1, whole[9:14]), frame(0, 8, 1, b"\x02" + whole[14:] + b"\0\0")
    ping = frame(6, 0, 0, b"12345678")
    others = frame(8, 0, 0, b"\0\0\1\0") + data(b"other", stream=3) + frame(0xBE, 0, 1, b"unknown")
    async with serving(tmp_path, SETTINGS + ping + HEADERS + others + first + rest + TRAILERS) as (path, received):
        assert await call(path, METHOD, b"request") == b"version 1.6"
    sent = b"".join(received)
    assert sent.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
    assert METHOD.encode() in sent
    assert data(b"request", flags=1) in sent
    assert sent.endswith(frame(4, 1, 0, b"") + frame(6, 1, 0, b"12345678"))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (SETTINGS + TRAILERS, "without an answer"),
        (SETTINGS + HEADERS + frame(0, 0, 1, b"\0\0\0\0\x02x") + TRAILERS, "without an answer"),
        (SETTINGS + HEADERS + frame(0, 1, 1, b"\x01\0\0\0\x01x"), "without an answer"),
        (SETTINGS + frame(3, 0, 1, b"\0\0\0\x07"), r"refused \(code=7\)"),
        (SETTINGS + frame(7, 0, 0, b"\0\0\0\0\0\0\0\x0bmore"), r"refused \(code=11\)"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not an HTTP/2 server"),
        (SETTINGS + b"\0\0cut", "connection ended"),
        (SETTINGS + HEADERS + frame(0, 0, 1, b"x" * 16384) * 5, "too long"),
    ],
)
async def test_what_is_no_answer_is_a_failed_call(tmp_path: Path, answer: bytes, text: str) -> None:
    """Contract 7.5: an error, a refusal, another protocol, a broken connection and an endless answer are failures, each in time."""
    async with asyncio.timeout(5), serving(tmp_path, answer) as (path, _):
        with pytest.raises(CallFailed, match=text):
            await call(path, METHOD)
