"""How the garden is reached: with the kubeconfig that is stored, one that was configured, or one that is asked for.

::

    kubeconfigSecret configured?
     no  -> a file configured? use it                                      else: configuration error
     yes -> a usable kubeconfig in it? use it
            else bootstrapKubeconfig configured? ask for a certificate     else a file? use it       else: configuration error

Ours differs in three things. A stored kubeconfig that has expired, or cannot be used, is replaced by a bootstrap where there is
material for one. Every remote error is waited for; only the configuration can be wrong for good. And each step may be the last
one: key and request survive in a Secret, and what a bootstrap leaves behind is in the journal of the stored kubeconfig.

Source: gardener pkg/gardenlet/bootstrappers/garden_kubeconfig.go, pkg/gardenlet/bootstrap (contract core 3.1 to 3.4).
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from random import Random

from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError, RetriableError
from agents.core.logging import get_logger
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.errors import Conflict, NotFound
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import SECRETS
from agents.pki.certificate import InvalidCertificate, parse_leaf
from agents.pki.csr import CertificateNotIssued, CertificateRequester
from gardenlet.bootstrap.secrets import KEY, Journal, KubeconfigSecret, PendingSecret, usable
from gardenlet.config import GardenClientConnection, SecretReference

log = get_logger(__name__)

USER_PREFIX = "gardener.cloud:system:seed:"
GROUP = "gardener.cloud:system:seeds"
REQUEST_PREFIX = "seed-csr-"
FIRST_BACKOFF = timedelta(seconds=1)
LONGEST_BACKOFF = timedelta(minutes=1)
LONGEST_BACKOFF_REFUSED = timedelta(minutes=15)
"""After a request was denied: somebody decided that."""
_TOKEN = re.compile(r"([a-z0-9]{6})\.[a-z0-9]{16}")


class Origin(Enum):
    """Where the kubeconfig is from."""

    FILE = "file"
    STORED = "stored"
    BOOTSTRAPPED = "bootstrapped"


class BootstrapMaterialMissing(RetriableError):
    """There is neither a usable kubeconfig nor a bootstrap kubeconfig; an operator has to bring one."""


@dataclass(frozen=True, slots=True)
class GardenAccess:
    """How the garden is reached."""

    access: ClusterAccess
    origin: Origin


class GardenKubeconfig:
    """Finds the kubeconfig for the garden.

    Args:
        connection: what is configured.
        seed_name: whose certificate is asked for.
        seed: client of the cluster that we run in.
        new_client: builds a client of the garden; closed here.
        clock: for validity and waits.
        rng: spreads retries.

    Attributes:
        secret: where it is stored; None without one.
        pending: where a key waits for its certificate; None without that Secret.
    """

    def __init__(
        self,
        *,
        connection: GardenClientConnection,
        seed_name: str,
        seed: Client,
        new_client: Callable[[ClusterAccess], Client],
        clock: Clock,
        rng: Random,
    ) -> None:
        self._connection = connection
        self._common_name = USER_PREFIX + seed_name
        self._seed = seed
        self._new_client = new_client
        self._clock = clock
        self._rng = rng
        reference = connection.kubeconfig_secret
        self.secret = None if reference is None else KubeconfigSecret(seed, reference)
        self.pending = None if reference is None else PendingSecret(seed, reference)

    async def resolve(self) -> GardenAccess:
        """Return how the garden is reached; waits as long as it takes.

        Raises:
            FatalError: the configuration names nothing that could ever be used.
        """
        failures = 0
        while True:
            try:
                return await self._resolve()
            except FatalError:
                raise
            except AgentError as error:
                delay = self._delay(error, failures)
                failures += 1
                log.error(
                    "No kubeconfig for the garden yet, trying again",
                    error=error,
                    attempt=failures,
                    requeueAfterSeconds=round(delay, 1),
                )
            await asyncio.sleep(delay)

    async def has_material(self) -> bool:
        """Tell whether there is a bootstrap kubeconfig to begin again with.

        Raises:
            ApiError: the seed does not answer.
        """
        reference = self._connection.bootstrap_kubeconfig
        if reference is None:
            return False
        try:
            found = await self._seed.get(SECRETS, reference.name, namespace=reference.namespace)
        except NotFound:
            return False
        return bool(found.data.get(KEY))

    def _delay(self, error: AgentError, failures: int) -> float:
        refused = isinstance(error, CertificateNotIssued)
        longest = LONGEST_BACKOFF_REFUSED if refused else LONGEST_BACKOFF
        seconds: float = min(longest, FIRST_BACKOFF * 2 ** min(failures, 12)).total_seconds()
        return seconds * (1 + 0.1 * self._rng.random())

    async def _resolve(self) -> GardenAccess:
        if self.secret is None:
            return await self._from_file("gardenClientConnection.kubeconfigSecret is not configured")
        stored = await self.secret.read()
        problem = "there is no kubeconfig yet" if stored is None else stored.problem
        if stored is not None and stored.access is not None:
            problem = self._outdated(stored.access)
            if not problem:
                return GardenAccess(stored.access, Origin.STORED)
        if self._connection.bootstrap_kubeconfig is None:
            if stored is None:
                return await self._from_file("gardenClientConnection.bootstrapKubeconfig is not configured")
            raise BootstrapMaterialMissing(
                "stored kubeconfig cannot be used, and no bootstrap kubeconfig is configured", problem=problem
            )
        if stored is not None:
            log.error("Stored kubeconfig cannot be used, bootstrapping again", problem=problem)
        return GardenAccess(
            await self._bootstrap(self.secret, self._connection.bootstrap_kubeconfig), Origin.BOOTSTRAPPED
        )

    def _outdated(self, access: ClusterAccess) -> str:
        """Return why a certificate is not valid now, empty if it is, or if there is none."""
        if not access.credentials.client_certificate:
            return ""
        try:
            leaf = parse_leaf(access.credentials.client_certificate)
        except InvalidCertificate as error:
            return str(error)
        now = self._clock.now()
        if leaf.expired(now):
            return f"its certificate expired at {leaf.not_after.isoformat()}"
        return f"its certificate is valid from {leaf.not_before.isoformat()} on" if now < leaf.not_before else ""

    async def _from_file(self, why: str) -> GardenAccess:
        path = self._connection.kubeconfig
        if not path:
            raise FatalError(
                f"{why}, and neither is gardenClientConnection.kubeconfig: there is no way to reach the garden"
            )
        try:
            access = await kubeconfig.load(Path(path), mounted=True)
        except AgentError as error:
            raise FatalError("configured kubeconfig cannot be used", path=path, problem=str(error)) from error
        if access is None:
            raise FatalError("configured kubeconfig does not exist", path=path)
        return GardenAccess(access, Origin.FILE)

    async def _bootstrap(self, secret: KubeconfigSecret, reference: SecretReference) -> ClusterAccess:
        """Ask for a certificate, store it, and remove what was used for it in the seed."""
        where = f"{reference.namespace}/{reference.name}"
        try:
            material = await self._seed.get(SECRETS, reference.name, namespace=reference.namespace)
        except NotFound as error:
            raise BootstrapMaterialMissing(
                "Secret with the bootstrap kubeconfig does not exist", secret=where
            ) from error
        content = material.data.get(KEY, b"")
        if not content:
            raise BootstrapMaterialMissing("Secret has no bootstrap kubeconfig", secret=where, key=KEY)
        access = usable(content)
        token = _TOKEN.fullmatch(access.credentials.token)
        client = self._new_client(access)
        try:
            requester = self._requester(client, asked_by=token[1] if token else material.metadata.uid)
            issued = await requester.request()
        finally:
            await client.close()
        credentials = Credentials(client_certificate=issued.certificate, client_key=issued.key)
        obtained = replace(access, credentials=credentials)
        journal = Journal(
            request=issued.request,
            token_id=token[1] if token else "",
            secret_name=reference.name,
            secret_namespace=reference.namespace,
            secret_uid=material.metadata.uid,
        )
        await secret.store(obtained, journal=journal)
        await requester.used()
        await remove_material(self._seed, journal)
        return obtained

    def _requester(self, client: Client, *, asked_by: str) -> CertificateRequester:
        return CertificateRequester(
            client=client,
            common_name=self._common_name,
            organizations=[GROUP],
            name_prefix=REQUEST_PREFIX,
            expiration=self._connection.kubeconfig_validity.validity,
            clock=self._clock,
            asked_by=asked_by,
            store=self.pending,
        )


async def remove_material(seed: Client, journal: Journal) -> None:
    """Remove the Secret with the bootstrap kubeconfig that was used; another one of its name stays.

    Raises:
        ApiError: not removed.
    """
    if not journal.secret_name or not journal.secret_uid:
        return
    where = f"{journal.secret_namespace}/{journal.secret_name}"
    try:
        await seed.delete(SECRETS, journal.secret_name, namespace=journal.secret_namespace, uid=journal.secret_uid)
    except NotFound:
        return
    except Conflict:
        log.info("Secret with a bootstrap kubeconfig is not the one that was used, and stays", secret=where)
        return
    log.info("Secret with the bootstrap kubeconfig removed", secret=where)
