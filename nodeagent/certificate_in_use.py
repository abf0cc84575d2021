"""The certificate that our client shows, and what the API server makes of it.

It may be another one than that on the disk: somebody wrote there, or a switch was cut off between the disk and the connection.
"""

from datetime import datetime, timedelta
from enum import Enum

from agents.core.clock import Clock
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import ApiError, Forbidden, NotFound, Unauthorized
from agents.pki.certificate import parse_leaf
from agents.runtime.reconcile import Request
from agents.runtime.source import ChannelSource

log = get_logger(__name__)

CERTIFICATE = Request("", "client-certificate")
"""Key of the controller that looks after the certificate."""
ASK_AGAIN = timedelta(minutes=1)
ASK_DEADLINE_SECONDS = 5.0
_REFUSED = "401"


class Standing(Enum):
    """What the API server makes of a certificate."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """There is doubt, and it cannot be asked now."""


class CertificateInUse:
    """Knows it from the moment at which it came into use.

    Args:
        clock: the API server's, for the certificate's end.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._certificate = b""
        self._end: datetime | None = None
        self._standing = Standing.ACCEPTED
        self._ask_again = 0.0
        self.doubted = False
        """Whether the last word of an API server was a refusal; where there are several, others may have another opinion."""
        self.looks = ChannelSource()
        """Has the certificate looked at: when it is not taken, and when it has worked for the first time."""

    @property
    def known(self) -> bool:
        """Whether it is known which one it is."""
        return bool(self._certificate)

    def is_(self, certificate: bytes) -> bool:
        """Tell whether it is this one."""
        return certificate == self._certificate

    def use(self, certificate: bytes) -> None:
        """Note which one it is from now on, PEM; empty for none."""
        self._certificate = certificate
        self._end = parse_leaf(certificate).not_after if certificate else None
        self.doubted, self._standing, self._ask_again = False, Standing.ACCEPTED, 0.0

    def answered(self, code: str) -> None:
        """Note how an API server answered to a request with it: the status, `<error>` without one."""
        if code.startswith("2"):
            self.doubted = False
        elif code == _REFUSED and (not self.doubted or self._standing is Standing.UNKNOWN):
            if self._standing is Standing.UNKNOWN:
                self._standing, self._ask_again = Standing.ACCEPTED, 0.0  # there is somebody to be asked again
            self.doubted = True
            self.looks.send(CERTIFICATE)

    async def standing(self, client: Client) -> Standing:
        """Return what the API server makes of it.

        Where there is doubt it is asked, once a minute; who looks more often learns what was said last. Nothing but its own word
        that it does not know us is a refusal: a date may be judged by a wrong clock, and a busy server says many things.
        """
        now = self._clock.monotonic()
        if not self.doubted and not self._has_ended():
            return Standing.ACCEPTED
        if now >= self._ask_again:
            self._ask_again = now + ASK_AGAIN.total_seconds()
            self._standing = await self._ask(client)
        return self._standing

    async def _ask(self, client: Client) -> Standing:
        try:
            await client.get_raw("/version", deadline=ASK_DEADLINE_SECONDS)
        except Unauthorized:
            return Standing.REFUSED
        except (Forbidden, NotFound) as error:
            log.debug("Client certificate is taken", error=error)
        except ApiError as error:
            log.debug("Whether the client certificate is taken is not known", error=error)
            return Standing.UNKNOWN
        self.doubted = False
        return Standing.ACCEPTED

    def _has_ended(self) -> bool:
        return self._end is not None and self._clock.now() >= self._end
