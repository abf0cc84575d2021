"""Tell the service manager how we are: READY, STOPPING, WATCHDOG.

The protocol is one datagram per state to the socket in NOTIFY_SOCKET; the caller read the environment.
Source: sd_notify(3).
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from agents.core.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceEnvironment:
    """What systemd tells a service about itself: where to send states, and how often it wants to hear."""

    notify_socket: str = ""
    watchdog_usec: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ServiceEnvironment":
        """Read NOTIFY_SOCKET and WATCHDOG_USEC."""
        return cls(environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", ""))


class Notifier:
    """Sends states; does nothing if there is no socket, and a failure never stops the program.

    Args:
        address: value of NOTIFY_SOCKET: a path, or a name in the abstract namespace after `@`.
    """

    def __init__(self, *, address: str | None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    def ready(self) -> bool:
        """Say that the process is up; from then on its start can no longer take too long."""
        return self._send("READY=1")

    def stopping(self) -> bool:
        """Say that shutdown has begun."""
        return self._send("STOPPING=1")

    def watchdog(self) -> bool:
        """Say that we are alive."""
        return self._send("WATCHDOG=1")

    def _send(self, state: str) -> bool:
        """Return whether the state was handed over."""
        if not self._address:
            return False
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            ) as sender:
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            log.debug("Service manager not notified", state=state, error=error)
            return False
        return True
