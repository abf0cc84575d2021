"""One long-lived connection to the system bus, which comes back when the bus does.

dbus-next 0.2.3 is used for its wire format; what its connection does not do is done here, each with a test that fails
when the library does it itself:

- a call made after the connection broke never returns: it is looked at before, and each call has a deadline;
- an end of file during authentication is read in an endless loop without a pause: our own reader raises;
- the futures of sends and of the disconnection are printed on stderr when nobody asks for their exception: we ask;
- connecting blocks the event loop and the socket is never closed: we bring a connected socket, and close it.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

from agents.core.imports import left_out, replaced
from agents.core.logging import get_logger
from systemd.errors import BusUnavailable, error_from_reply

# A quarter of a MB, for descriptions of objects that nobody asks for.
with replaced(left_out("xml", "xml.etree", "xml.etree.ElementTree")):
    from dbus_next import AuthError, Message, MessageType, Variant
    from dbus_next.aio import MessageBus

log = get_logger(__name__)

__all__ = ["CALL_DEADLINE_SECONDS", "SYSTEM_BUS", "Method", "SignalHandler", "SystemBus", "Variant"]

SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
CALL_DEADLINE_SECONDS = 25.0
"""As sd-bus and libdbus have it."""

_BROKEN = (OSError, EOFError, ValueError, TypeError, LookupError, struct.error)
"""What calls get when the connection ends, by the peer or because of a message that cannot be read."""

_LONGEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class Method:
    """A method of an object on the bus, with the signature of its arguments."""

    destination: str
    path: str
    interface: str
    member: str
    signature: str = ""


class SignalHandler(Protocol):
    """Called in the event loop for each signal that a match rule lets through."""

    def __call__(self, member: str, body: Sequence[object]) -> None:
        """Take note of the signal; must not raise."""
        ...


class SystemBus:
    """The connection. Made at the first call, and again at the first call after it broke.

    Args:
        address: D-Bus address of transport `unix`.
        call_deadline: seconds for connecting, and for each call.
        on_connected: run on each new connection before any other call, to install match rules.
        on_signal: called for each signal.
        on_lost: called when the connection broke.
    """

    def __init__(
        self,
        *,
        address: str = SYSTEM_BUS,
        call_deadline: float = CALL_DEADLINE_SECONDS,
        on_connected: Callable[["SystemBus"], Awaitable[None]] | None = None,
        on_signal: SignalHandler | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._address = address
        self._call_deadline = call_deadline
        self._on_connected = on_connected
        self._on_signal = on_signal
        self._on_lost = on_lost
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, method: Method, *body: object, about: Mapping[str, object] | None = None) -> list[object]:
        """Call a method and return what it answers.

        Args:
            method: which one, of which object.
            body: its arguments.
            about: fields for the error, for example the unit.

        Raises:
            BusUnavailable: no connection, no answer in time; the call may have had its effect.
            SystemdError: the answer is an error.
        """
        return await self._send(await self._connected(), method, body, {"call": method.member, **(about or {})})

    async def call_during_connect(self, method: Method, *body: object) -> list[object]:
        """Like `call`, for `on_connected`: on the connection that is being set up."""
        if self._connection is None:
            raise BusUnavailable("system bus connection broke", {"call": method.member})
        return await self._send(self._connection, method, body, {"call": method.member})

    async def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        async with self._connecting:
            self._drop()

    async def _send(
        self, connection: "_Connection", method: Method, body: Sequence[object], about: Mapping[str, object]
    ) -> list[object]:
        message = Message(
            destination=method.destination,
            path=method.path,
            interface=method.interface,
            member=method.member,
            signature=method.signature,
            body=list(body),
        )
        if not connection.connected:
            raise BusUnavailable("system bus connection is gone", about)
        try:
            async with asyncio.timeout(self._call_deadline):
                reply = await connection.call(message)
        except TimeoutError:
            raise BusUnavailable("no answer on the system bus in time", about) from None
        except _BROKEN as error:
            raise BusUnavailable("system bus connection broke", about) from error
        answer = list(reply.body)
        if reply.message_type is MessageType.ERROR:
            raise error_from_reply(str(reply.error_name), str(answer[0]) if answer else "", about)
        return answer

    async def _connected(self) -> "_Connection":
        if (connection := self._usable()) is not None and not self._connecting.locked():
            return connection
        async with self._connecting:
            if (connection := self._usable()) is not None:
                return connection
            self._drop()
            return await self._connect()

    def _usable(self) -> "_Connection | None":
        return self._connection if self._connection is not None and self._connection.connected else None

    async def _connect(self) -> "_Connection":
        try:
            async with asyncio.timeout(self._call_deadline):
                connection = await _Connection.open(self._address, self._received, self._lost)
        except TimeoutError:
            raise BusUnavailable("system bus does not answer", {"address": self._address}) from None
        except (*_BROKEN, AuthError) as error:
            raise BusUnavailable("system bus not reached", {"address": self._address, "problem": str(error)}) from error
        self._connection = connection
        try:
            if self._on_connected is not None:
                await self._on_connected(self)
        except BaseException:
            self._drop()
            raise
        log.debug("System bus connected")
        return connection

    def _received(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL and self._on_signal is not None:
            self._on_signal(message.member or "", message.body)

    def _lost(self, connection: "_Connection") -> None:
        """Note that the connection broke; one that we closed ourselves has been forgotten before."""
        if connection is not self._connection:
            return
        self._connection = None
        log.debug("System bus connection broke")
        if self._on_lost is not None:
            self._on_lost()

    def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


def _socket_name(address: str) -> str:
    """Return the socket's file name of a D-Bus address, with a NUL byte in front if it is abstract."""
    for entry in address.split(";"):
        transport, _, options = entry.partition(":")
        values = dict(option.partition("=")[::2] for option in options.split(","))
        if transport == "unix" and "path" in values:
            return unquote(values["path"])
        if transport == "unix" and "abstract" in values:
            return "\0" + unquote(values["abstract"])
    raise ValueError("not the address of a unix socket")


