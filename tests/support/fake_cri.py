"""A container runtime on a unix socket, in this process: what a reset asks of CRI, with real gRPC around it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message, shorter than 16 KiB."""
    size = len(content)
    length = bytes((size,)) if size < 128 else bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((number << 3 | 2, *length)) + content


class _Bytes(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


class FakeCri:
    """The runtime service.

    Attributes:
        sandboxes: ids, and whether each still runs.
        calls: method and sandbox, in the order in which they came.
        refuse: so many calls about a sandbox are answered with an error.
        silent: methods and sandboxes that are never answered.
        unimplemented: there is a server, but no CRI.
        garbage: the list is no message.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "cri.sock"
        self.sandboxes: dict[str, bool] = {}
        self.calls: list[tuple[str, str]] = []
        self.refuse: dict[str, int] = {}
        self.silent: set[str] = set()
        self.unimplemented = False
        self.garbage = False
        self._server: Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = Server([self], codec=_Bytes())
        await self._server.start(path=str(self.socket))

    async def stop(self) -> None:
        """End."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def __mapping__(self) -> Mapping[str, Handler]:
        methods = {"ListPodSandbox": self._list, "StopPodSandbox": self._stop, "RemovePodSandbox": self._remove}
        return {
            f"/runtime.v1.RuntimeService/{name}": Handler(method, Cardinality.UNARY_UNARY, bytes, bytes)
            for name, method in methods.items()
        }

    async def _list(self, stream: "Stream[bytes, bytes]") -> None:
        await self._read(stream, "list")
        if self.garbage:
            await stream.send_message(b"\x0a\x7f")
            return
        items = [
            field(1, name.encode())
            # Attempt 7 is a number, and of the metadata only name and namespace are read.
            + field(2, field(1, f"pod-{name}".encode()) + field(2, b"uid") + field(3, b"kube-system") + b"\x20\x07")
            + b"\x18\x01\x20\x80\xa0\x94\xa5\x8d\x1d"
            for name in self.sandboxes
        ]
        await stream.send_message(b"".join(field(1, item) for item in items))

    async def _stop(self, stream: "Stream[bytes, bytes]") -> None:
        name = await self._read(stream, "stop")
        if name in self.sandboxes:
            self.sandboxes[name] = False
        await stream.send_message(b"")

    async def _remove(self, stream: "Stream[bytes, bytes]") -> None:
        name = await self._read(stream, "remove")
        if self.sandboxes.get(name):
            raise GRPCError(Status.UNKNOWN, "sandbox is running")
        self.sandboxes.pop(name, None)
        await stream.send_message(b"")

    async def _read(self, stream: "Stream[bytes, bytes]", call: str) -> str:
        request = await stream.recv_message() or b""
        name = request[2:].decode() if len(request) < 130 else request[3:].decode()
        self.calls.append((call, name))
        if self.unimplemented:
            raise GRPCError(Status.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService")
        if call in self.silent or name in self.silent:
            await asyncio.Event().wait()
        if self.refuse.get(name, 0) > 0:
            self.refuse[name] -= 1
            raise GRPCError(Status.UNKNOWN, "failed to destroy network")
        return name
