"""Requesting a certificate: the document, the wait, and what survives an interruption."""

import asyncio
import base64
import hashlib
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from agents.core.clock import Clock
from agents.kube.client import Client
from agents.kube.errors import (
    ApiError,
    Forbidden,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS
from agents.pki.csr import (
    CertificateNotIssued,
    CertificateRefused,
    CertificateRequester,
    IssuedCertificate,
    digest,
)
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.unit.agents.pki.conftest import Approver

USER = "gardener.cloud:node-agent:machine:m-1"
GROUP = "gardener.cloud:node-agents"


@pytest.fixture
def requester(client: Client, clock: Clock) -> CertificateRequester:
    """The node agent's requester."""
    return CertificateRequester(
        client=client,
        common_name=USER,
        organizations=[GROUP],
        name_prefix="node-agent-csr-",
        expiration=timedelta(hours=720),
        clock=clock,
    )


async def after(seconds: float, *acts: object) -> None:
    """Do things after a while."""
    await asyncio.sleep(seconds)
    for act in acts:
        assert callable(act)
        act()


async def play(requester: CertificateRequester, seconds: float, *acts: object) -> IssuedCertificate:
    """Request a certificate while things happen after some seconds."""
    async with asyncio.TaskGroup() as group:
        result = group.create_task(requester.request())
        group.create_task(after(seconds, *acts))
    return result.result()


async def failure(requester: CertificateRequester, seconds: float, *acts: object) -> Exception:
    """Return what a request fails with while things happen after some seconds."""

    async def attempt() -> Exception:
        with pytest.raises(Exception) as caught:
            await requester.request()
        return caught.value

    async with asyncio.TaskGroup() as group:
        result = group.create_task(attempt())
        group.create_task(after(seconds, *acts))
    return result.result()


async def test_request_document(requester: CertificateRequester, approver: Approver) -> None:
    """Contract 4.3: signer, usages in order, expiration, and the subject O and CN without SANs."""
    issued = await play(requester, 1, approver.issue)
    [document] = approver.requests
    spec = document["spec"]
    request = x509.load_pem_x509_csr(base64.b64decode(spec.pop("request")))
    assert spec == {
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["digital signature", "key encipherment", "client auth"],
        "expirationSeconds": 2592000,
    }
    assert [(item.oid._name, item.value) for item in request.subject] == [
        ("organizationName", GROUP),
        ("commonName", USER),
    ]
    assert list(request.extensions) == []
    assert request.is_signature_valid
    assert issued.key.startswith(b"-----BEGIN EC PRIVATE KEY-----\n")


async def test_key_and_name(requester: CertificateRequester, approver: Approver) -> None:
    """Contract 4.3: the key must be EC P-256, and the name must be the digest of key, subject and usages."""
    issued = await play(requester, 1, approver.issue)
    key = load_pem_private_key(issued.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp256r1"
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    items = [public, USER.encode(), GROUP.encode(), b"digital signature", b"key encipherment", b"client auth"]
    text = b"".join(base64.urlsafe_b64encode(item).rstrip(b"=") + b"|" for item in items)
    expected = base64.urlsafe_b64encode(hashlib.new("sha512_256", text).digest()).rstrip(b"=").decode()
    assert approver.requests[0]["metadata"]["name"] == f"node-agent-csr-{expected}"


def test_digest_of_known_items() -> None:
    """Contract 4.3: the digest must be SHA-512/256 of `a2V5|dXNlcg|Z3JvdXA|YQ|Yg|` for these items."""
    assert digest(b"key", "user", ["group"], ["a", "b"]) == "njU_vCOz79k2RnDwTwX85DdjFS6SOwcXuGx4FWM2mww"


async def test_each_attempt_has_a_new_key(requester: CertificateRequester, approver: Approver) -> None:
    """Contract 4.3: every attempt must have a new key."""
    first = await play(requester, 1, approver.issue)
    second = await play(requester, 1, approver.issue)
    assert first.key != second.key
    assert len(approver.requests) == 2


async def test_polls_by_name_every_two_seconds(
    requester: CertificateRequester, approver: Approver, api: FakeApi
) -> None:
    """Contract 4.3: the request must be read by name every 2 s; LIST and WATCH must not be used."""
    await play(requester, 19, approver.issue)
    name = approver.requests[0]["metadata"]["name"]
    reads = api.requests("GET")
    assert {call.path for call in reads} == {f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}"}
    assert len(reads) == 11


@pytest.mark.parametrize("condition", ["Approved", "Other"])
async def test_success_needs_approval_and_certificate(
    requester: CertificateRequester, approver: Approver, clock: FakeClock, condition: str
) -> None:
    """Contract 4.3: neither an approval without certificate nor a certificate without approval may end the wait."""
    started = clock.monotonic()

    def half() -> None:
        request = base64.b64decode(approver.requests[-1]["spec"]["request"])
        approver.decide(condition, certificate=None if condition == "Approved" else approver.sign(request))

    async with asyncio.TaskGroup() as group:
        group.create_task(after(1, half))
        group.create_task(after(11, approver.issue))
        await requester.request()
    assert clock.monotonic() - started == 12


@pytest.mark.parametrize("condition", ["Denied", "Failed"])
async def test_refusal_ends_the_wait_at_once(
    requester: CertificateRequester, approver: Approver, clock: FakeClock, condition: str
) -> None:
    """Contract 4.3: a condition Denied or Failed must end the wait at once; the next attempt is a new request."""
    started = clock.monotonic()
    error = await failure(requester, 1, lambda: approver.decide(condition))
    assert isinstance(error, CertificateRefused)
    assert error.fields["condition"] == condition
    assert clock.monotonic() - started == 2
    await play(requester, 1, approver.issue)
    assert len(approver.requests) == 2


async def test_a_refusal_has_the_words_of_whoever_decided(requester: CertificateRequester, approver: Approver) -> None:
    """Contract 4.5: reason and message of the condition are in the error, cut to 256 characters, and the same for each attempt."""

    async def refused() -> CertificateRefused:
        def deny() -> None:
            name = approver.requests[-1]["metadata"]["name"]
            approver.decide("Denied", message=f"{name}: node exists already" + "." * 1000)

        error = await failure(requester, 1, deny)
        assert isinstance(error, CertificateRefused)
        return error

    first, second = await refused(), await refused()
    assert first.fields["reason"] == "Test"
    assert str(first.fields["explanation"]).startswith("this request: node exists already..")
    assert len(str(first.fields["explanation"])) == 256
    assert first.decision == second.decision
    assert first.fields["certificateSigningRequest"] != second.fields["certificateSigningRequest"]


async def test_replaced_request_ends_the_wait(
    requester: CertificateRequester, approver: Approver, api: FakeApi
) -> None:
    """Contract 4.3: another UID under the name must end the wait."""

    def replace() -> None:
        document = approver.requests[0]
        api.remove(CERTIFICATE_SIGNING_REQUESTS, document["metadata"]["name"])
        api.put(CERTIFICATE_SIGNING_REQUESTS, {"metadata": {"name": document["metadata"]["name"]}, "spec": {}})

    error = await failure(requester, 1, replace)
    assert isinstance(error, CertificateNotIssued)
    assert error.fields["condition"] == "replaced"


async def test_request_that_is_gone(requester: CertificateRequester, approver: Approver, api: FakeApi) -> None:
    """A request that was deleted ends the wait; the next attempt is a new one."""

    def remove() -> None:
        api.remove(CERTIFICATE_SIGNING_REQUESTS, approver.requests[0]["metadata"]["name"])

    assert isinstance(await failure(requester, 1, remove), NotFound)
    await play(requester, 1, approver.issue)


async def test_wait_ends_after_15_minutes(
    requester: CertificateRequester, approver: Approver, clock: FakeClock
) -> None:
    """Contract 4.3: without a decision the wait must end after 15 min; the next attempt is a new request."""
    started = clock.monotonic()
    with pytest.raises(CertificateNotIssued):
        await requester.request()
    assert clock.monotonic() - started == 900
    await play(requester, 1, approver.issue)
    assert len(approver.requests) == 2


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("away"),
        ServerError("broken", status=500),
        TooManyRequests("slow down", status=429),
        Forbidden("no", status=403),
        InvalidResponse("nonsense"),
    ],
)
async def test_w28_failing_reads_are_tried_again(
    requester: CertificateRequester, approver: Approver, api: FakeApi, error: ApiError
) -> None:
    """Contract 9 W28: transport errors, 429, 5xx and 403 while waiting must be retried, with the same request and key.

    Contract core 13 W4: the same for gardenlet's request.
    """

    def heal() -> None:
        api.heal()
        approver.issue()

    async with asyncio.TaskGroup() as group:
        group.create_task(after(1, lambda: api.fail(error, method="GET")))
        group.create_task(after(61, heal))
        await requester.request()
    assert len(approver.requests) == 1


