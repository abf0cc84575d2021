"""One node after the other: the lock that a pool with serial reconciliation shares.

It is a Lease with the name of the OSC Secret, held under the host name from before the first change until the OSC is applied
and said to be, over restarts of this process too. It is renewed in the background, because an apply may take longer than
the Lease lasts; a lock that was lost stops the apply before its next step (W18).

Source: gardener pkg/nodeagent/controller/operatingsystemconfig/serial.go (contract 6.11). Updates are PUTs: the authorizer
forbids patches of Leases.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from agents.core.clock import Clock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import ApiError, NotFound
from agents.kube.models import LEASES, Lease, Secret, format_micro_time
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import ChannelSource

log = get_logger(__name__)

DURATION = timedelta(seconds=600)
RENEWAL = timedelta(seconds=60)
LOOK_AGAIN = timedelta(seconds=5)
"""While somebody else holds the lock; it may be given back long before it expires."""
DEADLINE_SECONDS = 9.5


class LockLost(RetriableError):
    """The lock could not be renewed in time, or somebody else has it."""


class SerialLock:
    """The lock of one pool, as this node sees it.

    Args:
        client: API server.
        holder: our host name.
        clock: the API server's time for what Leases say, monotonic for how long ours is good.
    """

    def __init__(self, *, client: Client, holder: str, clock: Clock) -> None:
        self._client = client
        self._holder = holder
        self._clock = clock
        self._lease: Lease | None = None
        self._secret: Secret | None = None
        self._good_until = 0.0
        # A renewal that is under way when the lock is given back must not make us believe that we have it.
        self._one_at_a_time = asyncio.Lock()
        self.acquired = ChannelSource()
        """Wakes the controller that renews."""

    @property
    def held(self) -> bool:
        """Whether we hold it, as far as we know."""
        known = self._secret is not None and self._lease is not None
        return known and self._clock.monotonic() < self._good_until

    def check(self) -> None:
        """Stop whoever is about to change the machine without the lock.

        Raises:
            LockLost: it was acquired, and is not ours any longer.
        """
        if self._secret is not None and not self.held:
            raise LockLost("lock for serial reconciliation was lost", lease=self._secret.metadata.name)

    async def acquire(self, secret: Secret) -> timedelta | None:
        """Take the lock if it is free, expired or ours.

        Returns:
            None if we hold it now, else how long to wait before the next attempt.

        Raises:
            ApiError: the Lease could not be read or written; Conflict if somebody was faster.
        """
        async with self._one_at_a_time:
            return None if self.held else await self._acquire(secret)

    async def _acquire(self, secret: Secret) -> timedelta | None:
        lease = await self._read(secret)
        if lease is not None and lease.spec.holder_identity not in (None, "", self._holder):
            left = remaining(lease, self._clock.now())
            if left > timedelta(0):
                log.debug("Lock is held by another node", holder=lease.spec.holder_identity)
                return min(left, LOOK_AGAIN)
        await self._write(secret, lease)
        self._secret = secret
        self.acquired.send(Request(secret.metadata.namespace, secret.metadata.name))
        log.info("Lock for serial reconciliation acquired", lease=secret.metadata.name)
        return None

    async def renew(self) -> bool:
        """Renew a lock that we hold; returns whether there is anything left to renew.

        Raises:
            ApiError: not renewed; the lock is good until its time is over.
        """
        async with self._one_at_a_time:
            return await self._renew()

    async def _renew(self) -> bool:
        if self._secret is None:
            return False
        lease = await self._read(self._secret)
        if lease is None or lease.spec.holder_identity != self._holder:
            log.error("Lock for serial reconciliation was taken by somebody else", lease=self._secret.metadata.name)
            self._lease = None
            return False
        if self._secret is not None:  # it may have been forgotten meanwhile
            await self._write(self._secret, lease)
        return self._secret is not None

    async def release(self, secret: Secret) -> None:
        """Give the lock back if it is ours, whichever process of this node took it.

        Raises:
            ApiError: it is not known to be free.
        """
        async with self._one_at_a_time:
            self._secret, self._lease = None, None
            await self._release(secret)

    async def _release(self, secret: Secret) -> None:
        lease = await self._read(secret)
        if lease is None or lease.spec.holder_identity != self._holder:
            return
        body = render(lease.metadata.name, secret, resource_version=lease.metadata.resource_version, spec={})
        await self._client.replace(
            LEASES, lease.metadata.name, body, namespace=secret.metadata.namespace, deadline=DEADLINE_SECONDS
        )
        log.info("Lock for serial reconciliation released", lease=lease.metadata.name)

    def forget(self) -> None:
        """Hold no lock any longer, without telling anybody: it expires by itself."""
        self._secret, self._lease = None, None

    async def _read(self, secret: Secret) -> Lease | None:
        metadata = secret.metadata
        try:
            return await self._client.get(
                LEASES, metadata.name, namespace=metadata.namespace, deadline=DEADLINE_SECONDS
            )
        except NotFound:
            return None

    async def _write(self, secret: Secret, lease: Lease | None) -> None:
        now, started = self._clock.now(), self._clock.monotonic()
        ours = lease is not None and lease.spec.holder_identity == self._holder
        acquired = lease.spec.acquire_time if lease is not None and ours else None
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(DURATION.total_seconds()),
            "acquireTime": format_micro_time(acquired or now),
            "renewTime": format_micro_time(now),
        }
        name, namespace = secret.metadata.name, secret.metadata.namespace
        try:
            if lease is None:
                body = render(name, secret, resource_version=None, spec=spec)
                self._lease = await self._client.create(LEASES, body, namespace=namespace, deadline=DEADLINE_SECONDS)
            else:
                body = render(name, secret, resource_version=lease.metadata.resource_version, spec=spec)
                self._lease = await self._client.replace(
                    LEASES, name, body, namespace=namespace, deadline=DEADLINE_SECONDS
                )
        except ApiError as error:
            log.debug("Lock not written", error=error)
            raise
        self._good_until = started + DURATION.total_seconds()


def remaining(lease: Lease, now: datetime) -> timedelta:
    """Return how long a Lease is still held; exactly now counts as over, so does what cannot be told."""
    renewed, duration = lease.spec.renew_time, lease.spec.lease_duration_seconds
    if renewed is None or duration is None or duration < 0:
        return timedelta(0)
    return max(timedelta(0), renewed + timedelta(seconds=duration) - now)


def render(
    name: str, secret: Secret, *, resource_version: str | None, spec: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the whole Lease; it goes when the Secret goes."""
    owner = {
        "apiVersion": "v1",
        "kind": "Secret",
        "name": secret.metadata.name,
        "uid": secret.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    version = {"resourceVersion": resource_version} if resource_version else {}
    metadata = {"name": name, "namespace": secret.metadata.namespace, "ownerReferences": [owner], **version}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": dict(spec)}


class RenewalReconciler:
    """Keeps the lock while it is held."""

    def __init__(self, lock: SerialLock) -> None:
        self._lock = lock

    async def reconcile(self, request: Request) -> Result:
        """Renew, and come back in time as long as there is something to renew."""
        return Result(requeue_after=RENEWAL) if await self._lock.renew() else Result()


def new_controller(lock: SerialLock) -> Controller:
    """Build the controller that renews the lock; it sleeps while no lock is held."""
    return Controller(
        name="serial-reconciliation",
        reconciler=Persistent(RenewalReconciler(lock)),
        sources=[lock.acquired],
        max_backoff=RENEWAL,
    )
