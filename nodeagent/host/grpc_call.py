"""One gRPC call with one answer, over a unix socket, without a library.

For a call that is made every 30 s for as long as a machine lives. grpclib with h2 would take 5 MiB of memory and 75 ms at each
start, a program such as `ctr` 12 ms of CPU and a fork each time; this takes 0.4 ms and nothing in between. It is possible in
this few lines because nothing has to be decoded: request headers may be sent as plain text (HPACK literals), and of the answer
only whether a message comes counts, which a gRPC server sends if and only if the call succeeded. The status of a failed call is
in compressed headers, and stays unread.

Source: RFC 9113 (HTTP/2), RFC 7541 section 6.2.2 (literals), gRPC over HTTP/2.
"""

import asyncio
from pathlib import Path

from agents.core.errors import RetriableError

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_STREAM = 1
_HEAD_BYTES = 9
_LARGEST_FRAME = 16384  # what a peer may send unless it was told otherwise
_LARGEST_ANSWER = 65535  # the window that a peer has unless it is given more
_PREFIX_BYTES = 5  # a flag for compression, and the length


class CallFailed(RetriableError):
    """The peer answered, and not with a message."""


async def call(socket: Path, method: str, message: bytes = b"") -> bytes:
    """Call a method and return the bytes of the message that it answers. The caller sets the deadline.

    Args:
        socket: where the server listens.
        method: `/package.Service/Method`, at most 126 characters.
        message: encoded request.

    Raises:
        CallFailed: it was refused, or ended without an answer; so did the connection.
        OSError: nobody listens.
    """
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_HEADERS, _END_HEADERS, _STREAM, _request(method)))
        writer.write(_frame(_DATA, _END_STREAM, _STREAM, b"\0" + len(message).to_bytes(4, "big") + message))
        return await _answer(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise CallFailed("connection ended without an answer", method=method) from error
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    answer = b""
    while True:
        kind, flags, stream, payload = await _read_frame(reader)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GOAWAY or (kind == _RST_STREAM and stream == _STREAM):
            raise CallFailed(
                "call refused", code=int.from_bytes(payload[-4:] if kind == _RST_STREAM else payload[4:8], "big")
            )
        elif kind == _DATA and stream == _STREAM:
            answer += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
        if len(answer) > _LARGEST_ANSWER:
            raise CallFailed("answer too long")
        if stream == _STREAM and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return _message(answer)


def _message(answer: bytes) -> bytes:
    """Return what is behind the prefix of the one message that there must be."""
    message = answer[_PREFIX_BYTES:]
    if answer[:1] != b"\0" or int.from_bytes(answer[1:_PREFIX_BYTES], "big") != len(message):
        raise CallFailed("call ended without an answer")
    return message


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    head = await reader.readexactly(_HEAD_BYTES)
    length = int.from_bytes(head[:3], "big")
    if length > _LARGEST_FRAME:
        raise CallFailed("not an HTTP/2 server", frameBytes=length)
    return head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, await reader.readexactly(length)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _request(method: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())


def _text(value: str) -> bytes:
    """Write a string of fewer than 127 bytes as it is, not Huffman coded."""
    return bytes((len(value),)) + value.encode("ascii")
