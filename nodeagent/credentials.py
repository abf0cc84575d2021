"""Our credentials for the cluster: chosen at start, requested with the bootstrap token, renewed later; one owner for all of it.

A certificate that has expired, or is refused, is replaced with the bootstrap token, at start as well as in the running process: an API
server can be away for longer than a certificate lasts. Gardener's agent has no way back (contract 4.6).

Source: gardener cmd/gardener-node-agent/app/app.go, pkg/nodeagent/certificate.go (contract 4.1 to 4.7).
"""

import asyncio
import base64
import binascii
from collections.abc import Callable
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
from nodeagent.certificate_in_use import CERTIFICATE, CertificateInUse
from nodeagent.config import NodeAgentConfiguration
from nodeagent.host.machine_name import GROUP, USER_PREFIX
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION

log = get_logger(__name__)

EXPIRATION = timedelta(hours=720)
RETRY = timedelta(minutes=1)
"""Between two attempts to get credentials where there are none; also how often that is said."""
TOKEN_LOOK = timedelta(seconds=5)
"""How soon a bootstrap token that user data brings is seen by an agent that needs one."""
PATIENCE = timedelta(hours=1)
"""For how long a certificate that was issued is tried before another one is requested."""
DOUBT = timedelta(days=1)
"""So close to its end it is not our clock that says whether a stored certificate has expired."""
DATE_DEADLINE_SECONDS = 5.0
USER_AGENT = f"gardener-node-agent/{GARDENER_VERSION}"