async def test_w28_reads_that_fail_to_the_end(requester: CertificateRequester, api: FakeApi) -> None:
    """Contract 9 W28: retrying must end with the deadline; the last problem is kept as the cause."""
    error = Forbidden("no", status=403)
    api.fail(error, method="GET")
    with pytest.raises(CertificateNotIssued) as caught:
        await requester.request()
    assert caught.value.__cause__ is error


async def test_retry_after_is_obeyed_while_waiting(
    requester: CertificateRequester, approver: Approver, api: FakeApi, clock: FakeClock
) -> None:
    """A server that asks to wait is read again after that time and not before."""
    started = clock.monotonic()
    api.fail(TooManyRequests("slow down", status=429, after=timedelta(seconds=100)), method="GET", times=1)
    await play(requester, 1, approver.issue)
    assert clock.monotonic() - started == 100


async def test_w28_interrupted_wait_is_resumed(
    requester: CertificateRequester, approver: Approver, clock: FakeClock
) -> None:
    """Contract 9 W28: a wait that the reconcile deadline of 3 min interrupts must go on with the same request and key."""
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(180):
                await requester.request()
    approver.issue()
    started = clock.monotonic()
    await requester.request()
    assert clock.monotonic() == started
    assert len(approver.requests) == 1


async def test_refused_credentials_keep_the_request(
    requester: CertificateRequester, approver: Approver, api: FakeApi
) -> None:
    """A 401 is told to the caller at once; with good credentials the same request goes on."""
    error = await failure(requester, 1, lambda: api.fail(Unauthorized("no", status=401), method="GET"))
    assert isinstance(error, Unauthorized)
    api.heal()
    await play(requester, 1, approver.issue)
    assert len(approver.requests) == 1


