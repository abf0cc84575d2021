"""Requesting a client certificate: new key, CertificateSigningRequest, and the wait until it is issued.

Contract 4.3. The request may only be created and read by name, so it is polled. Ours differs in what interrupts the wait: a
failing read is tried again, and key and name are kept, in memory and in a `PendingStore`, so that whoever asks again (after a
reconcile deadline or a kill, say) goes on with the same request instead of leaving another one behind (contract 9, W28).
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from agents.core.clock import Clock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import (
    MAX_TEXT,
    AlreadyExists,
    ApiError,
    DeadlineExceeded,
    Forbidden,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unavailable,
)
from agents.kube.models import (
    CERTIFICATE_SIGNING_REQUESTS,
    CertificateSigningRequest,
    Condition,
    find_condition,
)
from agents.pki.certificate import InvalidCertificate, check_key_pair, parse_leaf
from agents.pki.pending import PendingRequest, PendingStore

log = get_logger(__name__)

SIGNER = "kubernetes.io/kube-apiserver-client"
USAGES = ("digital signature", "key encipherment", "client auth")
POLL_INTERVAL = timedelta(seconds=2)
TIMEOUT = timedelta(minutes=15)

_WAITED_FOR = (Unavailable, DeadlineExceeded, TooManyRequests, ServerError, Forbidden, InvalidResponse)


class CertificateNotIssued(RetriableError):
    """The request was denied, failed, replaced, or not decided in time; the next attempt makes a new one."""


class CertificateRefused(CertificateNotIssued):
    """Somebody decided against the request.

    Args:
        request: name of the request.
        condition: type `Denied` or `Failed`, with the reason and message of whoever decided.
    """

    def __init__(self, request: str, condition: Condition) -> None:
        # An approver that names the request must not look as if it said something new about each attempt.
        explanation = condition.message.replace(request, "this request")[:MAX_TEXT]
        reason = condition.reason[:MAX_TEXT]
        super().__init__(
            "certificate signing request was refused",
            certificateSigningRequest=request,
            condition=condition.type,
            reason=reason,
            explanation=explanation,
        )
        self.decision = (condition.type, reason, explanation)
        """The same for each attempt that is refused for the same reason."""


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate chain, the leaf first, and its private key, both PEM; and the name of the request."""

    certificate: bytes
    key: bytes = field(repr=False)
    request: str = ""


@dataclass(slots=True)
class _Pending:
    """A request that is not yet used; survives a cancelled wait."""

    kept: PendingRequest
    give_up_at: float | None = None
    """Monotonic; None until the request exists."""
    resumed: bool = False
    """Whether a process before this one made it; who knows how long ago."""