class _Connection(MessageBus):  # type: ignore[misc]
    """dbus-next's connection on a socket that we connected; the type checker is told to skip the library."""

    def __init__(self, connected: socket.socket, on_lost: Callable[["_Connection"], None]) -> None:
        self._sock = connected
        super().__init__("unix:path=unused")
        self._disconnect_future.add_done_callback(_retrieve)
        self._disconnect_future.add_done_callback(lambda _: self._release(on_lost))

    @classmethod
    async def open(
        cls, address: str, received: Callable[[Message], None], on_lost: Callable[["_Connection"], None]
    ) -> "_Connection":
        """Connect and say hello. The caller sets the deadline."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.setblocking(False)  # noqa: FBT003 - the library's signature
        try:
            await asyncio.get_running_loop().sock_connect(connected, _socket_name(address))
        except BaseException:
            connected.close()
            raise
        connection = cls(connected, on_lost)
        connection.add_message_handler(received)
        try:
            await connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """End the connection at once; pending calls fail."""
        self._user_disconnect = True
        self._finalize(ConnectionResetError("closed"))

    def send(self, msg: Message) -> "asyncio.Future[None]":
        """Send without leaving an exception that nobody asks for."""
        future: asyncio.Future[None] = super().send(msg)
        future.add_done_callback(_retrieve)
        return future

    def _setup_socket(self) -> None:
        self._stream = self._sock.makefile("rwb")
        self._fd = self._sock.fileno()

    def _release(self, on_lost: Callable[["_Connection"], None]) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
        self._sock.close()
        on_lost(self)

    async def _auth_readline(self) -> str:
        line = b""
        while not line.endswith(b"\r\n"):
            received = await self._loop.sock_recv(self._sock, 1)
            if not received or len(line) > _LONGEST_LINE:
                raise ConnectionResetError("system bus closed the connection during authentication")
            line += received
        return line[:-2].decode()


def _retrieve(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
