"""Replacing gardenlet's certificate, in virtual time: when, with what, and what happens if it does not work."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from agents.core.shutdown import Shutdown
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.errors import Unauthorized, Unavailable
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS, EVENTS, SECRETS
from agents.pki.certificate import parse_leaf
from agents.pki.csr import CertificateRequester
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.rotation import FAILED, Parts, RotationMetrics, new_controller
from gardenlet.bootstrap.secrets import KubeconfigSecret, PendingSecret
from gardenlet.config import KubeconfigValidity, SecretReference
from tests.lab import pki
from tests.support.clock import EPOCH, FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running, settle
from tests.unit.agents.pki.conftest import Approver

REFERENCE = SecretReference(name="kubeconfig", namespace="garden")
USER = "gardener.cloud:system:seed:one"
LIFE = timedelta(hours=20)
SEED_PATH = "/apis/core.gardener.cloud/v1beta1/seeds/one"


class Rotating:
    """A seed with a stored kubeconfig, a garden that approves, and the rotation between them."""

    def __init__(self) -> None:
        self.clock, self.shutdown, self.metrics = FakeClock(), Shutdown(), Metrics()
        self.garden, self.beats, self.seed = FakeApi(), FakeApi(), FakeApi()
        self.client = Client(transport=self.garden, rng=Random(1))
        self.seed_client = Client(transport=self.seed, rng=Random(2))
        self.authority = pki.Authority.create("ca")
        self.approver = Approver(self.garden)
        self.material, self.approves = False, True
        self.expires: list[datetime] = []
        self.life = LIFE
        self.shown = RotationMetrics(self.metrics)
        self.store(age=timedelta(0))
        self.recorder = EventRecorder(client=self.client, instance="test", clock=self.clock)

    def store(self, *, age: timedelta, renew: bool = False, proxy: str = "", tls_server_name: str = "") -> None:
        """Store a kubeconfig whose certificate is so old."""
        key = pki.new_key()
        request = pki.client_request(key, USER, ["gardener.cloud:system:seeds"])
        certificate = self.approver.sign(request, start=EPOCH - age, lifetime=self.life)
        credentials = Credentials(client_certificate=certificate, client_key=pki.private_key_pem(key))
        access = ClusterAccess(
            server="https://garden",
            ca_data=self.authority.certificate_pem,
            credentials=credentials,
            proxy=proxy,
            tls_server_name=tls_server_name,
        )
        content = kubeconfig.render(access)
        annotations = {"gardener.cloud/operation": "renew"} if renew else {}
        metadata = {"name": "kubeconfig", "namespace": "garden", "annotations": annotations}
        self.seed.put(SECRETS, {"metadata": metadata, "data": {"kubeconfig": base64.b64encode(content).decode()}})

    def ask(self) -> None:
        """Ask for a new certificate."""
        secret = self.secret()
        metadata = {**secret["metadata"], "annotations": {"gardener.cloud/operation": "renew"}}
        self.seed.put(SECRETS, {**secret, "metadata": metadata})

    def secret(self) -> dict[str, Any]:
        """Return the Secret."""
        found = self.seed.read(SECRETS, "kubeconfig", "garden")
        assert found is not None
        return found

    def certificate(self) -> bytes:
        """Return what is stored."""
        content = base64.b64decode(self.secret()["data"]["kubeconfig"])
        return kubeconfig.parse(content).credentials.client_certificate

    async def _approve(self) -> None:
        while True:
            await asyncio.sleep(1)
            if self.approves and self.approver.requests and not self.approver.requests[-1].get("status"):
                request = base64.b64decode(self.approver.requests[-1]["spec"]["request"])
                signed = self.approver.sign(request, start=self.clock.now(), lifetime=self.life)
                self.approver.decide("Approved", certificate=signed)

    async def _has_material(self) -> bool:
        return self.material

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Run the rotation."""
        pending = PendingSecret(self.seed_client, REFERENCE)
        requester = CertificateRequester(
            client=self.client,
            common_name=USER,
            organizations=["gardener.cloud:system:seeds"],
            name_prefix="seed-csr-",
            expiration=None,
            clock=self.clock,
            store=pending,
        )
        parts = Parts(
            seed_name="one",
            secret=KubeconfigSecret(self.seed_client, REFERENCE),
            requester=requester,
            pending=pending,
            clients=GardenClients(
                ClusterAccess(server="https://in-cluster"), self.client, Client(transport=self.beats, rng=Random(3))
            ),
            recorder=self.recorder,
            validity=KubeconfigValidity(),
            shutdown=self.shutdown,
            has_material=self._has_material,
            expires=self.expires.append,
            clock=self.clock,
            rng=Random(4),
            metrics=self.shown,
        )
        cache = Cache(client=self.seed_client, clock=self.clock, rng=Random(5))
        secrets = cache.informer(SECRETS, namespace="garden", field_selector="metadata.name=kubeconfig")
        controller = new_controller(parts, secrets, Request("garden", "kubeconfig"))
        environment = Environment(clock=self.clock, rng=Random(6), metrics=self.metrics)
        async with running(cache.run, self._approve, self.recorder.run, lambda: controller.run(environment)):
            yield

    def failures(self) -> list[str]:
        """Return the notes of the events about failures."""
        return [one["note"] for one in self.garden.stored(EVENTS) if one["reason"] == FAILED]

    def requests(self) -> int:
        """Return the number of requests for certificates."""
        return len(self.garden.stored(CERTIFICATE_SIGNING_REQUESTS))