class CertificateRequester:
    """Requests certificates for one subject, one at a time.

    Args:
        client: as whom to ask.
        common_name: subject's CN.
        organizations: subject's O, in this order.
        name_prefix: for example `node-agent-csr-`; the digest follows.
        expiration: wished lifetime; None leaves it to the signer.
        clock: measures the wait.
        poll_interval: between two reads.
        timeout: from the creation until the request is given up.
        asked_by: tells requests of this client from those of another one, which may not be read.
        store: keeps key and request for the process after this one; None keeps them in memory only.
    """

    def __init__(
        self,
        *,
        client: Client,
        common_name: str,
        organizations: Sequence[str],
        name_prefix: str,
        expiration: timedelta | None,
        clock: Clock,
        poll_interval: timedelta = POLL_INTERVAL,
        timeout: timedelta = TIMEOUT,
        asked_by: str = "",
        store: PendingStore | None = None,
    ) -> None:
        self._client = client
        self._common_name = common_name
        self._organizations = tuple(organizations)
        self._name_prefix = name_prefix
        self._expiration = expiration
        self._clock = clock
        self._poll_interval = poll_interval
        self._timeout = timeout
        self._asked_by = asked_by
        self._store = store
        self._pending: _Pending | None = None

    async def request(self) -> IssuedCertificate:
        """Return a new certificate; goes on with the request that an earlier, interrupted call made, also before a kill.

        Until `used` is called the same certificate is returned again.

        Raises:
            CertificateRefused: denied or failed, with what was said about it (retriable, with a new request).
            CertificateNotIssued: replaced, not decided in time, expired, or not for our key (retriable,
                with a new request).
            ApiError: the request could not be created, or is gone; or our credentials are refused.
            FileError: the key could not be kept (retriable); nothing was requested.
        """
        pending = self._pending or await self._resume()
        if pending is None:
            pending = await asyncio.to_thread(self._prepare)
        self._pending = pending
        if pending.give_up_at is None:
            await self._create(pending)
            pending.give_up_at = self._clock.monotonic() + self._timeout.total_seconds()
        certificate = await self._wait_issued(pending, pending.give_up_at)
        self._pending = None
        name, key = pending.kept.name, pending.kept.key
        try:
            check_key_pair(certificate, key)
        except InvalidCertificate as error:
            await self.used()
            raise CertificateNotIssued(
                "what was issued does not belong to our key", certificateSigningRequest=name
            ) from error
        if pending.resumed and parse_leaf(certificate).expired(self._clock.now()):
            await self.used()
            raise CertificateNotIssued("what was issued long ago has expired", certificateSigningRequest=name)
        log.info("Certificate issued", certificateSigningRequest=name)
        return IssuedCertificate(certificate, key, name)

    async def used(self) -> None:
        """Forget the request: its certificate is kept elsewhere, or of no use.

        Raises:
            FileError: the key could not be removed (retriable).
        """
        self._pending = None
        if self._store is not None:
            await self._store.clear()

    async def _resume(self) -> _Pending | None:
        """Return what a process before this one left, if it is what we would ask for."""
        kept = None if self._store is None else await self._store.load()
        if kept is None:
            return None
        try:
            name = self._name(load_pem_private_key(kept.key, None))
        except (ValueError, TypeError):
            name = ""
        if (name, self._asked_by) != (kept.name, kept.asked_by):
            log.info("Pending certificate request is not ours", certificateSigningRequest=kept.name)
            await self.used()
            return None
        log.info("Going on with a certificate request", certificateSigningRequest=kept.name)
        return _Pending(kept, resumed=True)

    def _prepare(self) -> _Pending:
        private_key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in self._organizations),
                x509.NameAttribute(NameOID.COMMON_NAME, self._common_name),
            ]
        )
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private_key, hashes.SHA256())
        return _Pending(
            PendingRequest(
                name=self._name(private_key),
                key=private_key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
                request=request.public_bytes(Encoding.PEM),
                asked_by=self._asked_by,
            )
        )

    def _name(self, key: PrivateKeyTypes) -> str:
        public_key = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return self._name_prefix + digest(public_key, self._common_name, self._organizations, USAGES)

    async def _create(self, pending: _Pending) -> None:
        if self._store is not None:
            await self._store.save(pending.kept)
        spec: dict[str, object] = {
            "request": base64.b64encode(pending.kept.request).decode(),
            "signerName": SIGNER,
            "usages": list(USAGES),
        }
        if self._expiration is not None:
            spec["expirationSeconds"] = int(self._expiration.total_seconds())
        document = {"metadata": {"name": pending.kept.name}, "spec": spec}
        try:
            created = await self._client.create(CERTIFICATE_SIGNING_REQUESTS, document)
        except AlreadyExists:
            log.debug("Certificate was requested before", certificateSigningRequest=pending.kept.name)
            return  # the name is a digest of our key: it is our own, and only the answer got lost
        pending.kept = replace(pending.kept, uid=created.metadata.uid)
        log.info("Certificate requested", certificateSigningRequest=pending.kept.name)

    async def _wait_issued(self, pending: _Pending, give_up_at: float) -> bytes:
        while True:
            delay = self._poll_interval
            problem: ApiError | None = None
            try:
                current = await self._client.get(CERTIFICATE_SIGNING_REQUESTS, pending.kept.name)
            except _WAITED_FOR as error:
                problem = error
                delay = max(delay, error.after or delay)
            except NotFound:
                await self.used()
                raise
            else:
                if (certificate := await self._decide(pending, current)) is not None:
                    return certificate
            if self._clock.monotonic() + delay.total_seconds() > give_up_at:
                await self.used()
                raise CertificateNotIssued(
                    "certificate was not issued in time", certificateSigningRequest=pending.kept.name
                ) from problem
            await asyncio.sleep(delay.total_seconds())

    async def _decide(self, pending: _Pending, current: CertificateSigningRequest) -> bytes | None:
        """Return the certificate, None while there is none."""
        if pending.kept.uid is None:
            pending.kept = replace(pending.kept, uid=current.metadata.uid)
        if current.metadata.uid != pending.kept.uid:
            await self.used()
            raise CertificateNotIssued(
                "certificate signing request was replaced",
                certificateSigningRequest=pending.kept.name,
                condition="replaced",
            )
        conditions = current.status.conditions
        refusal = find_condition(conditions, "Denied") or find_condition(conditions, "Failed")
        if refusal is not None:
            await self.used()
            raise CertificateRefused(pending.kept.name, refusal)
        if find_condition(conditions, "Approved") is None:
            return None
        return current.status.certificate or None


def digest(public_key: bytes, common_name: str, organizations: Sequence[str], usages: Sequence[str]) -> str:
    """Return the digest that names a request (contract 4.3): the same for the same key and wishes.

    Source: gardener pkg/utils/kubernetes/certificatesigningrequest/certificate.go.
    """
    sum_ = hashes.Hash(hashes.SHA512_256())
    for item in (public_key, *(text.encode() for text in (common_name, *organizations, *usages))):
        sum_.update(_base64(item) + b"|")
    return _base64(sum_.finalize()).decode()


def _base64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")
