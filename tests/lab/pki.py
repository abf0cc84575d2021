"""Certificates and keys of a lab's control plane: one CA, elliptic curve keys, valid for a year.

EC P-256 instead of RSA, because a dozen RSA keys cost more than the start of etcd.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALIDITY = dt.timedelta(days=365)
_CLOCK_SKEW = dt.timedelta(minutes=5)


def private_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key as PEM, type `EC PRIVATE KEY`."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def public_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half as PEM."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


class Authority:
    """A certificate authority: a key and a self-signed certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, common_name: str, *, age: dt.timedelta = _CLOCK_SKEW) -> "Authority":
        """Make a new one, or one that is valid since some time ago."""
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        usage = _key_usage(cert_sign=True)
        builder = _builder(name, name, key, age=age).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read what `save` wrote."""
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("the lab's CA key is an EC key")
        return cls(key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()))

    def save(self, folder: Path) -> None:
        """Write `ca.crt` and `ca.key` (0600)."""
        (folder / "ca.crt").write_bytes(self.certificate_pem)
        write_secret(folder / "ca.key", private_key_pem(self._key))

    @property
    def certificate_pem(self) -> bytes:
        """The CA certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue_client(
        self,
        common_name: str,
        organisations: Sequence[str],
        *,
        validity: dt.timedelta = _VALIDITY,
        age: dt.timedelta = _CLOCK_SKEW,
    ) -> tuple[bytes, bytes]:
        """Return certificate and key for a user and its groups, valid since `age` and for another `validity`."""
        return self._issue(common_name, organisations, ExtendedKeyUsageOID.CLIENT_AUTH, [], validity, age)

    def issue_server(self, common_name: str, names: Sequence[str]) -> tuple[bytes, bytes]:
        """Return certificate and key for a server that is reached under these host names and IP addresses."""
        return self._issue(common_name, [], ExtendedKeyUsageOID.SERVER_AUTH, names, _VALIDITY)

    def _issue(
        self,
        common_name: str,
        organisations: Sequence[str],
        purpose: x509.ObjectIdentifier,
        names: Sequence[str],
        validity: dt.timedelta,
        age: dt.timedelta = _CLOCK_SKEW,
    ) -> tuple[bytes, bytes]:
        key = new_key()
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organisations]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = _builder(subject, self._certificate.subject, key, validity, age=age)
        builder = builder.add_extension(_key_usage(cert_sign=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority_id, critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), private_key_pem(key)


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_bytes(data)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not cert_sign,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=cert_sign,
        crl_sign=cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    validity: dt.timedelta = _VALIDITY,
    *,
    age: dt.timedelta = _CLOCK_SKEW,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - age).not_valid_after(now + validity)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False)


def client_request(key: ec.EllipticCurvePrivateKey, common_name: str, organisations: Sequence[str]) -> bytes:
    """Return a certificate request of a client, PEM."""
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organisations]
    subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)
