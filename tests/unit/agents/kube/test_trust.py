"""Which authorities are trusted while they are being rotated."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from agents.core.files import FileError
from agents.kube.kubeconfig import ClusterAccess, InvalidKubeconfig
from agents.kube.trust import Authorities, Trust, is_older
from tests.lab.pki import Authority

FIRST, SECOND, THIRD = (
    Authority.create(name, age=timedelta(days=days)).certificate_pem
    for name, days in (("first", 20), ("second", 10), ("third", 0))
)


@pytest.mark.parametrize(
    ("named", "known", "older"),
    [
        ([FIRST], [SECOND], True),
        ([SECOND], [FIRST], False),
        ([FIRST], [FIRST], False),
        ([FIRST], [FIRST, SECOND], True),  # before the rotation
        ([SECOND], [FIRST, SECOND], False),  # its end: the old one is dropped
        ([FIRST, SECOND], [SECOND], False),  # contains it
        ([FIRST, SECOND], [SECOND, THIRD], True),
        ([THIRD], [FIRST, SECOND], False),
    ],
)
def test_older_is_told_by_the_newest_certificate(
    named: Sequence[bytes],
    known: Sequence[bytes],
    older: bool,
) -> None:
    """The newest notBefore decides, and a bundle that contains the other one is never the older one."""
    assert is_older(b"\n".join(named), than=b"# text\n" + b"".join(known)) is older


@pytest.fixture
def access(tmp_path: Path) -> ClusterAccess:
    """A kubeconfig that names a CA file."""
    return ClusterAccess(server="a", ca_file=tmp_path / "ca.crt")


def name(access: ClusterAccess, *bundle: bytes) -> None:
    """Put certificates into the CA file."""
    assert access.ca_file is not None
    access.ca_file.write_bytes(b"".join(bundle))


def choose(trust: Trust, access: ClusterAccess) -> Authorities:
    """Return what is trusted."""
    chosen = trust.choose(access)
    assert chosen is not None
    return chosen


def test_an_older_bundle_does_not_replace_a_newer_one(access: ClusterAccess, tmp_path: Path) -> None:
    """Contract 4.7: user data that writes the first day's bundle back: the newer one stays, also in a new process."""
    trust = Trust(tmp_path / "kept")
    name(access, SECOND)
    trust.verified(choose(trust, access))
    assert trust.keep()
    assert not trust.keep()
    name(access, FIRST)
    with structlog.testing.capture_logs() as lines:
        for again in (trust, trust, Trust(tmp_path / "kept")):
            assert choose(again, access).pem == SECOND
    assert [line["event"] for line in lines] == [
        "CA bundle is older than the one that worked before and is not used"
    ] * 2  # once in each process


def test_old_and_new_are_trusted_together_until_the_new_one_suffices(access: ClusterAccess) -> None:
    """The file has only the new authority, the server still shows the old one: both, and the old one no longer than needed."""
    trust = Trust()
    name(access, FIRST)
    trust.verified(choose(trust, access))
    name(access, SECOND)
    alone = choose(trust, access)
    assert (alone.pem, alone.together) == (SECOND, False)
    trust.refused(alone)
    both = choose(trust, access)
    assert both.together
    assert FIRST in both.pem
    assert SECOND in both.pem
    trust.verified(both)
    alone = choose(trust, access)
    assert alone.pem == SECOND
    trust.verified(alone)
    trust.refused(choose(trust, access))
    assert choose(trust, access).pem == SECOND


def test_an_older_bundle_helps_where_nothing_else_does(access: ClusterAccess) -> None:
    """A control plane restored from a backup has its old authority: it is found with both, and replaces nothing."""
    trust = Trust()
    name(access, SECOND)
    trust.verified(choose(trust, access))
    name(access, FIRST)
    trust.refused(choose(trust, access))
    both = choose(trust, access)
    assert (both.together, both.newer) == (True, SECOND)
    trust.refused(both)
    assert not choose(trust, access).together


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None])
def test_a_damaged_bundle_counts_as_none(access: ClusterAccess, content: bytes | None) -> None:
    """Contract 9 W2: an empty, torn or missing CA file locks nobody out who had one that worked."""
    trust = Trust()
    name(access, SECOND)
    trust.verified(choose(trust, access))
    assert access.ca_file is not None
    access.ca_file.unlink()
    if content is not None:
        name(access, content)
    assert choose(trust, access).pem == SECOND
    with pytest.raises((InvalidKubeconfig, FileError)):
        Trust().choose(access)


def test_what_is_remembered_may_be_damaged(access: ClusterAccess, tmp_path: Path) -> None:
    """A remembered bundle that does not parse counts as none and is written anew."""
    (tmp_path / "kept").write_bytes(b"\x00" * 100)
    trust = Trust(tmp_path / "kept")
    name(access, FIRST)
    trust.verified(choose(trust, access))
    assert trust.keep()
    assert (tmp_path / "kept").read_bytes() == FIRST
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600


def test_without_a_bundle_the_system_decides() -> None:
    """No CA, or no verification: nothing is chosen."""
    assert Trust().choose(ClusterAccess(server="a")) is None
    assert Trust().choose(ClusterAccess(server="a", ca_data=FIRST, insecure=True)) is None
