"""Our credentials for the cluster: chosen at start, requested with the bootstrap token, renewed later; one owner for all of it.

Source: gardener cmd/gardener-node-agent/app/app.go, pkg/nodeagent/certificate.go (contract 4.1 to 4.7).
"""

import asyncio
import base64
import binascii
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random

from agents.core import files
from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError, RetriableError
from agents.core.generations import Generations
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.errors import ApiError
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.ratelimit import RateLimiter
from agents.kube.server_clock import ServerClock
from agents.kube.transport import HttpTransport, RequestObserver
from agents.kube.trust import Trust, is_older
from agents.kube.warnings import Warnings
from agents.pki.certificate import Certificate, parse_leaf
from agents.pki.csr import CertificateRefused, CertificateRequester, IssuedCertificate
from agents.pki.pending import FilePendingStore
from agents.pki.store import FileKubeconfigStore
from nodeagent.config import NodeAgentConfiguration
from nodeagent.host.machine_name import GROUP, USER_PREFIX
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION

log = get_logger(__name__)

EXPIRATION = timedelta(hours=720)
RETRY = timedelta(minutes=1)
"""Between two attempts to get credentials where there are none; also how often that is said."""
PATIENCE = timedelta(hours=1)
"""For how long a certificate that was issued is tried before another one is requested."""
DOUBT = timedelta(days=1)
"""So close to its end it is not our clock that says whether a stored certificate has expired."""
DATE_DEADLINE_SECONDS = 5.0
USER_AGENT = f"gardener-node-agent/{GARDENER_VERSION}"


class CredentialsMissing(RetriableError):
    """There is neither a usable kubeconfig nor a bootstrap token."""


class CertificateNotAccepted(RetriableError):
    """A new certificate was issued, and the API server does not take it yet; the old one stays in use."""


class Refusals:
    """Tells a decision against our requests that is new from one that was said before."""

    def __init__(self) -> None:
        self._said: tuple[str, ...] | None = None

    def is_news(self, error: AgentError) -> bool:
        """Tell whether an error is worth a line; all but a repeated refusal are."""
        if not isinstance(error, CertificateRefused):
            return True
        before, self._said = self._said, error.decision
        return before != error.decision


@dataclass(frozen=True, slots=True)
class _Issued:
    """A certificate that was issued and is not in use."""

    certificate: IssuedCertificate
    since: float


class ClientFactory:
    """Builds clients for this process; all of them talk to the same API server, whose time they learn."""

    def __init__(self, *, clock: ServerClock, rng: Random, observe: RequestObserver) -> None:
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._warnings = Warnings(cluster="shoot")

    def client(
        self, access: ClusterAccess, *, limits: tuple[float, int] | None = None, trust: Trust | None = None
    ) -> Client:
        """Return a client; `limits` are requests per second and at once, `trust` remembers CA bundles."""
        limiter = RateLimiter(qps=limits[0], burst=limits[1], clock=self._clock) if limits else None
        transport = HttpTransport(
            access,
            user_agent=USER_AGENT,
            clock=self._clock,
            limiter=limiter,
            observe=self._observe,
            trust=trust,
            date=self._clock.note,
            warn=self._warnings.note,
        )
        return Client(transport=transport, rng=self._rng)