Answered = Callable[[str], None]
"""Told the status of each answer, `<error>` where there was none."""


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
        self,
        access: ClusterAccess,
        *,
        limits: tuple[float, int] | None = None,
        trust: Trust | None = None,
        answered: Answered = lambda _code: None,
    ) -> Client:
        """Return a client.

        Args:
            access: where, and as whom.
            limits: requests per second, and at once.
            trust: remembers CA bundles.
            answered: told the status of each answer to this client.
        """

        def observe(method: str, code: str, seconds: float) -> None:
            self._observe(method, code, seconds)
            answered(code)

        limiter = RateLimiter(qps=limits[0], burst=limits[1], clock=self._clock) if limits else None
        transport = HttpTransport(
            access,
            user_agent=USER_AGENT,
            clock=self._clock,
            limiter=limiter,
            observe=observe,
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
        self._asked_by = ""
        self._bootstrap_client: Client | None = None
        self._bootstrap_token = ""
        self._confirmed = False
        self._not_taken: tuple[bytes, float] = (b"", 0.0)
        self.in_use = CertificateInUse(clock=clock)

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
                access = await self._stored() or await self._bootstrap()
                self.in_use.use(access.credentials.client_certificate)
                return access
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
            await self._wait_token(RETRY)

    async def _wait_token(self, longest: timedelta) -> None:
        """Wait so long, or until there is another bootstrap token than the one that was tried."""
        for _ in range(longest // TOKEN_LOOK):
            await asyncio.sleep(TOKEN_LOOK.total_seconds())
            if await self.has_other_token():
                return

    async def has_other_token(self) -> bool:
        """Tell whether there is another bootstrap token on the disk than the one that was tried last."""
        try:
            token = await asyncio.to_thread(read_bootstrap_token, self._paths)
        except files.FileError:
            return False
        return token not in {"", self._bootstrap_token}

    async def take_up(self, access: ClusterAccess, client: Client) -> None:
        """Have the client use what is stored, if that is another certificate than the one in use, and the API server takes it.

        Somebody brought it, or a switch was cut off between the disk and the connection.
        """
        certificate = access.credentials.client_certificate
        if not self.in_use.known:
            self.in_use.use(certificate)
        now = self._clock.monotonic()
        if self.in_use.is_(certificate) or (certificate == self._not_taken[0] and now < self._not_taken[1]):
            return
        async with self._renewing:
            try:
                await client.switch(access, keep=_nothing)
            except ApiError as error:
                self._not_taken = certificate, now + RETRY.total_seconds()
                log.debug("Stored client certificate is not taken, the one before stays in use", error=error)
                return
            self.in_use.use(certificate)
        log.info("Stored client certificate is another one, new connections use it")

    async def stored(self) -> ClusterAccess | None:
        """Return the access that is stored now."""
        return await self._store.load()

    def take_news(self) -> list[str]:
        """Return what was found out about the stored kubeconfig since the last call, for operators."""
        return self._store.take_news()

    def works(self) -> None:
        """Say that the stored kubeconfig works: whoever looks after the certificate confirms it, as often as that fails."""
        if not self.explicit and not self._confirmed:
            self._confirmed = True
            self.in_use.looks.send(CERTIFICATE)

    async def confirm(self) -> None:
        """Say that the stored kubeconfig works, and remember the CA that the API server was verified with.

        Raises:
            AgentError: that could not be written down.
        """
        if not self.explicit:
            self.works()
            await self._store.confirm()
            await self._forget_used_key()
            if await run_to_end(self._trust.keep):
                log.info("CA bundle remembered", path=str(self._paths.trusted_authorities))

    async def confirm_again(self) -> None:
        """Do so where it was said before: keep what was learned about the CA since."""
        if self._confirmed:
            await self.confirm()

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
            issued = await self._issue(client, asked_by=self._common_name)
            await self._go_on_with(issued, await asyncio.to_thread(self._with_ca_file, current), client)
            log.info("Client certificate renewed, new connections use it")

    async def start_over(self, client: Client) -> None:
        """Have the client use a new certificate that is requested with the bootstrap token: the current one is of no use any more.

        As with `renew`, a certificate that is not accepted yet is tried again by the next call.

        Raises:
            CredentialsMissing: there is no bootstrap token (retriable).
            CertificateNotAccepted: the API server does not take the new one (retriable).
            CertificateRefused: somebody decided against the request (retriable, with a new request).
            AgentError: not issued or not stored.
            FatalError: the configuration's CA cannot be used.
        """
        async with self._renewing:
            issued, access = await self._issue_with_token()
            await self._go_on_with(issued, access, client)
            await self.close()
            log.info("Client certificate replaced with the bootstrap token, new connections use it")

    async def _go_on_with(self, issued: IssuedCertificate, access: ClusterAccess, client: Client) -> None:
        """Store a certificate as soon as the API server takes it, and have the client use it."""
        access = replace(access, credentials=_credentials(issued))

        async def keep() -> None:
            await self._store.save(access)

        try:
            await client.switch(access, keep=keep)
        except ApiError as error:
            raise CertificateNotAccepted(
                "new client certificate is not accepted, the old one stays in use", after=RETRY, cause=str(error)
            ) from error
        self.in_use.use(issued.certificate)
        await self._used()
        await self.confirm()

    async def _used(self) -> None:
        """Forget how the certificate was got that is in use now."""
        self._issued = None
        if self._requester is not None:
            await self._requester.used()

    async def _issue(self, client: Client, *, asked_by: str) -> IssuedCertificate:
        now = self._clock.monotonic()
        if self._requester is None or self._asked_by != asked_by:
            self._requester, self._asked_by, self._issued = self._new_requester(client, asked_by), asked_by, None
        if self._issued is not None and now - self._issued.since > PATIENCE.total_seconds():
            await self._used()
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
        issued, access = await self._issue_with_token()
        obtained = replace(access, credentials=_credentials(issued))
        await asyncio.to_thread(files.ensure_directory, self._paths.credentials, mode=0o700)
        await self._store.save(obtained)
        await self._used()
        await self.close()
        return obtained

    async def _issue_with_token(self) -> tuple[IssuedCertificate, ClusterAccess]:
        """Return a certificate that the bootstrap token got, and the access of that token."""
        token = await asyncio.to_thread(read_bootstrap_token, self._paths)
        tried, self._bootstrap_token = self._bootstrap_token, token
        if not token:
            raise CredentialsMissing(
                "neither a usable kubeconfig nor a bootstrap token; new user data has to bring one",
                kubeconfig=str(self._paths.kubeconfig),
                bootstrapToken=str(self._paths.bootstrap_token),
            )
        access = bootstrap_access(self._config, self._paths, token)
        if self._bootstrap_client is None or token != tried:
            await self.close()
            connection = self._config.client_connection
            self._bootstrap_client = self._clients.client(
                access, limits=(connection.qps, connection.burst), trust=self._trust
            )
            self._requester = None
        asked_by = f"bootstrap token {token.partition('.')[0]}"
        return await self._issue(self._bootstrap_client, asked_by=asked_by), access

    def _new_requester(self, client: Client, asked_by: str) -> CertificateRequester:
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


async def _nothing() -> None:
    """Keep nothing: it is on the disk."""


def _credentials(issued: IssuedCertificate) -> Credentials:
    return Credentials(client_certificate=issued.certificate, client_key=issued.key)


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
