"""A CSR approver on an API server in memory."""

import base64
from datetime import datetime, timedelta
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from agents.kube.client import Client
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS
from tests.lab import pki
from tests.support.clock import EPOCH
from tests.support.fake_api import Document, FakeApi


class Approver:
    """Decides on requests, and signs."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.key = pki.new_key()

    @property
    def requests(self) -> list[Document]:
        """Return all requests."""
        return self.api.stored(CERTIFICATE_SIGNING_REQUESTS)

    def sign(self, request: bytes, *, start: datetime = EPOCH, lifetime: timedelta = timedelta(days=31)) -> bytes:
        """Return a certificate for a request, PEM."""
        parsed = x509.load_pem_x509_csr(request)
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
        builder = x509.CertificateBuilder(issuer, parsed.subject, parsed.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(start).not_valid_after(start + lifetime)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def decide(self, condition: str, *, certificate: bytes | None = None, message: str = "") -> None:
        """Put a condition, and a certificate, on the newest request."""
        request = self.requests[-1]
        found = {"type": condition, "status": "True", "reason": "Test", "message": message}
        status: Document = {"conditions": [found]}
        if certificate is not None:
            status["certificate"] = base64.b64encode(certificate).decode()
        self.api.put(CERTIFICATE_SIGNING_REQUESTS, {**request, "status": status})

    def issue(self) -> None:
        """Approve the newest request and sign it."""
        request = base64.b64decode(self.requests[-1]["spec"]["request"])
        self.decide("Approved", certificate=self.sign(request))


@pytest.fixture
def api() -> FakeApi:
    """An empty API server in memory."""
    return FakeApi()


@pytest.fixture
def client(api: FakeApi) -> Client:
    """A client of that API server."""
    return Client(transport=api, rng=Random(1))


@pytest.fixture
def approver(api: FakeApi) -> Approver:
    """Decides on requests."""
    return Approver(api)
