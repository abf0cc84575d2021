"""Pod sandboxes, over containerd's CRI: listing, stopping and removing them, which is all that a reset needs.

gRPC through grpclib and not `ctr`: stopping a sandbox through CRI has containerd call the network plugins, so that addresses
and rules of a Pod are given back, and remove the sandbox's own files; `ctr` knows only containers and tasks and leaves all
of that behind. The library (with h2) takes 3 MiB and 20 ms, in this command alone, because nothing else imports this
module. The four messages have two fields that matter, so they are written and read here instead of generated.

Source: gardener pkg/nodeagent/reset/reset.go (contract 8.4, 9 W41); k8s.io/cri-api runtime/v1.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, Self

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from agents.core.errors import RetriableError
from agents.core.logging import get_logger

log = get_logger(__name__)

SOCKET = Path("/run/containerd/containerd.sock")
CONNECT_DEADLINE = timedelta(seconds=2)  # contract 8.4
LIST_DEADLINE = timedelta(seconds=10)
SANDBOX_DEADLINE = timedelta(seconds=30)  # network plugins are called meanwhile
_CONNECT_AGAIN_SECONDS = 0.2
_LONGEST_TEXT = 256
_SERVICE = "/runtime.v1.RuntimeService"
# No answer about the sandbox; `UNIMPLEMENTED` is a containerd whose CRI plugin is disabled.
_NO_ANSWER = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.CANCELLED, Status.UNIMPLEMENTED)


class CriUnavailable(RetriableError):
    """There is no container runtime to talk to, or it does not answer in time."""


class CriRefused(RetriableError):
    """The container runtime answered with an error."""


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """A Pod's sandbox."""

    id: str
    name: str = ""
    """`namespace/name`, for people."""


class PodSandboxes(Protocol):
    """The sandboxes of a machine."""

    async def list(self) -> Sequence[PodSandbox]:
        """Return all, running or not.

        Raises:
            CriUnavailable: no container runtime answers.
            CriRefused: it answers with an error.
        """
        ...

    async def stop(self, sandbox: PodSandbox) -> None:
        """Stop its containers and take it off the network; raises as `list`."""
        ...

    async def remove(self, sandbox: PodSandbox) -> None:
        """Remove it with its containers; raises as `list`."""
        ...


class CriPodSandboxes:
    """The real ones; a context manager, because it holds a connection.

    Args:
        socket: containerd's socket.
    """

    def __init__(self, *, socket: Path = SOCKET) -> None:
        self._socket = socket
        self._channel: Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._channel is not None:
            self._channel.close()

    async def list(self) -> Sequence[PodSandbox]:
        """Return all, running or not."""
        answer = await self._call("ListPodSandbox", b"", LIST_DEADLINE)
        return [_sandbox(item) for number, item in _fields(answer) if number == 1]

    async def stop(self, sandbox: PodSandbox) -> None:
        """Stop its containers and take it off the network."""
        await self._call("StopPodSandbox", _text_field(1, sandbox.id), SANDBOX_DEADLINE)

    async def remove(self, sandbox: PodSandbox) -> None:
        """Remove it with its containers."""
        await self._call("RemovePodSandbox", _text_field(1, sandbox.id), SANDBOX_DEADLINE)

    async def _call(self, method: str, request: bytes, deadline: timedelta) -> bytes:
        channel = await self._connect()
        call = UnaryUnaryMethod(channel, f"{_SERVICE}/{method}", bytes, bytes)
        seconds = deadline.total_seconds()
        try:
            async with asyncio.timeout(seconds + 1):
                return await call(request, timeout=seconds)
        except GRPCError as error:
            kind = CriUnavailable if error.status in _NO_ANSWER else CriRefused
            text = (error.message or "")[:_LONGEST_TEXT]
            raise kind("container runtime call failed", call=method, status=error.status.name, answer=text) from error
        except (OSError, StreamTerminatedError, ProtocolError) as error:  # TimeoutError is an OSError
            raise CriUnavailable(
                "container runtime does not answer", call=method, problem=str(error) or f"no answer in {seconds:g} s"
            ) from error

    async def _connect(self) -> Channel:
        """Return a channel whose socket accepts connections; containerd may be just starting."""
        if self._channel is not None:
            return self._channel
        problem = "nobody listens"
        try:
            async with asyncio.timeout(CONNECT_DEADLINE.total_seconds()):
                while True:
                    try:
                        _, writer = await asyncio.open_unix_connection(str(self._socket))
                        writer.close()
                        self._channel = Channel(path=str(self._socket), codec=_Bytes())
                        return self._channel
                    except OSError as error:
                        problem = error.strerror or str(error)
                    await asyncio.sleep(_CONNECT_AGAIN_SECONDS)
        except TimeoutError as error:
            raise CriUnavailable("no container runtime", socket=str(self._socket), problem=problem) from error


class _Bytes(CodecBase):
    """Messages are bytes already."""

    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        return message if isinstance(message, bytes) else b""

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


def _sandbox(data: bytes) -> PodSandbox:
    """Read a PodSandbox: id is field 1, metadata field 2 with name 1 and namespace 3."""
    fields = dict(_fields(data))
    metadata = dict(_fields(fields.get(2, b"")))
    names = [metadata.get(number, b"").decode(errors="replace") for number in (3, 1)]
    return PodSandbox(fields.get(1, b"").decode(errors="replace"), "/".join(filter(None, names)))


_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the length-delimited fields of a protobuf message; the others are passed over.

    Raises:
        CriRefused: it is no message.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
            continue
        if kind == _LENGTH_DELIMITED:
            length, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise CriRefused("container runtime sent something unreadable")
        if position + length > len(data):
            raise CriRefused("container runtime sent something unreadable")
        if kind == _LENGTH_DELIMITED:
            yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
    raise CriRefused("container runtime sent something unreadable")


def _text_field(number: int, text: str) -> bytes:
    content, length = text.encode(), bytearray()
    size = len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | _LENGTH_DELIMITED, *length)) + content