class CredentialsManager:
    """Finds, requests and renews the client certificate.

    Args:
        config: the whole configuration.
        paths: where things are.
        machine_name: part of the subject.
        clients: builds clients.
        clock: for expiry and waits.
    """

    def __init__(
        self, *, config: NodeAgentConfiguration, paths: Paths, machine_name: str, clients: ClientFactory, clock: Clock
    ) -> None:
        self._config = config
        self._paths = paths
        self._common_name = USER_PREFIX + machine_name
        self._clients = clients
        self._clock = clock
        self._store = FileKubeconfigStore(paths.kubeconfig, generations=Generations(paths.generations))
        self._pending = FilePendingStore(paths.pending_request)
        self._trust = Trust(paths.trusted_authorities)
        self._renewing = asyncio.Lock()
        self._issued: _Issued | None = None
        self._requester: CertificateRequester | None = None
        self._bootstrap_client: Client | None = None
        self._bootstrap_token = ""

    @property
    def explicit(self) -> bool:
        """Whether a kubeconfig was configured; it is not ours to renew."""
        return bool(self._config.client_connection.kubeconfig)

    @property
    def trust(self) -> Trust | None:
        """What the API server's CA is compared with; nothing for a configured kubeconfig, which says all itself."""
        return None if self.explicit else self._trust

    async def obtain(self) -> ClusterAccess:
        """Return how to reach the cluster; waits as long as it takes, and says why once a minute, a denial only once.

        Raises:
            FatalError: a kubeconfig was configured and cannot be used.
        """
        if self.explicit:
            return await self._load_explicit()
        refusals = Refusals()
        while True:
            try:
                return await self._stored() or await self._bootstrap()
            except FatalError:
                raise
            except AgentError as error:
                if refusals.is_news(error):
                    log.error(
                        "No credentials for the cluster yet, trying again",
                        error=error,
                        requeueAfterSeconds=RETRY.total_seconds(),
                    )
                else:
                    log.debug("Certificate refused again", error=error, requeueAfterSeconds=RETRY.total_seconds())
            await asyncio.sleep(RETRY.total_seconds())

    async def stored(self) -> ClusterAccess | None:
        """Return the access that is stored now."""
        return await self._store.load()

    def take_news(self) -> list[str]:
        """Return what was found out about the stored kubeconfig since the last call, for operators."""
        return self._store.take_news()

    async def confirm(self) -> None:
        """Say that the stored kubeconfig works, and remember the CA that the API server was verified with."""
        if not self.explicit:
            await self._store.confirm()
            await self._forget_used_key()
            if await run_to_end(self._trust.keep):
                log.info("CA bundle remembered", path=str(self._paths.trusted_authorities))

    async def _forget_used_key(self) -> None:
        """Remove a pending key that is in use: a process before this one was killed right before it would have done so."""
        pending, access = await self._pending.load(), await self._store.load()
        if pending is not None and access is not None and access.credentials.client_key == pending.key:
            await self._pending.clear()

    async def renew(self, client: Client) -> None:
        """Request a new certificate with the current one, store it, and have the client use it from now on.

        Nothing that the client does is interrupted. A certificate that was issued and is not accepted yet is tried again
        by the next call, for an hour; then another one is requested.

        Raises:
            CertificateNotAccepted: the API server does not take the new one (retriable).
            CertificateRefused: somebody decided against the request (retriable, with a new request).
            AgentError: not issued or not stored; the current one stays in use.
        """
        async with self._renewing:
            current = await self._store.load()
            if current is None:
                raise CredentialsMissing("kubeconfig is missing, nothing to renew", path=str(self._paths.kubeconfig))
            issued = await self._issue(client)
            credentials = Credentials(client_certificate=issued.certificate, client_key=issued.key)
            access = await asyncio.to_thread(self._with_ca_file, replace(current, credentials=credentials))

            async def keep() -> None:
                await self._store.save(access)

            try:
                await client.switch(access, keep=keep)
            except ApiError as error:
                raise CertificateNotAccepted(
                    "new client certificate is not accepted, the old one stays in use", after=RETRY, cause=str(error)
                ) from error
            self._issued = None
            if self._requester is not None:
                await self._requester.used()
            await self.confirm()
            log.info("Client certificate renewed, new connections use it")

    async def _issue(self, client: Client) -> IssuedCertificate:
        now = self._clock.monotonic()
        if self._requester is None:
            self._requester = self._new_requester(client, asked_by=self._common_name)
        if self._issued is not None and now - self._issued.since > PATIENCE.total_seconds():
            self._issued = None
            await self._requester.used()
        if self._issued is None:
            self._issued = _Issued(await self._requester.request(), self._clock.monotonic())
        return self._issued.certificate

    async def close(self) -> None:
        """Close what the bootstrap needed."""
        if self._bootstrap_client is not None:
            await self._bootstrap_client.close()
            self._bootstrap_client = None

    async def _load_explicit(self) -> ClusterAccess:
        path = Path(self._config.client_connection.kubeconfig)
        try:
            access = await kubeconfig.load(path, allow_token_file=True)
        except AgentError as error:
            raise FatalError("configured kubeconfig cannot be used", path=str(path), problem=str(error)) from error
        if access is None:
            raise FatalError("configured kubeconfig does not exist", path=str(path))
        return access

    async def _stored(self) -> ClusterAccess | None:
        access = await self._store.load()
        if access is None or not access.credentials.client_certificate:
            return access
        if await self._expired(access, parse_leaf(access.credentials.client_certificate)):
            log.error("Stored client certificate has expired", path=str(self._paths.kubeconfig))
            return None
        return access

    async def _expired(self, access: ClusterAccess, certificate: Certificate) -> bool:
        """Decide by the API server's time where it matters: the machine's clock may be wrong at its start."""
        if abs(certificate.not_after - self._clock.now()) < DOUBT:
            client = self._clients.client(replace(access, credentials=Credentials()), trust=self._trust)
            try:
                await client.get_raw("/version", deadline=DATE_DEADLINE_SECONDS)
            except ApiError as error:
                log.debug("API server was asked for its time only", error=error)
            finally:
                await client.close()
        return certificate.expired(self._clock.now())

    async def _bootstrap(self) -> ClusterAccess:
        """Request the first certificate with the bootstrap token."""
        token = await asyncio.to_thread(read_bootstrap_token, self._paths)
        if not token:
            raise CredentialsMissing(
                "neither a usable kubeconfig nor a bootstrap token; new user data has to bring one",
                kubeconfig=str(self._paths.kubeconfig),
                bootstrapToken=str(self._paths.bootstrap_token),
            )
        access = bootstrap_access(self._config, self._paths, token)
        if self._requester is None or token != self._bootstrap_token:
            await self.close()
            connection = self._config.client_connection
            self._bootstrap_client = self._clients.client(
                access, limits=(connection.qps, connection.burst), trust=self._trust
            )
            self._bootstrap_token = token
            identifier = token.partition(".")[0]
            self._requester = self._new_requester(self._bootstrap_client, asked_by=f"bootstrap token {identifier}")
        requester = self._requester
        issued = await requester.request()
        obtained = replace(
            access, credentials=Credentials(client_certificate=issued.certificate, client_key=issued.key)
        )
        await asyncio.to_thread(files.ensure_directory, self._paths.credentials, mode=0o700)
        await self._store.save(obtained)
        await requester.used()
        self._requester = None
        await self.close()
        return obtained

    def _new_requester(self, client: Client, *, asked_by: str) -> CertificateRequester:
        return CertificateRequester(
            client=client,
            common_name=self._common_name,
            organizations=[GROUP],
            name_prefix="node-agent-csr-",
            expiration=EXPIRATION,
            clock=self._clock,
            asked_by=asked_by,
            store=self._pending,
        )

    def _with_ca_file(self, access: ClusterAccess) -> ClusterAccess:
        """Refer to the configured CA file, so that a rotated CA arrives (W31), unless it is older than the inline one."""
        ca_file = Path(self._config.api_server.ca_file) if self._config.api_server.ca_file else None
        if ca_file is None or not is_readable(ca_file):
            return access
        try:
            if access.ca_data and is_older(files.read_optional(ca_file) or b"", than=access.ca_data):
                return access
        except AgentError as error:
            log.debug("CA bundles not compared", path=str(ca_file), error=error)
        return replace(access, ca_file=ca_file, ca_data=b"")


def bootstrap_access(config: NodeAgentConfiguration, paths: Paths, token: str) -> ClusterAccess:
    """Return the access of the bootstrap token. The CA is at a fixed path; older configurations bring it inline."""
    server, bundle = config.api_server.server, config.api_server.ca_bundle
    credentials = Credentials(token=token)
    if bundle and not config.api_server.ca_file and not paths.cluster_ca.exists():
        return ClusterAccess(server=server, ca_data=_decode_bundle(bundle), credentials=credentials)
    return ClusterAccess(server=server, ca_file=paths.cluster_ca, credentials=credentials)


def read_bootstrap_token(paths: Paths) -> str:
    """Return the bootstrap token, empty if there is none."""
    return (files.read_optional(paths.bootstrap_token) or b"").decode("utf-8", "replace").strip()


def is_readable(path: Path) -> bool:
    """Tell whether a file has content."""
    try:
        return bool(files.read_optional(path))
    except files.FileError:
        return False


def _decode_bundle(bundle: str) -> bytes:
    try:
        return base64.b64decode(bundle, validate=True)
    except binascii.Error as error:
        raise FatalError("apiServer.caBundle is not base64") from error