@pytest.fixture
async def rotating() -> Rotating:
    """A certificate that was issued right now, for twenty hours."""
    return Rotating()


async def test_between_70_and_90_percent(rotating: Rotating) -> None:
    """Contract core 4.1: not before 70 %, and before 90 % of its life; then again, from the new one on."""
    first = rotating.certificate()
    async with rotating.going():
        await asyncio.sleep(LIFE.total_seconds() * 0.7 - 60)
        assert rotating.certificate() == first
        assert rotating.requests() == 0
        await asyncio.sleep(LIFE.total_seconds() * 0.2 + 3700)
        second = rotating.certificate()
        assert second != first
        assert rotating.requests() == 1
        await asyncio.sleep(LIFE.total_seconds() * 0.9 + 3700)
        assert rotating.certificate() != second
    assert rotating.shutdown.requested is None
    assert len(rotating.expires) == 3


async def test_all_clients_use_it_and_nothing_is_left(rotating: Rotating) -> None:
    """Contract core 4.2, W14: proven with the own Seed, stored, used by every client; no key waits any more."""
    rotating.store(age=LIFE * 0.95)
    async with rotating.going():
        await asyncio.sleep(30)
        (access,), (beats,) = rotating.garden.switches, rotating.beats.switches
        assert access.credentials.client_certificate == beats.credentials.client_certificate == rotating.certificate()
        assert any(call.path == SEED_PATH for call in rotating.garden.calls)
        assert rotating.seed.read(SECRETS, "kubeconfig-pending", "garden") is None
        assert parse_leaf(rotating.certificate()).common_name == USER
        metric = "gardenlet_certificate_rotation_total"
        assert rotating.metrics.registry.get_sample_value(metric, {"result": "success"}) == 1


async def test_the_way_to_the_garden_stays_as_it_was_stored(rotating: Rotating) -> None:
    """Contract core 13 W10, 13 W44: server, proxy and TLS server name are the Secret's, whatever the process uses meanwhile."""
    rotating.store(age=LIFE * 0.95, proxy="http://proxy:3128", tls_server_name="api.garden")
    first = rotating.certificate()
    async with rotating.going():
        await asyncio.sleep(30)
    assert rotating.certificate() != first
    stored = kubeconfig.parse(base64.b64decode(rotating.secret()["data"]["kubeconfig"]))
    assert (stored.server, stored.proxy, stored.tls_server_name) == (
        "https://garden",
        "http://proxy:3128",
        "api.garden",
    )


async def test_asked_for_it_is_done_at_once_and_the_process_starts_anew(rotating: Rotating) -> None:
    """Contract core 4.3, D3, 13.1.3: within seconds of the annotation, which goes with the new certificate; exit 0."""
    first = rotating.certificate()
    async with rotating.going():
        await asyncio.sleep(3600)
        rotating.ask()
        await asyncio.sleep(10)
        assert rotating.certificate() != first
        assert rotating.secret()["metadata"].get("annotations", {}).get("gardener.cloud/operation") is None
        assert rotating.shutdown.requested is not None
        assert not rotating.shutdown.failed


