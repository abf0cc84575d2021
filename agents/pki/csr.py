"""Requesting a client certificate: new key, CertificateSigningRequest, and the wait until it is issued.

Contract 4.3. The request may only be created and read by name, so it is polled. Ours differs in what interrupts the wait: a
failing read is tried again, and key and name stay in memory, so that whoever asks again (after a reconcile deadline, say)
goes on with the same request instead of leaving another one behind (contract 9, W28).
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from agents.core.clock import Clock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import (
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
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS, CertificateSigningRequest, find_condition
from agents.pki.certificate import InvalidCertificate, check_key_pair

log = get_logger(__name__)

SIGNER = "kubernetes.io/kube-apiserver-client"
USAGES = ("digital signature", "key encipherment", "client auth")
POLL_INTERVAL = timedelta(seconds=2)
TIMEOUT = timedelta(minutes=15)

_WAITED_FOR = (Unavailable, DeadlineExceeded, TooManyRequests, ServerError, Forbidden, InvalidResponse)


class CertificateNotIssued(RetriableError):
    """The request was denied, failed, replaced, or not decided in time; the next attempt makes a new one."""


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate chain, the leaf first, and its private key; both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(slots=True)
class _Pending:
    """A request that is not yet used; survives a cancelled wait."""

    name: str
    key: bytes = field(repr=False)
    request: bytes
    uid: str | None = None
    give_up_at: float | None = None
    """Monotonic; None until the request exists."""


class CertificateRequester:
    """Requests certificates for one subject, one at a time.

    Args:
        client: as whom to ask.
        common_name: subject's CN.
        organizations: subject's O, in this order.
        name_prefix: for example `node-agent-csr-`; the digest follows.
        expiration: wished lifetime.
        clock: measures the wait.
        poll_interval: between two reads.
        timeout: from the creation until the request is given up.
    """

    def __init__(
        self,
        *,
        client: Client,
        common_name: str,
        organizations: Sequence[str],
        name_prefix: str,
        expiration: timedelta,
        clock: Clock,
        poll_interval: timedelta = POLL_INTERVAL,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self._client = client
        self._common_name = common_name
        self._organizations = tuple(organizations)
        self._name_prefix = name_prefix
        self._expiration = expiration
        self._clock = clock
        self._poll_interval = poll_interval
        self._timeout = timeout
        self._pending: _Pending | None = None

    async def request(self) -> IssuedCertificate:
        """Return a new certificate; goes on with the request that an earlier, interrupted call made.

        Raises:
            CertificateNotIssued: denied, failed, replaced, not decided in time, or not for our key (retriable, with a
                new request).
            ApiError: the request could not be created, or is gone; or our credentials are refused.
        """
        if self._pending is None:
            self._pending = await asyncio.to_thread(self._prepare)
        pending = self._pending
        if pending.give_up_at is None:
            await self._create(pending)
            pending.give_up_at = self._clock.monotonic() + self._timeout.total_seconds()
        certificate = await self._wait_issued(pending, pending.give_up_at)
        self._pending = None
        try:
            check_key_pair(certificate, pending.key)
        except InvalidCertificate as error:
            raise CertificateNotIssued(
                "what was issued does not belong to our key", certificateSigningRequest=pending.name
            ) from error
        log.info("Certificate issued", certificateSigningRequest=pending.name)
        return IssuedCertificate(certificate, pending.key)

    def _prepare(self) -> _Pending:
        private_key = ec.generate_private_key(ec.SECP256R1())
        public_key = private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in self._organizations),
                x509.NameAttribute(NameOID.COMMON_NAME, self._common_name),
            ]
        )
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private_key, hashes.SHA256())
        return _Pending(
            name=self._name_prefix + digest(public_key, self._common_name, self._organizations, USAGES),
            key=private_key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
            request=request.public_bytes(Encoding.PEM),
        )

    async def _create(self, pending: _Pending) -> None:
        document = {
            "metadata": {"name": pending.name},
            "spec": {
                "request": base64.b64encode(pending.request).decode(),
                "signerName": SIGNER,
                "usages": list(USAGES),
                "expirationSeconds": int(self._expiration.total_seconds()),
            },
        }
        try:
            created = await self._client.create(CERTIFICATE_SIGNING_REQUESTS, document)
        except AlreadyExists:
            log.debug("Certificate was requested before", certificateSigningRequest=pending.name)
            return  # the name is a digest of our key: it is our own, and only the answer got lost
        pending.uid = created.metadata.uid
        log.info("Certificate requested", certificateSigningRequest=pending.name)

    async def _wait_issued(self, pending: _Pending, give_up_at: float) -> bytes:
        while True:
            delay = self._poll_interval
            problem: ApiError | None = None
            try:
                current = await self._client.get(CERTIFICATE_SIGNING_REQUESTS, pending.name)
            except _WAITED_FOR as error:
                problem = error
                delay = max(delay, error.after or delay)
            except NotFound:
                self._pending = None
                raise
            else:
                if (certificate := self._decide(pending, current)) is not None:
                    return certificate
            if self._clock.monotonic() + delay.total_seconds() > give_up_at:
                self._pending = None
                raise CertificateNotIssued(
                    "certificate was not issued in time", certificateSigningRequest=pending.name
                ) from problem
            await asyncio.sleep(delay.total_seconds())

    def _decide(self, pending: _Pending, current: CertificateSigningRequest) -> bytes | None:
        """Return the certificate, None while there is none."""
        refused = next(
            (kind for kind in ("Denied", "Failed") if find_condition(current.status.conditions, kind) is not None), None
        )
        pending.uid = pending.uid or current.metadata.uid
        if refused is not None or current.metadata.uid != pending.uid:
            self._pending = None
            raise CertificateNotIssued(
                "certificate signing request was refused or replaced",
                certificateSigningRequest=pending.name,
                condition=refused or "replaced",
            )
        if find_condition(current.status.conditions, "Approved") is None:
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
