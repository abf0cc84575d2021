"""TLS contexts are made from memory."""

import ssl
from pathlib import Path

import pytest

from agents.core.files import FileError
from agents.kube.kubeconfig import ClusterAccess, Credentials, InvalidKubeconfig
from agents.kube.tls import tls_context
from tests.lab.pki import Authority


def descriptors() -> set[str]:
    """Return the open descriptors of this process, and where they lead."""
    return {f"{link.name} {link.resolve()}" for link in Path("/proc/self/fd").iterdir() if link.exists()}


@pytest.fixture(scope="module")
def authority() -> Authority:
    """A certificate authority."""
    return Authority.create("test")


def test_context_verifies_as_go_does(authority: Authority) -> None:
    """Names and chains are verified, TLS 1.2 is the oldest, and the strict flags of newer Pythons are off."""
    context = tls_context(ClusterAccess(server="a", ca_data=authority.certificate_pem))
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert len(context.get_ca_certs()) == 1


def test_client_certificate_leaves_no_file(authority: Authority) -> None:
    """A client certificate is loaded without a file that stays, or a descriptor that stays open."""
    certificate, key = authority.issue_client("me", [])
    before = descriptors()
    access = ClusterAccess(
        server="a",
        ca_data=authority.certificate_pem,
        credentials=Credentials(client_certificate=certificate, client_key=key),
    )
    tls_context(access)
    assert descriptors() == before


def test_certificate_of_another_key(authority: Authority) -> None:
    """Certificate and key that do not belong together are refused, as is what does not parse."""
    certificate, _ = authority.issue_client("me", [])
    _, other = authority.issue_client("other", [])
    for key in (other, b"-----BEGIN EC PRIVATE KEY-----\n"):
        credentials = Credentials(client_certificate=certificate, client_key=key)
        with pytest.raises(InvalidKubeconfig):
            tls_context(ClusterAccess(server="a", ca_data=authority.certificate_pem, credentials=credentials))


def test_ca_file_wins(authority: Authority, tmp_path: Path) -> None:
    """The CA file is read; a missing one can be waited for, one that does not parse is refused."""
    path = tmp_path / "ca.crt"
    access = ClusterAccess(server="a", ca_file=path)
    with pytest.raises(FileError):
        tls_context(access)
    path.write_bytes(b"not a certificate")
    with pytest.raises(InvalidKubeconfig):
        tls_context(access)
    path.write_bytes(authority.certificate_pem * 2)
    assert len(tls_context(access).get_ca_certs()) == 1


def test_no_ca_means_the_systems() -> None:
    """Without any CA the system's certificates are trusted, as in Go."""
    assert tls_context(ClusterAccess(server="a")).verify_mode is ssl.CERT_REQUIRED


def test_insecure_only_when_asked() -> None:
    """Verification is off only if the kubeconfig says so."""
    context = tls_context(ClusterAccess(server="a", insecure=True))
    assert context.verify_mode is ssl.CERT_NONE