async def test_an_annotation_that_waits_counts_at_the_start(rotating: Rotating) -> None:
    """Contract core 0, D3: a start with the annotation rotates, however long the certificate is still valid."""
    rotating.store(age=timedelta(0), renew=True)
    async with rotating.going():
        await asyncio.sleep(10)
        assert rotating.requests() == 1
        assert rotating.shutdown.requested is not None


async def test_one_that_is_not_accepted_changes_nothing(rotating: Rotating) -> None:
    """Contract core 4.2, W5, W14: the old one stays stored and in use, one request, one event in ten minutes; then it works."""
    rotating.store(age=LIFE * 0.95)
    first = rotating.certificate()
    rotating.garden.fail(Unauthorized("no", status=401), path=SEED_PATH)
    async with rotating.going():
        await asyncio.sleep(550)
        assert rotating.certificate() == first
        assert rotating.garden.switches == []
        assert rotating.requests() == 1
        (note,) = rotating.failures()
        assert "1.0 h left" in note
        rotating.garden.heal()
        await asyncio.sleep(900)
        assert rotating.certificate() != first
        assert rotating.requests() == 1


async def test_nobody_approves(rotating: Rotating) -> None:
    """Contract core 4.2, W5: after 15 minutes another request, never two at once; each failure is said, not each second."""
    rotating.store(age=LIFE * 0.95)
    rotating.approves = False
    async with rotating.going():
        await asyncio.sleep(3600)
        assert 2 <= rotating.requests() <= 5
        assert 1 <= len(rotating.failures()) <= 6
        rotating.approves = True
        await asyncio.sleep(1900)
        assert rotating.garden.switches


async def test_an_expired_one_starts_over_where_there_is_material(rotating: Rotating) -> None:
    """Contract core 3.1, W7: with a bootstrap kubeconfig the process starts anew, without one it keeps trying and says so."""
    rotating.store(age=LIFE + timedelta(hours=1))
    rotating.garden.fail(Unauthorized("expired", status=401))
    async with rotating.going():
        await asyncio.sleep(60)
        assert rotating.shutdown.requested is None
        rotating.material = True
        await asyncio.sleep(1900)
        assert rotating.shutdown.requested == "client certificate has expired, bootstrapping again"


async def test_a_client_that_cannot_switch_now_does_so_later(rotating: Rotating) -> None:
    """Contract core 4.2: the heartbeat's connections are switched as well, if need be with the next look."""
    rotating.store(age=LIFE * 0.95)
    rotating.beats.fail(Unavailable("away"))
    async with rotating.going():
        await asyncio.sleep(30)
        assert rotating.garden.switches
        assert rotating.beats.switches == []
        rotating.beats.heal()
        await asyncio.sleep(70)
        assert len(rotating.beats.switches) == 1


async def test_a_key_that_is_in_use_is_not_asked_for_again(rotating: Rotating) -> None:
    """Contract core 13.1.2: killed between storing and removing the key, the next process does not take it for a new one."""
    rotating.store(age=LIFE * 0.95)
    async with rotating.going():
        await asyncio.sleep(2)
        kept = rotating.seed.read(SECRETS, "kubeconfig-pending", "garden")
        await asyncio.sleep(30)
    assert kept is not None
    rotating.seed.put(SECRETS, kept)
    second = rotating.certificate()
    async with rotating.going():
        await settle()
        await asyncio.sleep(1)
        assert rotating.seed.read(SECRETS, "kubeconfig-pending", "garden") is None
        rotating.ask()
        await asyncio.sleep(10)
        assert rotating.certificate() != second


async def test_a_token_is_nothing_to_rotate(rotating: Rotating) -> None:
    """Contract core 3.1, W21: a kubeconfig with somebody's token is left alone."""
    content = kubeconfig.render(ClusterAccess(server="https://garden", credentials=Credentials(token="t")))
    metadata = {"name": "kubeconfig", "namespace": "garden"}
    rotating.seed.put(SECRETS, {"metadata": metadata, "data": {"kubeconfig": base64.b64encode(content).decode()}})
    async with rotating.going():
        await asyncio.sleep(7200)
        assert rotating.requests() == 0
        assert rotating.failures() == []
