"""Renew our client certificate in time, then end the process, so that it starts again with the new one.

Source: gardener pkg/nodeagent/controller/certificate/reconciler.go (contract 4.6, 7.4).
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random

from agents.core.clock import Clock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.pki.certificate import parse_leaf, renewal_deadline
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import StartupSource
from nodeagent.credentials import CredentialsManager

log = get_logger(__name__)

FRACTION = 0.8
JITTER = 0.1
LONGEST_WAIT = timedelta(hours=1)
"""A wall clock that jumps is noticed within this time."""


class NoClientCertificate(RetriableError):
    """The kubeconfig has no client certificate, so there is nothing to renew."""


class CertificateReconciler:
    """Compares the clock with the renewal deadline, which is drawn once for each certificate."""

    def __init__(
        self,
        *,
        credentials: CredentialsManager,
        client: Client,
        clock: Clock,
        rng: Random,
        shutdown: Shutdown,
        expires: Callable[[datetime], Awaitable[None]],
    ) -> None:
        self._credentials = credentials
        self._client = client
        self._clock = clock
        self._rng = rng
        self._shutdown = shutdown
        self._expires = expires
        self._deadline: datetime | None = None

    async def reconcile(self, request: Request) -> Result:
        """Renew when it is time, else come back then."""
        if self._deadline is None:
            access = await self._credentials.stored()
            if access is None or not access.credentials.client_certificate:
                raise NoClientCertificate("kubeconfig has no client certificate")
            certificate = parse_leaf(access.credentials.client_certificate)
            self._deadline = renewal_deadline(certificate, fraction=FRACTION, jitter=JITTER, rng=self._rng)
            log.debug("Certificate renewal planned", renewal=self._deadline.isoformat())
            await self._expires(certificate.not_after)
        wait = self._deadline - self._clock.now()
        if wait > timedelta(0):
            return Result(requeue_after=min(wait, LONGEST_WAIT))
        await self._credentials.renew(self._client)
        self._shutdown.request("client certificate renewed")
        return Result()


def new_controller(
    *,
    credentials: CredentialsManager,
    client: Client,
    clock: Clock,
    rng: Random,
    shutdown: Shutdown,
    expires: Callable[[datetime], Awaitable[None]],
) -> Controller:
    """Build the controller; `expires` is told until when the certificate is valid."""
    reconciler = CertificateReconciler(
        credentials=credentials, client=client, clock=clock, rng=rng, shutdown=shutdown, expires=expires
    )
    return Controller(
        name="certificate",
        reconciler=Persistent(reconciler),
        sources=[StartupSource([Request("", "client-certificate")])],
    )
