"""Reading client certificates: who, how long, and from when a new one is due."""

from dataclasses import dataclass
from datetime import datetime
from random import Random

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from agents.core.errors import TerminalError


class InvalidCertificate(TerminalError):
    """A certificate does not parse, has an empty validity window, or does not belong to its key."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is read of one certificate; times are aware UTC."""

    common_name: str
    organizations: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    public_key: bytes
    """PKIX, DER."""

    def expired(self, now: datetime) -> bool:
        """Return whether the certificate is no longer accepted."""
        return now >= self.not_after


def parse_chain(content: bytes) -> tuple[Certificate, ...]:
    """Read all certificates of a PEM text; the first is the leaf (contract 4.6).

    Raises:
        InvalidCertificate: there is none, or one does not parse (terminal).
    """
    try:
        return tuple(_read(certificate) for certificate in x509.load_pem_x509_certificates(content))
    except ValueError as error:
        raise InvalidCertificate("certificate does not parse") from error


def parse_leaf(content: bytes) -> Certificate:
    """Read the first certificate of a PEM text.

    Raises:
        InvalidCertificate: there is none, or one does not parse (terminal).
    """
    return parse_chain(content)[0]


def renewal_deadline(certificate: Certificate, *, fraction: float, jitter: float, rng: Random) -> datetime:
    """Return the moment from which the client certificate is to be replaced.

    Args:
        certificate: leaf; only its validity window is read.
        fraction: share of the lifetime to wait, 0 to 1 (node agent: 0.8).
        jitter: random extra, as a share of that wait, 0 to 1 (node agent: 0.1).
        rng: drawn from once.

    Returns:
        Aware UTC datetime.

    Raises:
        InvalidCertificate: validity window is empty (terminal).

    Source: gardener pkg/nodeagent/controller/certificate/reconciler.go, Reconcile.
    """
    lifetime = certificate.not_after - certificate.not_before
    if lifetime.total_seconds() <= 0:
        raise InvalidCertificate("certificate is never valid", notAfter=certificate.not_after.isoformat())
    return certificate.not_before + lifetime * (fraction * (1 + jitter * rng.random()))


def check_key_pair(certificate: bytes, key: bytes) -> Certificate:
    """Return the leaf of a chain if the private key belongs to it; both PEM.

    Raises:
        InvalidCertificate: one does not parse, or they do not belong together (terminal).
    """
    leaf = parse_leaf(certificate)
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidCertificate("private key does not parse") from error
    if private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != leaf.public_key:
        raise InvalidCertificate("private key does not belong to the certificate")
    return leaf


def _read(certificate: x509.Certificate) -> Certificate:
    return Certificate(
        common_name=", ".join(_names(certificate, NameOID.COMMON_NAME)),
        organizations=_names(certificate, NameOID.ORGANIZATION_NAME),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        public_key=certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )


def _names(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
    return tuple(str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid))
