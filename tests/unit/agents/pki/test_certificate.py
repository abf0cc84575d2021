"""Certificates are read, and their renewal is planned."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.pki.certificate import (
    Certificate,
    InvalidCertificate,
    check_key_pair,
    parse_chain,
    parse_leaf,
    renewal_deadline,
)
from tests.lab.pki import Authority

START = datetime(2026, 1, 1, tzinfo=UTC)


def certificate(lifetime: timedelta) -> Certificate:
    """Return a certificate that begins at the start of 2026."""
    return Certificate("cn", (), START, START + lifetime, b"")


@pytest.fixture(scope="module")
def authority() -> Authority:
    """A certificate authority."""
    return Authority.create("test")


@given(seed=st.integers(), days=st.integers(1, 4000))
def test_renewal_is_due_between_80_and_88_percent(seed: int, days: int) -> None:
    """Contract 4.6: the deadline must lie in [0.8, 0.88) of the lifetime."""
    lifetime = timedelta(days=days)
    deadline = renewal_deadline(certificate(lifetime), fraction=0.8, jitter=0.1, rng=Random(seed))
    assert 0.8 <= (deadline - START) / lifetime < 0.88


def test_renewal_is_spread() -> None:
    """Contract 4.6: the deadline must be drawn at random."""
    drawn = {
        renewal_deadline(certificate(timedelta(days=30)), fraction=0.8, jitter=0.1, rng=Random(seed))
        for seed in range(9)
    }
    assert len(drawn) == 9


@pytest.mark.parametrize("lifetime", [timedelta(0), timedelta(days=-1)])
def test_empty_validity_is_refused(lifetime: timedelta) -> None:
    """A certificate that is never valid has no renewal deadline."""
    with pytest.raises(InvalidCertificate):
        renewal_deadline(certificate(lifetime), fraction=0.8, jitter=0.1, rng=Random(1))


def test_expiry() -> None:
    """A certificate is expired from its end on."""
    month = certificate(timedelta(days=30))
    assert not month.expired(START + timedelta(days=30) - timedelta(seconds=1))
    assert month.expired(START + timedelta(days=30))


def test_first_of_the_chain_is_the_leaf(authority: Authority) -> None:
    """Contract 4.6: the chain must be taken as a whole, its first certificate is the leaf."""
    pem, _ = authority.issue_client("user", ["group"])
    chain = parse_chain(pem + authority.certificate_pem)
    assert [item.common_name for item in chain] == ["user", "test"]
    leaf = parse_leaf(pem + authority.certificate_pem)
    assert (leaf.common_name, leaf.organizations) == ("user", ("group",))
    assert leaf.not_before.tzinfo is not None
    assert leaf.not_before < leaf.not_after


@pytest.mark.parametrize("content", [b"", b"text", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate(content: bytes) -> None:
    """What does not parse is refused with one class."""
    with pytest.raises(InvalidCertificate):
        parse_chain(content)


def test_key_pair(authority: Authority) -> None:
    """Only a key that belongs to the leaf passes."""
    pem, key = authority.issue_client("user", [])
    _, other = authority.issue_client("user", [])
    assert check_key_pair(pem, key).common_name == "user"
    for wrong in (other, b"", b"-----BEGIN EC PRIVATE KEY-----\n"):
        with pytest.raises(InvalidCertificate):
            check_key_pair(pem, wrong)
