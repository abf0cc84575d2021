"""Renew our client certificate in time, and go on with the new one without interrupting anything.

Gardener's agent ends its process after a renewal (contract 4.6, 1.8). Ours has the client use the new certificate for new
connections; what is under way ends on the old ones, and watches are opened anew. Until the API server accepts the new one,
the old one stays in use.

A certificate that expires while the API server is away, or that the API server refuses, is no end either: as soon as a bootstrap token
is on the disk, the running agent gets another certificate with it. This controller therefore runs before any informer has synced.

Source: gardener pkg/nodeagent/controller/certificate/reconciler.go (contract 4.6, 7.4).
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random

from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError, RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import DeadlineExceeded, Unavailable
from agents.kube.kubeconfig import ClusterAccess
from agents.pki.certificate import parse_leaf, renewal_deadline
from agents.pki.csr import CertificateRefused
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import StartupSource
from agents.runtime.workqueue import MAX_DELAY
from nodeagent.certificate_in_use import CERTIFICATE, Standing
from nodeagent.credentials import (
    RETRY,
    TOKEN_LOOK,
    CertificateNotAccepted,
    CredentialsManager,
    Refusals,
)
from nodeagent.host.node_events import NodeEvents

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
        events: NodeEvents,
        expires: Callable[[datetime], Awaitable[None]],
    ) -> None:
        self._credentials = credentials
        self._client = client
        self._clock = clock
        self._rng = rng
        self._events = events
        self._expires = expires
        self._certificate = b""
        self._deadline = self._not_after = clock.now()
        self._lost = ""
        self._next_try = 0.0
        self._said = False
        self._refusals = Refusals()
        self._refused = 0

    async def reconcile(self, request: Request) -> Result:
        """Renew when it is time, else come back then; start over with what is of no use any more."""
        access = await self._stored()
        if access is not None:
            await self._credentials.take_up(access, self._client)
        standing = await self._credentials.in_use.standing(self._client)
        if standing is Standing.REFUSED:
            return await self._start_over()
        if standing is Standing.UNKNOWN:
            return Result(requeue_after=RETRY)
        if access is None:
            await self._credentials.confirm_again()
            raise NoClientCertificate("kubeconfig has no client certificate")
        wait = await self._until_renewal(access)
        if wait > timedelta(0):
            await self._credentials.confirm_again()
            return Result(requeue_after=min(wait, RETRY if self._credentials.in_use.doubted else LONGEST_WAIT))
        await self._try_confirm()
        try:
            await self._credentials.renew(self._client)
        except CertificateNotAccepted as error:
            self._say(error)
            return Result(requeue_after=RETRY)
        except CertificateRefused as error:
            return Result(requeue_after=self._say_refused(error))
        self._said, self._refusals, self._refused = False, Refusals(), 0
        return await self._rest()

    async def _try_confirm(self) -> None:
        """Confirm what is in use: it may be long until somebody signs another one. What stands against that does not hold a renewal back."""
        try:
            await self._credentials.confirm_again()
        except AgentError as error:
            log.debug("Client certificate not confirmed", error=error)

    async def _start_over(self) -> Result:
        """Have another certificate requested with the bootstrap token; what stands against that is said once."""
        if self._clock.monotonic() < self._next_try and not await self._credentials.has_other_token():
            return Result(requeue_after=TOKEN_LOOK)
        try:
            await self._credentials.start_over(self._client)
        except FatalError:
            raise
        except AgentError as error:
            # Nothing is lost by asking a server that does not answer.
            unanswered = isinstance(error, Unavailable | DeadlineExceeded)
            self._next_try = self._clock.monotonic() + (0 if unanswered else RETRY.total_seconds())
            self._say_lost(error)
            return Result(requeue_after=TOKEN_LOOK)
        self._lost = ""
        # One of several API servers may not know the new one either: that is no reason for one after another.
        self._next_try = self._clock.monotonic() + LONGEST_WAIT.total_seconds()
        return await self._rest()

    async def _rest(self) -> Result:
        """Come back for the new certificate; never at once: one that is due when it is issued must not have us ask for one after another."""
        access = await self._stored()
        wait = timedelta(0) if access is None else await self._until_renewal(access)
        return Result(requeue_after=max(RETRY, min(wait, LONGEST_WAIT)))

    async def _stored(self) -> ClusterAccess | None:
        """Return what is stored if it has a certificate; say what was found out about its file."""
        access = await self._credentials.stored()
        if self._events.node_known:
            for note in self._credentials.take_news():
                self._events.event("Warning", reason="StateDamaged", action="ReadCredentials", note=note)
        return access if access is not None and access.credentials.client_certificate else None

    async def _until_renewal(self, access: ClusterAccess) -> timedelta:
        """Return how long it is until the stored certificate is to be renewed; it may be another one than before."""
        if access.credentials.client_certificate != self._certificate:
            certificate = parse_leaf(access.credentials.client_certificate)
            self._deadline = renewal_deadline(certificate, fraction=FRACTION, jitter=JITTER, rng=self._rng)
            self._certificate, self._not_after = access.credentials.client_certificate, certificate.not_after
            log.debug("Certificate renewal planned", renewal=self._deadline.isoformat())
            await self._expires(certificate.not_after)
        return self._deadline - self._clock.now()

    def _say(self, error: CertificateNotAccepted) -> None:
        """Say once that a new certificate is not accepted; every minute it is tried again."""
        if not self._said:
            self._said = True
            log.error("New client certificate not accepted, trying again", error=error)
            self._events.event("Warning", reason="CertificateNotAccepted", action="RenewCertificate", note=str(error))

    def _say_lost(self, error: AgentError) -> None:
        """Say once for each cause that we are cut off, and why."""
        cause = repr(error.decision) if isinstance(error, CertificateRefused) else type(error).__name__
        if cause != self._lost:
            self._lost = cause
            log.error(
                "Client certificate has expired or is refused, and there is no other one yet; trying again",
                error=error,
                expires=self._not_after.isoformat(),
            )
        else:
            log.debug("Still no other client certificate", error=error)

    def _say_refused(self, error: CertificateRefused) -> timedelta:
        """Say once what was said about our request; returns when to ask again, later after each refusal (contract 4.6)."""
        wait = min(RETRY * (1 << min(self._refused, 10)), MAX_DELAY)
        self._refused += 1
        if self._refusals.is_news(error):
            log.error("Certificate refused, the old one stays in use", error=error)
            self._events.event("Warning", reason="CertificateRefused", action="RenewCertificate", note=str(error))
        else:
            log.debug("Certificate refused again", error=error, requeueAfterSeconds=wait.total_seconds())
        return wait


def new_controller(
    *,
    credentials: CredentialsManager,
    client: Client,
    clock: Clock,
    rng: Random,
    events: NodeEvents,
    expires: Callable[[datetime], Awaitable[None]],
) -> Controller:
    """Build the controller; `expires` is told until when the certificate is valid."""
    reconciler = CertificateReconciler(
        credentials=credentials, client=client, clock=clock, rng=rng, events=events, expires=expires
    )
    return Controller(
        name="certificate",
        reconciler=Persistent(reconciler),
        sources=[StartupSource([CERTIFICATE]), credentials.in_use.looks],
    )
