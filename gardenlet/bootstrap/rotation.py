"""Replacing gardenlet's client certificate: when its time has come, or when somebody asks for it.

The time is drawn once for each certificate. Then a new one is requested with the current one, proven with a read of the own Seed, stored, and used
by all clients of the garden without interrupting anything. Asked for by the annotation `gardener.cloud/operation: renew`, the process
starts anew afterwards, as is documented. A failure leaves the current certificate in use; it is an event in the garden, and the next
attempt goes on with the same request.

Source: gardener pkg/gardenlet/bootstrap/certificate (contract core 4).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from prometheus_client import Counter

from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.kube.events import EventRecorder, ObjectReference
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import Secret
from agents.pki.certificate import Certificate, parse_leaf, renewal_deadline
from agents.pki.csr import CertificateRequester
from agents.pki.pending import PendingStore
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import KindSource, StartupSource
from gardenlet.apis.seed import SEEDS
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.secrets import KubeconfigSecret, Stored
from gardenlet.config import KubeconfigValidity

log = get_logger(__name__)

LONGEST_WAIT = timedelta(hours=1)
"""A wall clock that jumps is noticed within this time."""
SHORTEST_WAIT = timedelta(minutes=1)
"""A certificate that is due when it is issued must not have us ask for one after another."""
LONGEST_BACKOFF = timedelta(minutes=15)
EVENT_PERIOD = timedelta(minutes=10)
FAILED = "GardenletCertificateRotationFailed"


class NothingToRotate(RetriableError):
    """There is no usable kubeconfig in the Secret."""


class RotationMetrics:
    """What the rotation shows."""

    def __init__(self, metrics: Metrics) -> None:
        self.expires: float | None = None
        self.total = Counter(
            "gardenlet_certificate_rotation",
            "Attempts to replace the client certificate by result.",
            ("result",),
            registry=metrics.registry,
        )
        metrics.gauge(
            "gardenlet_client_certificate_expiration_timestamp_seconds",
            "When the client certificate expires.",
            lambda: self.expires,
        )
        for result in ("success", "error"):
            self.total.labels(result)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the rotation is built from.

    Attributes:
        seed_name: whose certificate it is.
        secret: where the kubeconfig is.
        requester: asks for certificates, as who we are.
        pending: where it keeps its key.
        clients: of the garden.
        recorder: of the garden.
        shutdown: starts the process anew.
        has_material: whether there is a bootstrap kubeconfig.
        expires: told until when the certificate in use is valid.
    """

    seed_name: str
    secret: KubeconfigSecret
    requester: CertificateRequester
    pending: PendingStore
    clients: GardenClients
    recorder: EventRecorder
    validity: KubeconfigValidity
    shutdown: Shutdown
    has_material: Callable[[], Awaitable[bool]]
    expires: Callable[[datetime], None]
    clock: Clock
    rng: Random
    metrics: RotationMetrics


class RotationReconciler:
    """Looks at the stored certificate, and replaces it when it is time."""

    def __init__(self, parts: Parts) -> None:
        self._with = parts
        self._certificate = b""
        self._deadline = parts.clock.now()
        self._told: float | None = None
        self._looked = False

    async def reconcile(self, request: Request) -> Result:
        """Replace it, or come back when it is due."""
        stored = await self._with.secret.read()
        if stored is None or stored.access is None:
            problem = "there is none" if stored is None else stored.problem
            raise NothingToRotate("kubeconfig for the garden cannot be rotated", secret=request.name, problem=problem)
        if not stored.access.credentials.client_certificate:
            return Result()  # somebody's token: not ours to replace
        await self._forget_used_key(stored.access)
        await self._with.clients.catch_up()
        leaf = self._look(stored.access)
        wait = self._deadline - self._with.clock.now()
        if wait > timedelta(0) and not stored.renew:
            return Result(requeue_after=min(wait, LONGEST_WAIT))
        try:
            await self._rotate(stored, stored.access)
        except AgentError as error:
            self._with.metrics.total.labels("error").inc()
            self._tell(leaf, error)
            if leaf.expired(self._with.clock.now()) and await self._with.has_material():
                self._with.shutdown.request("client certificate has expired, bootstrapping again")
            raise
        self._with.metrics.total.labels("success").inc()
        if stored.renew:
            self._with.shutdown.request("client certificate renewed, as it was asked for")
            return Result()
        return Result(requeue_after=SHORTEST_WAIT)

    async def _forget_used_key(self, access: ClusterAccess) -> None:
        """Remove a pending key that is in use: a process before this one was killed right before it would have done so."""
        if not self._looked:
            kept = await self._with.pending.load()
            if kept is not None and kept.key == access.credentials.client_key:
                await self._with.pending.clear()
            self._looked = True

    def _look(self, access: ClusterAccess) -> Certificate:
        """Plan for a certificate that was not seen before."""
        certificate = access.credentials.client_certificate
        leaf = parse_leaf(certificate)
        if certificate != self._certificate:
            validity = self._with.validity
            least = validity.auto_rotation_jitter_percentage_min / 100
            most = validity.auto_rotation_jitter_percentage_max / 100
            self._deadline = renewal_deadline(leaf, fraction=least, jitter=(most - least) / least, rng=self._with.rng)
            self._certificate = certificate
            self._with.metrics.expires = leaf.not_after.timestamp()
            self._with.expires(leaf.not_after)
            log.info(
                "Certificate rotation planned", rotation=self._deadline.isoformat(), expires=leaf.not_after.isoformat()
            )
        return leaf

    async def _rotate(self, stored: Stored, access: ClusterAccess) -> None:
        issued = await self._with.requester.request()
        credentials = Credentials(client_certificate=issued.certificate, client_key=issued.key)
        renewed = replace(access, credentials=credentials)

        async def keep() -> None:
            await self._with.secret.store(renewed)

        await self._with.clients.switch(renewed, keep=keep, proof=SEEDS.path(self._with.seed_name))
        await self._with.requester.used()
        self._look(renewed)
        log.info("Client certificate renewed", asked=stored.renew)

    def _tell(self, leaf: Certificate, error: AgentError) -> None:
        """Record an event, once in a while."""
        now = self._with.clock.monotonic()
        if self._told is not None and now - self._told < EVENT_PERIOD.total_seconds():
            return
        self._told = now
        left = leaf.not_after - self._with.clock.now()
        remaining = f"{left.total_seconds() / 3600:.1f} h" if left > timedelta(0) else "no time"
        regarding = ObjectReference(kind=SEEDS.kind, name=self._with.seed_name, api_version=SEEDS.api_version)
        note = f"client certificate not renewed, {remaining} left: {error}"
        self._with.recorder.event(
            regarding, event_type="Warning", reason=FAILED, action="Reconcile", note=note, controller="gardenlet"
        )


def new_controller(parts: Parts, secrets: Informer[Secret], request: Request) -> Controller:
    """Build the controller.

    Args:
        parts: what it is built from.
        secrets: informer of the Secret; a request for a new certificate is seen at once, and without asking.
        request: namespace and name of the Secret.
    """
    return Controller(
        name="certificate-rotation",
        reconciler=Persistent(RotationReconciler(parts)),
        sources=[StartupSource([request]), KindSource(secrets)],
        max_backoff=LONGEST_BACKOFF,
    )