async def test_w28_failed_creation_is_repeated_with_the_same_key(
    requester: CertificateRequester, approver: Approver, api: FakeApi
) -> None:
    """Contract 9 W28: a request that could not be created must be created later under the same name."""
    api.fail(Unavailable("away"), times=1)
    with pytest.raises(Unavailable):
        await requester.request()
    [first] = api.requests("POST")
    await play(requester, 1, approver.issue)
    assert api.requests("POST")[1].body == first.body


async def test_lost_answer_to_the_creation(requester: CertificateRequester, approver: Approver, api: FakeApi) -> None:
    """If the answer to the creation got lost, the request that exists is the one to wait for."""
    api.fail(Unavailable("away"), times=1)
    with pytest.raises(Unavailable):
        await requester.request()
    await api.request(api.requests("POST")[0])
    await play(requester, 1, approver.issue)
    assert len(approver.requests) == 1


async def test_certificate_of_another_key(requester: CertificateRequester, approver: Approver) -> None:
    """What is issued must belong to our key, else it is not used."""
    other = CertificateRequester(
        client=requester._client,
        common_name="x",
        organizations=[],
        name_prefix="x-",
        expiration=timedelta(hours=1),
        clock=requester._clock,
    )
    foreign = (await play(other, 1, approver.issue)).certificate
    error = await failure(requester, 1, lambda: approver.decide("Approved", certificate=foreign))
    assert isinstance(error, CertificateNotIssued)


async def test_key_does_not_show(requester: CertificateRequester, approver: Approver) -> None:
    """The text of what was issued shows no key."""
    assert "PRIVATE" not in repr(await play(requester, 1, approver.issue))
