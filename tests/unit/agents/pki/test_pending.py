"""A key without a certificate survives the process that made it."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core.clock import Clock
from agents.kube.client import Client
from agents.kube.errors import Unavailable
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS
from agents.pki.csr import CertificateNotIssued, CertificateRequester
from agents.pki.pending import FilePendingStore, PendingRequest
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.unit.agents.pki.conftest import Approver

PENDING = PendingRequest("name", b"key", b"request", "me", "uid")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is; its folder does not exist yet."""
    return tmp_path / "credentials" / "pending-request.json"


def requester(client: Client, clock: Clock, path: Path, *, asked_by: str = "token") -> CertificateRequester:
    """Return what a process that has just started has."""
    return CertificateRequester(
        client=client,
        common_name="user",
        organizations=["group"],
        name_prefix="csr-",
        expiration=timedelta(hours=1),
        clock=clock,
        asked_by=asked_by,
        store=FilePendingStore(path),
    )


async def killed(found: CertificateRequester, seconds: float) -> None:
    """Ask for a certificate, and go away after a while as a killed process does."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await found.request()


def requests(api: FakeApi) -> list[str]:
    """Return the names of all requests that exist."""
    return [document["metadata"]["name"] for document in api.stored(CERTIFICATE_SIGNING_REQUESTS)]


async def test_the_file_is_ours_alone(path: Path) -> None:
    """Contract 4.3, OURS: 0600 in a folder 0700, all of it comes back, and nothing shows the key."""
    store = FilePendingStore(path)
    await store.save(PENDING)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert await store.load() == PENDING
    assert "key" not in repr(PENDING).replace("key=", "")
    await store.clear()
    assert await store.load() is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"name": "n"}', b'{"name":"n","key":"*","request":"","asked_by":""}'])
async def test_a_damaged_file_counts_as_none_and_goes(path: Path, content: bytes) -> None:
    """Contract 4.3, OURS: a torn file is removed, since a key without its request opens nothing."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert await FilePendingStore(path).load() is None
    assert not path.exists()


async def test_w28_a_killed_process_goes_on_with_its_request(
    client: Client, clock: Clock, approver: Approver, api: FakeApi, path: Path
) -> None:
    """Contract 9 W28: killed while it waited, the next process gets the certificate of the same request."""
    await killed(requester(client, clock, path), 5)
    (name,) = requests(api)
    approver.issue()
    issued = await requester(client, clock, path).request()
    assert requests(api) == [name]
    assert b"PRIVATE KEY" in issued.key


async def test_w28_killed_before_the_request_was_made(
    client: Client, clock: Clock, approver: Approver, api: FakeApi, path: Path
) -> None:
    """Contract 9 W28: the key is kept before the request is sent, and the next process sends it, once."""
    fault = api.fail(Unavailable("away"), method="POST")
    with pytest.raises(Unavailable):
        await requester(client, clock, path).request()
    assert fault is not None
    api.heal()
    kept = await FilePendingStore(path).load()
    assert kept is not None
    await killed(requester(client, clock, path), 3)
    assert requests(api) == [kept.name]
    assert approver is not None


async def test_the_same_certificate_until_it_is_used(
    client: Client, clock: Clock, approver: Approver, api: FakeApi, path: Path
) -> None:
    """Contract 4.3, OURS: killed after it was issued and before it was stored, no second request is made."""
    await killed(requester(client, clock, path), 5)
    approver.issue()
    first = await requester(client, clock, path).request()
    again = requester(client, clock, path)
    assert await again.request() == first
    await again.used()
    assert not path.exists()
    assert len(requests(api)) == 1


async def test_somebody_elses_request_is_not_gone_on_with(
    client: Client, clock: Clock, approver: Approver, api: FakeApi, path: Path
) -> None:
    """Contract 4.8: what a bootstrap token asked for may not be read with a certificate."""
    await killed(requester(client, clock, path), 5)
    await killed(requester(client, clock, path, asked_by="certificate"), 5)
    assert len(requests(api)) == 2
    assert approver is not None


async def test_a_refused_request_is_not_gone_on_with(
    client: Client, clock: Clock, approver: Approver, api: FakeApi, path: Path
) -> None:
    """Contract 4.3: after a denial the key is gone, and the next attempt has a new one."""
    await killed(requester(client, clock, path), 5)
    approver.decide("Denied")
    with pytest.raises(CertificateNotIssued):
        await requester(client, clock, path).request()
    assert not path.exists()
    await killed(requester(client, clock, path), 5)
    assert len(requests(api)) == 2


async def test_what_was_issued_long_ago_is_of_no_use(
    client: Client, clock: FakeClock, approver: Approver, path: Path
) -> None:
    """Contract 4.3, OURS: a machine that was off for weeks asks anew instead of taking an expired certificate."""
    await killed(requester(client, clock, path), 5)
    approver.issue()
    clock.jump(400 * 86400)
    with pytest.raises(CertificateNotIssued, match="long ago"):
        await requester(client, clock, path).request()
    assert not path.exists()
